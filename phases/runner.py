"""The runner: execute, undo or plan a task and all inside it, or run a whole pipeline for a program's main.

Groups run their subtasks by `execute` and `undo` again. So every task, at any depth, passes through
`_step`: there it is logged, timed, observed, and its errors get their path. Where it stands
travels with the context (`Scope`), so groups know nothing of logs and reports.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from phases.context import Context, Observer, Scope, logger_of
from phases.exceptions import CONTEXT_OVER, PhaseError, TaskFailedError, UnknownTaskError, describe
from phases.mistakes import call, context_of, require_changes, require_task
from phases.report import Report, RunObserver
from phases.task import Change, Group, Plannable, Task, Tolerant, Undoable, leaves, names_in_path

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from phases.context import Clock

__all__ = ["Plan", "cancel_on_signals", "execute", "execute_telling", "log_line", "plan", "run", "undo"]


def execute(task: Task, ctx: Context | None = None, *, logger: logging.Logger | None = None) -> None:
    """Do a task: logged, timed, its errors wrapped in one TaskFailedError that names it.

    CancelledError and DeadlineExceededError pass as they are if `ctx` itself is over; raised by
    anything narrower (`with_timeout`, a child context of the task's own) they are a failure like
    any other. KeyboardInterrupt and SystemExit cancel `ctx` and pass as they are. A `do` that
    returns anything has failed: a coroutine never ran, a returned error was not raised. The logger
    holds for all that is executed inside; the default is that of the surrounding task, or `phases`.

    >>> from phases import Serial, task
    >>> @task("static-routes")
    ... def refuse(ctx):
    ...     raise OSError("no such device")
    >>> execute(Serial(refuse, name="bootstrap"))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: bootstrap/static-routes: no such device
    """
    require_task(task)
    execute_telling(task, context_of(ctx), logger=logger)


def execute_telling(
    task: Task, ctx: Context, *, logger: logging.Logger | None = None, begun: Callable[[], None] | None = None
) -> None:
    """Execute a task, and call `begun` in the moment before its `do`; never, if it does not come to that."""
    observer = ctx.scope.observer.enter(task)
    if ctx.skips(task):
        log_line((logger or logger_of(ctx)).info, "skipped", (*ctx.scope.names, task.name), "skipped")
        return

    def begin_and_do(inside: Context) -> None:
        observer.begin(inside)
        if begun is not None:
            begun()
        call(task.do, inside, "do")

    _step(task, ctx, begin_and_do, done="ok", logger=logger, observer=observer, tolerable=True)


def undo(task: Task, ctx: Context | None = None, *, logger: logging.Logger | None = None) -> None:
    """Take a task back, the newest of a group first.

    A failure does not keep the rest from being undone; one TaskFailedError at the end names them all.
    A task that cannot be undone is left as it is, and the log says so.
    """
    require_task(task)
    ctx = context_of(ctx)
    if isinstance(task, Undoable):
        method = task.undo

        def act(inside: Context) -> None:
            call(method, inside, "undo")

        _step(task, ctx, act, done="undone", logger=logger, observer=Observer(), prefix="undo ")
    else:
        log_line((logger or logger_of(ctx)).warning, "cannot undo", (*ctx.scope.names, task.name), "skipped")


def _step(
    task: Task,
    ctx: Context,
    act: Callable[[Context], None],
    *,
    done: str,
    logger: logging.Logger | None,
    observer: Observer,
    tolerable: bool = False,
    prefix: str = "",
) -> None:
    logger = logger or logger_of(ctx)
    names = (*ctx.scope.names, task.name)
    inside = ctx.within(Scope((*ctx.scope.names, *names_in_path(task)), logger, observer))
    begun = ctx.clock.monotonic()
    word, status, log = "completed", done, logger.info
    seen: BaseException | None = None
    raised: BaseException | None = None
    try:
        log_line(logger.info, f"{prefix}started", names, "started")
        ctx.check()
        act(inside)
    except BaseException as error:
        seen, raised = error, _as_raised(error, task, ctx)
        failed = isinstance(raised, TaskFailedError)
        word = status = "failed" if failed else "cancelled"
        log = logger.error if failed else logger.warning
        if tolerable and isinstance(raised, TaskFailedError) and isinstance(task, Tolerant):
            word, log = "failed, and is optional", logger.warning
            task.tolerate(raised)
            return
        if raised is error:
            raise
        raise raised from raised.__cause__
    finally:
        duration = ctx.clock.monotonic() - begun
        observer.end(status, raised, duration)
        # The line names the task already, so it shows the error as seen from inside.
        log_line(log, prefix + word, names, status, duration=duration, error=seen)


def _as_raised(error: BaseException, task: Task, ctx: Context) -> BaseException:
    """What an error of a task becomes for those outside of it."""
    if not isinstance(error, Exception):
        # An interrupt is no answer of the task: it ends everything, and stays what it is.
        ctx.cancel(describe(error))
        return error
    if isinstance(error, CONTEXT_OVER) and ctx.over:
        return error
    if isinstance(error, TaskFailedError):
        return error.under(*names_in_path(task))
    return TaskFailedError((task.name,), error)


def log_line(
    log: Callable[..., None],
    word: str,
    names: Sequence[str],
    status: str,
    *,
    duration: float | None = None,
    error: BaseException | None = None,
) -> None:
    """One wide line by, say, `logger.info`; the same values in `extra` for those who collect them.

    Of an error it has the first line only: a long one is told once, by the caller, and not by every group around it.
    """
    path = "/".join(names)
    line = f"{word} task={path}"
    if duration is not None:
        line += f" duration={duration:.3f}s status={status}"
    text = None if error is None else describe(error)
    if text is not None:
        first, *more = text.split("\n", 1)
        line += f" error={f'{first} ...' if more else first!r}"  # quoted: what it says ends where the quote does
    extra = {"task": names[-1], "path": path, "status": status, "duration": duration, "error": text}
    log("%s", line, extra=extra)


class Plan:
    """What a task and all inside it would change.

    `changes` are in the order of doing, `by_task` the same with the path of the task that each
    belongs to. `unplannable` are the paths of the tasks that cannot say: of them, all is possible.

    >>> from phases import Change, Serial, task
    >>> hosts = task("hosts", plan=lambda ctx: [Change("+", "/etc/hosts")])(lambda ctx: None)
    >>> print(plan(Serial(hosts, task("reboot")(lambda ctx: None))))
    + /etc/hosts
    ? reboot cannot say what it would change
    """

    __slots__ = ("by_task", "unplannable")

    def __init__(self, by_task: Iterable[tuple[str, tuple[Change, ...]]], unplannable: Iterable[str]) -> None:
        self.by_task = tuple(by_task)
        self.unplannable = tuple(unplannable)

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes, in the order of doing."""
        return tuple(change for _, changes in self.by_task for change in changes)

    def __str__(self) -> str:
        unknown = [f"? {path} cannot say what it would change" for path in self.unplannable]
        return "\n".join([*map(str, self.changes), *unknown])


def plan(task: Task, ctx: Context | None = None) -> Plan:
    """Collect what a task and all inside it would change; a plan that fails is a TaskFailedError."""
    require_task(task)
    ctx = context_of(ctx)
    by_task, unplannable = [], []
    for names, leaf in leaves(task):
        if not isinstance(leaf, Plannable):
            unplannable.append("/".join(names))
            continue
        try:
            ctx.check()
            by_task.append(("/".join(names), require_changes(leaf.plan(ctx))))
        except Exception as error:
            raised = _as_raised(error, leaf, ctx)
            if isinstance(raised, TaskFailedError):
                raise raised.under(*names[:-1]) from raised.cause
            raise
    return Plan(by_task, unplannable)


def run(
    task: Task,
    *,
    timeout: float | None = None,
    skip: Iterable[str] = (),
    undo_on_failure: bool = False,
    handle_signals: bool = False,
    logger: logging.Logger | None = None,
    clock: Clock | None = None,
) -> Report:
    """Run a whole pipeline for a program's main; its report says how it went, failures raise nothing.

    Args:
        task: What to run.
        timeout: Seconds for all of it.
        skip: Names of tasks to leave out. A name that no task has is an UnknownTaskError before
            anything runs; names of tasks that another one composes only while it runs are unknown.
        undo_on_failure: Unless all went well, undo the tasks that had completed, newest first; the
            one that failed is not among them. An interrupt undoes too, and is raised after that.
        handle_signals: SIGINT and SIGTERM cancel the run (main thread only). Undoing goes on; a
            second signal does what it would have done without us.
        logger: For all lines of this run.
        clock: Another time than the machine's, for tests.

    >>> from phases import Serial, task
    >>> @task("greet")
    ... def greet(ctx):
    ...     ctx.check()
    >>> run(Serial(greet, name="demo"), timeout=30).to_mapping()["status"]
    'ok'
    """
    require_task(task)
    observer = RunObserver(task, skip=_known_names(task, skip))
    ctx = Context(timeout=timeout, clock=clock).within(Scope((), logger, observer))
    with cancel_on_signals(ctx) if handle_signals else nullcontext():
        try:
            execute(task, ctx)
        except BaseException as error:
            if undo_on_failure:
                _undo_completed(observer, ctx)
            if not isinstance(error, PhaseError):
                raise
    return observer.report


def _known_names(task: Task, skip: Iterable[str]) -> list[str]:
    if isinstance(skip, str):
        raise TypeError(f"skip takes a list of names, not the text {skip!r}")
    known = list(dict.fromkeys(report.name for report in Report(task).walk() if names_in_path(report.task)))
    wanted = list(skip)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UnknownTaskError(unknown, known)
    return wanted


def _undo_completed(observer: RunObserver, ctx: Context) -> None:
    # The run's context is over, or what is left of its time belongs to nobody: undoing gets one of its own.
    ctx = Context(clock=ctx.clock).within(Scope((), ctx.scope.logger))
    failed_before = {report for report in observer.report.walk() if report.status == "failed"}
    for report in reversed(observer.completed):
        # Groups are undone through their subtasks, each of which completed on its own; and a task
        # that composed others while it ran may have undone them already.
        if isinstance(report.task, Group) or report.status != "ok":
            continue
        try:
            undo(report.task, ctx.within(Scope(report.names, ctx.scope.logger)))
        except TaskFailedError as error:
            report.status, report.error = "failed", error
        else:
            for each in report.walk() if isinstance(report.task, Undoable) else ():
                each.status = "undone" if each.status == "ok" else each.status
    # A group that had completed is now what undoing made of its subtasks; what it had tolerated is no news.
    for report in observer.report.walk():
        inside = {child.status for child in report.children if child not in failed_before} - {"skipped"}
        if isinstance(report.task, Group) and report.status == "ok" and inside:
            report.status = "failed" if "failed" in inside else "undone" if inside == {"undone"} else "ok"


@contextmanager
def cancel_on_signals(ctx: Context) -> Iterator[None]:
    """SIGINT and SIGTERM cancel `ctx`; the second one does what it would have done without us.

    Only the main thread can do this; in any other nothing happens.
    """
    import signal  # only programs handle signals

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def restore() -> None:
        for number, handler in before.items():
            # None: a handler that was not installed from Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def cancel(number: int, _frame: FrameType | None) -> None:
        restore()
        ctx.cancel(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, cancel)
    try:
        yield
    finally:
        restore()
