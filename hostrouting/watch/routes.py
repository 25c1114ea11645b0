"""The repair of routes: the events that concern them, the quickest repair, and the log."""

from __future__ import annotations

from contextlib import suppress
from logging import ERROR, INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.base.commands import printable
from hostrouting.base.conflicts import ConflictError
from hostrouting.base.errors import HostFileError, LinkNotFoundError
from hostrouting.base.facts import Facts
from hostrouting.base.pace import LONGEST_PAUSE, MOST_CHANGES, Contest, Pace
from hostrouting.boot.reconciler import Reconciler
from hostrouting.host import OUR_PROTOCOL, NetworkEvent
from hostrouting.net.events import AddressEvent, DeviceEvent, RouteEvent
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.net.routes import MAIN_TABLE, RouteKey, resting, route_key
from hostrouting.static_routes.converge import make_changes, repair
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.static_routes.reconcile import Routes, owned_in
from hostrouting.watch.installed import duties_of
from phases import Change, Context, Transaction
from phases.hosting import interruptible, unrecorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config.sections import HostRoutingConfig, StaticRoute
    from hostrouting.host import Route

_CONTESTED = (
    f"was replaced or deleted {MOST_CHANGES + 1} times within an hour (last %s): from now "
    f"on it comes back after pauses of 1 s to {LONGEST_PAUSE:.0f} s; to keep it away, remove it "
    "from the config or stop the watch"
)
#: A program that changes a route without end causes ten repairs a second: so many lines at once,
#: and for long one in a second.
_LINES: Final = Pace(savings=60.0, share=1.0, longest=60.0)
#: The most repairs that are logged one by one.
_MOST_REPAIRS = 8


@attrs.define(eq=False)
class RouteReconciler(Reconciler):
    """The static routes of a config.

    If only own routes were deleted, a reading of the own ones shows which of them are missing.
    Everything else, and each `interval`, takes a plan by a reading of all routes, as in an apply.
    """

    failure: ClassVar[str] = "the routes cannot be repaired now"
    is_optional: ClassVar[bool] = False
    seconds: ClassVar[float | None] = None
    #: The last plan, and when the next one is due without an event.
    _plan: RoutePlan = attrs.field(factory=RoutePlan)
    _next_plan: float = -inf
    #: The config that the log names.
    _config: HostRoutingConfig | None = None
    _routes: Sequence[StaticRoute] = ()
    _keys: frozenset[RouteKey] = frozenset()
    #: The devices that are down: the kernel deletes their IPv6 routes, which does not count.
    _down: set[str] = attrs.field(factory=set)
    #: True if an event since the last repair takes a plan.
    _takes_plan: bool = True
    #: The last event of each place in which a route was deleted or replaced since the last repair.
    _taken: dict[RouteKey, RouteEvent] = attrs.field(factory=dict)
    #: The places in which another program has replaced or deleted a route within an hour.
    _contests: dict[RouteKey, Contest] = attrs.field(factory=dict)
    #: The places whose routes do not come back before a time.
    _paused: dict[RouteKey, float] = attrs.field(factory=dict)
    #: The contested places, by the text of their routes.
    _contested: Facts[RouteKey, str] = attrs.field(factory=Facts)
    #: The routes that wait.
    _waits: Facts[StaticRoute | Route, None] = attrs.field(factory=Facts)
    #: The repairs that are not in the log yet.
    _repairs: list[Change] = attrs.field(factory=list)
    _lines: Pace = _LINES

    @property
    def state(self) -> str:
        """The state of the routes in a few words."""
        waiting = len(self._plan.waiting)
        paused = len(self._paused)
        parts = [f"routes in force: {len(self._routes) - waiting - paused}"]
        parts += [f"waiting: {waiting}"] if waiting else []
        parts += [f"taken by another program again and again: {paused}"] if paused else []
        return ", ".join(parts)

    # --- events

    def receive(self, events: Sequence[NetworkEvent]) -> float:
        """Return the seconds until the events require a repair: 0, or `inf` for never."""
        # Each of them may name a place that was taken.
        return 0 if list(filter(self._concerns, events)) else inf

    def lose(self) -> None:
        """Take a plan, because events were lost."""
        self._takes_plan = True

    def _concerns(self, event: NetworkEvent) -> bool:
        """Return True if an event requires a repair; note if that takes a plan."""
        if isinstance(event, RouteEvent):
            route = event.route
            if route.protocol == OUR_PROTOCOL or route_key(route) in self._keys:
                return self._concerns_own(event)
        is_new = self._is_new_way(event)
        self._takes_plan |= is_new
        return is_new

    def _concerns_own(self, event: RouteEvent) -> bool:
        """Return the same for a route of hostrouting, or in a place of one."""
        key = route_key(event.route)
        wanted = self._plan.wanted.get(key)
        if wanted and event.verb in {"add", "prepend"} and resting(event.route).fulfils(wanted):
            # A repair has caused it.
            return False
        is_deleted = event.verb == "remove" and event.route.protocol == OUR_PROTOCOL
        if (is_deleted or event.verb == "replace") and event.route.dev not in self._down:
            self._taken[key] = event
        if wanted is None or not is_deleted:
            self._takes_plan = True
        return True

    def _is_new_way(self, event: NetworkEvent) -> bool:
        """Return True if the gateway, device or refusal of a route may have changed."""
        if isinstance(event, DeviceEvent):
            (self._down.discard if event.device.up else self._down.add)(event.device.name)
            return not {event.device.name, event.former}.isdisjoint(self._plan.deciding_devices)
        if isinstance(event, AddressEvent):
            return event.dev in self._plan.deciding_devices
        if isinstance(event, RouteEvent):
            route = event.route
            if not route.prefix_length and route.table == MAIN_TABLE:
                return True
        # The kernel may now accept what it refused.
        return bool(self._plan.waiting)

    # --- repairs

    def act(self, ctx: Context) -> float:
        """Repair the routes of the installed config, under the run lock."""
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset:
                return inf
            now = ctx.clock.monotonic()
            self._follow(config)
            # An endless run must not record its changes: their list would grow for ever.
            changes = Transaction(unrecorded(held))
            is_short = not self._takes_plan and now < self._next_plan
            if not (is_short and self._add_missing(changes.ctx, now)):
                self._repair_all(changes.ctx, config, now)
        self._repairs += changes.changes
        now = ctx.clock.monotonic()
        due = min(self._next_plan, self._log(now), *self._paused.values())
        return max(0.0, due - now)

    def _follow(self, config: HostRoutingConfig) -> None:
        """Start again with the routes of another config."""
        if config is not self._config:
            self._config = config
            self.log(INFO, "keeps %s", duties_of(config), event="keeps")
        routes = config.static_routes.routes
        if routes is not self._routes:
            self._routes = routes
            self._keys = frozenset(route.route_key for route in routes)
            self._takes_plan = True
            self._taken.clear()
            self._contests = {}
            self._contested = Facts()
            self._paused = {}

    def _add_missing(self, ctx: Context, now: float) -> bool:
        """Add the own routes that are missing; return False if there is more to do.

        Here the kernel selects our routes, which is ten times as fast among hundreds of thousands.
        It refuses to add a route if another program has taken the route key meanwhile.
        """
        families = dict.fromkeys(route.family for route in self._plan.wanted.values())
        routes_of = self._host.routes.routes_of
        own = [route for family in families for route in routes_of(OUR_PROTOCOL, family)]
        self._note_contests(own, now)
        outcome = self._plan.against(own, leave=self._paused)
        if any(change.before for change in outcome.changes):
            return False
        try:
            make_changes(ctx, outcome, self._host, self._logger, is_last=False, verify=False)
        except (ConflictError, LinkNotFoundError, RouteRejectedError):
            return False
        return True

    def _repair_all(self, ctx: Context, config: HostRoutingConfig, now: float) -> None:
        """Plan from a snapshot of all routes, and carry out the plan."""
        # With many routes, this takes seconds.
        with interruptible(ctx):
            plan = plan_routes(config, self._host)
        self._note_contests(owned_in(plan.observed), now)
        plan = attrs.evolve(plan, leave=self._paused)
        self._plan, _ = repair(ctx, plan, self._host, self._logger)
        self._takes_plan = False
        self._next_plan = now + config.watch.interval

    def _note_contests(self, own: Routes, now: float) -> None:
        """Pause the repair of routes that other programs take repeatedly, longer each time.

        Removals together with a device or an address do not count, and neither do foreign routes
        that precede the configured one.
        """
        wanted = self._plan.wanted
        lost = self._taken.keys() & wanted.keys()
        lost -= self._paused.keys() | self._plan.waiting.keys()
        for route in own if lost else ():
            key = route_key(route)
            if key in lost and route.fulfils(wanted[key]):
                lost.remove(key)
        for key in lost:
            self._contests[key] = self._contests.get(key, Contest()).after(now=now)
        self._contests = {key: one for key, one in self._contests.items() if one.count(now)}
        self._paused = {key: one.free for key, one in self._contests.items() if one.free > now}
        self._log_contests()
        self._taken.clear()

    # --- the log

    def _log_contests(self) -> None:
        """Log which routes are contested now, and which were left alone for an hour."""
        known = self._contested.known
        contested = [key for key, each in self._contests.items() if each.is_lost or key in known]
        names = {key: known.get(key) or str(self._plan.wanted[key]) for key in contested}
        self._contested = self._contested.after(names)
        errors = {
            name: f"route '{name}' {_CONTESTED % self._how_taken(self._taken[key])}"
            for key, name in self._contested.new.items()
        }
        self.log_each(ERROR, errors)
        over = self._contested.over.values()
        ends = {name: f"route '{name}' was not replaced or deleted for an hour" for name in over}
        self.log_each(INFO, ends, event="over")

    def _how_taken(self, event: RouteEvent) -> str:
        """Return how a route was taken, and by which program.

        The event of a deletion shows the deleted route, so only the sender tells whose it is.
        """
        how, whose = f"replaced by route '{event.route}'", "from"
        if event.verb == "remove":
            how, whose = "deleted", "by"
        port = event.sender
        if not port:
            return how
        comm = None
        with suppress(HostFileError):
            # The kernel gives the first socket of a process the id of that as its port.
            comm = self._host.files.read(f"/proc/{port}/comm")
        name = printable(comm.decode(errors="replace").strip()) if comm else "a program that ended"
        return f"{how} {whose} {name}, netlink port {port}"

    def _log(self, now: float) -> float:
        """Log repairs and waiting routes; return when to log what is too much for now."""
        reasons = dict(self._plan.waiting.values())
        # A returning device causes several reasons in turn; `check` shows the last one.
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
