"""Tasks made of tasks (in order, in parallel, with a deadline, with retries) or of a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NoReturn

from phases.context import Change, Context, Wait, Work, end_of_work, not_negative, notify, wait
from phases.exceptions import (
    CONTEXT_OVER,
    PhaseError,
    TaskFailedError,
    as_failure,
    describe,
    may_pass,
)
from phases.hosting import step_of
from phases.mistakes import (
    require_name,
    require_no_method,
    require_plain,
    require_task,
    wrong_argument,
)
from phases.report import Report, names_in_path
from phases.runner import (
    complete,
    do_step,
    execute,
    log_line,
    step_for,
    undo,
)
from phases.step import Step
from phases.task import Task

#: The seconds after which the log names the tasks that a group waits for.
_GRACE = 5.0
#: The seconds up to which the pauses between attempts double.
_LONGEST_PAUSE = 30.0


class _Group:
    """The common part of Serial and Parallel: tasks in order."""

    def __init__(self, *tasks: Task, name: str | None = None) -> None:
        kind = type(self).__name__
        if name is not None:
            require_name(name, f"a {kind}")
        if not tasks:
            raise ValueError(f"a {kind} without tasks does nothing: give at least one task")
        names = set()
        for subtask in tasks:
            require_task(subtask)
            for name_inside in names_in_path(subtask):
                if name_inside in names:
                    raise ValueError(f"a group has two tasks named {name_inside!r}: rename one")
                names.add(name_inside)
        #: The tasks inside, in their order.
        self.subtasks: tuple[Task, ...] = tasks
        self.anonymous: bool = name is None
        self.name: str = name or f"{kind.lower()}({', '.join(task.name for task in tasks)})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def do(self, ctx: Context) -> None:
        """Execute the subtasks in order."""
        for subtask in self.subtasks:
            execute(subtask, ctx)

    def undo(self, ctx: Context) -> None:
        """Undo the subtasks in reverse order; a failure does not stop the rest."""
        errors = []
        for subtask in reversed(self.subtasks):
            try:
                undo(subtask, ctx)
            except PhaseError as error:
                errors.append(error)
        _raise_first(errors)


class Serial(_Group):
    """Tasks in order; the first failure ends the group.

    Without a `name` the group is named after its tasks and is left out of paths.

    >>> Serial(task("a")(print), task("b")(print)).name
    'serial(a, b)'
    """


class Parallel(_Group):
    """Tasks at the same time, each in a thread; the first failure cancels the remaining tasks.

    All begin, even if one fails early; a failure cancels the rest once the last has begun. None
    begins if the caller's context is over; after an interrupt or the end of the caller's context no
    more tasks begin.

    The group waits for all tasks, as threads cannot be killed; the log names those that have not
    ended 5 seconds after they were cancelled. The first failure is raised and contains the later
    ones; a task that ended because the group cancelled it has not failed, unless it caught the
    CancelledError and returned.

    >>> Parallel(task("a")(print), task("b")(print)).name
    'parallel(a, b)'
    """

    def do(self, ctx: Context) -> None:
        """Execute the subtasks in threads."""
        inner = ctx.child()
        running: list[Step] = []
        errors: list[BaseException] = []

        def do_and_keep_error(step: Step) -> None:
            try:
                do_step(step, inner)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                errors.append(error)
            finally:
                running.remove(step)
                notify(inner)

        try:
            for subtask in self.subtasks:
                running.append(step := step_for(subtask, inner))
                # With a copy of the context variables, in which programs bind values for log lines.
                # Daemons: a second Ctrl-C must be able to end the program even if a task ignores
                # its context.
                work = partial(copy_context().run, do_and_keep_error, step)
                try:
                    threading.Thread(target=work, name=subtask.name, daemon=True).start()
                except RuntimeError:  # no more threads
                    running.remove(step)
                    step.report.status = "not-reached"
                    raise
            _wait_for(running, errors, inner)
        except BaseException as error:
            # A second interrupt ends the wait.
            patient = isinstance(error, Exception) or not inner.over
            inner.cancel(describe(error))
            if patient:
                _wait_for(running, errors, inner)
            raise
        _raise_first(errors)


def _wait_for(running: Sequence[Step], errors: Sequence[BaseException], ctx: Context) -> None:
    """Wait until all steps have ended; cancel them once one has failed and all have begun."""

    def failures() -> list[BaseException]:
        return [error for error in errors if not isinstance(error, CONTEXT_OVER)]

    def is_over() -> bool:
        have_begun = all(step.report.status == "running" for step in tuple(running))
        return not running or ctx.cancelled or bool(have_begun and failures())

    wait(ctx, is_over, until=end_of_work(ctx.clock, ctx.deadline))
    for failure in failures():
        ctx.cancel(f"{getattr(failure, 'path', describe(failure))} failed")
    until = end_of_work(ctx.clock, ctx.clock.monotonic() + _GRACE)
    if not wait(ctx, lambda: not running, until=until):
        names = ", ".join(step.report.name for step in tuple(running))
        ctx.log.warning("still waiting for %s: cancelled %g s ago", names, _GRACE)
        wait(ctx, lambda: not running)


def _raise_first(errors: Sequence[BaseException]) -> None:
    """Raise an interrupt of several errors, or else all failures, or else the end of the context.

    No failure of an attempt before an end is lost.
    """
    ends = [error for error in errors if isinstance(error, CONTEXT_OVER)]
    earlier = [failure for end in ends for failure in end.earlier]
    for error in errors:
        if not isinstance(error, Exception):
            raise error
    if failures := [error for error in errors if isinstance(error, TaskFailedError)]:
        raise TaskFailedError.combine([*failures, *earlier])
    for end in ends:
        end.earlier = tuple(earlier)
        raise end


class _Made:
    """A task made of functions."""

    name: str
    do: Work

    def __init__(self, **parts: Any) -> None:
        # On the instance: as methods of the class they would make every task plannable and
        # undoable.
        self.__dict__.update((part, given) for part, given in parts.items() if given is not None)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        right = "write run(it), or execute(it, ctx) inside a task"
        raise TypeError(f"task {self.name!r} is not called: {right}")


def _around(task: Task, **others: object) -> Task:
    """Return a copy of the task with `others` replaced; plans and reports show no wrapper."""
    require_task(task)
    names = ("name", "do", "plan", "undo", "records", "subtasks", "anonymous", "tolerate", "checks")
    return _Made(**{name: getattr(task, name, None) for name in names} | others)


def tolerate(task: Task, *, on_failure: Callable[[TaskFailedError], None] | None = None) -> Task:
    """Return the task with failures as warnings, which are logged and reported, but not raised.

    Their status is `failed`. The group goes on, and its status does not suffer; `on_failure` is
    called with the error. If it raises an error, the failure is not tolerated, and the task fails
    with both errors. Cancellation and interrupts are raised as usual, and so are failures of `plan`
    and `undo`. Such a failure alone does not make `run` undo anything.

    >>> @task("probes")
    ... def probes(ctx):
    ...     raise OSError("no IPv6")
    >>> failures = []
    >>> optional = tolerate(probes, on_failure=failures.append)
    >>> execute(Serial(optional, task("routes")(lambda ctx: print("routes are there"))))
    routes are there
    >>> print(*failures)
    probes: no IPv6
    """
    handler = on_failure or (lambda _: None)
    tolerant = _around(task, tolerate=handler)
    require_plain(handler, f"on_failure of task {task.name!r}")
    return tolerant


def with_timeout(task: Task, seconds: float, *, share: float = 1.0) -> Task:
    """Return the task with at most `seconds` for its `do`.

    If it takes longer, it fails with DeadlineExceededError as the cause, also if it catches that
    and returns. The task's context ends: a task that never looks at it is not stopped, and is
    complete when it returns. With a `share` of less than 1 the task gets no more than that part of
    the time that is left, so that the tasks after it have the rest.

    >>> execute(with_timeout(task("nap")(lambda ctx: ctx.sleep(60)), 0))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: nap: deadline exceeded: not done within 0 s
    """
    not_negative(seconds)
    if not isinstance(share, int | float) or not 0 < share <= 1:  # type: ignore[redundant-expr]  # same as attempts
        raise ValueError(f"share must be more than 0 and at most 1 (got {share!r})")

    def do(ctx: Context) -> object:
        left = ctx.remaining()
        own = ctx.child(timeout=seconds if left is None else min(seconds, share * left))
        return complete(task.do, own.expiring())

    return _around(task, do=do)


def with_retry(
    task: Task,
    *,
    attempts: int,
    backoff: float = 1.0,
    retry_on: tuple[type[Exception], ...] = (),
) -> Task:
    """Return the task with retries, up to `attempts` times in all.

    It is done again after an OSError, an error that says so itself by `retryable = True`, and one
    of `retry_on`, unless that has `retryable = False`. A bug, such as a KeyError, ends the retries,
    and so does a cancellation. The pauses begin with `backoff` seconds, and double up to 30 if they
    are shorter; they end with the context. The last error is raised, with the earlier ones in its
    `failures`; if the context ends, its error has them in `earlier`. A group is retried if all its
    failures allow it. After an undo that was `partial` nothing is. An observer gets an event
    `retrying` for each failed attempt.

    >>> answers = [OSError("busy"), OSError("busy"), None]
    >>> @task("flaky")
    ... def flaky(ctx):
    ...     if error := answers.pop(0):
    ...         raise error
    >>> execute(with_retry(flaky, attempts=3, backoff=0))
    >>> answers
    []
    """
    if not isinstance(attempts, int) or attempts < 1:  # type: ignore[redundant-expr]  # not all callers are checked
        raise ValueError(f"attempts must be a whole number of at least 1 (got {attempts!r})")
    not_negative(backoff, "backoff")
    if not isinstance(retry_on, tuple):
        raise wrong_argument("retry_on", retry_on, "a tuple of exception classes", "(OSError,)")

    def may_be_repeated(failure: BaseException) -> bool:
        is_named = isinstance(failure, retry_on) and getattr(failure, "retryable", True)
        return is_named or may_pass(failure)

    def do(ctx: Context) -> object:
        failures: list[TaskFailedError] = []
        pause = 0.0
        next_pause = backoff
        step = step_of(ctx) or Step(Report(task), threading.Lock())
        while True:
            try:
                ctx.sleep(pause)
                return complete(task.do, ctx.expiring())
            except Exception as error:
                if isinstance(error, CONTEXT_OVER) and ctx.over:
                    names = step.report.names_inside
                    error.earlier += tuple(failure.under(*names) for failure in failures)
                    raise
                last = as_failure(error)
                is_last = len(failures) + 1 == attempts or step.report.undo == "partial"
                if is_last or not all(map(may_be_repeated, last.failures)):
                    # The message begins with the last error; the earlier ones follow.
                    raise TaskFailedError.combine([last, *failures]) from last.cause
            failures.append(last)
            pause = next_pause
            next_pause = max(backoff, min(2 * pause, _LONGEST_PAUSE))
            word = f"attempt {len(failures)} of {attempts} failed, next in {pause:.3g} s"
            step.begin_again(last, Wait("the next attempt", pause))
            log_line(ctx.log.warning, word, step.report, "retrying", last)

    return _around(task, do=do)


def task(
    name: str,
    *,
    plan: Callable[[Context], Sequence[Change]] | None = None,
    undo: Work | None = None,
    records: bool = False,
    checks: bool = False,
) -> Callable[[Work], Task]:
    """Make a Task of a plain function; `run` may call `undo` once the task has completed.

    With `records` the function records all its changes: if it recorded none, there is nothing to
    undo. If it `checks` the work of other tasks, a run that skips it is degraded.

    >>> @task("greet", undo=lambda ctx: print("bye"))
    ... def greet(ctx):
    ...     print("hello")
    >>> execute(greet)
    hello
    """
    if callable(name):
        raise TypeError(f'@task needs a name: write @task("{getattr(name, "__name__", "name")}")')
    require_name(name, "a task")
    for ability, given in (("plan", plan), ("undo", undo)):
        if given is not None:
            require_plain(given, f"{ability} of task {name!r}")

    def make(function: Work) -> Task:
        require_plain(function, f"do of task {name!r}")
        require_no_method(function, name)
        return _Made(name=name, do=function, plan=plan, undo=undo, records=records, checks=checks)

    return make
