"""The signs that a watch gives to the manager of its process: that it is ready, its state, and that it lives."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.watch.loop import Rounds
from phases.context import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Supervisor
    from hostrouting.watch.duty import Duty
    from hostrouting.watch.installed import InstalledConfig

__all__ = ["Calls", "LivingClock", "WatchRounds"]


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


class Calls:
    """The reloads that were asked for and not begun: functions that read a config. Any thread may ask."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], HostRoutingConfig]] = []
        self.wake: Callable[[], object] = bool

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Ask for a reload; safe in a signal handler."""
        self._waiting.append(read)
        self.wake()

    def take(self) -> Callable[[], HostRoutingConfig]:
        """Return the function that was added last: it reads what the others would."""
        taken, self._waiting = self._waiting, []
        return taken[-1]


@attrs.define(eq=False)
class WatchRounds(Rounds):
    """The rounds of a watch: each may begin with a reload, and ends with a sign if the state has changed."""

    _supervisor: Supervisor
    _installed: InstalledConfig
    _calls: Calls
    #: Returns the state in a few words.
    _state: Callable[[], str]
    _is_ready: bool = False
    _told: str = ""

    @property
    def is_done(self) -> bool:
        """See `Rounds`."""
        return self._installed.is_reset

    @property
    def is_called(self) -> bool:
        """See `Rounds`."""
        # A thread of the siblings may have changed the state.
        return bool(self._calls) or (self._is_ready and self._state() != self._told)

    def begin(self, duties: Sequence[Duty]) -> None:
        """Reload, if that was asked for."""
        if self._calls:
            self._supervisor.reloading()
            self._is_ready = False
            self._installed.replace(self._calls.take())
            for duty in duties:
                duty.ask()

    def end(self) -> None:
        """Tell the state: the first one, and the first after a reload, makes the service ready."""
        state = self._state()
        if not self._is_ready:
            self._supervisor.ready(state)
        elif state != self._told:
            self._supervisor.status(state)
        self._is_ready, self._told = True, state
