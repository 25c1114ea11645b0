"""A wait for threads that sleep ends, even if none does."""

import pytest

from phases.testing import ManualClock


def test_waiting_for_sleepers_has_an_end(clock: ManualClock) -> None:
    """A test in which no thread sleeps fails instead of hanging."""
    with pytest.raises(TimeoutError, match=r"^no thread sleeps after 0 s$"):
        clock.wait_for_sleepers(timeout=0)
