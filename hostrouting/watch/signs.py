"""The signs that a watch gives to the manager of its process: that it is ready, its state, and that it lives."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING

import attrs

from phases.context import SystemClock, ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Supervisor
    from hostrouting.watch.duty import Duty
    from hostrouting.watch.installed import InstalledConfig


class LivingClock(SystemClock):
    """The clock of this machine; whenever the main thread waits for it, the manager gets a sign of life in time.

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
        """Let a handled signal end the wait of the main thread at once, so that it need not look for signals meanwhile.

        The system alone does not: it may hand a signal to another thread, or just before the wait
        begins. Call this in the main thread. A program that has a wakeup descriptor, such as the
        loop of asyncio, hears of the signals, too.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(
            target=self._ring, args=(reader, before), name="hostrouting-signals", daemon=True
        )
        thread.start()
        self.longest = threading.TIMEOUT_MAX
        try:
            yield
        finally:
            del self.longest
            signal.set_wakeup_fd(before)
            os.close(writer)
            thread.join()
            os.close(reader)

    def _ring(self, reader: int, others: int) -> None:
        """Ring at each signal, which the interpreter writes to a pipe, until the pipe is closed; tell `others`."""
        while caught := os.read(reader, 1):
            ring(self._doorbell)
            if others >= 0:
                # It is full, or closed meanwhile: the interpreter would lose the signal, too.
                with suppress(OSError):
                    os.write(others, caught)

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `phases.Clock`."""
        if threading.current_thread() is threading.main_thread():
            until = self._sign_before(until)
            self._doorbell = doorbell
            # From here on a signal rings. This handles one from before, as each change of the mask
            # does.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())
        super().wait(doorbell, until)

    def _sign_before(self, until: float | None) -> float | None:
        """Give a sign if it is due, and return the end of the wait: that of the caller, or the time of the next one."""
        seconds = self._supervisor.seconds_between_signs
        if seconds is None:
            return until
        now = self.monotonic()
        if now >= self._due:
            self._supervisor.alive()
            self._due = now + seconds
        return self._due if until is None else min(until, self._due)


@attrs.define(eq=False)
class WatchRounds:
    """The rounds of a watch: each may begin with a reload, and ends with a sign if the state has changed."""

    _supervisor: Supervisor
    _installed: InstalledConfig
    #: The reloads that were asked for and not begun: functions that read a config. Any thread may
    #: add one.
    _calls: list[Callable[[], HostRoutingConfig]]
    #: Returns the state in a few words.
    _state: Callable[[], str]
    #: Those whose events are heard.
    families: Sequence[int] = ()
    _is_ready: bool = False
    _told: str = ""

    @property
    def is_done(self) -> bool:
        """True if there is nothing to keep any more, or other events are to be heard."""
        return self._installed.is_reset or self._installed.config.families != self.families

    @property
    def is_called(self) -> bool:
        """True if a round is called for, whatever is due."""
        # A thread of the siblings may have changed the state.
        return bool(self._calls) or (self._is_ready and self._state() != self._told)

    def begin(self, duties: Sequence[Duty]) -> None:
        """Reload, if that was asked for."""
        if self._calls:
            self._supervisor.reloading()
            self._is_ready = False
            asked = self._calls.copy()
            # The last one reads what the others would.
            self._installed.replace(asked[-1])
            del self._calls[: len(asked)]
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
