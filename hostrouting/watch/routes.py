"""The keeper of the routes: the events that concern them, their repair, and a line for each change of state."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from hostrouting.collector import collector_paused
from hostrouting.exceptions import BackendError, HostFileError
from hostrouting.host import OUR_PROTOCOL, AddressEvent, DeviceEvent, Host, NexthopEvent, RouteEvent, RuleEvent
from hostrouting.net.routes import MAIN_TABLE, SCOPE_LINK, place
from hostrouting.static_routes.repair import Repair, repair, repair_places
from hostrouting.static_routes.resolve import place_of
from hostrouting.watch.account import Account
from hostrouting.watch.known import KnownRoutes, NearRoutes, WholeRoutes
from hostrouting.watch.lines import Lines

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaticRoute
    from hostrouting.host import Lookup, NetworkEvent, ObservedRoute, Route, RouteBackend
    from hostrouting.net.routes import Place
    from hostrouting.watch.installed import InstalledConfig
    from phases import Change, Context

__all__ = ["RouteKeeper"]

#: A foreign route is left in a place of the config after so many displacements within the time: its owner insists.
_MOST_DISPLACEMENTS: Final = 3
_SECONDS_OF_A_CONTEST: Final = 3600.0
#: In the time of one question about a route of ours, the kernel shows so many routes; a first question takes longer.
_OTHERS_READ_FOR_EACH: Final = 3
_OTHERS_READ: Final = 1000
#: Each change has a separate line, if there are no more than these.
_MOST_LINES: Final = 8

#: All routes; or ours, and the answer about each of their places.
_Answers: TypeAlias = "tuple[list[ObservedRoute], list[Lookup] | None]"


@attrs.define(eq=False)
class RouteKeeper:
    """The static routes of a config, with all that is to be known between two repairs.

    After an event of a route, only the places of such events are repaired, and no route is read (`NearRoutes`). All
    routes are read at first, after a loss, for another config, after an event with which routes may have gone that no
    event names, and if a small repair is refused.

    Every `interval` the routes are compared with what the events told. On a node with many foreign routes, only ours
    are read, and the kernel is asked which route decides the first address of each place. That finds a foreign route
    ahead of ours, but not where a longer prefix, or a rule, decides the address: there only an event can tell of one.
    """

    failure: ClassVar[str] = "the routes cannot be repaired now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: Lets `hear` have all events by now.
    _catch_up: Callable[[], None]
    _lines: Lines = attrs.field(init=False, default=attrs.Factory(lambda self: Lines(self._logger), takes_self=True))
    _known: KnownRoutes = attrs.field(
        init=False, default=attrs.Factory(lambda self: KnownRoutes(self._host.routes, self._catch_up), takes_self=True)
    )
    _last: Repair = attrs.field(factory=Repair)
    #: The routes of the config, as objects, and their places.
    _routes: Sequence[StaticRoute] | None = None
    _places: frozenset[Place] = frozenset()
    #: The devices by which the routes leave, or that may change which these are.
    _devices: Collection[str | None] = ()
    #: True if a default route completes a route of the config.
    _looks_up: bool = False
    #: True if all routes are to be read.
    _is_whole: bool = True
    #: The routes that the kernel may accept once their gateway is found otherwise: the gateways, in order, and places.
    _awaited: Sequence[tuple[int, Place]] = ()
    #: The places of events since the last repair.
    _touched: set[Place] = attrs.field(factory=set)
    #: True while it repairs: it hears its own changes.
    _is_acting: bool = False
    #: When to compare the routes without an event, on the monotonic clock.
    _compare_at: float = inf
    #: The answers of the kernel that were as the events told, about the routes that are wanted now.
    _confirmed: _Answers | None = None
    #: When foreign routes were displaced from a place.
    _displacements: defaultdict[Place, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    @property
    def state(self) -> str:
        """The state of the routes in a few words."""
        waiting, spared = len(self._last.waiting), len(self._last.spared)
        parts = [f"routes in force: {len(self._routes or ()) - waiting - spared}"]
        parts += [f"waiting: {waiting}"] if waiting else []
        parts += [f"left to another program: {spared}"] if spared else []
        return ", ".join(parts)

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        for event in events:
            self._hear(event)
        return inf if self._is_acting or self._is_done() else 0

    def lose(self) -> None:
        """See `Keeper`."""
        self._known.forget()
        self._is_whole = True

    def act(self, ctx: Context) -> float:
        """Repair the routes of the installed config, under the run lock."""
        self._is_acting = True
        try:
            with self._host.lock.hold(ctx) as held, collector_paused():
                config = self._installed.read()
                if not self._installed.is_reset:
                    self._keep(held, config)
        except BaseException:
            self._is_whole = True
            raise
        finally:
            self._is_acting = False
        return self._compare_at - ctx.clock.monotonic() if self._is_done() else 0

    # --- events

    def _hear(self, event: NetworkEvent) -> None:
        """Take note of the places that an event concerns; or that everything is to be read.

        The kernel announces no removal of the routes that go with a device or an address, so these events count.
        """
        if isinstance(event, RouteEvent):
            spot = self._known.hear(event)
            if spot is not None:
                self._touched.add(spot)
            if self._awaited:
                self._touched.update(self._gateways_found_by(event.route))
            self._is_whole = self._is_whole or self._completes(event.route)
        elif isinstance(event, RuleEvent):
            self._touched.update(spot for _, spot in self._awaited)
        else:
            self._is_whole = self._is_whole or self._takes_routes_along(event)

    def _takes_routes_along(self, event: NetworkEvent) -> bool:
        if isinstance(event, DeviceEvent):
            return self._is_used(event.device.name) or self._is_used(event.former)
        if isinstance(event, AddressEvent):
            return self._is_used(event.dev) or event.address.local in self._known.sources
        if isinstance(event, NexthopEvent):
            return event.nexthop_id in self._known.objects
        return False

    def _is_used(self, dev: str | None) -> bool:
        return dev in self._devices or dev in self._known.devices

    def _gateways_found_by(self, route: ObservedRoute) -> Iterator[Place]:
        """Yield the places of waiting routes that may return once this route came or went, in whatever table.

        The kernel accepts a gateway by a lookup that passes over routes of a wider scope than a link. A route to
        nowhere of that scope hides a shorter one, as a rule may.
        """
        if route.scope >= SCOPE_LINK:
            first, end = (route.network,), (route.network + (1 << 32 - route.prefix_length),)
            for at in range(bisect_left(self._awaited, first), bisect_left(self._awaited, end)):
                yield self._awaited[at][1]

    def _completes(self, route: ObservedRoute) -> bool:
        """Return True if a change of this foreign route may complete a route of the config in another way."""
        is_default = not route.prefix_length and route.table == MAIN_TABLE
        return self._looks_up and is_default and route.protocol != OUR_PROTOCOL

    def _is_done(self) -> bool:
        """Return True if nothing is to be repaired; forget the events that changed nothing."""
        self._touched = {spot for spot in self._touched if not self._is_right(spot)}
        return not self._is_whole and not self._touched

    def _is_right(self, spot: Place) -> bool:
        """Return True if a place is as the last repair wanted it, or as it left it."""
        standing = self._known.at(spot)
        if standing is None:
            return False
        wanted = self._last.wanted.get(spot)
        if wanted is None:
            return spot in self._places or all(route.protocol != OUR_PROTOCOL for route in standing)
        if left := [foreign for foreign in self._last.spared if place(foreign) == spot]:
            # Once it is gone, the end is to be told.
            return bool(standing) and standing[0].fulfils(left[0])
        return _is_first(wanted, standing) and all(route.protocol != OUR_PROTOCOL for route in standing[1:])

    # --- repairs

    def _keep(self, ctx: Context, config: HostRoutingConfig) -> None:
        """Make the routes of the config right where events say that they are not, and all of them now and then."""
        self._catch_up()
        routes, now = config.static_routes.routes, ctx.clock.monotonic()
        # Also without a repair: a storm that is over has an end in the log.
        self._lines.at(now)
        if routes is not self._routes:
            self._begin(routes)
        if self._is_whole or now >= self._compare_at or self._compare_at == inf:
            self._compare_at = now + config.watch.interval
            self._is_whole = self._is_whole or not self._is_confirmed()
        if not self._is_done():
            self._repair(ctx, routes, now)

    def _begin(self, routes: Sequence[StaticRoute]) -> None:
        """Keep the routes of another config from now on."""
        self._routes, self._places = routes, frozenset(map(place_of, routes))
        self._devices = {route.dev for route in routes}
        self._looks_up = not all(route.dev and route.gateway for route in routes)
        self._known.forget(self._places)
        self._is_whole = True

    def _is_confirmed(self) -> bool:
        """Return True if the kernel holds our routes as the events told, and no foreign one decides in their places."""
        last = self._last
        if last.waiting or last.spared or last.unrestored:
            # It may be time for them.
            return False
        answers = self._asked()
        if answers == self._confirmed:
            return True
        is_confirmed = self._agree(*answers)
        self._confirmed = answers if is_confirmed else None
        return is_confirmed

    def _asked(self) -> _Answers:
        """Return all routes; if there are many others, only ours, and the answers that decide in their places."""
        wanted, routes = self._last.wanted, self._host.routes
        if self._known.count <= _OTHERS_READ + _OTHERS_READ_FOR_EACH * len(wanted):
            return routes.routes(), None
        return routes.routes_of(OUR_PROTOCOL), routes.lookup([route.network for route in wanted.values()])

    def _agree(self, routes: list[ObservedRoute], deciding: list[Lookup] | None) -> bool:
        wanted = self._last.wanted
        if deciding is None:
            return self._known.agrees_with(routes) and all(map(self._is_right, wanted))
        in_our_places = (found.route for found in deciding if found.route and place(found.route) in wanted)
        return all(route.fulfils(wanted[place(route)]) for route in in_our_places) and self._known.confirmed_by(routes)

    def _repair(self, ctx: Context, routes: Sequence[StaticRoute], now: float) -> None:
        """Make the routes right, and log each difference to the state before."""
        account, before = Account(), self._last
        self._last = self._repaired(ctx.within(account), routes, self._contested(now))
        for route in self._last.displaced:
            self._displacements[place(route)].append(now)
        self._awaited = _awaited(self._last)
        # Its own changes are events, too.
        self._catch_up()
        self._tell_changes(account.changes)
        self._tell_waiting(before.waiting)
        self._tell_spared(before.spared)

    def _repaired(self, ctx: Context, routes: Sequence[StaticRoute], contested: Collection[Place]) -> Repair:
        places, self._touched = self._touched, set()
        if not self._is_whole:
            with suppress(BackendError, HostFileError):
                near = self._host_with(NearRoutes(self._known, places))
                return repair_places(ctx, places, self._last, near, self._logger, spare=contested)
        self._is_whole, self._confirmed = False, None
        whole = self._host_with(WholeRoutes(self._known, ctx))
        made = repair(ctx, routes, whole, self._logger, before=self._last, spare=contested)
        left_by = {route.dev for route in routes} | {route.dev for route in made.wanted.values()}
        self._devices = left_by | made.completed_by
        return made

    def _host_with(self, routes: RouteBackend) -> Host:
        """Return the part of the host that a repair needs, with another view of its routes."""
        return Host(routes=routes, files=self._host.files, lock=self._host.lock, services=self._host.services)

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
        left = {place(route) for route in self._last.spared}
        for route in before:
            if place(route) not in left:
                message = "foreign route '%s' is no longer left in the place of a route of the config"
                self._lines.write(INFO, message, route, foreign=str(route))


def _is_first(wanted: Route, standing: Sequence[ObservedRoute]) -> bool:
    return bool(standing) and standing[0].fulfils(wanted)


def _awaited(made: Repair) -> Sequence[tuple[int, Place]]:
    if not made.waiting:
        return ()
    waiting = {spot: route.gateway for spot, route in made.wanted.items() if str(route) in made.waiting}
    return sorted((gateway.number, spot) for spot, gateway in waiting.items() if gateway)
