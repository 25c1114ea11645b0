"""The messages of a watch to its service manager: ready, its state, and its watchdog signs."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

import attrs

from phases.context import SystemClock, ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.boot.keeper import InstalledConfig
    from hostrouting.host import Supervisor


class LivingClock(SystemClock):
    """A clock that sends watchdog signs to the service manager while the main thread waits.

    A loop waits after each round, also for the run lock and for programs. One that hangs elsewhere
    gives no sign.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._due = -inf
        #: The doorbell of the last wait of the main thread.
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
    """The rounds of a watch: each ends with the state, if that has changed."""

    _supervisor: Supervisor
    _installed: InstalledConfig
    #: Returns the state in a few words.
    _state: Callable[[], str]
    #: The families of the events.
    families: Sequence[int] = ()
    #: The state that the service manager has; None before the first one.
    _sent: str | None = None

    @property
    def is_done(self) -> bool:
        """True after a reset, or if the config needs events of other families."""
        return self._installed.is_reset or self._installed.config.families != self.families

    @property
    def has_news(self) -> bool:
        """True if a thread of the siblings has changed the state."""
        return self._sent != self._state()

    def end(self) -> None:
        """Send a changed state; the first one makes the service ready."""
        state = self._state()
        if self._sent is None:
            self._supervisor.notify(READY="1", STATUS=state)
        elif state != self._sent:
            self._supervisor.notify(STATUS=state)
        self._sent = state
