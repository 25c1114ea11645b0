from functools import partial

import pytest

from phases import CancelledError, Context
from phases.hosting import notify
from phases.testing import ManualClock


def test_waiting_for_sleepers_has_an_end(clock: ManualClock) -> None:
    """A test in which no thread sleeps fails instead of hanging."""
    with pytest.raises(TimeoutError, match=r"^0 of 1 threads sleep after 0 s$"):
        clock.wait_for_sleepers(timeout=0)


def test_an_event_ends_a_wait_at_its_moment() -> None:
    """What a test lets happen at a time is seen by the wait at this time, not at its end."""
    clock = ManualClock(auto=True)
    ctx = Context(clock=clock)
    clock.at(3, lambda: ctx.cancel("the lease is gone"))
    clock.at(1, partial(notify, ctx))
    with pytest.raises(CancelledError):
        ctx.sleep(60)
    assert clock.monotonic() == 3
    assert repr(clock) == "<ManualClock at 3 s>"


def test_events_come_with_an_advance() -> None:
    """In the order of their times, each at its own."""
    clock = ManualClock()
    moments: list[float] = []
    for moment in (3, 1, 9):
        clock.at(moment, lambda: moments.append(clock.monotonic()))
    clock.advance(5)
    assert moments == [1, 3]
    assert clock.monotonic() == 5
