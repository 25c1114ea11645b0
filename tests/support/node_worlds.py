"""Random nodes of the small world: for the proof, for static routes, and with routes to networks that
may be announced.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from support import small_world
from support.kernel import do, make
from support.patience import until_unplugged
from support.small_world import pick

from hostrouting import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.exceptions import BackendError
from hostrouting.host import Address, NextHop, Route, Rule
from hostrouting.net.addresses import netmask, parse_cidr
from hostrouting.net.routes import (
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_UNIVERSE,
)
from hostrouting.testing import KernelNode, MemoryBackend

#: Small enough for a lookup of every address, in the places where the small world's routes, rules
#: and addresses meet.
CIDRS = (
    "10.1.0.0/24",
    "10.1.0.0/30",
    "10.1.0.8/29",
    "10.2.0.0/30",
    "10.3.0.0/29",
    "10.1.255.240/28",
    "192.168.7.0/25",
)


#: As on the links of an unnumbered node.
_UNNUMBERED = Address.parse("fe80::1")


_INSIDE = ("10.1.0.0/24", "10.1.255.240/28", "192.168.7.0/25")


class World(NamedTuple):
    """The operations on a node, in this order; those that the node refuses are left out."""

    addresses: list[tuple[str, tuple[str, str | None]]]
    routes: list[Route]
    rules: Sequence[Rule] = ()
    #: To be proven, and the devices through which they may leave.
    cidrs: Sequence[str] = ()
    allowed: tuple[str, ...] = ()
    #: A bit for each route that may stand behind another one of its place.
    repeated: int = -1
    #: A device that goes down when all else is done.
    down: str | None = None
    #: A device without carrier, and whether it has one until all else is done (in a kernel only).
    unplugged: tuple[str, bool] | None = None
    #: The kernel passes over next hops by a device without carrier.
    ignores_unplugged: bool = False

    def arrange(self, node: MemoryBackend | KernelNode) -> None:
        """Make it so; a route, an address or a rule that the node refuses is left out."""
        if isinstance(node, KernelNode):
            self._build(node)
        else:
            for dev in small_world.DEVICES:
                node.add_link(dev)
            self._furnish(node)
        if self.down:
            node.set_up(self.down, up=False)

    def _build(self, node: KernelNode) -> None:
        if self.ignores_unplugged:
            node.run("sysctl", "-qw", "net.ipv4.conf.default.ignore_routes_with_linkdown=1")
        do(node, commands=self._device_commands())
        make(node, "-4", commands=self.commands())
        lost, is_lost_later = self.unplugged or ("", False)
        if is_lost_later:
            node.set_up(f"{lost}-far", up=False)
            until_unplugged(node, lost)

    def _device_commands(self) -> list[str]:
        written = _WrittenNode()
        lost, is_lost_later = self.unplugged or ("", False)
        for dev in small_world.DEVICES:
            if dev == lost:
                written.ip(f"link add {dev} type veth peer name {dev}-far")
                written.set_up(f"{dev}-far", up=is_lost_later)
                written.set_up(dev)
            else:
                written.add_link(dev)
        return written.commands

    def commands(self) -> list[str]:
        """Return the commands of `ip -4` that give a node all of it but the devices."""
        written = _WrittenNode()
        self._furnish(written)
        return written.commands

    def _furnish(self, node: MemoryBackend | KernelNode) -> None:
        for dev, (address, peer) in self.addresses:
            with suppress(BackendError):
                node.add_address(dev, address, peer=peer)
        for number, route in enumerate(self.routes):
            with suppress(BackendError, ValueError):
                node.insert_route(route, verb="append" if self.repeated >> number & 1 else "add")
        for rule in self.rules:
            with suppress(BackendError):
                node.add_rule(rule)


class _WrittenNode(KernelNode):
    """Writes the commands of IPv4 down, for a batch; its first word would be the family."""

    def __init__(self) -> None:
        super().__init__("")
        self.commands: list[str] = []

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """Write the commands for a device without another end, which is the quickest to make."""
        if not carrier:
            super().add_link(name, up=up, carrier=False)
            return
        self.ip("link add", name, "type ifb")
        if up:
            self.ip("link set", name, "up")

    def ip(self, *words: str) -> str:
        self.commands.append(" ".join(words).removeprefix("-4 "))
        return ""


@st.composite
def _inner_routes(draw: st.DrawFn) -> Route:
    """A route that begins and ends inside one of the CIDRs."""
    network, length = parse_cidr(pick(draw, *_INSIDE))
    length = draw(st.integers(length, 32))
    address = network + draw(st.integers(0, 255)) & netmask(length)
    kind = pick(draw, *["unicast"] * 4, "blackhole", "unreachable", "prohibit", "throw", "local")
    return Route(
        network=address,
        prefix_length=length,
        dev=draw(small_world.devices()) if kind in {"unicast", "local"} else None,
        metric=pick(draw, 0, 0, 100),
        table=255 if kind == "local" else pick(draw, 254, 254, 100),
        protocol=3,
        kind=kind,
    )


@st.composite
def _rare_routes(draw: st.DrawFn) -> Route:
    """A route with an IPv6 gateway, which keeps no state of its link, or one that a lookup ends with
    EINVAL.
    """
    route = draw(_inner_routes().filter(lambda one: one.kind == "unicast"))
    if draw(st.booleans()):
        return attrs.evolve(route, gateway=_UNNUMBERED, scope=SCOPE_UNIVERSE)
    return attrs.evolve(route, table=LOCAL_TABLE, scope=SCOPE_HOST)


@st.composite
def _rare_defaults(draw: st.DrawFn) -> list[Route]:
    """Default routes with an IPv6 gateway, alone and beside another next hop."""
    single = Route.parse("0.0.0.0/0", gateway=str(_UNNUMBERED), dev="e0", protocol=16)
    legs = (NextHop(_UNNUMBERED, "e0"), NextHop(draw(st.sampled_from([_UNNUMBERED, None])), "e1"))
    several = Route.parse("0.0.0.0/0", nexthops=legs, protocol=3)
    behind = Route.parse("0.0.0.0/0", dev="e1", metric=100, protocol=3)
    return draw(st.sampled_from([[single], [several], [single, behind], [several, behind]]))


@st.composite
def _defaults(draw: st.DrawFn) -> list[Route]:
    gateway = Address.parse("10.1.0.200")
    legs = (NextHop(gateway, "e0"), NextHop(Address.parse("192.168.7.254"), "e1", weight=2))
    single = Route.parse("0.0.0.0/0", gateway=str(gateway), dev="e0", protocol=16)
    shape = draw(
        st.sampled_from(
            ["single"] * 6 + ["metric", "multipath", "multipath", "link", "own", "refused", "none"]
        )
    )
    return {
        "single": [single],
        "metric": [
            Route.parse("0.0.0.0/0", dev="e1", metric=200, protocol=3),
            Route.parse("0.0.0.0/0", gateway=str(gateway), dev="e0", metric=100, protocol=16),
        ],
        "multipath": [Route.parse("0.0.0.0/0", nexthops=legs, protocol=3), single],
        "own": [Route.parse("0.0.0.0/0", dev="e1"), attrs.evolve(single, metric=100)],
        "refused": [
            Route.parse("0.0.0.0/0", kind="blackhole", protocol=3),
            attrs.evolve(single, metric=100),
        ],
        "link": [Route.parse("0.0.0.0/0", dev="e0", protocol=3)],
        "none": [],
    }[shape]


def _is_in_the_proof(route: Route) -> bool:
    # The kernel sends from no address of a local route outside table local (a connect to one ends
    # with EINVAL), and the proof leaves that out: its lookups have a source only where a rule
    # selects by one.
    is_elsewhere = route.kind == "local" and route.table != LOCAL_TABLE
    return bool(route.prefix_length or route.table != MAIN_TABLE) and not is_elsewhere


@st.composite
def worlds(draw: st.DrawFn, *, rare: bool = False) -> World:
    """A node with devices e0 to e2, and the CIDRs to be proven on it.

    With `rare`, it may have IPv6 gateways, devices without carrier, and routes with `scope host`:
    for a kernel, which the node in memory does not follow in all of this.
    """
    pairs = st.tuples(small_world.devices(), small_world.addresses())
    addresses = [("e0", ("10.1.0.1/16", None)), *draw(st.lists(pairs, max_size=4))]
    routes = draw(st.lists(small_world.routes(protocols=(3,)) | _inner_routes(), max_size=8))
    rules = draw(st.lists(small_world.rules(), max_size=3))
    if rare:
        routes = draw(st.permutations([*routes, *draw(st.lists(_rare_routes(), max_size=2))]))
    return World(
        addresses=addresses,
        routes=[
            *draw(_defaults() | _rare_defaults() if rare else _defaults()),
            *filter(_is_in_the_proof, routes),
        ],
        rules=rules,
        cidrs=draw(st.lists(st.sampled_from(CIDRS), min_size=1, max_size=3, unique=True)),
        allowed=pick(draw, (), (), ("e1",), ("e[12]",)),
        down=draw(st.none() | st.none() | st.none() | small_world.devices()),
        unplugged=draw(st.none() | st.tuples(small_world.devices(), st.booleans()))
        if rare
        else None,
        ignores_unplugged=rare and draw(st.booleans()),
    )


@st.composite
def _rules(draw: st.DrawFn) -> Rule:
    """A rule that suppresses routes, goes on elsewhere, does nothing, or selects one of the places."""
    action = pick(draw, *["lookup"] * 5, "goto", "nop")
    places = st.sampled_from([*small_world.DESTINATIONS, "10.1.0.64/26", "10.1.255.255/32"]).map(
        parse_cidr
    )
    is_lookup = action == "lookup"
    return Rule(
        priority=pick(draw, 1, 50, 100, 32765, 32766, 32767, 40000),
        action=action,
        table=pick(draw, 254, 254, 254, 255, 100, 1000) if is_lookup else 0,
        source=parse_cidr(pick(draw, "0.0.0.0/0", "0.0.0.0/0", "10.1.0.0/16", "10.1.0.1/32")),
        destination=draw(st.just((0, 0)) | places),
        inverted=pick(draw, False, False, False, True),
        goto=pick(draw, 32766, 32767, 40000, 50000) if action == "goto" else None,
        suppress_prefix_length=draw(st.none() | st.sampled_from([0, 8, 15, 16, 24]))
        if is_lookup
        else None,
    )


@st.composite
def _equal_routes(draw: st.DrawFn) -> Route:
    """A route to a network that may be announced."""
    network, length = parse_cidr(draw(small_world.announced_cidrs()))
    kind = pick(draw, *["unicast"] * 5, "throw", "blackhole", "unreachable")
    return Route(
        network=network,
        prefix_length=length,
        dev=draw(small_world.devices()) if kind == "unicast" else None,
        metric=pick(draw, 0, 0, 100),
        table=pick(draw, 254, 254, 254, 100),
        protocol=3,
        kind=kind,
        tos=pick(draw, 0, 0, 0, 8),
    )


@st.composite
def announced_worlds(draw: st.DrawFn, *, rare: bool = False) -> World:
    world = draw(worlds(rare=rare))
    return world._replace(
        routes=[*world.routes, *draw(st.lists(_equal_routes(), max_size=3))],
        rules=[*world.rules, *draw(st.lists(_rules() | small_world.selecting_rules(), max_size=3))],
        allowed=pick(draw, world.allowed, world.allowed, ("?o*",)),
    )


_DESTINATIONS = (
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.0.0/24",
    "10.1.0.2/32",
    "192.168.7.0/24",
    "172.16.0.0/12",
)


_GATEWAYS = ("10.0.0.7", "10.1.0.3", "10.1.0.200", "10.3.0.2", "192.168.7.254", "172.16.0.1")


@st.composite
def default_routes(draw: DrawFn) -> Route:
    """Draw a default route of any kind; some wrongly carry our mark."""
    route = draw(
        small_world.routes(protocols=(3, 16, 142)).filter(lambda route: route.kind == "unicast")
    )
    return Route(
        network=0,
        prefix_length=0,
        gateway=route.gateway,
        dev=route.dev,
        metric=pick(draw, 0, 50, 100),
        protocol=route.protocol,
        nexthops=route.nexthops,
        tos=route.tos,
        onlink=route.onlink,
    )


@st.composite
def contested_worlds(draw: DrawFn) -> World:
    """A node on which much stands in each other's way."""
    foreign = small_world.routes(protocols=(3, 4, 16, 142, 142))
    pairs = st.tuples(small_world.devices(), small_world.addresses())
    return World(
        addresses=draw(st.lists(pairs, min_size=1, max_size=4)),
        routes=draw(st.lists(default_routes(), max_size=3)) + draw(st.lists(foreign, max_size=8)),
        repeated=draw(st.integers(0, 0x7FF)),
        down=draw(st.none() | st.none() | small_world.devices()),
    )


def static_route_configs() -> st.SearchStrategy[HostRoutingConfig]:
    """Configs of the same small world; some name a device that does not exist."""
    routes = st.builds(
        StaticRoute,
        destination=st.sampled_from(_DESTINATIONS),
        gateway=st.none() | st.sampled_from(_GATEWAYS),
        dev=st.none() | small_world.devices() | st.sampled_from([*small_world.DEVICES, "absent"]),
        # Foreign routes have the metric 50, too.
        metric=st.sampled_from([0, 0, 50, 0xFFFFFFFF]),
    )
    several = st.lists(
        routes, min_size=1, max_size=5, unique_by=lambda route: (route.destination, route.metric)
    )
    return several.map(
        lambda routes: HostRoutingConfig(
            static_routes=StaticRoutesConfig(enabled=True, routes=tuple(routes))
        )
    )
