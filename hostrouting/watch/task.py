"""Watch: keep the routing of the installed config right as events tell that it changed, until the context ends."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from hostrouting.boot import NodeTask
from hostrouting.exceptions import EventsLostError
from hostrouting.watch.duty import Duty
from hostrouting.watch.installed import InstalledConfig
from hostrouting.watch.routes import RouteKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Listener
    from phases import Context

__all__ = ["Watch"]

#: Events that come together are heard together: a flush deletes a thousand routes within this time.
_SECONDS_TOGETHER: Final = 0.003


class Watch(NodeTask):
    """Keep the static routes in force until the context ends, which is no failure.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> from phases import Context
    >>> Watch(HostRoutingConfig(), host=FakeHost()).do(Context(timeout=0.01))

    A route of the config that is deleted, or changed in its place, is restored within milliseconds. A foreign route
    that takes its place is displaced, as by an apply, three times within an hour; then it is left, with an error. No
    other foreign route is touched. Every `interval` of the config the routes are compared even without an event.

    Each repair takes the run lock and then reads the intent, so an apply beside it is never fought: the config that it
    installs replaces the given one. After a reset there is nothing to keep, and the task ends. On a node without an
    intent it cannot tell a reset from any other removal of its routes: end it before the reset.
    """

    name = "watch-routes"

    def do(self, ctx: Context) -> None:
        """Repair the routes, and again after each event that concerns them."""
        installed = InstalledConfig(self._config, self._host.files, self._logger)
        # Before the first look: no change after it is missed.
        with self._host.events.listen(ctx) as listener:
            duties: list[Duty] = []
            catch_up = partial(_catch_up, ctx, duties, listener)
            duties.append(Duty(RouteKeeper(self._host, self._logger, installed, catch_up), self._logger))
            while not (ctx.over or installed.is_reset):
                for duty in duties:
                    if duty.due <= ctx.clock.monotonic() and not ctx.over:
                        duty.act(ctx)
                if not installed.is_reset:
                    _hear(ctx, duties, listener)
        if installed.is_reset:
            self._logger.info("hostrouting was reset, so there is nothing to keep any more")


def _hear(ctx: Context, duties: Sequence[Duty], listener: Listener) -> None:
    """Wait until a duty is due or there are events, and tell these to all duties."""
    now = ctx.clock.monotonic
    end = inf if ctx.deadline is None else ctx.deadline
    due = min(end, *(duty.due for duty in duties))
    if not ctx.wait(lambda: ctx.cancelled or listener.has_news, until=due) or ctx.cancelled:
        return
    ctx.wait(lambda: ctx.cancelled, until=min(end, now() + _SECONDS_TOGETHER))
    _catch_up(ctx, duties, listener)


def _catch_up(ctx: Context, duties: Sequence[Duty], listener: Listener) -> None:
    """Tell all duties of all events by now."""
    now = ctx.clock.monotonic()
    try:
        events = listener.take()
    except EventsLostError:
        for duty in duties:
            duty.lose(now=now)
        return
    for duty in duties:
        duty.hear(events, now=now)
