"""What the runner and the tasks of a library do with a context; an agent needs `Context` alone."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from phases.context import Context, Wait
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
    from logging import Logger
    from types import FrameType

    from phases.step import Step


_T = TypeVar("_T")


def require_context(ctx: object) -> Context:
    """Return the context; raise TypeError for anything else.

    >>> require_context(30)
    Traceback (most recent call last):
    TypeError: ctx must be a Context (got 30); write ctx=Context()
    """
    if not isinstance(ctx, Context):
        raise wrong_argument("ctx", ctx, "a Context", "Context()")
    return ctx


def reason_of(ctx: Context) -> str | None:
    """Return the reason for the cancellation of a context; None if it was not cancelled."""
    return next((reasons[0] for reasons in ctx._reasons if reasons), None)


@contextmanager
def interruptible(ctx: Context) -> Iterator[None]:
    """Let a signal end the block at once.

    It is for a long computation that changes nothing and cannot call `check`. If a handled
    signal (see `cancel_on_signals`) cancels the context while the main thread is in the block,
    CancelledError is raised there in the middle of the work, as KeyboardInterrupt would be. So
    nothing that the block leaves half done may be used afterwards. In any other thread the
    block ends as it would without this.

    >>> from phases import Context
    >>> with interruptible(Context()):
    ...     numbers = sorted(range(1000))
    """
    blocks = ctx._interruptible if current_thread() is main_thread() else []
    blocks.append(ctx)
    try:
        # Within the block: a signal after this ends it, too.
        ctx.check()
        yield
    finally:
        blocks.pop()


@contextmanager
def cancel_on_signals(
    ctx: Context,
    *,
    signals: Collection[int] = (),
    second: Callable[[int, FrameType | None], object] | None = None,
) -> Iterator[Context]:
    """Let signals, by default SIGINT and SIGTERM, cancel `ctx`, the value of the `with`.

    A second signal has its usual effect, or is handled by `second`, for example
    `signal.default_int_handler`. A signal ends a block of `Context.interruptible` at once. This
    does nothing outside the main thread.
    """
    require_context(ctx)
    # Imported here because it makes a hundred names.
    import signal

    def install(handlers: Mapping[int, Any]) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    wanted = signals or (signal.SIGINT, signal.SIGTERM)
    numbers = wanted if current_thread() is main_thread() else ()
    # Python cannot restore a handler that was not installed from Python; it has None for it.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    after_first = before if second is None else dict.fromkeys(numbers, second)

    def cancel(number: int, _frame: FrameType | None) -> None:
        install(after_first)
        ctx.cancel(signal.Signals(number).name)
        # The `interruptible` blocks of the main thread; that of a parent goes on.
        for context in ctx._interruptible:
            context.check()

    try:
        install(dict.fromkeys(numbers, cancel))
        yield ctx
    finally:
        # A signal meanwhile must not install `second` again.
        after_first = before
        install(before)


# --- state that the tasks of a run share


def holding(ctx: Context, resource: Hashable) -> Context:
    """Return the same context, for code that runs while a resource (a file) is locked."""
    return ctx._derive(_held={**ctx._held, resource: Lock()})


def held(ctx: Context, resource: Hashable) -> Lock | None:
    """Return the lock that users of a locked resource share; None if it is not locked."""
    return ctx._held.get(resource)


def first(ctx: Context, key: Hashable, value: _T) -> _T:
    """Return the value that the run was given first for the key, whatever came later.

    It is for a state that tasks change and their comparison needs as it was: an attempt of
    `with_retry`, and each task of a group, gets that of before the run.

    >>> from phases import Context
    >>> ctx = Context()
    >>> first(ctx, "version", 1), first(ctx, "version", 2)
    (1, 1)
    """
    return cast("_T", ctx._firsts.setdefault(key, value))


# --- the place of the work in its run


def step_of(ctx: Context) -> Step | None:
    """Return the step of the current task; None outside a run."""
    step: Step | None = ctx._step
    return step


def within(ctx: Context, step: Step) -> Context:
    """Return the same context (cancelling either cancels both) for another task."""
    # The outermost task begins a run: another run in this context has values of its own.
    firsts = ctx._firsts if ctx._step else {}
    return ctx._derive(_step=step, _firsts=firsts, _raised=set())


def with_logger(ctx: Context, logger: Logger) -> Context:
    """Return the same context with another logger."""
    return ctx._derive(log=logger)


def unrecorded(ctx: Context) -> Context:
    """Return the same context outside of the run, whose report is not changed by this work."""
    return ctx._derive(_step=None)


def skips(ctx: Context, name: str) -> bool:
    """Return True if `run(skip=...)` leaves the task of this name out; False outside a run.

    A group calls this when it prepares something for its subtasks.

    >>> from phases import Serial, run, task
    >>> class Bootstrap(Serial):
    ...     def do(self, ctx):
    ...         print("will do", [each.name for each in self.subtasks if not skips(ctx, each.name)])
    ...         super().do(ctx)
    >>> routes, probes = (task(name)(lambda ctx: None) for name in ("routes", "probes"))
    >>> run(Bootstrap(routes, probes, name="bootstrap"), skip=["probes"]).ok
    will do ['routes']
    True
    """
    step = step_of(ctx)
    return step is not None and "/".join((*step.report.names_inside, name)) in step.skip


def leave(ctx: Context, value: object) -> None:
    """Leave a value as the result of the current task, also if it then fails.

    A value that its `do` returns takes its place. Outside a run this does nothing.

    >>> from phases import run, task
    >>> run(task("answer")(lambda ctx: leave(ctx, 42))).result
    42
    """
    if step := step_of(ctx):
        step.report.result = value


def report_wait(ctx: Context, reason: str, *, seconds: float | None) -> None:
    """Report to the observers of the run that the task waits from now on.

    Call it once for a wait, before it. Outside a run this does nothing.

    Args:
        ctx: The context of the task.
        reason: What it waits for, or why.
        seconds: The longest time that it waits; None if that of the context.

    >>> from phases import run, task
    >>> lease = task("lease")(lambda ctx: report_wait(ctx, "a DHCP lease", seconds=30))
    >>> events = []
    >>> report = run(lease, observer=events.append)
    >>> events[1].status, events[1].wait
    ('waiting', Wait(reason='a DHCP lease', seconds=30))
    """
    left = ctx.remaining()
    if seconds is None or (left is not None and left < seconds):
        seconds = left
    if step := step_of(ctx):
        step.notify(step.report, status="waiting", wait=Wait(reason, seconds))


def has_raised(ctx: Context) -> bool:
    """Return True if `check` has raised the end of this context, in any thread.

    The end of a narrower context that the work makes does not count.
    """
    # A context shares its limit, and the lists of reasons, with its parents.
    return any(id(end) in ctx._raised for end in (ctx._limit, *ctx._reasons))
