"""Watch: repair the routes of the installed config as events tell that they changed, until the context ends."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from hostrouting.boot import INTENT_PATH, NodeTask, read_intent
from hostrouting.exceptions import (
    EventsLostError,
    HostFileError,
    HostRoutingError,
    InvalidConfigError,
    PermissionDeniedError,
)
from hostrouting.watch.keeper import RouteKeeper
from hostrouting.watch.pace import Pace
from phases import CancelledError, DeadlineExceededError

if TYPE_CHECKING:
    from hostrouting.host import Listener
    from phases import Context

__all__ = ["Watch"]

#: A failed repair is repeated after so long, also without an event.
_SECONDS_AFTER_A_FAILURE: Final = 5.0
_REPAIR: Final = "the routes cannot be repaired now"
_INTENT: Final = "the installed config cannot be read, and the routes of the one before it are kept"


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
    installs replaces the given one. After a reset there is nothing to keep, and the task ends.
    """

    name = "watch-routes"

    def do(self, ctx: Context) -> None:
        """Repair the routes, and again after each event that concerns them."""
        keeper, pace = RouteKeeper(self._host, self._logger), Pace(ctx.clock.monotonic())
        # Before the first repair has the lock, a reset may have come and gone.
        self._is_installed = self._host.files.exists(INTENT_PATH)
        self._is_reset = False
        #: The trouble that was logged last, of the repair and of the installed config.
        self._trouble: dict[str, str] = {}
        # Before the first repair: no change after it is missed.
        with self._host.events.listen(ctx) as listener:
            while not ctx.over:
                pace = self._repair(ctx, keeper, pace)
                if self._is_reset:
                    self._logger.info("hostrouting was reset, so there is nothing to keep any more")
                    return
                self._wait(ctx, keeper, pace, listener)

    def _repair(self, ctx: Context, keeper: RouteKeeper, pace: Pace) -> Pace:
        """Repair under the run lock, and return the pace after that; a failure is logged, and repaired later."""
        now = ctx.clock.monotonic
        started = now()
        try:
            with self._host.lock.hold(ctx) as held:
                started = now()
                self._read_intent()
                if not self._is_reset:
                    keeper.repair(held, self._config.static_routes.routes)
            self._trouble.pop(_REPAIR, None)
        except (CancelledError, DeadlineExceededError):
            if not ctx.over:
                raise
        except PermissionDeniedError:
            # It would fail for ever.
            raise
        except HostRoutingError as error:
            self._tell_once(_REPAIR, error)
        return pace.after(now() - started, now=now())

    def _read_intent(self) -> None:
        """Go on with the installed config; with the one before it if the file cannot be read or is damaged."""
        try:
            intent = read_intent(self._host.files)
        except (HostFileError, InvalidConfigError) as error:
            self._tell_once(_INTENT, error)
            # A file is there: it may have been damaged before this began, and a reset removes it.
            self._is_installed = True
            return
        self._trouble.pop(_INTENT, None)
        self._is_reset = intent is None and self._is_installed
        if intent is not None:
            self._is_installed = True
            self._config = intent

    def _tell_once(self, subject: str, error: HostRoutingError) -> None:
        if self._trouble.get(subject) != str(error):
            self._logger.error("%s: %s", subject, error)
        self._trouble[subject] = str(error)

    def _wait(self, ctx: Context, keeper: RouteKeeper, pace: Pace, listener: Listener) -> None:
        """Wait for an event that concerns the routes, then for others that come with it; at most for the interval."""
        now = ctx.clock.monotonic
        end = inf if ctx.deadline is None else ctx.deadline
        longest = self._config.watch.interval
        due = min(end, now() + (min(longest, _SECONDS_AFTER_A_FAILURE) if _REPAIR in self._trouble else longest))
        while ctx.wait(lambda: ctx.cancelled or listener.has_news, until=due) and not ctx.cancelled:
            if _concern(listener, keeper):
                ctx.wait(lambda: ctx.cancelled, until=min(end, now() + pace.pause))
                # The repair reads everything anew.
                with suppress(EventsLostError):
                    listener.take()
                return


def _concern(listener: Listener, keeper: RouteKeeper) -> bool:
    """Take the events; return True if one concerns the routes, or if events were lost."""
    try:
        return any(map(keeper.concerns, listener.take()))
    except EventsLostError:
        return True
