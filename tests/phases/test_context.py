"""The context: its cancellation, its deadline, its children, and how it sleeps and waits."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from phases import (
    CancelledError,
    Context,
    DeadlineExceededError,
    Parallel,
    Serial,
    execute,
    run,
    task,
    with_retry,
)
from phases.context import notify, wait
from phases.hosting import first, reason_of
from phases.testing import ManualClock


def test_cancel_gives_its_reason() -> None:
    """The check of a cancelled context raises CancelledError with the first reason that was
    given.
    """
    ctx = Context()
    ctx.cancel("SIGTERM")
    ctx.cancel("too late")
    with pytest.raises(CancelledError, match=r"^cancelled: SIGTERM$") as caught:
        ctx.check()
    assert caught.value.reason == "SIGTERM"
    assert reason_of(ctx) == "SIGTERM"


def test_deadline(clock: ManualClock) -> None:
    """The check of a context raises DeadlineExceededError with the timeout from its deadline on."""
    ctx = Context(timeout=30, clock=clock)
    clock.advance(29)
    ctx.check()
    assert ctx.remaining() == 1
    assert ctx.deadline == 30
    was_over = ctx.over
    clock.advance(1)
    assert ctx.remaining() == 0
    assert not was_over
    assert ctx.over
    assert not ctx.cancelled
    with pytest.raises(DeadlineExceededError, match=r"^deadline exceeded: not done within 30 s$"):
        ctx.check()


def test_cancel_outranks_the_deadline(clock: ManualClock) -> None:
    """A cancelled context raises the reason, even if its deadline has passed as well."""
    ctx = Context(timeout=0, clock=clock)
    ctx.cancel("stop")
    with pytest.raises(CancelledError):
        ctx.check()


@pytest.mark.parametrize(("own", "expected"), [(None, 30), (10, 10), (60, 30)])
def test_child_inherits_the_earlier_deadline(
    clock: ManualClock, own: float | None, expected: float
) -> None:
    """A child context never has more time than its parent."""
    assert Context(timeout=30, clock=clock).child(timeout=own).remaining() == expected


def test_child_ends_with_its_parent() -> None:
    """Cancelling a context cancels children and grandchildren, also those made afterwards."""
    ctx = Context()
    before = ctx.child().child()
    ctx.cancel("stop")
    assert reason_of(before) == "stop"
    assert reason_of(ctx.child()) == "stop"


def test_children_do_not_stay_with_their_parent() -> None:
    """A context that lives for months does not collect the children that it had."""
    ctx = Context()
    for _ in range(100):
        ctx.child(timeout=1).sleep(0)
    gc.collect()
    assert (
        len(
            [
                each
                for each in gc.get_objects()
                if isinstance(each, Context) and each.clock is ctx.clock
            ]
        )
        == 1
    )
    assert not ctx._doorbells


def test_sleep_lets_time_pass(clock: ManualClock, threads: ThreadPoolExecutor) -> None:
    """A sleep returns when its time has come, not earlier."""
    sleeping = threads.submit(Context(clock=clock).sleep, 10)
    clock.wait_for_sleepers()
    clock.advance(9)
    assert not sleeping.done()
    clock.wait_for_sleepers()
    clock.advance(1)
    assert sleeping.result(timeout=60) is None


def test_sleep_wakes_on_cancel(clock: ManualClock, threads: ThreadPoolExecutor) -> None:
    """Cancelling a parent wakes a thread that sleeps on a child, without time passing."""
    ctx = Context(clock=clock)
    sleeping = threads.submit(ctx.child(timeout=100).sleep, 10)
    clock.wait_for_sleepers()
    ctx.cancel("enough")
    assert str(sleeping.exception(timeout=60)) == "cancelled: enough"
    assert clock.monotonic() == 0


def test_sleep_on_real_time() -> None:
    """A context on the system's clock sleeps and measures its remaining time."""
    ctx = Context(timeout=3600)
    ctx.sleep(0.001)
    assert 3590 < (ctx.remaining() or 0) < 3600


def test_an_infinite_timeout_is_one() -> None:
    """A timeout of float('inf') is accepted like any other."""
    ctx = Context(timeout=float("inf"))
    ctx.sleep(0)
    assert wait(ctx, lambda: True)


def test_wait_is_rung_by_notify(threads: ThreadPoolExecutor) -> None:
    """A wait checks its condition again after each notify anywhere in its family of contexts."""
    ctx = Context()
    seen: list[int] = []
    waiting = threads.submit(wait, ctx.child(), lambda: len(seen) == 2)
    for number in range(2):
        seen.append(number)
        notify(ctx.child())
    assert waiting.result(timeout=60) is True


def test_cancel_between_look_and_sleep_is_not_lost() -> None:
    """A cancellation by a signal handler in the very moment before a wait begins ends the wait."""

    class Interrupted(ManualClock):
        def monotonic(self) -> float:
            # Called after `done` returned False, in the thread that is about to wait: as a handler
            # would be.
            ctx.cancel("SIGTERM")
            return super().monotonic()

    ctx = Context(clock=Interrupted())
    with pytest.raises(CancelledError, match="SIGTERM"):
        ctx.sleep(3600)


def test_the_first_value_is_kept_for_the_outermost_run() -> None:
    """The first value of a key is kept for all tasks of a run: in a group, in another thread, and
    in a later attempt.
    """
    values = iter(range(9))
    seen = []

    def look(ctx: Context) -> None:
        seen.append(first(ctx, "state", next(values)))
        if len(seen) == 1:
            raise OSError("busy")

    tasks = [task(name)(look) for name in "abc"]
    whole = Serial(with_retry(tasks[0], attempts=2, backoff=0), Parallel(*tasks[1:]))
    assert run(whole).ok
    assert seen == [0, 0, 0, 0]


@pytest.mark.parametrize("start", [run, execute])
def test_each_run_of_a_context_has_a_first_value_of_its_own(start: Callable[..., object]) -> None:
    """Each run in one context has a first value of its own, as an agent runs its tasks for months
    in one context.
    """
    values = iter(range(2))
    seen = []

    @task("look")
    def look(ctx: Context) -> None:
        seen.append(first(ctx, "state", next(values)))

    ctx = Context()
    start(look, ctx)
    start(look, ctx)
    assert seen == [0, 1]


def test_keys_are_kept_apart() -> None:
    """The first value of one key is not that of another."""
    ctx = Context()
    assert first(ctx, "a", 1) == 1
    assert first(ctx, "b", 2) == 2
    assert first(ctx.child(), "a", 3) == 1
