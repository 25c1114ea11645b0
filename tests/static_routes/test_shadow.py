"""Beside another program: its routes are those that it would have without hostrouting, but for the
remainders of docs/limits.md.

The oracle is a second namespace, in which the same program does the same, and hostrouting nothing.
"""

import logging
import random
from collections.abc import Callable, Sequence

import attrs
import pytest
from support.needs import needs
from support.patience import in_time
from support.shadow_worlds import Beside, first_is, foreign, own, place
from support.static_route_scripts import config_of, static_route
from support.tasks import FailingTask

from hostrouting import Configure, HostRoutingConfig, StaticRoute
from phases import Context, Serial, TaskFailedError, run, task

pytestmark = needs("kernel")

LOGGER = logging.getLogger(__name__)
PREFIXES = "172.16.1.0/24", "172.16.8.0/22", "172.16.9.0/24", "10.3.0.0/24"
#: Of the foreign routes.
PROTOCOLS = "static", "dhcp", "bird"
HOPS = (
    "via 10.1.0.1 dev eth0",
    "via 10.1.0.9 dev eth0",
    "via 10.2.0.1 dev eth1",
    "dev eth1",
    "via 10.1.0.9 dev eth0 src 10.1.0.3",
    "via 10.1.0.9 dev eth0 mtu 1400",
    "nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1",
    "nhid 1",
    "nhid 2",
    "nhid 3",
)
OBJECTS = (
    "nexthop add id 1 via 10.1.0.9 dev eth0; nexthop add id 2 blackhole; "
    "nexthop add id 4 via 10.2.0.1 dev eth1; nexthop add id 3 group 1/4"
)
#: Of devices, addresses and objects; each happens in both namespaces.
EVENTS = (
    "link set eth1 down",
    "link set eth1 up",
    "link set eth1 down; link set eth1 up",
    "link set eth0 down; link set eth0 up",
    "link del eth1; link add eth1 up type ifb; address add 10.2.0.2/24 dev eth1",
    "link set eth1 down; link set eth1 name other; link set other name eth1; link set eth1 up",
    "address del 10.1.0.3/24 dev eth0; address add 10.1.0.3/24 dev eth0",
    (
        "address del 10.1.0.2/24 dev eth0; address add 10.1.0.2/24 dev eth0; "
        "address add 10.1.0.3/24 dev eth0"
    ),
    "address del 10.2.0.2/24 dev eth1",
    "address add 10.2.0.2/24 dev eth1",
    "address add 10.3.0.2/24 dev eth1",
    "address del 10.3.0.2/24 dev eth1",
    "nexthop del id 2; nexthop add id 2 blackhole",
    "nexthop replace id 1 via 10.1.0.10 dev eth0",
)
#: Makes the node able to take all routes again.
WHOLE = "link set eth1 up; address add 10.2.0.2/24 dev eth1; address del 10.3.0.2/24 dev eth1"
REFUSED = "RTNETLINK answers: File exists"
#: Of a foreign route: its place, and its protocol.
WAYS = (
    *(f"{{}} proto {{}} {hop}" for hop in HOPS),
    *(f"{kind} {{}} proto {{}}" for kind in ("blackhole", "unreachable", "prohibit", "throw")),
)
VERBS = "add", "append", "prepend", "prepend", "replace", "replace", "change"
DESCRIPTIONS = (
    "",
    "proto dhcp",
    "metric 100",
    "dev eth0",
    "dev eth0 metric 100",
    "via 10.1.0.1",
)
OUR_HOPS = "via 10.1.0.1 dev eth0", "via 10.1.0.5 dev eth0", "via 10.2.0.1 dev eth1"
TOS = " tos 0x10"
METRICS = "", "", "", " metric 100"


@attrs.define
class Life:
    """A node beside another program; the seed decides all. A failure shows what happened."""

    beside: Beside
    random: random.Random
    #: The routes that the program takes for its own.
    made: list[str] = attrs.field(factory=list)
    #: What hostrouting applied last.
    applied: Sequence[StaticRoute] = ()

    def cycle(self) -> None:
        """Let the program work before, beside and after hostrouting, which is then reset."""
        LOGGER.warning("%s", self.beside.routes)
        if self.random.random() < 0.9:
            self.beside.agree(WHOLE)
        self.beside.agree(OBJECTS)
        self.some(0, 3, self.operation)
        for _ in range(self.random.randint(1, 2)):
            self.random.choice([self.apply, self.apply, self.undo])()
            self.some(2, 6, self.operation, self.operation, self.intrusion, self.event)
        LOGGER.warning("reset")
        self.beside.reset()
        self.applied = ()
        assert self.beside.routes == self.beside.shadow

    def some(self, least: int, most: int, *steps: Callable[[], None]) -> None:
        for _ in range(self.random.randint(least, most)):
            self.random.choice(steps)()

    # --- hostrouting

    def apply(self) -> None:
        """Apply a config: own routes are the first of their places, or nothing has changed."""
        before = self.beside.routes
        config = self.config()
        wanted = [_as_shown(route) for route in config.static_routes.routes]
        reasons = [route for route in wanted if _may_be_refused(route, before)]
        try:
            self.beside.apply(config)
        except TaskFailedError:
            assert reasons
            # Own routes come first in the last step: if a new route is refused before, nothing has
            # moved.
            is_any_in_force = any(route in before for route in reasons)
            assert self.beside.routes == before or is_any_in_force
            _is_as_before(before, self.beside.routes)
            return
        after = self.beside.routes
        assert foreign(after) == foreign(before)
        assert sorted(own(after)) == sorted(wanted)
        assert all(first_is(after, route) for route in wanted)
        # Such a route was there before.
        places_before = {place(route) for route in own(before)}
        assert {place(route) for route in reasons} <= places_before
        self.applied = config.static_routes.routes

    def undo(self) -> None:
        """Apply a config in a run that fails later, and is undone whole; the program works
        meanwhile.
        """
        before = self.beside.routes
        count = self.random.choice([0, 0, 1, 3])
        errors: list[AssertionError] = []

        @task("other-program")
        def other(_ctx: Context) -> None:
            try:
                self.some(count, count, self.operation)
            except AssertionError as error:
                errors.append(error)

        LOGGER.warning("a run that is undone")
        steps = (
            Configure(self.config(), host=self.beside.host),
            other,
            FailingTask("late", OSError("x")),
        )
        run(Serial(*steps), in_time(), undo_on_failure=True)
        assert errors == []
        self.are_the_same()
        if not count:
            _is_as_before(before, self.beside.routes)

    def config(self) -> HostRoutingConfig:
        pick = self.random.choice
        prefixes = self.random.sample(PREFIXES, self.random.randint(1, 3))
        routes = [f"{prefix} {pick(OUR_HOPS)}{pick(METRICS)}" for prefix in prefixes]
        if self.random.random() < 0.1:
            routes.append("172.16.99.0/24 via 10.9.9.9 dev eth0")
        LOGGER.warning("config %s", routes)
        return config_of([static_route(route) for route in routes])

    # --- the foreign program

    def operation(self) -> None:
        """Let it add, change or delete a route, perhaps one that it has made before."""
        pick = self.random.choice
        chance = self.random.random
        earlier = ""
        if self.made:
            earlier = pick(self.made)
        if earlier and chance() < 0.35:
            removed = earlier
            if chance() >= 0.6:
                removed = f"{_prefix_of(earlier)} {pick(DESCRIPTIONS)}"
            self.act("del", removed)
        elif earlier and chance() < 0.4:
            self.act(pick(VERBS), earlier)
        else:
            applied = [route.destination for route in self.applied]
            spot = pick([*PREFIXES, *applied, *applied])
            if chance() < 0.15:
                spot += TOS
            spot += pick(METRICS)
            self.act(pick(VERBS), pick(WAYS).format(spot, pick(PROTOCOLS)))

    def intrusion(self) -> None:
        """Let it put a route before an own one."""
        if self.applied:
            route = self.random.choice(self.applied)
            hop = self.random.choice(HOPS)
            self.act("prepend", f"{route.destination} metric {route.metric} proto static {hop}")

    def event(self) -> None:
        """Let a device, an address or a nexthop object come or go."""
        commands = self.random.choice(EVENTS)
        LOGGER.warning("%s", commands)
        self.beside.agree(f"{commands}; {OBJECTS}")
        self.are_the_same()

    def act(self, verb: str, route: str) -> None:
        """What the program notices of hostrouting is on the list, and nothing else changes."""
        LOGGER.warning("route %s %s", verb, route)
        before = self.beside.routes
        refused, refused_in_shadow = self.beside.act(f"route {verb} {route}")
        if verb == "del":
            self.made = [each for each in self.made if each != route]
        elif not refused_in_shadow:
            self.made = [*self.made[-7:], route]
        if refused != refused_in_shadow or own(self.beside.routes) != own(before):
            prefix = _prefix_of(route)
            _is_on_the_list(
                verb,
                (refused, refused_in_shadow),
                before=_routes_to(prefix, before),
                after=_routes_to(prefix, self.beside.routes),
                shadow=_routes_to(prefix, self.beside.shadow),
            )
            # Without their next hops: the kernel may show these in another form than it takes.
            for maker in *PROTOCOLS, "kernel":
                for words in (maker, maker + TOS) * len(before):
                    self.beside.act(f"route del {prefix} proto {words}")
        self.are_the_same()

    def are_the_same(self) -> None:
        assert foreign(self.beside.routes) == self.beside.shadow


def _prefix_of(route: str) -> str:
    """Return the destination among the words of a route."""
    [prefix] = {*route.split()} & {*PREFIXES}
    return prefix


def _routes_to(prefix: str, routes: Sequence[str]) -> list[str]:
    """Return the shown routes to this destination."""
    return [route for route in routes if f" {prefix} " in route]


def _without(removed: str | None, routes: Sequence[str]) -> list[str]:
    """Return the routes but this one."""
    return [route for route in routes if route != removed]


def _is_on_the_list(
    verb: str, refusals: tuple[str, str], *, before: list[str], after: list[str], shadow: list[str]
) -> None:
    refused, in_shadow = refusals
    hidden = foreign(before)
    if refused and not in_shadow:
        # (b): the exclusive one, and the refresh of a route that is hidden.
        assert refused == REFUSED
        assert after == before
        assert verb == "add" or (verb in {"replace", "change"} and shadow == hidden)
        return
    [lost] = [route for route in own(before) if route not in after]
    assert refused == ""
    assert own(after) == _without(lost, own(before))
    if verb == "del":
        # (c): the foreign route stays; without the own one it had been deleted, if it exists.
        assert foreign(after) == hidden
        deleted = 0 if in_shadow else 1
        assert len(shadow) == len(hidden) - deleted
        return
    # (a): the foreign route takes the own one's place; in the shadow that of the first, or there is
    # none.
    [new] = [route for route in after if route not in before]
    assert verb in {"replace", "change"}
    assert first_is(before, lost)
    assert first_is(after, new)
    assert [route for route in after if route in before] == _without(lost, before)
    replaced = next((route for route in hidden if place(route) == place(lost)), None)
    if in_shadow:
        assert verb == "change"
        assert replaced is None
        assert shadow == hidden
    else:
        assert first_is(shadow, new)
        assert _without(new, shadow) == _without(replaced, hidden)


def _is_as_before(before: Sequence[str], after: Sequence[str]) -> None:
    """Assert that the routes are as before; an own one that stood in the middle of its place may
    stand last.

    An own one whose gateway is no longer reachable the kernel does not take back.
    """
    assert foreign(after) == foreign(before)
    for spot in {place(route) for route in (*own(before), *own(after))}:
        then = [route for route in before if place(route) == spot]
        now = [route for route in after if place(route) == spot]
        moved = own(then[1:-1])
        unmoved = [route for route in then if route not in moved]
        last = [*unmoved, *moved]
        kept = [route for route in then if route in foreign(then) or _is_reachable(route, before)]
        assert now in (then, last, kept)


def _as_shown(route: StaticRoute) -> str:
    """Return a route of a config as `ip` shows it."""
    metric = f" metric {route.metric}" if route.metric else ""
    way = f"via {route.gateway} dev {route.dev}"
    return f"unicast {route.destination} {way} proto 142 scope global{metric}"


def _may_be_refused(route: str, routes: Sequence[str]) -> bool:
    """Return whether the kernel has its own route in the place, or does not reach the gateway."""
    in_place = [each for each in routes if place(each) == place(route)]
    is_connected = any(" proto kernel " in f"{each} " for each in in_place)
    return (route not in in_place and is_connected) or not _is_reachable(route, routes)


def _is_reachable(route: str, routes: Sequence[str]) -> bool:
    """Return whether the gateway of an own route is on a connected network of its device."""
    words = route.split()
    network = f"{words[3].rpartition('.')[0]}.0/24"
    connected = f"unicast {network} dev {words[5]} proto kernel "
    return any(route.startswith(connected) for route in routes)


@pytest.mark.parametrize(
    ("seed", "cycles"),
    [(1, 25), *(pytest.param(seed, 500, marks=pytest.mark.soak) for seed in range(2, 9))],
)
def test_lives(seed: int, cycles: int) -> None:
    """In 25 cycles, and 3,500 of the soak run, no foreign route is lost, too many or
    at another place, and no reset fails.
    """
    with Beside.made() as beside:
        life = Life(beside, random.Random(seed))
        for _ in range(cycles):
            life.cycle()
