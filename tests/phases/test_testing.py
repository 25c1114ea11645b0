from concurrent.futures import ThreadPoolExecutor

import pytest

from phases import Context
from phases.testing import ManualClock


def test_clock_stands_still() -> None:
    """Time passes by advance only, on both faces of the clock."""
    clock = ManualClock()
    clock.advance(1.5)
    assert (clock.monotonic(), clock.time()) == (1.5, 1767225601.5)


def test_advance_wakes_those_whose_time_has_come(clock: ManualClock, threads: ThreadPoolExecutor) -> None:
    """Of two sleepers, only the one whose time has come goes on."""
    short = threads.submit(Context(clock=clock).sleep, 1)
    clock.wait_for_sleepers(1)
    long = threads.submit(Context(clock=clock).sleep, 2)
    clock.wait_for_sleepers(2)
    clock.advance(1)
    short.result(timeout=60)
    assert not long.done()
    clock.wait_for_sleepers(1)
    clock.advance(1)
    long.result(timeout=60)


def test_waiting_for_sleepers_has_an_end(clock: ManualClock) -> None:
    """A test in which no thread sleeps fails instead of hanging."""
    with pytest.raises(TimeoutError, match=r"^0 of 1 threads sleep after 0 s$"):
        clock.wait_for_sleepers(timeout=0)
