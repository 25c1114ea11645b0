"""The messages of a watch to its service manager: ready, its state, and its watchdog signs."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

import attrs

from phases.context import SystemClock, ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.boot.keeper import InstalledConfig, Keeper
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Supervisor


class LivingClock(SystemClock):
    """A clock that sends watchdog signs to the service manager while the main thread waits.

    A loop waits after each round, also for the run lock and for programs. One that hangs elsewhere
    gives no sign.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._due = -inf
        #: That of the last wait of the main thread.
        self._doorbell = threading.Lock()

    @contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Let a handled signal end the wait of the main thread at once, without polling.

        The system alone does not: it may hand a signal to another thread, or just before the wait
        begins. It is for the main thread of a process that has no wakeup descriptor of its own.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def ring_for_each() -> None:
            while os.read(reader, 1):
                ring(self._doorbell)

        thread = threading.Thread(target=ring_for_each, name="hostrouting-signals", daemon=True)
        thread.start()
        self.longest: float = threading.TIMEOUT_MAX
        try:
            yield
        finally:
            del self.longest
            signal.set_wakeup_fd(-1)
            os.close(writer)
            thread.join()
            os.close(reader)

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        if threading.current_thread() is threading.main_thread():
            seconds = self._supervisor.seconds_between_signs
            if seconds is not None:
                now = self.monotonic()
                if now >= self._due:
                    self._supervisor.notify(WATCHDOG="1")
                    self._due = now + seconds
                # It ends at the latest for the next sign.
                until = self._due if until is None else min(until, self._due)
            self._doorbell = doorbell
            # From here on a signal rings. This handles one from before, as each change of the mask
            # does.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())
        super().wait(doorbell, until)


@attrs.define(eq=False)
class WatchRounds:
    """The rounds of a watch: each may begin with a reload, and ends with a changed state."""

    _supervisor: Supervisor
    _installed: InstalledConfig
    #: The reloads that have not begun: functions that read a config. Any thread may add one.
    _calls: list[Callable[[], HostRoutingConfig]]
    _keepers: Sequence[Keeper]
    #: Returns the state in a few words.
    _state: Callable[[], str]
    #: The families of the events.
    families: Sequence[int] = ()
    #: The state that the service manager has; None if it does not count as ready.
    _sent: str | None = None

    @property
    def is_done(self) -> bool:
        """True after a reset, or if the config needs events of other families."""
        return self._installed.is_reset or self._installed.config.families != self.families

    @property
    def is_called(self) -> bool:
        """True if a round is to begin before a keeper is due."""
        # A thread of the siblings may have changed the state.
        return bool(self._calls) or self._sent not in (None, self._state())

    def begin(self) -> None:
        """Reload the config if `reload` was called."""
        if self._calls:
            # systemd compares it with the time of the signal that it sent: CLOCK_MONOTONIC of this
            # machine, no test's.
            now = str(time.monotonic_ns() // 1000)
            self._supervisor.notify(RELOADING="1", MONOTONIC_USEC=now)
            self._sent = None
            count = len(self._calls)
            # The last call reads the newest config.
            self._installed.replace(self._calls[count - 1])
            del self._calls[:count]
            for keeper in self._keepers:
                keeper.read_now()

    def end(self) -> None:
        """Send a changed state; the first one, also after a reload, makes the service ready."""
        state = self._state()
        if self._sent is None:
            self._supervisor.notify(READY="1", STATUS=state)
        elif state != self._sent:
            self._supervisor.notify(STATUS=state)
        self._sent = state
