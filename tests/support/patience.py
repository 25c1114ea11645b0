"""Wait for something that sends no event: look again after a pause, up to a limit that ends a test
that hangs.
"""

import json
import threading
import time
from collections.abc import Callable

import pytest

from hostrouting.testing import KernelNode
from phases import Context
from phases.testing import ManualClock

_LONGEST = 300.0
_PAUSE = 0.02


class ActingClock(ManualClock):
    """A clock that jumps to the end of each wait, and then calls `on_wait`."""

    def __init__(self) -> None:
        super().__init__(auto=True)
        self.on_wait: Callable[[], object] = lambda: None

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        super().wait(doorbell, until)
        self.on_wait()


def wait_until(is_met: Callable[[], object], missing: str) -> None:
    """Return when something is the case; `missing` says in a failure what never was."""
    end = time.monotonic() + _LONGEST
    while not is_met():
        assert time.monotonic() < end, missing
        time.sleep(_PAUSE)


def boot_clock(
    monkeypatch: pytest.MonkeyPatch,
    *,
    begin: float = 100,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[float]:
    """Let this boot have lasted so many seconds, and each sleep take no time; return the seconds
    that were slept. `meanwhile` is called after each sleep.
    """
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 100, "it waits for ever"
        meanwhile()

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.clock_gettime", lambda _: begin + sum(slept))
    return slept


def at_once(timeout: float | None = None) -> Context:
    """Return a context whose clock jumps to the end of each wait; `timeout` is its limit by that
    clock.
    """
    return Context(timeout=timeout, clock=ManualClock(auto=True))


def until_unplugged(node: KernelNode, dev: str) -> None:
    """Return when a device has lost its carrier, and the kernel has updated its routes."""

    def is_unplugged() -> bool:
        [link] = json.loads(node.ip(f"-j link show dev {dev}"))
        return bool(link["operstate"] != "UP")

    wait_until(is_unplugged, f"the loss of the carrier of {dev}")
