"""The keeper of the routes: the events that concern them, their repair, and a line for each change of state."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from hostrouting.collector import collector_paused
from hostrouting.exceptions import BackendError
from hostrouting.host import OUR_PROTOCOL, AddressEvent, DeviceEvent, Host, NexthopEvent, RouteEvent, RuleEvent
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import MAIN_TABLE, SCOPE_LINK, place
from hostrouting.static_routes.converge import Repair, repair, repair_places
from hostrouting.watch.installed import duties_of
from hostrouting.watch.known import KnownRoutes, NearRoutes, WholeRoutes
from hostrouting.watch.trouble import Account, Lines

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaticRoute
    from hostrouting.host import Lookup, NetworkEvent, ObservedRoute, Route, RouteBackend
    from hostrouting.net.routes import Place
    from hostrouting.watch.installed import InstalledConfig
    from phases import Change, Context

#: After so many replacements or deletions of a route of ours within the time, each retake waits, longer and longer.
_MOST_RETAKES: Final = 3
_SECONDS_OF_A_CONTEST: Final = 3600.0
_LONGEST_PAUSE: Final = 600.0
_CONTESTED: Final = (
    f"route '%s' was replaced or deleted {_MOST_RETAKES + 1} times within an hour: it comes back after pauses of 1 s "
    f"to {_LONGEST_PAUSE / 60:.0f} min from now on; stop the program that takes its place, or remove the route from "
    "the config"
)
#: Each change has a separate line, if there are no more than these.
_MOST_LINES: Final = 8

#: Our routes, and the answer about each of their places.
_Answers: TypeAlias = "tuple[list[ObservedRoute], list[Lookup]]"


@attrs.define(eq=False)
class RouteKeeper:
    """The static routes of a config, with all that is to be known between two repairs.

    After an event of a route, only the places of such events are repaired, and no route is read (`NearRoutes`). All
    routes are read at first, after a loss, for another config, after an event with which routes may have gone that no
    event names, and if a small repair is refused.

    Every `interval` our routes are compared with what the events told, and the kernel is asked which route decides the
    first address of each place. That finds a foreign route ahead of ours, but not where a longer prefix, or a rule,
    decides the address: there only an event can tell of one.
    """

    failure: ClassVar[str] = "the routes cannot be repaired now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: Lets `hear` have all events by now.
    _catch_up: Callable[[], None]
    _lines: Lines = attrs.field(init=False)
    _known: KnownRoutes = attrs.field(init=False)
    _last: Repair = attrs.field(factory=Repair)
    #: The config whose duties the log has.
    _told: HostRoutingConfig | None = None
    #: The routes of the config, as objects, and their places.
    _routes: Sequence[StaticRoute] | None = None
    _places: frozenset[Place] = frozenset()
    #: The devices by which the routes leave, or that may change which these are.
    _devices: Collection[str | None] = ()
    #: True if a default route completes a route of the config.
    _looks_up: bool = False
    #: True if all routes are to be read.
    _is_whole: bool = True
    #: The places of routes that the kernel may accept once their gateway is found otherwise.
    _awaited: Collection[Place] = ()
    #: The places of events since the last repair.
    _touched: set[Place] = attrs.field(factory=set)
    #: The devices that are down: the kernel deletes the IPv6 routes of one, which is no contest.
    _down: set[str] = attrs.field(factory=set)
    #: True while it repairs: it hears its own changes.
    _is_acting: bool = False
    #: When to compare the routes without an event, on the monotonic clock.
    _compare_at: float = inf
    #: The answers of the kernel that were as the events told, about the routes that are wanted now.
    _confirmed: _Answers | None = None
    #: The places in which another program has replaced or deleted ours since the last repair.
    _taken: set[Place] = attrs.field(factory=set)
    #: When such a place was found, on the monotonic clock.
    _contests: defaultdict[Place, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    #: The contested places, each with the time before which ours does not come back.
    _paused: dict[Place, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._lines, self._known = Lines(self._logger), KnownRoutes(self._host.routes, self._catch_up)

    @property
    def state(self) -> str:
        """The state of the routes in a few words."""
        waiting, paused = len(self._last.waiting), len(self._paused)
        parts = [f"routes in force: {len(self._routes or ()) - waiting - paused}"]
        parts += [f"waiting: {waiting}"] if waiting else []
        parts += [f"taken by another program again and again: {paused}"] if paused else []
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
        until = min((self._compare_at, *self._paused.values()))
        return max(0.0, until - ctx.clock.monotonic()) if self._is_done() else 0

    # --- events

    def _hear(self, event: NetworkEvent) -> None:
        """Take note of the places that an event concerns; or that everything is to be read.

        The kernel announces no removal of the routes that go with a device or an address, so these events count.
        """
        if isinstance(event, RouteEvent):
            spot = place(event.route)
            was_first = self._is_in_force(spot)
            if self._known.hear(event):
                self._touched.add(spot)
            is_lost = was_first and not (self._is_acting or self._is_in_force(spot))
            if is_lost and event.verb in {"remove", "replace"} and event.route.dev not in self._down:
                self._taken.add(spot)
            if event.route.scope >= SCOPE_LINK or (event.route.family == IPV6 and event.route.gateway is None):
                # The kernel accepts a gateway by a lookup, in any table, that passes over routes of a wider scope. A
                # route to nowhere of that scope hides a shorter one, as a rule may.
                # IPv6 routes have no scope, and it passes over none.
                self._touched.update(self._awaited)
            self._is_whole = self._is_whole or self._completes(event.route)
        elif isinstance(event, RuleEvent):
            self._touched.update(self._awaited)
        else:
            if isinstance(event, DeviceEvent):
                (self._down.discard if event.device.up else self._down.add)(event.device.name)
            self._is_whole = self._is_whole or self._takes_routes_along(event)

    def _takes_routes_along(self, event: NetworkEvent) -> bool:
        if isinstance(event, DeviceEvent):
            return self._is_used(event.device.name) or self._is_used(event.former)
        if isinstance(event, AddressEvent):
            # Of IPv6 routes no others go with an address, which each router advertisement renews.
            is_near = event.address.family == IPV4 and self._is_used(event.dev)
            return is_near or event.address.local in self._known.sources
        if isinstance(event, NexthopEvent):
            return event.nexthop_id in self._known.objects
        return False

    def _is_used(self, dev: str | None) -> bool:
        return dev in self._devices or dev in self._known.devices

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
        if spot in self._paused:
            return True
        return _is_first(wanted, standing) and all(route.protocol != OUR_PROTOCOL for route in standing[1:])

    def _is_in_force(self, spot: Place) -> bool:
        wanted = self._last.wanted.get(spot)
        return wanted is not None and _is_first(wanted, self._known.at(spot) or ())

    # --- repairs

    def _keep(self, ctx: Context, config: HostRoutingConfig) -> None:
        """Make the routes of the config right where events say that they are not, and all of them now and then."""
        self._catch_up()
        routes, now = config.static_routes.routes, ctx.clock.monotonic()
        # Also without a repair: a storm that is over has an end in the log.
        self._lines.at(now)
        if config is not self._told:
            self._told = config
            self._lines.write(INFO, "keeps %s", duties_of(config), event="keeps")
        if routes is not self._routes:
            self._begin(routes)
        self._note_contests(now)
        if self._is_whole or now >= self._compare_at or self._compare_at == inf:
            self._compare_at = now + config.watch.interval
            self._is_whole = self._is_whole or not self._is_confirmed()
        if not self._is_done():
            self._repair(ctx, routes)

    def _begin(self, routes: Sequence[StaticRoute]) -> None:
        """Keep the routes of another config from now on."""
        self._routes, self._places = routes, frozenset(route.place for route in routes)
        self._devices = {route.dev for route in routes}
        self._looks_up = not all(route.dev and route.gateway for route in routes)
        self._known.forget(self._places)
        self._taken.clear()
        self._contests.clear()
        self._paused.clear()
        self._is_whole = True

    def _is_confirmed(self) -> bool:
        """Return True if the kernel holds our routes as the events told, and no foreign one decides in their places."""
        last = self._last
        if last.waiting or self._paused:
            # It may be time for them.
            return False
        answers: _Answers = [], []
        for family in self._installed.config.families:
            answers[0].extend(self._host.routes.routes_of(OUR_PROTOCOL, family))
            asked = [route.network for route in last.wanted.values() if route.family == family]
            answers[1].extend(self._host.routes.lookup(asked, family=family))
        if answers != self._confirmed:
            ours, deciding = answers
            found = (answer.route for answer in deciding if answer.route and place(answer.route) in last.wanted)
            is_right = all(route.fulfils(last.wanted[place(route)]) for route in found)
            self._confirmed = answers if is_right and self._known.confirmed_by(ours) else None
        return self._confirmed is not None

    def _repair(self, ctx: Context, routes: Sequence[StaticRoute]) -> None:
        """Make the routes right, and log each difference to the state before."""
        account, before = Account(), self._last
        self._last = self._repaired(ctx.within(account), routes)
        waiting = self._last.waiting
        self._awaited = [spot for spot, route in self._last.wanted.items() if route.gateway and str(route) in waiting]
        # Its own changes are events, too.
        self._catch_up()
        self._tell_changes(account.changes)
        self._tell_waiting(before.waiting)

    def _repaired(self, ctx: Context, routes: Sequence[StaticRoute]) -> Repair:
        places, self._touched = self._touched - self._paused.keys(), set()
        if not self._is_whole:
            with suppress(BackendError):
                near = self._host_with(NearRoutes(self._known, places))
                return repair_places(ctx, places, self._last, near, self._logger)
        self._is_whole, self._confirmed = False, None
        whole = self._host_with(WholeRoutes(self._known, ctx))
        made = repair(ctx, routes, whole, self._logger, leave=self._paused)
        left_by = {route.dev for route in routes} | {route.dev for route in made.wanted.values()}
        self._devices = left_by | made.completed_by
        return made

    def _host_with(self, routes: RouteBackend) -> Host:
        """Return the part of the host that a repair needs, with another view of its routes."""
        return Host(routes=routes, files=self._host.files, lock=self._host.lock, services=self._host.services)

    def _note_contests(self, now: float) -> None:
        """Let a route that others take again and again pause, longer each time: retaking it harms no foreign route.

        What goes with a device or an address, and a foreign route that comes before ours, is no contest.
        """
        for spot in self._taken:
            if self._is_right(spot):
                continue
            times = [time for time in self._contests[spot] if now - time < _SECONDS_OF_A_CONTEST]
            self._contests[spot] = [*times, now]
            if len(times) >= _MOST_RETAKES:
                self._paused[spot] = now + min(2.0 ** (len(times) - _MOST_RETAKES), _LONGEST_PAUSE)
            if len(times) == _MOST_RETAKES:
                route = self._last.wanted[spot]
                self._lines.write(ERROR, _CONTESTED, route, route=str(route))
        self._taken.clear()
        for spot in [spot for spot, until in self._paused.items() if until <= now]:
            del self._paused[spot]
            self._touched.add(spot)
        for spot in [spot for spot, times in self._contests.items() if now - times[-1] >= _SECONDS_OF_A_CONTEST]:
            if len(self._contests.pop(spot)) > _MOST_RETAKES:
                message = "route '%s' was not replaced or deleted for an hour"
                told = str(self._last.wanted.get(spot))
                self._lines.write(INFO, message, told, event="over", route=told)

    def _tell_changes(self, changes: Sequence[Change]) -> None:
        if len(changes) > _MOST_LINES:
            message = "%d routes were repaired, the first is: %s"
            self._lines.write(WARNING, message, len(changes), changes[0], event="repair", changed=len(changes))
            return
        for change in changes:
            fields = {"event": "repair", "subject": change.subject, "change": str(change)}
            self._lines.write(WARNING, "repaired: %s", change, **fields)

    def _tell_waiting(self, before: Mapping[str, str]) -> None:
        for route, reason in self._last.waiting.items():
            if before.get(route) != reason:
                self._lines.write(WARNING, "route '%s' waits: %s", route, reason, route=route, reason=reason)
        if before and not self._last.waiting:
            self._lines.write(INFO, "no route waits any more", event="over")


def _is_first(wanted: Route, standing: Sequence[ObservedRoute]) -> bool:
    return bool(standing) and standing[0].fulfils(wanted)
