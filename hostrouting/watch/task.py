"""Watch: keep the routing of the installed config right as events tell that it changed, until the context ends."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from hostrouting.boot import NodeTask
from hostrouting.exceptions import EventsLostError
from hostrouting.watch.duty import Duty
from hostrouting.watch.installed import InstalledConfig
from hostrouting.watch.routes import RouteKeeper
from hostrouting.watch.signs import Signs
from phases import CancelledError, DeadlineExceededError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host, Listener
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

    `host.supervisor` learns of the first repair, of reloads, and of each change of state.
    """

    name = "watch-routes"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        super().__init__(config, host=host, logger=logger)
        #: The functions that `reload` was given, for the loop.
        self._asked: list[Callable[[], HostRoutingConfig]] = []
        self._wake: Callable[[], object] = bool

    def reload(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Let the task look at everything anew, with the config that `read` returns if none is installed.

        The task calls `read`; if that fails, the config before it stays in force. Safe in any thread and in a signal
        handler.
        """
        self._asked.append(read)
        self._wake()

    def do(self, ctx: Context) -> None:
        """Repair the routes, and again after each event that concerns them."""
        try:
            self._keep(ctx)
        except (CancelledError, DeadlineExceededError):
            # It may end before there is anything to listen to.
            if not ctx.over:
                raise

    def _keep(self, ctx: Context) -> None:
        signs = Signs(self._host.supervisor)
        installed = InstalledConfig(self._config, self._host.files, self._logger)
        duties = [Duty(RouteKeeper(self._host, self._logger, installed), self._logger)]
        # Before the first look: no change after it is missed.
        with self._host.events.listen(ctx) as listener:
            self._wake = ctx.notify
            while not (ctx.over or installed.is_reset):
                self._reload(installed, duties, signs)
                for duty in duties:
                    if duty.due <= ctx.clock.monotonic() and not ctx.over:
                        duty.act(ctx)
                signs.tell("; ".join(duty.state for duty in duties))
                if not installed.is_reset:
                    self._hear(ctx, duties, listener)
        self._host.supervisor.stopping()
        if installed.is_reset:
            self._logger.info("hostrouting was reset, so there is nothing to keep any more")

    def _reload(self, installed: InstalledConfig, duties: Sequence[Duty], signs: Signs) -> None:
        while self._asked:
            signs.reload()
            installed.replace(self._asked.pop())
            for duty in duties:
                duty.ask()

    def _hear(self, ctx: Context, duties: Sequence[Duty], listener: Listener) -> None:
        """Wait until a duty is due, there are events, or a reload is asked for; tell the events to all duties."""
        now = ctx.clock.monotonic
        end = inf if ctx.deadline is None else ctx.deadline
        due = min(end, *(duty.due for duty in duties))
        is_called = ctx.wait(lambda: ctx.cancelled or bool(self._asked) or listener.has_news, until=due)
        if not is_called or ctx.cancelled or self._asked:
            return
        ctx.wait(lambda: ctx.cancelled, until=min(end, now() + _SECONDS_TOGETHER))
        try:
            events = listener.take()
        except EventsLostError:
            for duty in duties:
                duty.lose(now=now())
            return
        for duty in duties:
            duty.hear(events, now=now())
