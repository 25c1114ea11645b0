"""The runner: execute, undo or plan a task with its subtasks, or run a whole pipeline.

Groups call `execute` and `undo` for their subtasks. So every task, at any depth, passes through
`_perform`, which logs and times it and adds the path to its errors. The context carries the
position in the run (`Step`), so groups need neither logs nor reports.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import nullcontext, suppress
from logging import Logger
from threading import Lock
from typing import Any, NamedTuple

from phases.command import CommandResult
from phases.context import Change, Context, Work, notify, require_change
from phases.exceptions import (
    CONTEXT_OVER,
    CommandFailedError,
    PhaseError,
    TaskFailedError,
    UnknownTaskError,
    as_failure,
    describe,
    is_bug,
    leaves,
)
from phases.hosting import (
    cancel_on_signals,
    has_raised,
    require_context,
    step_of,
    with_logger,
    within,
)
from phases.mistakes import (
    PLAIN,
    require_plain,
    require_task,
    shown,
    wrong_argument,
)
from phases.report import Event, Record, Report, Status, is_named, names_in_path
from phases.step import Step
from phases.task import Plannable, Task, is_group

_SKIPPED = "it checks the work of others, and was skipped"


def execute(task: Task, ctx: Context | None = None, *, logger: Logger | None = None) -> None:
    """Do a task: log and time it, and wrap its errors in one TaskFailedError that names it.

    CancelledError and DeadlineExceededError pass unchanged if `ctx` itself is over; raised by a
    narrower context (`with_timeout`, a child context) they are failures. KeyboardInterrupt and
    SystemExit cancel `ctx` and pass unchanged. The logger is also that of all tasks inside; the
    default is the logger of the surrounding task, or `phases`.

    A `do` that returns has failed, too, if it returns a coroutine, which never ran, an error, which
    was not raised, or the report of a run that failed; or if its context has raised its end to it,
    in any thread, and it caught that. Work that ends late without having been interrupted is
    complete. `Context.expiring` is for work that the end completes.

    >>> from phases import Serial, task
    >>> @task("static-routes")
    ... def refuse(ctx):
    ...     raise OSError("no such device")
    >>> execute(Serial(refuse, name="bootstrap"))
    Traceback (most recent call last):
    phases.exceptions.TaskFailedError: bootstrap/static-routes: no such device
    """
    ctx = context_for(task, ctx, logger)
    do_step(step_for(task, ctx), ctx)


def context_for(task: object, ctx: object, logger: Logger | None = None) -> Context:
    """Return the context for a task, a new one for None, with the logger if there is one.

    Raise TypeError for anything else, and for anything that is not a task.
    """
    require_task(task)
    ctx = Context() if ctx is None else require_context(ctx)
    if logger is not None and not hasattr(logger, "warning"):
        raise wrong_argument("logger", logger, "a logger", f"logging.getLogger({logger!r})")
    return ctx if logger is None else with_logger(ctx, logger)


def step_for(task: Task, ctx: Context) -> Step:
    """Return the step of a task that is done now, in the run of its context if there is one."""
    step = step_of(ctx)
    return Step(Report(task), Lock()) if step is None else step.enter(task)


def do_step(step: Step, ctx: Context) -> None:
    """Execute the task of a step, unless the run leaves it out."""
    if step.report.path in step.skip:
        for report in step.report.walk():
            report.status = "skipped"
            if getattr(report.task, "checks", False):
                step._replace(report=report).degrade(_SKIPPED)
        log_line(ctx.log.info, "skipped", step.report, "skipped")
    else:
        _perform(step, ctx, step.report.task.do)


def undo(task: Task, ctx: Context | None = None, *, logger: Logger | None = None) -> None:
    """Undo a task; the last subtask of a group comes first.

    A failure does not stop the rest; one TaskFailedError at the end names all of them. A task
    without `undo` is left as it is, with a warning in the log.
    """
    ctx = context_for(task, ctx, logger)
    step = step_of(ctx)
    report = Report(task, None if step is None else step.report)
    _undo(report, getattr(task, "undo", None), ctx)


def _undo(report: Report, inverse: Work | None, ctx: Context) -> None:
    if inverse is None:
        log_line(ctx.log.warning, "cannot undo", report, "skipped")
    else:
        # Outside the steps of the run, whose report has only the changes that its tasks made.
        _perform(Step(report, Lock()), ctx, inverse, undoing=True)


def _perform(step: Step, ctx: Context, method: Work, *, undoing: bool = False) -> None:
    report = step.report
    name, prefix = ("undo", "undo ") if undoing else ("do", "")
    status: Status = "undone" if undoing else "ok"
    word = "completed"
    log = ctx.log.info
    seen = raised = None
    begun = ctx.clock.monotonic()
    try:
        log_line(log, f"{prefix}started", report, "started")
        ctx.check()
        step.begin(ctx.clock.time())
        notify(ctx)  # a Parallel waits until all have begun
        result = complete(method, within(ctx, step), name)
        if result is not None:
            report.result = result
        if report.is_idle:
            status = word = "skipped"
    except BaseException as error:  # noqa: BLE001 - it is raised again
        seen = error
        raised = _as_raised(error, report, ctx)
        status = word = "cancelled"
        log = ctx.log.warning
        if isinstance(raised, TaskFailedError):
            status = word = "failed"
            log = ctx.log.error
            refusal = _refusal(raised, report) if not undoing else raised
            if refusal is None:
                word = "failed, and is optional"
                log = ctx.log.warning
                return
            if refusal is not raised:
                seen = raised = refusal
            _mark_partial(raised, report)
        raise raised from raised.__cause__
    finally:
        step.end(status, raised, ctx.clock.monotonic() - begun)
        # The line names the task already, so the error is without its path.
        log_line(log, prefix + word, report, status, seen)


def _mark_partial(error: BaseException | None, report: Report) -> None:
    """Say that no retry may help, where an undo has left changes."""
    if isinstance(error, TaskFailedError) and report.undo == "partial":
        error.retryable = False


def _refusal(failure: TaskFailedError, report: Report) -> TaskFailedError | None:
    """Return the error of a task whose failure is not tolerated; None if it is."""
    tolerate = getattr(report.task, "tolerate", None)
    if tolerate is None:
        return failure
    try:
        tolerate(failure)
    except Exception as refusal:  # noqa: BLE001 - so it is not tolerated
        if refusal is failure:
            return failure
        return TaskFailedError.combine([failure, as_failure(refusal, *report.names, report.name)])
    return None


def complete(method: Work, ctx: Context, name: str = "do") -> object:
    """Call a `do`, `undo` or `plan`, and return its result; raise an error if it has failed.

    A coroutine never ran, an error was not raised, a report or a command may have failed. Raise
    TaskFailedError if the method caught the end of `ctx`, which is for it alone, and returned.

    >>> complete(lambda ctx: OSError("busy"), Context())
    Traceback (most recent call last):
    TypeError: do(ctx) returned OSError('busy'), and a task that fails raises it
    """
    result = method(ctx)
    if isinstance(result, Coroutine):
        # Python warns of a coroutine that was dropped wherever it collects it: in the next test of
        # an agent, for example.
        result.close()
    if isinstance(result, Awaitable | Generator | AsyncGenerator):
        raise TypeError(f"{name}(ctx) returned {shown(result)}, and {PLAIN}")
    if isinstance(result, Exception):
        raise TypeError(f"{name}(ctx) returned {shown(result)}, and a task that fails raises it")
    # A future of a thread pool is no Awaitable.
    if callable(getattr(result, "add_done_callback", None)):
        raise TypeError(f"{name}(ctx) returned {shown(result)}: write return future.result()")
    # An inverse that has left a change returns False; of a `do` it is mostly meant as a failure.
    if result is False and name == "do":
        raise TypeError(f"{name}(ctx) returned False, and a task that fails raises an error")
    if isinstance(result, Report):
        result.raise_for_failure()
    if isinstance(result, CommandResult) and result.status != 0:
        raise CommandFailedError(*result)
    if has_raised(ctx):
        try:
            ctx.check()
        except CONTEXT_OVER as error:
            error.args = (f"{error}; the task caught this and returned: it must raise it again",)
            raise TaskFailedError((), error) from error
    return result


def require_changes(planned: Any) -> tuple[Change, ...]:
    """Return the changes that a `plan` returned; raise TypeError for anything else.

    >>> require_changes(["+ /etc/hosts"])
    Traceback (most recent call last):
    TypeError: plan(ctx) returned ['+ /etc/hosts']: a plan is a list of Change, [] if there is \
nothing to change
    """
    if not isinstance(planned, Sequence) or not all(isinstance(each, Change) for each in planned):
        form = "a plan is a list of Change, [] if there is nothing to change"
        raise TypeError(f"plan(ctx) returned {shown(planned)}: {form}")
    for change in planned:
        require_change(change)
    return tuple(planned)


def _as_raised(error: BaseException, report: Report, ctx: Context) -> BaseException:
    """Return an error of a task as its caller sees it."""
    if not isinstance(error, Exception):
        # It is not a failure of the task: it ends everything and passes unchanged.
        ctx.cancel(describe(error))
        return error
    if isinstance(error, CONTEXT_OVER) and ctx.over:
        # It is raised to the work around this task, too, which must not catch it either.
        with suppress(*CONTEXT_OVER):
            ctx.check()
        return error
    return as_failure(error, *report.names, report.name).under(*report.names_inside)


def log_line(
    log: Callable[..., None],
    word: str,
    report: Report,
    status: str,
    error: BaseException | None = None,
) -> None:
    """Log one line with `log`, such as `logger.info`, with the same values in `extra`.

    It shows only the first line of an error: the caller shows the rest, and not every group around
    the task. That of the task with a bug has its traceback.
    """
    line = f"{word} task={report.path}"
    if report.duration is not None:
        line += f" duration={report.duration:.3f}s status={status}"
    text = None if error is None else describe(error)
    if text is not None:
        first, *more = text.split("\n", 1)
        # Quoted, so that its end is visible.
        line += f" error={f'{first} ...' if more else first!r}"
    extra = {
        "path": report.path,
        "status": status,
        "duration": report.duration,
        "error": text,
        "outcome": word,
    }
    log("%s", line, extra=extra, exc_info=_new_bug(error))


def _new_bug(error: BaseException | None) -> BaseException | None:
    """Return the cause of an error if it is a bug that no task inside has logged."""
    if isinstance(error, TaskFailedError):
        error = None if error.names else error.cause
    return error if error is not None and any(map(is_bug, leaves(error))) else None


class Plan(NamedTuple):
    """The forecast of a task and its subtasks.

    `changes` are in the order in which `do` would make them. `unplannable` are the paths of tasks
    without a `plan`.

    >>> from phases import Change, Serial, task
    >>> hosts = task("hosts", plan=lambda ctx: [Change("+", "/etc/hosts")])(lambda ctx: None)
    >>> print(plan(Serial(hosts, task("reboot")(lambda ctx: None))))
    + /etc/hosts
    ? reboot has no plan
    """

    changes: tuple[Change, ...]
    unplannable: tuple[str, ...]

    def __str__(self) -> str:
        unknown = [f"? {path} has no plan" for path in self.unplannable]
        return "\n".join([*map(str, self.changes), *unknown])


def plan(task: Task, ctx: Context | None = None) -> Plan:
    """Return the forecast of a task and its subtasks; raise TaskFailedError if a plan fails."""
    ctx = context_for(task, ctx)
    changes: list[Change] = []
    unplannable = []
    for report in Report(task).walk():
        leaf = report.task
        if is_group(leaf):
            continue
        if not isinstance(leaf, Plannable):
            unplannable.append(report.path)
            continue
        try:
            ctx.check()
            changes += require_changes(complete(leaf.plan, ctx.expiring(), "plan"))
        except Exception as error:  # noqa: BLE001 - it is raised again
            raised = _as_raised(error, report, ctx)
            raise raised from raised.__cause__
    return Plan(tuple(changes), tuple(unplannable))


def run(
    task: Task,
    ctx: Context | None = None,
    *,
    timeout: float | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] = (),
    undo_on_failure: bool = False,
    handle_signals: bool = False,
    logger: Logger | None = None,
    observer: Callable[[Event], object] | None = None,
) -> Report:
    """Run a pipeline and return its report; a failure is in the report and is not raised.

    Inside a task, `execute(task, ctx)` does another one as a part of the same run.

    Args:
        task: The task to run.
        ctx: The context that the run ends with; cancelling it, from any thread, cancels the run.
        timeout: Seconds for the whole run.
        skip: Names of tasks to leave out, or paths (`certs/ca`), whole or their ends. One that no
            task has raises UnknownTaskError before anything runs; tasks that another task composes
            while it runs are unknown.
        only: Names or paths of the tasks to do, with all inside; all other tasks are left out.
        undo_on_failure: If the run does not complete, reverse its records, newest first: also
            the records of the task that failed. A completed task that recorded no inverse is undone
            by its `undo`. After an interrupt this happens before the interrupt is raised, which has
            the report in its attribute `report`. An interrupt of the undo ends one inverse, and is
            raised after the others; a second one ends the undo at once, and the log and the report
            name each task that is not undone.
        handle_signals: SIGINT and SIGTERM cancel the run (main thread only). An undo goes on; a
            second signal has its usual effect.
        logger: The logger of this run; the default is that of `ctx`, or `phases`.
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
    ctx = context_for(task, ctx, logger)
    if step := step_of(ctx):
        raise TypeError(
            f"ctx is that of the running task {step.report.name!r}, and run begins another run: "
            "write execute(task, ctx), which is a part of this one"
        )
    # Expiring: its end is in the report, and not raised to the work around it.
    ctx = ctx.child(timeout).expiring()
    if observer is not None:
        require_plain(observer, "the observer")
    report = Report(task)
    left_out = _named(report, "skip", skip)
    if wanted := _named(report, "only", only):
        left_out.update(_others(report, wanted))
    step = Step(report, Lock(), left_out, observer, [] if undo_on_failure else None)
    with cancel_on_signals(ctx) if handle_signals else nullcontext():
        try:
            _do_run(step, ctx, undo_on_failure=undo_on_failure)
        except BaseException as interrupt:
            # The caller has no other way to it.
            interrupt.report = report  # type: ignore[attr-defined]  # of any type
            raise
    return report


def _named(whole: Report, option: str, words: Iterable[str]) -> set[str]:
    """Return the paths of the tasks with these names, or ends of paths; refuse an unknown one."""
    if isinstance(words, str):
        raise wrong_argument(option, words, "a list", f"[{words!r}]")
    reports = [report for report in whole.walk() if names_in_path(report.task)]
    paths: set[str] = set()
    unknown = []
    for word in words:
        found = {report.path for report in reports if is_named(report, str(word))}
        paths |= found
        if not found:
            unknown.append(word)
    if unknown:
        raise UnknownTaskError(unknown, [*dict.fromkeys(report.name for report in reports)])
    return paths


def _others(report: Report, wanted: Collection[str]) -> Iterator[str]:
    """Yield the paths of the tasks without any of those that are wanted inside or around them."""
    if report.path in wanted:
        return
    if not any(inside.path in wanted for inside in report.walk()):
        yield report.path
    for child in report.children:
        yield from _others(child, wanted)


def _do_run(step: Step, ctx: Context, *, undo_on_failure: bool) -> None:
    """Execute the task of a run; its failure is in the report, and an interrupt is raised."""
    try:
        do_step(step, ctx)
    except BaseException as error:
        if undo_on_failure:
            _undo_run(step, ctx)
        if not isinstance(error, PhaseError):
            raise


def _undo_run(outermost: Step, ctx: Context) -> None:
    """Reverse the records of a run, newest first; what stays is in the log and in the report."""
    whole = outermost.report
    failures: list[TaskFailedError] = []

    def reverse(record: Record) -> bool:
        # It has the result of the inverse.
        report = Report(record.report.task, record.report.parent)
        # Each inverse has a context of its own, which an interrupt cancels.
        _undo(report, record.undo, ctx.shielded())
        return record.undo is not None and report.result is not False

    def fail(report: Report, error: BaseException) -> None:
        errors = [each for each in (report.error, error) if each is not None]
        *_, failure = own = [as_failure(each, *report.names, report.name) for each in errors]
        report.error = TaskFailedError.combine(own)
        outermost.settle(report, "failed")
        failures.append(failure)

    _name_what_was_left(outermost, ctx)
    try:
        for record, result in outermost.roll_back(reverse, ctx):
            if isinstance(result, BaseException):
                fail(record.report, result)
    except BaseException as interrupt:
        for record in reversed(outermost.records or ()):
            record.report.has_stayed = True
            log_line(ctx.log.error, "not undone", record.report, "failed", interrupt)
            fail(record.report, interrupt)
        raise
    finally:
        if failures and isinstance(whole.error, TaskFailedError):
            whole.error = TaskFailedError.combine([whole.error, *failures])
        _mark_partial(whole.error, whole)


def _name_what_was_left(outermost: Step, ctx: Context) -> None:
    """Log and report each task that has begun and not completed, and recorded no inverse."""
    for report in outermost.report.walk():
        # A group ends midway if a task inside does.
        is_around = is_group(report.task) or any(not child.ok for child in report.children)
        is_midway = report.start is not None and report.status in {"failed", "cancelled"}
        if is_midway and not is_around and not report.has_inverse:
            word = f"not undone: {report.name} {report.status} midway, and recorded no inverse"
            outermost._replace(report=report).degrade(word)
            log_line(ctx.log.warning, word, report, report.status)
