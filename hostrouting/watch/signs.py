"""The signs that a watch gives to the manager of its process: that it is ready, its state, and that it lives."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

from phases.context import SystemClock

if TYPE_CHECKING:
    from hostrouting.host import Supervisor

__all__ = ["LivingClock", "Signs"]


class LivingClock(SystemClock):
    """The clock of this machine; whenever the main thread waits for it, the manager gets a sign of life in time.

    A loop waits after each round, also for the run lock and for programs. One that hangs elsewhere gives no sign.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._due = -inf

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        seconds = self._supervisor.seconds_between_signs
        # In the main thread no wait is long: see `SystemClock`.
        if seconds is not None and threading.current_thread() is threading.main_thread():
            now = self.monotonic()
            if now >= self._due:
                self._supervisor.alive()
                self._due = now + seconds
        super().wait(doorbell, until)


class Signs:
    """Tells a manager each change of the state."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._is_ready = False
        self._told = ""

    def reload(self) -> None:
        """Tell that a reload begins; the next `tell` ends it."""
        self._supervisor.reloading()
        self._is_ready = False

    def tell(self, status: str) -> None:
        """Tell the state after a look: the first one, and the first after a reload, makes the service ready."""
        if not self._is_ready:
            self._supervisor.ready(status)
        elif status != self._told:
            self._supervisor.status(status)
        self._is_ready, self._told = True, status
