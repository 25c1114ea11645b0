"""The runner: execute, undo or plan a task with its subtasks, or run a whole pipeline.

Groups call `execute` and `undo` for their subtasks. So every task, at any depth, passes through
`_step`, which logs and times it and adds the path to its errors. The position in the run travels
with the context (`Scope`), so groups know nothing of logs and reports.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from phases.context import Context, Scope, logger_of
from phases.exceptions import CONTEXT_OVER, PhaseError, TaskFailedError, UnknownTaskError, describe
from phases.mistakes import call, context_of, require_changes, require_plain, require_task
from phases.report import Event, Ledger, Report, TaskAccount
from phases.task import Group, Plannable, Task, Tolerant, Undoable, leaves, names_in_path

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from types import FrameType

    from phases.context import Change

__all__ = ["Plan", "cancel_on_signals", "execute", "execute_telling", "log_line", "plan", "run", "undo"]


def execute(task: Task, ctx: Context | None = None, *, logger: logging.Logger | None = None) -> None:
    """Do a task: log and time it, and wrap its errors in one TaskFailedError that names it.

    CancelledError and DeadlineExceededError pass unchanged if `ctx` itself is over; raised by a
    narrower context (`with_timeout`, a child context) they are failures. KeyboardInterrupt and
    SystemExit cancel `ctx` and pass unchanged. A `do` that returns a value has failed: a coroutine
    never ran, a returned error was not raised. The logger is also that of all tasks inside; the
    default is the logger of the surrounding task, or `phases`.

    >>> from phases import Serial, task
    >>> @task("static-routes")
    ... def refuse(ctx):
    ...     raise OSError("no such device")
    >>> execute(Serial(refuse, name="bootstrap"))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: bootstrap/static-routes: no such device
    """
    require_task(task)
    execute_telling(task, context_of(ctx, logger))


def execute_telling(
    task: Task, ctx: Context, *, begun: Callable[[], None] = lambda: None, ledger: Ledger | None = None
) -> None:
    """Execute a task, and call `begun` just before its `do`; never, if it does not come to that."""
    above = ctx.scope.account
    book, within = above if isinstance(above, TaskAccount) else (ledger or Ledger(Report(task)), None)
    report = book.enter(task, within)
    if report.status == "skipped":
        log_line(logger_of(ctx).info, "skipped", (*ctx.scope.names, task.name), "skipped")
        return

    def begin_and_do(inside: Context) -> None:
        book.begin(report, inside.clock.time())
        begun()
        call(task.do, inside, "do")

    _step(TaskAccount(book, report), ctx, begin_and_do)


def undo(task: Task, ctx: Context | None = None, *, logger: logging.Logger | None = None) -> None:
    """Undo a task; the last subtask of a group comes first.

    A failure does not stop the rest; one TaskFailedError at the end names all of them. A task
    without `undo` is left as it is, and the log says so.
    """
    require_task(task)
    _undo(task, task.undo if isinstance(task, Undoable) else None, context_of(ctx, logger))


def _undo(task: Task, inverse: Callable[[Context], None] | None, ctx: Context) -> None:
    if inverse is None:
        log_line(logger_of(ctx).warning, "cannot undo", (*ctx.scope.names, task.name), "skipped")
    else:
        # An account for this step alone: the report of a run has only the changes that its tasks made.
        report = Report(task, ctx.scope.names)
        _step(TaskAccount(Ledger(report), report), ctx, partial(call, inverse, name="undo"), undoing=True)


def _step(account: TaskAccount, ctx: Context, act: Callable[[Context], None], *, undoing: bool = False) -> None:
    report, logger = account.report, logger_of(ctx)
    task, names = report.task, (*report.names, report.name)
    prefix, status = ("undo ", "undone") if undoing else ("", "ok")
    word, log = "completed", logger.info
    seen: BaseException | None = None
    raised: BaseException | None = None
    begun = ctx.clock.monotonic()
    try:
        log_line(logger.info, f"{prefix}started", names, "started")
        ctx.check()
        act(ctx.within(Scope(report.names_inside, logger, account)))
    except BaseException as error:
        seen, raised = error, _as_raised(error, task, ctx)
        failed = isinstance(raised, TaskFailedError)
        word = status = "failed" if failed else "cancelled"
        log = logger.error if failed else logger.warning
        if isinstance(raised, TaskFailedError) and not undoing:
            refusal = _refusal(task, raised)
            if refusal is None:
                word, log = "failed, and is optional", logger.warning
                return
            if refusal is not raised:
                seen = raised = refusal
        if raised is error:
            raise
        raise raised from raised.__cause__
    finally:
        duration = ctx.clock.monotonic() - begun
        account.ledger.end(report, status, raised, duration)
        # The line names the task already, so it shows the error as seen from inside.
        log_line(log, prefix + word, names, status, duration=duration, error=seen)


def _refusal(task: Task, failure: TaskFailedError) -> TaskFailedError | None:
    """Return None if the task tolerates its failure; otherwise the failure, with the error of its `tolerate`."""
    if not isinstance(task, Tolerant):
        return failure
    try:
        task.tolerate(failure)
    except Exception as error:  # noqa: BLE001 - a failure that could not be handled is not tolerated
        return failure if error is failure else TaskFailedError.combine([failure, TaskFailedError((task.name,), error)])
    return None


def _as_raised(error: BaseException, task: Task, ctx: Context) -> BaseException:
    """Return an error of a task as its caller sees it."""
    if not isinstance(error, Exception):
        # An interrupt is not a failure of the task: it ends everything and passes unchanged.
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
    """Log one line with `log`, such as `logger.info`, with the same values in `extra`.

    It shows only the first line of an error: the caller shows the rest, and not every group around the task.
    """
    path = "/".join(names)
    line = f"{word} task={path}"
    if duration is not None:
        line += f" duration={duration:.3f}s status={status}"
    text = None if error is None else describe(error)
    if text is not None:
        first, *more = text.split("\n", 1)
        line += f" error={f'{first} ...' if more else first!r}"  # quoted, so that its end is visible
    extra = {"task": names[-1], "path": path, "status": status, "duration": duration, "error": text}
    log("%s", line, extra=extra)


class Plan(NamedTuple):
    """The forecast of a task and its subtasks.

    `changes` are in the order in which `do` would make them, `by_task` groups them by the path of
    their task. `unplannable` are the paths of tasks without a `plan`.

    >>> from phases import Change, Serial, task
    >>> hosts = task("hosts", plan=lambda ctx: [Change("+", "/etc/hosts")])(lambda ctx: None)
    >>> print(plan(Serial(hosts, task("reboot")(lambda ctx: None))))
    + /etc/hosts
    ? reboot has no plan
    """

    by_task: tuple[tuple[str, tuple[Change, ...]], ...]
    unplannable: tuple[str, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes, in order."""
        return tuple(change for _, changes in self.by_task for change in changes)

    def __str__(self) -> str:
        unknown = [f"? {path} has no plan" for path in self.unplannable]
        return "\n".join([*map(str, self.changes), *unknown])


def plan(task: Task, ctx: Context | None = None) -> Plan:
    """Return the forecast of a task and its subtasks; raise TaskFailedError if a plan fails."""
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
    return Plan(tuple(by_task), tuple(unplannable))


def run(
    task: Task,
    ctx: Context | None = None,
    *,
    timeout: float | None = None,
    skip: Iterable[str] = (),
    undo_on_failure: bool = False,
    handle_signals: bool = False,
    logger: logging.Logger | None = None,
    observer: Callable[[Event], object] | None = None,
) -> Report:
    """Run a pipeline and return its report; a failure is in the report and is not raised.

    Args:
        task: The task to run.
        ctx: The context that the run ends with; cancelling it, from any thread, cancels the run.
        timeout: Seconds for the whole run.
        skip: Names of tasks to leave out. An unknown name raises UnknownTaskError before anything
            runs; tasks that another task composes while it runs are unknown.
        undo_on_failure: If the run does not complete, reverse its records, newest first: also
            the records of the task that failed. A completed task that recorded no inverse is undone
            by its `undo`. After an interrupt this happens before the interrupt is raised.
        handle_signals: SIGINT and SIGTERM cancel the run (main thread only). An undo goes on; a
            second signal has its usual effect.
        logger: The logger of this run.
        observer: A function that is called with an Event whenever a task begins, records a change,
            ends or is undone. It is called in the thread of the task, so it should return quickly;
            an asyncio program passes events on with `loop.call_soon_threadsafe`.

    >>> from phases import Serial, task
    >>> @task("greet")
    ... def greet(ctx):
    ...     ctx.check()
    >>> run(Serial(greet, name="demo"), timeout=30).to_mapping()["status"]
    'ok'
    """
    require_task(task)
    if observer is not None:
        require_plain(observer, "the observer")
    ledger = Ledger(Report(task), skip=_known_names(task, skip), keep=undo_on_failure, observer=observer)
    ctx = context_of(ctx).child(timeout).within(Scope(logger=logger))
    with cancel_on_signals(ctx) if handle_signals else nullcontext(ctx):
        try:
            execute_telling(task, ctx, ledger=ledger)
        except BaseException as error:
            if undo_on_failure:
                _undo_run(ledger, ctx.shielded())
            if not isinstance(error, PhaseError):
                raise
    return ledger.report


def _known_names(task: Task, skip: Iterable[str]) -> list[str]:
    if isinstance(skip, str):
        raise TypeError(f"skip takes a list of names, not the text {skip!r}")
    known = list(dict.fromkeys(report.name for report in Report(task).walk() if names_in_path(report.task)))
    wanted = list(skip)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UnknownTaskError(unknown, known)
    return wanted


def _undo_run(ledger: Ledger, ctx: Context) -> None:
    failures = []
    failed_before = {report for report in ledger.report.walk() if report.status == "failed"}
    for batch in ledger.batches():
        report, _, inverse = batch[0]
        try:
            _undo(report.task, inverse, ctx.within(Scope(report.names, ctx.scope.logger)))
        except TaskFailedError as error:
            report.status, report.error = "failed", error
            failures.append(error.under(*report.names))
        else:
            if inverse is not None:
                ledger.undone(batch)
    _summarise(ledger.report, failed_before)
    if failures and isinstance(ledger.report.error, TaskFailedError):
        ledger.report.error = TaskFailedError.combine([ledger.report.error, *failures])


def _summarise(whole: Report, failed_before: Collection[Report]) -> None:
    """Give completed groups the status of their subtasks after an undo; failures that they tolerated do not count."""
    for report in whole.walk():
        inside = {child.status for child in report.children if child not in failed_before} - {"skipped"}
        if isinstance(report.task, Group) and report.status == "ok" and inside:
            report.status = "failed" if "failed" in inside else "undone" if "undone" in inside else "ok"


@contextmanager
def cancel_on_signals(ctx: Context) -> Iterator[Context]:
    """Let SIGINT and SIGTERM cancel `ctx`, the value of the `with`; a second signal has its usual effect.

    This does nothing outside the main thread.
    """
    import signal  # only programs handle signals

    if threading.current_thread() is not threading.main_thread():
        yield ctx
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def cancel(number: int, _frame: FrameType | None) -> None:
        restore()
        ctx.cancel(signal.Signals(number).name)

    # Python cannot restore a handler that was not installed from Python; it has None for it.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, cancel)
        yield ctx
    finally:
        restore()
