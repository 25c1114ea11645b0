"""The duties of a thread: keepers that act after events, after a time, and after a failure."""

from __future__ import annotations

import os
import time
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError
from hostrouting.watch.trouble import Trouble
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Sequence

    from hostrouting.boot import Keeper
    from hostrouting.host import NetworkEvent
    from phases import Context

#: The share of a core that a keeper may take for long.
_SHARE = 0.03
#: Seconds that may be spent at once, before the share counts.
_SAVINGS = 0.3
#: The longest pause: one repair of a node with a million routes takes seconds.
_LONGEST = 5.0


@attrs.frozen
class Pace:
    """The processor time that a keeper has left: each look spends some, and it grows with time.

    >>> pace = Pace().after(0.1, now=100.0)
    >>> pace.free
    100.0
    >>> pace.after(1.5, now=100.0).free
    105.0
    """

    #: The end of the last look, on the clock of the context.
    now: float = -inf
    left: float = _SAVINGS
    #: The shortest pause.
    least: float = 0.0

    @property
    def pause(self) -> float:
        """The seconds between the last look and the next one."""
        return min(_LONGEST, max(self.least, -self.left / _SHARE))

    @property
    def free(self) -> float:
        """Return when the next look may begin."""
        return self.now + self.pause

    def after(self, seconds: float, *, now: float) -> Pace:
        """Return the pace after a look that took `seconds` of the processor and ended `now`."""
        left = min(_SAVINGS, self.left + (now - self.now) * _SHARE) - seconds
        # One long look does not slow all later ones for hours.
        return Pace(now, max(left, -_LONGEST * _SHARE), self.least)


_SECONDS_AFTER_A_FAILURE = 5.0


@attrs.define(eq=False)
class Duty:
    """A keeper, with the time at which it is to act next."""

    _keeper: Keeper
    _logger: logging.Logger
    #: On the monotonic clock of the context.
    due: float = attrs.field(default=-inf, init=False)
    _pace: Pace = attrs.field(factory=Pace, kw_only=True)
    #: The failure of the last `act`.
    trouble: Trouble = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.trouble = Trouble(self._logger, self._keeper.failure)

    def deliver(self, events: Sequence[NetworkEvent], *, now: float) -> None:
        """Deliver events to the keeper."""
        seconds = self._keeper.receive(events)
        soonest = max(now + seconds, self._pace.free)
        # In a storm the pause after one more look is as long as the one before it, and must not
        # delay the look that the keeper has named: the second reading of an alarm.
        if max(soonest, self._pace.free + self._pace.pause) <= self.due:
            self.due = soonest

    def lose(self, *, now: float) -> None:
        """Let the keeper read everything anew, since events were lost."""
        self._keeper.lose()
        self.due = min(self.due, max(now, self._pace.free))

    def act_soon(self) -> None:
        """Let the keeper read everything anew, at once."""
        self._keeper.lose()
        self.due = -inf

    def act(self, ctx: Context) -> None:
        """Let the keeper act; it acts again after the seconds that it returns."""
        # Time on the processor: waiting for the run lock slows nothing down.
        started = time.thread_time()
        # Another thread may set an earlier time meanwhile.
        self.due = inf
        try:
            seconds = self._keeper.act(ctx)
            if seconds:
                # A keeper that goes on at once may fail next: each failure would be logged again.
                self.trouble.end()
        except Exception as error:  # noqa: BLE001 - raised again, but for those of the keeper
            seconds = self._after(error, ctx)
        now = ctx.clock.monotonic()
        self._pace = self._pace.after(time.thread_time() - started, now=now)
        self.due = max(min(self.due, now + seconds), self._pace.free)

    def _after(self, error: Exception, ctx: Context) -> float:
        """Log a failure, or raise it; return the seconds before the next try."""
        if isinstance(error, HostRoutingError):
            # The process lacks a privilege; root may be refused a file for a while.
            lacks_root = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
            if lacks_root or isinstance(error, PermissionDeniedError):
                raise error
            self.trouble.log(str(error))
        elif not (ctx.over and isinstance(error, CONTEXT_OVER)):
            raise error
        return _SECONDS_AFTER_A_FAILURE


def act_if_due(ctx: Context, duties: Iterable[Duty]) -> None:
    """Let the duties act that are due."""
    for duty in duties:
        if duty.due <= ctx.clock.monotonic() and not ctx.over:
            duty.act(ctx)
