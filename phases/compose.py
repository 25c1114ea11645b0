"""Tasks out of tasks: one after the other, side by side, with a deadline, tried again; and out of a function."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextvars import copy_context
from typing import TYPE_CHECKING

from phases.context import logger_of
from phases.exceptions import CONTEXT_OVER, CancelledError, TaskFailedError, describe
from phases.runner import execute, log_line, plan, undo
from phases.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phases.context import Context
    from phases.task import Change

__all__ = ["Parallel", "Serial", "task", "with_retry", "with_timeout"]


class _Group(ABC):
    """What Serial and Parallel share."""

    _kind = ""

    def __init__(self, *tasks: Task, name: str | None = None) -> None:
        for each in tasks:
            _require_task(each)
        self.subtasks = tasks
        self.anonymous = name is None
        self.name = f"{self._kind}({', '.join(each.name for each in tasks)})" if name is None else name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def do(self, ctx: Context) -> None:
        """Execute the subtasks."""

    def plan(self, ctx: Context) -> Sequence[Change]:
        """What the subtasks would change; `phases.plan` also tells which of them cannot say."""
        return plan(self, ctx).changes

    def undo(self, ctx: Context) -> None:
        """Undo the subtasks, newest first, going on past failures."""
        failures = []
        for subtask in reversed(self.subtasks):
            try:
                undo(subtask, ctx)
            except TaskFailedError as error:
                failures.append(error)
            except CONTEXT_OVER:
                if not failures:
                    raise
                break
        if failures:
            raise TaskFailedError.combine(failures)


class Serial(_Group):
    """One task after the other; the first failure ends it.

    Without a `name` it is called after its tasks, and stands in no path.

    >>> Serial(task("a")(print), task("b")(print)).name
    'serial(a, b)'
    """

    _kind = "serial"

    def do(self, ctx: Context) -> None:
        """Execute the subtasks in order."""
        for subtask in self.subtasks:
            execute(subtask, ctx)


class Parallel(_Group):
    """All tasks at once, each in a thread; the first failure cancels the others.

    It waits for all of them, as threads cannot be killed; those that have not ended `grace`
    seconds after they were cancelled are named in the log. The first failure is raised, the others
    are reached through it; who only ended because we cancelled it has not failed.

    >>> Parallel(task("a")(print), task("b")(print)).name
    'parallel(a, b)'
    """

    _kind = "parallel"

    def __init__(self, *tasks: Task, name: str | None = None, grace: float = 5.0) -> None:
        super().__init__(*tasks, name=name)
        self._grace = grace

    def do(self, ctx: Context) -> None:
        """Execute the subtasks side by side."""
        ours = ctx.child()
        # By position: the same task may stand in a group twice.
        running: dict[int, Task] = {}
        errors: list[BaseException] = []

        def one(position: int, subtask: Task) -> None:
            try:
                execute(subtask, ours)
            except BaseException as error:  # noqa: BLE001 - it is raised again below, in the caller's thread
                errors.append(error)
                ours.cancel(f"{subtask.name} failed")
            finally:
                del running[position]
                ours.notify()

        try:
            for position, subtask in enumerate(self.subtasks):
                # Daemons: a second Ctrl-C must be able to end the program even if a task does not listen.
                # A copy of the context variables, for those who bind values of their log lines in them.
                arguments = (one, position, subtask)
                thread = threading.Thread(target=copy_context().run, args=arguments, name=subtask.name, daemon=True)
                running[position] = subtask
                try:
                    thread.start()
                except RuntimeError:  # no more threads
                    del running[position]
                    raise
            self._wait(ours, running)
        except BaseException as error:
            # Who interrupts a second time does not want to wait any more.
            if isinstance(error, Exception) or not ours.over:
                ours.cancel(describe(error))
                self._wait(ours, running)
            raise
        _raise_first(errors)

    def _wait(self, ctx: Context, running: dict[int, Task]) -> None:
        ctx.wait(lambda: not running or ctx.cancelled, until=ctx.deadline)
        if not ctx.wait(lambda: not running, until=ctx.clock.monotonic() + self._grace):
            names = ", ".join(subtask.name for subtask in running.copy().values())
            logger_of(ctx).warning("still waiting for %s: cancelled %g s ago", names, self._grace)
            ctx.wait(lambda: not running)


def _raise_first(errors: Sequence[BaseException]) -> None:
    """Raise what weighs most: an interrupt, then failures, then that the context is over."""
    failures = [error for error in errors if isinstance(error, TaskFailedError)]
    interrupts = [error for error in errors if not isinstance(error, Exception)]
    if interrupts:
        raise interrupts[0]
    if failures:
        raise TaskFailedError.combine(failures)
    if errors:
        raise errors[0]


class _Made:
    """A task put together from functions."""

    def __init__(self, name: str, do: Callable[[Context], None], **abilities: object) -> None:
        self.name = name
        self.do = do
        # On the instance: a class that had the methods would promise them for every task.
        for ability, given in abilities.items():
            if given is not None:
                setattr(self, ability, given)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _around(task: Task, do: Callable[[Context], None]) -> Task:
    """A task with another `do`, and all else as it was: nobody who plans or reports sees the wrapping."""
    abilities = ("plan", "undo", "subtasks", "anonymous")
    return _Made(task.name, do, **{ability: getattr(task, ability, None) for ability in abilities})


def with_timeout(task: Task, seconds: float) -> Task:
    """The task with at most `seconds` for its `do`; running out is a failure, with DeadlineExceededError as its cause.

    It is the task's context that ends: a task that does not look at it is not stopped.

    >>> execute(with_timeout(task("nap")(lambda ctx: ctx.sleep(60)), 0))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: nap: deadline exceeded: not done within 0 s
    """
    _require_task(task)
    return _around(task, lambda ctx: task.do(ctx.child(timeout=seconds)))


def with_retry(
    task: Task,
    *,
    attempts: int,
    backoff: float = 1.0,
    max_backoff: float = 30.0,
    retry_on: tuple[type[Exception], ...] = (Exception,),
) -> Task:
    """The task, done again after an error of `retry_on`, up to `attempts` times in all.

    The pauses begin with `backoff` seconds and double up to `max_backoff`; they end with the
    context. The last error is raised, the earlier ones are in its `failures`. A group is done again
    if all its failures are of `retry_on`. What was cancelled is never done again.

    >>> from phases.testing import FailingTask
    >>> execute(with_retry(FailingTask("flaky", OSError("busy"), times=2), attempts=3, backoff=0))
    """
    _require_task(task)
    if attempts < 1:
        raise ValueError(f"attempts is 1 or more, not {attempts}")

    def do(ctx: Context) -> None:
        failures: list[TaskFailedError] = []
        pause = min(backoff, max_backoff)
        while True:
            try:
                return task.do(ctx)
            except Exception as error:
                if isinstance(error, CONTEXT_OVER) and ctx.over:
                    raise
                last = error if isinstance(error, TaskFailedError) else TaskFailedError((), error)
                if len(failures) + 1 == attempts or not _all_of(last.failures, retry_on):
                    # The last is the one to show; the earlier ones are not lost.
                    raise TaskFailedError.combine([last, *failures]) from last.cause
                failures.append(last)
            word = f"attempt {len(failures)} of {attempts} failed, next in {pause:g} s"
            log_line(logger_of(ctx).warning, word, (task.name,), "retrying", error=last)
            try:
                ctx.sleep(pause)
            except CONTEXT_OVER as over:
                raise over from last
            pause = min(2 * pause, max_backoff)

    return _around(task, do)


def _all_of(causes: Sequence[BaseException], kinds: tuple[type[Exception], ...]) -> bool:
    return all(isinstance(cause, kinds) and not isinstance(cause, CancelledError) for cause in causes)


def task(
    name: str,
    *,
    plan: Callable[[Context], Sequence[Change]] | None = None,
    undo: Callable[[Context], None] | None = None,
) -> Callable[[Callable[[Context], None]], Task]:
    """Make a Task of a function.

    >>> @task("greet", undo=lambda ctx: print("bye"))
    ... def greet(ctx):
    ...     print("hello")
    >>> execute(greet)
    hello
    """
    if not isinstance(name, str):
        raise TypeError('a task needs a name: write @task("name")')
    return lambda function: _Made(name, function, plan=plan, undo=undo)


def _require_task(candidate: object) -> None:
    if not isinstance(candidate, Task):
        raise TypeError(f"{candidate!r} is no task: a task has a name and do(ctx)")
