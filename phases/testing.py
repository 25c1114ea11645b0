"""For tests of tasks: a clock that the test moves."""

from __future__ import annotations

from threading import Condition, Lock

from phases.context import ring

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that the test moves by `advance`, or that every wait moves if `auto` is set.

    With `auto` each wait ends at once, for code in one thread; only a Parallel really waits for its
    tasks, and `run_command` for its program.
    Without it another thread really waits; `wait_for_sleepers` returns once it does.

    >>> from phases import Context
    >>> clock = ManualClock(auto=True)
    >>> Context(clock=clock).sleep(3600)
    >>> clock.monotonic()
    3600.0
    """

    #: The start of 2026, so that reports of tests are the same every day.
    EPOCH = 1767225600.0

    def __init__(self, *, auto: bool = False) -> None:
        self.auto: bool = auto
        self._now = 0.0
        self._changed = Condition()
        self._sleepers: set[Lock] = set()

    def monotonic(self) -> float:
        """Seconds that the test let pass."""
        return self._now

    def time(self) -> float:
        """The same, since the start of 2026."""
        return self.EPOCH + self._now

    def advance(self, seconds: float) -> None:
        """Move the time, and wake all waiting threads."""
        self._now += seconds
        with self._changed:
            # A woken thread is not a sleeper until it waits again.
            while self._sleepers:
                ring(self._sleepers.pop())

    def wait_for_sleepers(self, *, timeout: float = 10.0) -> None:
        """Return when a thread waits for time to pass; `timeout` real seconds later, fail."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._sleepers, timeout):
                raise TimeoutError(f"no thread sleeps after {timeout:g} s")

    def wait(self, doorbell: Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        if until is not None:
            if self.auto:
                self._now = max(self._now, until)
            with self._changed:
                if self._now >= until:
                    return
                self._sleepers.add(doorbell)
                self._changed.notify_all()
        doorbell.acquire()
        with self._changed:
            self._sleepers.discard(doorbell)
