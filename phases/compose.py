"""Tasks out of tasks: one after the other, side by side, with a deadline, tried again; and out of a function."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextvars import copy_context
from typing import TYPE_CHECKING

from phases.context import logger_of
from phases.exceptions import CONTEXT_OVER, CancelledError, TaskFailedError, describe
from phases.mistakes import require_plain, require_runnable
from phases.runner import execute, execute_telling, log_line, plan, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phases.change import Change
    from phases.context import Context
    from phases.task import Task

__all__ = ["Parallel", "Serial", "task", "tolerate", "with_retry", "with_timeout"]


class _Group(ABC):
    """What Serial and Parallel share."""

    _kind = ""

    def __init__(self, *tasks: Task, name: str | None = None) -> None:
        for each in tasks:
            require_runnable(each)
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

    All begin, even if one fails before others got that far; the others are cancelled when the last
    has begun. None begins if the system refuses one of the threads, or if the caller's context is
    over; an interrupt or the end of the caller's context keeps those back that have not begun.

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
        crew = _Crew(ctx.child(), len(self.subtasks))
        try:
            for position, subtask in enumerate(self.subtasks):
                crew.start(position, subtask)
            self._wait(crew.ctx, crew.running)
        except BaseException as error:
            # Who interrupts a second time does not want to wait any more.
            patient = isinstance(error, Exception) or not crew.ctx.over
            crew.ctx.cancel(describe(error))
            if patient:
                self._wait(crew.ctx, crew.running)
            raise
        _raise_first(crew.errors)

    def _wait(self, ctx: Context, running: dict[int, Task]) -> None:
        ctx.wait(lambda: not running or ctx.cancelled, until=ctx.deadline)
        if not ctx.wait(lambda: not running, until=ctx.clock.monotonic() + self._grace):
            names = ", ".join(subtask.name for subtask in running.copy().values())
            logger_of(ctx).warning("still waiting for %s: cancelled %g s ago", names, self._grace)
            ctx.wait(lambda: not running)


class _Crew:
    """The threads of one Parallel; one that fails cancels the context, but not before all have begun."""

    def __init__(self, ctx: Context, size: int) -> None:
        self.ctx = ctx
        #: By position: the same task may stand in a group twice.
        self.running: dict[int, Task] = {}
        self.errors: list[BaseException] = []
        self._failed: list[str] = []
        # Positions: whose thread does not run yet, and whose task has not begun.
        self._absent = set(range(size))
        self._waiting = set(range(size))

    def start(self, position: int, task: Task) -> None:
        # Daemons: a second Ctrl-C must be able to end the program even if a task does not listen.
        # A copy of the context variables, for those who bind values of their log lines in them.
        arguments = (self._execute, position, task)
        thread = threading.Thread(target=copy_context().run, args=arguments, name=task.name, daemon=True)
        self.running[position] = task
        try:
            thread.start()
        except RuntimeError:  # no more threads
            del self.running[position]
            raise

    def _execute(self, position: int, task: Task) -> None:
        # Nobody begins before there is a thread for each: if one is refused, none shall have done anything.
        # Who is woken by a cancel finds the context over. No threading.Event, set by the caller's thread: a Ctrl-C
        # that hits inside of its `set` leaves it locked for ever.
        self._absent.discard(position)
        self.ctx.notify()
        self.ctx.wait(lambda: not self._absent or self.ctx.cancelled)
        try:
            execute_telling(task, self.ctx, begun=lambda: self._begun(position))
        except BaseException as error:  # noqa: BLE001 - it is raised again by `do`, in the caller's thread
            self.errors.append(error)
            self._failed.append(task.name)
        finally:
            self._begun(position)  # or it never will: it was skipped or refused
            del self.running[position]
            self.ctx.notify()

    def _begun(self, position: int) -> None:
        # Who fails adds itself to `_failed` first, then looks at `_waiting`: of two threads, one sees both.
        self._waiting.discard(position)
        if self._failed and not self._waiting:
            self.ctx.cancel(f"{self._failed[0]} failed")


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


def _around(task: Task, do: Callable[[Context], None], **others: object) -> Task:
    """Return a task with another `do`, and everything else of `task`: plans and reports do not show the wrapper."""
    names = ("plan", "undo", "records", "subtasks", "anonymous", "tolerate")
    return _Made(task.name, do, **{name: getattr(task, name, None) for name in names} | others)


def tolerate(task: Task, *, on_failure: Callable[[TaskFailedError], None] | None = None) -> Task:
    """The task, but its failure is a warning: logged and reported as `failed`, and not raised.

    The group goes on and is no worse for it; `on_failure` tells those who want to know. What was
    cancelled or interrupted is raised all the same, and so are failures of `plan` and `undo`. Such
    a failure does not make `run` undo anything; the task, as any that failed, is not undone either.

    >>> from phases.testing import FailingTask
    >>> failures = []
    >>> probes = tolerate(FailingTask("probes", OSError("no IPv6")), on_failure=failures.append)
    >>> execute(Serial(probes, task("routes")(lambda ctx: print("routes are there"))))
    routes are there
    >>> print(*failures)
    probes: no IPv6
    """
    require_runnable(task)
    return _around(task, task.do, tolerate=on_failure or (lambda _: None))


def with_timeout(task: Task, seconds: float, *, share: float = 1.0) -> Task:
    """The task with at most `seconds` for its `do`; running out is a failure, with DeadlineExceededError as its cause.

    It is the task's context that ends: a task that does not look at it is not stopped. With a `share` of less than 1
    the task gets no more than that part of the time that is left, so that the tasks after it have the rest.

    >>> execute(with_timeout(task("nap")(lambda ctx: ctx.sleep(60)), 0))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: nap: deadline exceeded: not done within 0 s
    """
    require_runnable(task)

    def do(ctx: Context) -> None:
        left = ctx.remaining()
        return task.do(ctx.child(timeout=seconds if left is None else min(seconds, share * left)))

    return _around(task, do)


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
    require_runnable(task)
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
    """Make a Task of a plain function that returns nothing.

    >>> @task("greet", undo=lambda ctx: print("bye"))
    ... def greet(ctx):
    ...     print("hello")
    >>> execute(greet)
    hello
    """
    if not isinstance(name, str):
        raise TypeError('a task needs a name: write @task("name")')
    for ability, given in (("plan", plan), ("undo", undo)):
        if given is not None:
            require_plain(given, f"{ability} of task {name!r}")

    def make(function: Callable[[Context], None]) -> Task:
        require_plain(function, f"do of task {name!r}")
        return _Made(name, function, plan=plan, undo=undo)

    return make
