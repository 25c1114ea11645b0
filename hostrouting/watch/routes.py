"""The keeper of the routes: the events that concern them, their repair, and their log."""

from __future__ import annotations

from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.base.facts import Facts
from hostrouting.base.pace import LONGEST_PAUSE, MOST_CHANGES, Contest, Pace
from hostrouting.boot.keeper import Keeper
from hostrouting.host import (
    OUR_PROTOCOL,
    AddressEvent,
    DeviceEvent,
    NetworkEvent,
    RouteEvent,
)
from hostrouting.net.routes import MAIN_TABLE, Place, place, resting
from hostrouting.static_routes.converge import repair
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.static_routes.reconcile import Routes, owned_in
from hostrouting.watch.installed import duties_of
from phases import Change, Context, Transaction
from phases.hosting import interruptible, unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.host import Route

_CONTESTED = (
    f"was replaced or deleted {MOST_CHANGES + 1} times within an hour: it comes back "
    f"after pauses of 1 s to {LONGEST_PAUSE / 60:.0f} min from now on; stop the program that "
    "takes its place, or remove the route from the config"
)
#: A program that changes a route without end causes ten repairs a second: so many lines at once,
#: and for long one in a second.
_LINES: Final = Pace(savings=60.0, share=1.0, longest=60.0)
#: The most repairs that are logged one by one.
_MOST_REPAIRS = 8


@attrs.define(eq=False)
class RouteKeeper(Keeper):
    """The static routes of a config.

    The state is the kernel's: all routes are read, and the configured ones are repaired, after each
    event that may concern them, and every `interval`.
    """

    failure: ClassVar[str] = "the routes cannot be repaired now"
    #: Called when events concern the routes, or were lost.
    _notify: Callable[[], object]
    _last: RoutePlan = attrs.field(factory=RoutePlan)
    #: The config that the log names.
    _config: HostRoutingConfig | None = None
    _routes: Sequence[StaticRoute] = ()
    _places: frozenset[Place] = frozenset()
    #: The devices that are down: the kernel deletes their IPv6 routes, which does not count.
    _down: set[str] = attrs.field(factory=set)
    #: The places in which a route was replaced or deleted since the last reading.
    _taken: set[Place] = attrs.field(factory=set)
    #: The places in which another program has replaced or deleted a route within an hour.
    _contests: dict[Place, Contest] = attrs.field(factory=dict)
    #: The places whose routes do not come back before a time.
    _paused: dict[Place, float] = attrs.field(factory=dict)
    #: The contested places, by the text of their routes.
    _contested: Facts[Place, str] = attrs.field(factory=Facts)
    #: The routes that wait.
    _waits: Facts[StaticRoute | Route, None] = attrs.field(factory=Facts)
    #: The repairs that are not in the log yet.
    _repairs: list[Change] = attrs.field(factory=list)
    _lines: Pace = _LINES

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
            with interruptible(held):
                plan = plan_routes(config, self._host)
            self._repair(held, config, plan)
        now = ctx.clock.monotonic()
        next_lines = self._log(now)
        due = min(now + config.watch.interval, next_lines, *self._paused.values())
        return max(0.0, due - now)

    # --- events

    def _concerns(self, event: NetworkEvent) -> bool:
        """Return True if the routes are to be read again after an event."""
        if isinstance(event, RouteEvent):
            route = event.route
            if route.protocol == OUR_PROTOCOL or place(route) in self._places:
                return self._takes(event)
            if not route.prefix_length and route.table == MAIN_TABLE:
                # It may complete a route of the config in another way.
                return True
        elif isinstance(event, DeviceEvent):
            (self._down.discard if event.device.up else self._down.add)(event.device.name)
            return not {event.device.name, event.former}.isdisjoint(self._last.deciding_devices)
        elif isinstance(event, AddressEvent):
            return event.dev in self._last.deciding_devices
        # The kernel may accept now what it refused.
        return bool(self._last.waiting)

    def _takes(self, event: RouteEvent) -> bool:
        """Return False if a repair has caused an event; note a place that is taken."""
        key = place(event.route)
        wanted = self._last.wanted.get(key)
        if wanted and event.verb in {"add", "prepend"} and resting(event.route).fulfils(wanted):
            return False
        if event.verb in {"remove", "replace"} and event.route.dev not in self._down:
            self._taken.add(key)
        return True

    # --- repairs

    def _repair(self, ctx: Context, config: HostRoutingConfig, plan: RoutePlan) -> None:
        """Make the routes right, but for those that pause."""
        routes = config.static_routes.routes
        now = ctx.clock.monotonic()
        if config is not self._config:
            self._config = config
            self.log(INFO, "keeps %s", duties_of(config), event="keeps")
        if routes is not self._routes:
            self._routes = routes
            self._places = frozenset(route.place for route in routes)
            self._taken.clear()
            self._contests = {}
            self._contested = Facts()
            self._paused = {}
        self._note_contests(plan.observed, now)
        # An endless run must not record its changes: their list would grow for ever.
        changes = Transaction(unrecorded(ctx))
        plan = attrs.evolve(plan, leave=self._paused)
        self._last, _ = repair(changes.ctx, plan, self._host, self._logger)
        self._repairs += changes.changes

    def _note_contests(self, observed: Routes, now: float) -> None:
        """Let a route that other programs take again and again pause, longer each time.

        A removal with a device or an address does not count, and neither does a foreign route that
        precedes the configured one.
        """
        wanted = self._last.wanted
        lost = self._taken - self._paused.keys() - self._last.waiting.keys()
        lost &= wanted.keys()
        for route in owned_in(observed) if lost else ():
            key = place(route)
            if key in lost and route.fulfils(wanted[key]):
                lost.remove(key)
        self._taken.clear()
        for key in lost:
            self._contests[key] = self._contests.get(key, Contest()).after(now=now)
        self._contests = {key: one for key, one in self._contests.items() if one.count(now)}
        self._paused = {key: one.free for key, one in self._contests.items() if one.free > now}
        self._log_contests()

    # --- the log

    def _log_contests(self) -> None:
        """Log which routes are contested now, and which were in peace for an hour."""
        known = self._contested.known
        contested = [key for key, each in self._contests.items() if each.is_lost or key in known]
        names = {key: known.get(key) or str(self._last.wanted[key]) for key in contested}
        self._contested = self._contested.after(names)
        new, over = self._contested.new.values(), self._contested.over.values()
        self.log_each(ERROR, {name: f"route '{name}' {_CONTESTED}" for name in new})
        ends = {name: f"route '{name}' was not replaced or deleted for an hour" for name in over}
        self.log_each(INFO, ends, event="over")

    def _log(self, now: float) -> float:
        """Log repairs and waiting routes; return when to log what is too much for now."""
        reasons = dict(self._last.waiting.values())
        # A device that comes back has many reasons in turn; `check` has the last one.
        waits = self._waits.after(dict.fromkeys(reasons))
        if not self._repairs and not waits.has_changed:
            return inf
        if now < self._lines.free:
            return self._lines.free
        self._waits = waits
        lines = {str(route): f"route '{route}' waits: {reasons[route]}" for route in waits.new}
        repairs = self._log_repairs()
        self.log_each(WARNING, lines)
        if waits.over and not reasons:
            self.log(INFO, "no route waits any more", event="over")
        self._lines = self._lines.after(repairs + len(lines), now=now)
        return inf

    def _log_repairs(self) -> int:
        """Log the repairs since the last lines, and return the number of these."""
        repairs, self._repairs = self._repairs, []
        if len(repairs) > _MOST_REPAIRS:
            message = "%d repairs, the first is: %s"
            count = len(repairs)
            self.log(WARNING, message, count, repairs[0], event="repair", changed=count)
            return 1
        for change in repairs:
            fields = {"event": "repair", "subject": change.subject, "change": str(change)}
            self.log(WARNING, "repaired: %s", change, **fields)
        return len(repairs)
