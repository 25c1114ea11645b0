"""The clock of a service: it sends signs to the watchdog while the main thread waits."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

from phases.context import SystemClock, ring

if TYPE_CHECKING:
    from collections.abc import Iterator

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
