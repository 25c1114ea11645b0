"""A part of the node that is kept right, and when it is looked at: after events, after a time, and after a failure."""

from __future__ import annotations

import os
import time
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError
from hostrouting.watch.pace import Pace
from hostrouting.watch.trouble import Trouble
from phases import CancelledError, DeadlineExceededError

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from hostrouting.host import NetworkEvent
    from phases import Context

__all__ = ["Duty", "Keeper"]

_SECONDS_AFTER_A_FAILURE: Final = 5.0


class Keeper(Protocol):
    """Keeps one part of the node right. All calls come from one thread, and in the order of the events.

    After each `act` it hears all events that the kernel had announced by then, or that there are none: no event from
    before an `act` is heard after the next one.
    """

    @property
    def failure(self) -> str:
        """The beginning of the message about a failed `act`."""

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """Return in how many seconds to act because of these events: 0 for at once, `inf` if they do not concern it."""

    def lose(self) -> None:
        """Forget all that events told, since some were lost: `act` is called at once, and must read everything."""

    def act(self, ctx: Context) -> float:
        """Look, and make it right; return in how many seconds to act again even without an event.

        A keeper that catches up with the events meanwhile `hear`s them as always.
        """


@attrs.define(eq=False)
class Duty:
    """A keeper, with the time at which it is to act next."""

    _keeper: Keeper
    _logger: logging.Logger
    #: On the monotonic clock of the context.
    due: float = -inf
    _pace: Pace = attrs.field(init=False)
    _trouble: Trouble = attrs.field(init=False)

    @_pace.default
    def _new_pace(self) -> Pace:
        return Pace(time.monotonic())

    @_trouble.default
    def _no_trouble(self) -> Trouble:
        return Trouble(self._logger, self._keeper.failure)

    @property
    def trouble(self) -> str:
        """The failure of the last `act`; empty if there was none."""
        return str(self._trouble)

    def hear(self, events: Sequence[NetworkEvent], *, now: float) -> None:
        """Tell the keeper of events."""
        seconds = self._keeper.hear(events)
        if seconds < inf:
            self.due = min(self.due, now + max(seconds, self._pace.pause))

    def lose(self, *, now: float) -> None:
        """Tell the keeper that events were lost."""
        self._keeper.lose()
        self.due = min(self.due, now + self._pace.pause)

    def ask(self) -> None:
        """Let it act at once, on everything that there is."""
        self._keeper.lose()
        self.due = -inf

    def act(self, ctx: Context) -> None:
        """Let the keeper act; a failure is logged, and it acts again after some seconds."""
        # Time on the processor: waiting for the run lock slows nothing down.
        started, seconds = time.thread_time(), _SECONDS_AFTER_A_FAILURE
        # It may hear events meanwhile.
        self.due = inf
        try:
            seconds = self._keeper.act(ctx)
            if seconds:
                # One that goes on at once may fail next, and would then be told again and again.
                self._trouble.end()
        except (CancelledError, DeadlineExceededError):
            if not ctx.over:
                raise
        except HostRoutingError as error:
            if _is_for_ever(error):
                raise
            self._trouble.tell(str(error))
        self._pace = self._pace.after(time.thread_time() - started, now=time.monotonic())
        now = ctx.clock.monotonic()
        self.due = max(min(self.due, now + seconds), now + self._pace.pause)


def _is_for_ever(error: HostRoutingError) -> bool:
    """Return True if the process lacks a privilege; root may be refused a file for a while."""
    lacks_root = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
    return lacks_root or isinstance(error, PermissionDeniedError)
