"""Shared fixtures of the tests of phases: threads to run calls in, and a clock that they drive."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from phases.testing import ManualClock


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that block; the test ends after them."""
    with ThreadPoolExecutor(max_workers=4) as executor:
        yield executor


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when the test advances it."""
    return ManualClock()
