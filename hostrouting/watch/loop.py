"""The loop of one thread: its duties act when they are due, and hear the events as they come."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import EventsLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host import Listener
    from hostrouting.watch.duty import Duty
    from phases import Context

__all__ = ["Rounds", "catch_up", "keep"]

#: Events that come together are heard together: a flush deletes a thousand routes within this time.
_SECONDS_TOGETHER: Final = 0.003


class Rounds:
    """The rounds of a loop, seen from outside; these go on until the context ends, and nothing calls for one."""

    @property
    def is_done(self) -> bool:
        """True if there is nothing to keep any more."""
        return False

    @property
    def is_called(self) -> bool:
        """True if a round is called for, whatever is due."""
        return False

    def begin(self, duties: Sequence[Duty]) -> None:
        """Hear of the beginning of a round."""

    def end(self) -> None:
        """Hear of the end of a round."""


def keep(ctx: Context, duties: Sequence[Duty], listener: Listener, rounds: Rounds) -> None:
    """Let the duties act, each when it is due, until the context ends or there is nothing to keep any more."""
    while not (ctx.over or rounds.is_done):
        rounds.begin(duties)
        for duty in duties:
            if duty.due <= ctx.clock.monotonic() and not ctx.over:
                duty.act(ctx)
        rounds.end()
        if not rounds.is_done:
            _hear(ctx, duties, listener, rounds)


def _hear(ctx: Context, duties: Sequence[Duty], listener: Listener, rounds: Rounds) -> None:
    """Wait until a duty is due, a round is called for, or there are events; tell all duties, also that none came."""
    now = ctx.clock.monotonic
    end = inf if ctx.deadline is None else ctx.deadline
    due = min(end, *(duty.due for duty in duties))
    is_woken = ctx.wait(lambda: ctx.cancelled or rounds.is_called or listener.has_news, until=due)
    if is_woken and not rounds.is_called:
        ctx.wait(lambda: ctx.cancelled, until=min(end, now() + _SECONDS_TOGETHER))
    if ctx.cancelled:
        return
    catch_up(ctx, duties, listener)


def catch_up(ctx: Context, duties: Iterable[Duty], listener: Listener) -> None:
    """Tell the duties of all events by now."""
    now = ctx.clock.monotonic()
    try:
        events = listener.take()
    except EventsLostError:
        for duty in duties:
            duty.lose(now=now)
        return
    for duty in duties:
        duty.hear(events, now=now)
