"""The keeper of the routes: the events that concern them, their repair, and a line for each change of state."""

from __future__ import annotations

from collections import defaultdict
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.host import OUR_PROTOCOL, AddressEvent, DeviceEvent, RouteEvent
from hostrouting.net.routes import MAIN_TABLE, place
from hostrouting.static_routes.repair import Repair, repair
from hostrouting.watch.account import Account

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.host import Host, NetworkEvent, ObservedRoute
    from hostrouting.net.routes import Place
    from hostrouting.watch.installed import InstalledConfig
    from phases import Change, Context

__all__ = ["RouteKeeper"]

#: A foreign route is left in a place of the config after so many displacements within the time: its owner insists.
_MOST_DISPLACEMENTS: Final = 3
_SECONDS_OF_A_CONTEST: Final = 3600.0
#: Each change has a separate line, if there are no more than these.
_MOST_LINES: Final = 8
#: A program that changes a route without end fills no log: ten repairs a second are made for it, for ever.
_MOST_LINES_A_MINUTE: Final = 60


class _Lines:
    """The lines of a log, of which a minute has only so many; the number of the others follows."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since = -inf
        self._left = 0

    def at(self, now: float) -> None:
        """Begin another minute if the last one is over."""
        if now - self._since < 60:
            return
        if self._left < 0:
            message = "%d lines were left out: another program changes routes of the config all the time"
            self._logger.warning(message, -self._left)
        self._since, self._left = now, _MOST_LINES_A_MINUTE

    def write(self, level: int, message: str, *values: object, **extra: object) -> None:
        """Write a line if the minute has one left."""
        self._left -= 1
        if self._left >= 0:
            self._logger.log(level, message, *values, extra=extra)


@attrs.define(eq=False)
class RouteKeeper:
    """The static routes of a config, with all that is to be known between two repairs."""

    failure: ClassVar[str] = "the routes cannot be repaired now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    _lines: _Lines = attrs.field(init=False, default=attrs.Factory(lambda self: _Lines(self._logger), takes_self=True))
    _last: Repair = attrs.field(factory=Repair)
    #: The number of routes in the config.
    _count: int = 0
    #: The devices by which the routes leave.
    _devices: set[str | None] = attrs.field(factory=set)
    #: True if a default route completes a route of the config.
    _looks_up: bool = False
    #: When foreign routes were displaced from a place.
    _displacements: defaultdict[Place, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def state(self) -> str:
        """The state of the routes in a few words."""
        waiting, spared = len(self._last.waiting), len(self._last.spared)
        parts = [f"routes in force: {self._count - waiting - spared}"]
        parts += [f"waiting: {waiting}"] if waiting else []
        parts += [f"left to another program: {spared}"] if spared else []
        return ", ".join(parts)

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        return 0 if any(map(self._concerns, events)) else inf

    def lose(self) -> None:
        """See `Keeper`: each repair reads everything anew."""

    def act(self, ctx: Context) -> float:
        """Repair the routes of the installed config, under the run lock."""
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if not self._installed.is_reset:
                self._repair(held, config.static_routes.routes)
        return config.watch.interval

    def _concerns(self, event: NetworkEvent) -> bool:
        """Return True if the event may have changed one of the routes, or may let a waiting one return.

        The kernel announces no removal of the routes that go with a device or an address, so these events count.
        """
        if isinstance(event, RouteEvent):
            return self._concerns_route(event)
        if isinstance(event, DeviceEvent):
            return event.device.name in self._devices
        return isinstance(event, AddressEvent) and event.dev in self._devices

    def _concerns_route(self, event: RouteEvent) -> bool:
        route = event.route
        wanted = self._last.wanted.get(place(route))
        if route.protocol == OUR_PROTOCOL:
            # A repair is announced, too.
            return event.verb == "remove" or wanted is None or not route.fulfils(wanted)
        if wanted is not None or (self._looks_up and not route.prefix_length and route.table == MAIN_TABLE):
            return True
        # The kernel finds a gateway by a route without one.
        return bool(self._last.waiting) and route.gateway is None and route.dev in self._devices

    def _repair(self, ctx: Context, routes: Sequence[StaticRoute]) -> None:
        """Make the routes right, and log each difference to the state before."""
        now, account, before = ctx.clock.monotonic(), Account(), self._last
        self._count = len(routes)
        # Now, since thousands of events need them, and also if the repair fails.
        self._devices |= {route.dev for route in routes}
        self._looks_up = not all(route.dev and route.gateway for route in routes)
        spare = self._contested(now)
        self._last = repair(ctx.within(account), routes, self._host, self._logger, before=before, spare=spare)
        self._devices = {route.dev for route in routes} | {route.dev for route in self._last.wanted.values()}
        for route in self._last.displaced:
            self._displacements[place(route)].append(now)
        self._lines.at(now)
        self._tell_changes(account.changes)
        self._tell_waiting(before.waiting)
        self._tell_spared(before.spared)

    def _contested(self, now: float) -> set[Place]:
        """Return the places from which no foreign route is displaced any more, and forget old displacements."""
        recent = {
            spot: [time for time in times if now - time < _SECONDS_OF_A_CONTEST]
            for spot, times in self._displacements.items()
        }
        self._displacements = defaultdict(list, {spot: times for spot, times in recent.items() if times})
        return {spot for spot, times in self._displacements.items() if len(times) >= _MOST_DISPLACEMENTS}

    def _tell_changes(self, changes: Sequence[Change]) -> None:
        if len(changes) > _MOST_LINES:
            message = "%d routes were repaired, the first is: %s"
            self._lines.write(WARNING, message, len(changes), changes[0], changed=len(changes))
            return
        for change in changes:
            self._lines.write(WARNING, "repaired: %s", change, change=str(change))

    def _tell_waiting(self, before: Mapping[str, str]) -> None:
        for route, reason in self._last.waiting.items():
            if before.get(route) != reason:
                self._lines.write(WARNING, "route '%s' waits: %s", route, reason, route=route, reason=reason)
        if before and not self._last.waiting:
            self._lines.write(INFO, "no route waits any more")

    def _tell_spared(self, before: Collection[ObservedRoute]) -> None:
        for route in self._last.spared:
            if route not in before:
                self._lines.write(
                    ERROR,
                    "foreign route '%s' is left in the place of a route of the config, because it came back after %d "
                    "displacements within an hour; stop the program that adds it, or remove the route from the config",
                    route,
                    _MOST_DISPLACEMENTS,
                    foreign=str(route),
                )
