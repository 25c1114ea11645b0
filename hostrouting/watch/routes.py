"""The keeper of the routes: the events that concern them, their repair, and their log."""

from __future__ import annotations

from collections import defaultdict
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot import Keeper, exits_under
from hostrouting.host import (
    OUR_PROTOCOL,
    AddressEvent,
    DeviceEvent,
    NetworkEvent,
    NexthopEvent,
    RouteEvent,
    RuleEvent,
)
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import MAIN_TABLE, SCOPE_LINK, Place, place, resting
from hostrouting.static_routes.account import read
from hostrouting.static_routes.converge import Repair, Waiting, repair
from hostrouting.static_routes.reconcile import Routes, owned_in
from hostrouting.watch.installed import duties_of
from hostrouting.watch.trouble import Lines
from phases import Change, Context, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaticRoute

#: After so many replacements or deletions of a configured route within the time, each retake
#: waits, longer and longer.
_MOST_RETAKES = 3
_SECONDS_OF_A_CONTEST = 3600.0
_LONGEST_PAUSE = 600.0
_CONTESTED = (
    f"route '%s' was replaced or deleted {_MOST_RETAKES + 1} times within an hour: it comes back "
    f"after pauses of 1 s to {_LONGEST_PAUSE / 60:.0f} min from now on; stop the program that "
    "takes its place, or remove the route from the config"
)
#: The most changes that are logged one by one.
_MOST_LINES = 8


@attrs.define(eq=False)
class RouteKeeper(Keeper):
    """The static routes of a config.

    The state is the kernel's: all routes are read, and the configured ones are repaired, after each
    event that may concern them, and every `interval`.
    """

    failure: ClassVar[str] = "the routes cannot be repaired now"
    #: Called when events concern the routes, or were lost.
    _notify: Callable[[], object]
    _lines: Lines = attrs.field(init=False)
    _last: Repair = attrs.field(factory=Repair)
    #: The config that the log names.
    _config: HostRoutingConfig | None = None
    _routes: Sequence[StaticRoute] = ()
    _places: frozenset[Place] = frozenset()
    #: The devices that are down: the kernel deletes their IPv6 routes, which does not count.
    _down: set[str] = attrs.field(factory=set)
    #: The places in which a route was replaced or deleted since the last reading.
    _taken: set[Place] = attrs.field(factory=set)
    #: When another program had replaced or deleted a route, on the monotonic clock.
    _contests: defaultdict[Place, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    #: The contested places, each with the time before which its route does not come back.
    _paused: dict[Place, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._lines = Lines(self._logger)

    @property
    def state(self) -> str:
        """The state of the routes in a few words."""
        waiting = len(self._last.waiting)
        paused = len(self._paused)
        parts = [f"routes in force: {len(self._routes) - waiting - paused}"]
        parts += [f"waiting: {waiting}"] if waiting else []
        parts += [f"taken by another program again and again: {paused}"] if paused else []
        return ", ".join(parts)

    def receive(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        # Each of them may name a place that was taken.
        if not list(filter(self._concerns, events)):
            return inf
        self._notify()
        return 0

    def lose(self) -> None:
        """See `Keeper`."""
        self._notify()

    def act(self, ctx: Context) -> float:
        """Read the routes, and repair those of the installed config, under the run lock."""
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset:
                return inf
            # On a node with many routes it takes seconds.
            with held.interruptible():
                observed = read(self._host.routes, config.static_routes.routes)
            self._repair(held, config, observed)
        now = ctx.clock.monotonic()
        return max(0.0, min((now + config.watch.interval, *self._paused.values())) - now)

    # --- events

    def _concerns(self, event: NetworkEvent) -> bool:
        """Return True if the routes may not be right after an event."""
        if not isinstance(event, RouteEvent):
            return self._concerns_devices(event)
        route = event.route
        key = place(route)
        if key in self._places or route.protocol == OUR_PROTOCOL:
            wanted = self._last.wanted.get(key)
            if wanted and event.verb in {"add", "prepend"} and resting(route).fulfils(wanted):
                # A repair did this.
                return False
            if event.verb in {"remove", "replace"} and route.dev not in self._down:
                self._taken.add(key)
            return True
        is_on_link = route.family == IPV6 and route.gateway is None
        if self._last.waiting and (route.scope >= SCOPE_LINK or is_on_link):
            # The kernel accepts a gateway by a lookup, in any table, that passes over routes of a
            # wider scope. A route to nowhere of that scope hides a shorter one, as a rule may. IPv6
            # routes lack a scope, and it passes over none.
            return True
        # It may complete a route of the config in another way.
        return not route.prefix_length and route.table == MAIN_TABLE

    def _concerns_devices(self, event: NetworkEvent) -> bool:
        """Return the same for other events: no event follows for IPv4 routes that go with these."""
        if isinstance(event, DeviceEvent):
            (self._down.discard if event.device.up else self._down.add)(event.device.name)
            return event.device.name in self._last.devices or event.former in self._last.devices
        if isinstance(event, AddressEvent):
            # IPv6 routes stay without the address, which each router advertisement renews.
            return event.address.family == IPV4 and event.dev in self._last.devices
        # The kernel may accept now what it refused.
        return isinstance(event, RuleEvent | NexthopEvent) and bool(self._last.waiting)

    # --- repairs

    def _repair(self, ctx: Context, config: HostRoutingConfig, observed: Routes) -> None:
        """Make the routes right, and log each difference to the state before."""
        routes = config.static_routes.routes
        now = ctx.clock.monotonic()
        # Also without a repair: the end of a storm is logged.
        self._lines.at(now)
        if config is not self._config:
            self._config = config
            self._lines.write(INFO, "keeps %s", duties_of(config), event="keeps")
        if routes is not self._routes:
            self._routes = routes
            self._places = frozenset(route.place for route in routes)
            self._taken.clear()
            self._contests.clear()
            self._paused.clear()
        self._note_contests(observed, now)
        # An endless run must not record its changes: their list would grow for ever.
        changes = Transaction(ctx.within(None))
        before = self._last
        self._last = repair(
            changes.ctx,
            routes,
            observed,
            self._host,
            self._logger,
            exits=exits_under(config, self._host.files),
            leave=self._paused,
        )
        self._log(changes.changes, before.waiting)

    def _note_contests(self, observed: Routes, now: float) -> None:
        """Let a route that other programs take again and again pause, longer each time.

        A removal with a device or an address does not count, and neither does a foreign route that
        precedes the configured one.
        """
        wanted = self._last.wanted
        waiting = self._last.waiting
        lost = {key: wanted[key] for key in self._taken - self._paused.keys() if key in wanted}
        for route in owned_in(observed) if lost else ():
            key = place(route)
            if key in lost and route.fulfils(lost[key]):
                del lost[key]
        self._taken.clear()
        for key, taken in lost.items():
            if key in waiting:
                continue
            times = [time for time in self._contests[key] if now - time < _SECONDS_OF_A_CONTEST]
            self._contests[key] = [*times, now]
            if len(times) >= _MOST_RETAKES:
                self._paused[key] = now + min(2.0 ** (len(times) - _MOST_RETAKES), _LONGEST_PAUSE)
            if len(times) == _MOST_RETAKES:
                self._lines.write(ERROR, _CONTESTED, taken, route=str(taken))
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        for key, times in [*self._contests.items()]:
            if now - times[-1] < _SECONDS_OF_A_CONTEST:
                continue
            if len(self._contests.pop(key)) > _MOST_RETAKES:
                message = "route '%s' was not replaced or deleted for an hour"
                name = str(wanted.get(key))
                self._lines.write(INFO, message, name, event="over", route=name)

    def _log(self, changes: Sequence[Change], before: Mapping[Place, Waiting]) -> None:
        if (count := len(changes)) > _MOST_LINES:
            message = "%d routes were repaired, the first is: %s"
            self._lines.write(WARNING, message, count, changes[0], event="repair", changed=count)
            changes = ()
        for change in changes:
            fields = {"event": "repair", "subject": change.subject, "change": str(change)}
            self._lines.write(WARNING, "repaired: %s", change, **fields)
        known = {waiting.route for waiting in before.values()}
        for route, reason in self._last.waiting.values():
            # A device that comes back has many reasons in turn; `check` has the last one.
            if route not in known:
                fields = {"route": str(route), "reason": reason}
                self._lines.write(WARNING, "route '%s' waits: %s", route, reason, **fields)
        if before and not self._last.waiting:
            self._lines.write(INFO, "no route waits any more", event="over")
