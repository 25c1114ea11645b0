"""The promises of `RouteBackend` as tests.

They are those of its docstrings, and of the docstrings of its values: errors are compared by type
and fields, never by their words.

A text names a route only where a test gives one: what a backend returns is compared by fields. So
an attribute that routes get one day breaks no backend whose routes lack it.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from random import Random
from typing import Any, Final

import attrs
import pytest

from hostrouting.base.errors import BackendError, LinkNotFoundError, PermissionDeniedError
from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.host import Lookup, RouteBackend, Routing
from hostrouting.net.addresses import (
    IPV4,
    IPV6,
    Address,
    Prefix,
    address_bits,
    format_ipv4,
    parse_ipv4,
)
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.net.routes import (
    FLAG_LINKDOWN,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    Extra,
    NextHop,
    ObservedRoute,
    Route,
    RouteChange,
    resting,
    route_key,
)
from hostrouting.net.rules import FIRST_RULES, Range, Rule
from hostrouting.testing.node import KernelNode, Node
from hostrouting.testing.route_texts import route


def as_read(text: str) -> ObservedRoute:
    """Read a route as `route` does; return it as a backend shows it while its device is healthy."""
    return resting(route(text))


def in_order(*texts: str) -> list[ObservedRoute]:
    """Return these routes as a backend shows them."""
    return [*map(as_read, texts)]


IB0: Final = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
DEFAULT: Final = "default via 10.224.0.1 dev eth0"
IPV6_DEFAULT: Final = "default via fd00:1::1 dev eth0 metric 1024"
LONGER: Final = "172.16.8.0/24 via 10.224.0.1 dev eth0"
LOWER: Final = "9.0.0.0/8 dev eth0 scope link metric 3"
#: By the family: a route with two next hops (of IPv6 they are sorted), and addresses that it
#: decides.
MULTIPATH: Final = {
    IPV4: Route(
        network=9 << 24,
        prefix_length=8,
        nexthops=(NextHop(Address.parse("10.224.0.9"), "eth0", weight=3), NextHop(None, "ib0")),
        protocol=4,
    ),
    IPV6: Route(
        network=0xFD000009 << 96,
        prefix_length=32,
        nexthops=(
            NextHop(Address.parse("fd00:1::9"), "eth0", weight=3),
            NextHop(Address.parse("fd00:a::9"), "ib0"),
        ),
        metric=7,
        family=IPV6,
    ),
}
#: The kernel's own route of fd00:a::4.
_LOCAL: Final = ObservedRoute.parse(
    "fd00:a::4/128", "ib0", kind="local", table=LOCAL_TABLE, protocol=KERNEL_PROTOCOL
)
#: By the family: added routes, and the deciding route or the name of the errno by address.
DECIDED: Final = {
    IPV4: (
        [
            LONGER,
            "9.0.0.0/8 dev ib0 metric 7",
            LOWER,
            "blackhole 11.0.0.0/8",
            "unreachable 12.0.0.0/8",
            "prohibit 13.0.0.0/8",
        ],
        {
            "172.16.8.9": as_read(LONGER),
            "172.16.9.9": as_read(IB0),
            "192.0.2.1": as_read(DEFAULT),
            "9.1.1.1": as_read(LOWER),
            "11.1.1.1": "EINVAL",
            "12.1.1.1": "EHOSTUNREACH",
            "13.1.1.1": "EACCES",
        },
    ),
    IPV6: (
        [
            "fd00:9:5::/48 dev ib0 metric 9",
            "fd00:9::/32 dev ib0 metric 2",
            "fd00:9::/32 dev eth0 metric 1",
            "fd00:a::/64 dev eth0 metric 1",
            "blackhole fd00:4::/32 metric 1",
            "unreachable fd00:5::/32 metric 1",
            "prohibit fd00:6::/32 metric 1",
            "throw fd00:7::/32 metric 1",
        ],
        {
            "fd00:9:5::1": as_read("fd00:9:5::/48 dev ib0 metric 9"),
            "fd00:9::1": as_read("fd00:9::/32 dev eth0 metric 1"),
            "fd00:a::9": as_read("fd00:a::/64 dev eth0 metric 1"),
            "fd00:a::4": _LOCAL,
            "2001:db8::1": as_read(IPV6_DEFAULT),
            "fd00:4::1": "EINVAL",
            "fd00:5::1": "EHOSTUNREACH",
            "fd00:6::1": "EACCES",
            "fd00:7::1": "ENETUNREACH",
        },
    ),
}
#: By the family, routes of the table main in the kernel's order.
_ORDERED = {
    IPV4: [
        "9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp",
        "10.0.0.0/16 via 10.224.0.9 dev eth0 proto bgp metric 77",
        "10.0.0.0/8 dev eth0 proto dhcp scope link src 10.224.0.4",
        "throw 10.0.0.0/8 metric 9",
        "blackhole 10.3.0.0/16",
        "unreachable 10.4.0.0/16 metric 4294967295",
        "prohibit 10.5.0.0/16",
    ],
    IPV6: [
        "fd00:9::/64 via fd00:1::9 dev eth0 proto bgp metric 77",
        "blackhole fd00:9::/48 metric 5",
        "prohibit fd00:9::/48 metric 9",
        "fd00:9::9 dev ib0 proto dhcp src fd00:a::4 metric 1024",
        "unreachable fd00:9:1::/48 metric 4294967295",
        "fd00:9:2::/48 via fe80::1 dev ib0 metric 1024",
    ],
}
#: By the family, networks within each other, and addresses of the node.
_NESTED = {
    IPV4: ["9.0.0.0/8", "9.1.0.0/16", "9.1.2.0/24", "9.1.2.3/32"],
    IPV6: ["fd00:9::/32", "fd00:9:1::/48", "fd00:9:1:2::/64", "fd00:9:1:2::3/128"],
}
_SOURCES = {IPV4: ["10.224.0.4", "172.16.1.4"], IPV6: ["fd00:1::4", "fd00:a::4"]}
_NODES = 12
#: Only packets from the uplink's network take it.
BY_SOURCE: Final = route("fd00:9::/32 dev ib0 metric 5", from_prefix=Prefix.parse("fd00:1::/64"))


def arrange(node: Node, *texts: str) -> None:
    """Append foreign routes."""
    for text in texts:
        node.insert_route(route(text), verb="append")


def shown(backend: RouteBackend, **fields: Any) -> list[ObservedRoute]:
    """Return the routes with these fields, in their order; without a family, those of IPv4."""
    routes = backend.routes(fields.get("family", IPV4))
    for name, value in fields.items():
        routes = [observed for observed in routes if getattr(observed, name) == value]
    return routes


def competing_routes(backend: RouteBackend, family: int = IPV4) -> list[ObservedRoute]:
    """Return the routes of 9.0.0.0/8 or fd00:9::/32, which tests of places use, in order."""
    return shown(backend, family=family, network=MULTIPATH[family].network)


def find(backend: RouteBackend, text: str, **fields: Any) -> ObservedRoute:
    """Return the one route that `route` reads from this text, with further fields."""
    wanted = route(text, **fields)
    observed = chain.from_iterable(map(backend.routes, backend.families))
    (match,) = [candidate for candidate in observed if candidate.fulfils(wanted)]
    return match


def look_up(backend: RouteBackend, *addresses: str, **options: Any) -> list[Lookup]:
    """Return the answers of a lookup."""
    parsed = [*map(Address.parse, addresses)]
    numbers = [address.number for address in parsed]
    return backend.lookup(numbers, family=parsed[0].family, **options)


def _ways(backend: Routing, **question: Any) -> list[tuple[object, ...]]:
    """Return what decides each address, without what a dump does not show alike."""
    return [
        (answer.errno, answer.route and (answer.route.prefix_length, answer.route.devs))
        for answer in backend.lookup(**question)
    ]


def deciding(backend: RouteBackend, address: str) -> ObservedRoute | str:
    """Return the route that decides an address, or the name of the errno."""
    (answer,) = look_up(backend, address)
    return answer.route or errno.errorcode[answer.errno]


def assert_same(found: Sequence[object], wanted: Sequence[object]) -> None:
    """Assert that routes are as wanted, in their order; name each field that differs.

    Two routes that `ip` would print alike may differ.
    """
    wrong = [
        f"{route}: {name} is {value!r}, not {right!r}"
        for route, model in zip(found, wanted, strict=False)
        if isinstance(route, ObservedRoute) and isinstance(model, ObservedRoute)
        for name, value, right in zip(ObservedRoute._fields, route, model, strict=True)
        if value != right
    ]
    assert not wrong
    assert found == wanted


_add = RouteChange.add
_prepend = RouteChange.prepend
_append = RouteChange.append
_remove = RouteChange.remove
_replace = RouteChange.replace

#: An own route, foreign routes in its place, and one whose gateway is not on-link.
OWN: Final = "9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"
DHCP: Final = "9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp"
BOOT: Final = "9.0.0.0/8 via 10.224.0.8 dev eth0"
ON_LINK: Final = "9.0.0.0/8 dev eth0 proto 142 scope link"
OFF_LINK: Final = "8.0.0.0/8 via 192.0.2.1 dev eth0 proto 142"
IPV6_OWN: Final = "fd00:9::/32 via fd00:1::1 dev eth0 proto 142 metric 1"
IPV6_ON_LINK: Final = "fd00:9::/32 dev ib0 metric 1"
IPV6_BOOT: Final = "fd00:9::/32 via fd00:a::9 dev ib0 metric 1"
IPV6_OFF_LINK: Final = "fd00:8::/32 via fd00:99::1 dev eth0 proto 142 metric 1"
#: ON_LINK, as a removal names it.
ABSENT: Final = resting(route(ON_LINK))
#: By family, additions next to DHCP (for IPv6: IPV6_BOOT), and the errno of a refusal.
REFUSED: Final = {
    IPV4: [
        (_add, "9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142", errno.EEXIST),
        (_add, "172.16.0.0/16 via 10.224.0.1 dev eth0", errno.EEXIST),
        (_prepend, DHCP, errno.EEXIST),
        (_append, DHCP, errno.EEXIST),
        (_add, OFF_LINK, errno.ENETUNREACH),
        (_add, "8.0.0.0/8 dev down0", errno.ENETDOWN),
        (_add, "8.0.0.0/8 dev eth0 src 8.0.0.0", errno.EINVAL),
        (_add, "local 8.0.0.1 dev eth0 src 10.224.0.99", errno.EINVAL),
    ],
    IPV6: [
        (_add, IPV6_OWN, errno.EEXIST),
        (_add, IPV6_ON_LINK, errno.EEXIST),
        (_add, "fd00:a::/64 via fd00:1::1 dev eth0 metric 256", errno.EEXIST),
        (_add, IPV6_OFF_LINK, errno.EHOSTUNREACH),
        (_add, "fd00:8::/32 dev down0 metric 1", errno.ENETDOWN),
        (_add, "fd00:8::/32 dev eth0 src fd00:1::99 metric 1", errno.EINVAL),
    ],
}
#: By the family, routes for the tests of both.
_OWN = {IPV4: OWN, IPV6: IPV6_OWN}
_NEAR = {IPV4: ON_LINK, IPV6: "fd00:9::/32 dev eth0 proto 142"}
_OFF_LINK = {IPV4: OFF_LINK, IPV6: IPV6_OFF_LINK}
_FOREIGN = {
    IPV4: [
        route("9.1.0.0/16 via 10.224.0.9 dev eth0 metric 77 proto bgp"),
        route("unreachable 9.3.0.0/16 table 99"),
        route("9.2.0.0/16 dev eth0 proto dhcp src 10.224.0.4"),
        route("local 9.9.9.9 dev eth0 src 9.9.9.9"),
        MULTIPATH[IPV4],
    ],
    IPV6: [
        route("fd00:9::/32 via fd00:1::9 dev eth0 metric 9 src fd00:1::4"),
        route("prohibit fd00:9::/48 metric 3"),
        MULTIPATH[IPV6],
        BY_SOURCE,
    ],
}


def metrics(kind: int, value: int) -> Extra:
    """Return the unknown attribute RTA_METRICS with one metric; 2 is the mtu."""
    return ((8, struct.pack("=HHI", 8, kind, value)),)


class RouteBackendContract:
    """Each test has a fresh `node` with only a loopback device, up, which `backend` sees."""

    @pytest.fixture
    def node(self) -> Node:
        """The node that the tests arrange."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        """The backend under test, which sees `node`."""
        raise NotImplementedError

    @pytest.fixture
    def eth0(self, node: Node) -> Node:
        """A node with eth0 on 10.224.0.4/16, default gateway 10.224.0.1, a fabric on ib0."""
        for dev, address in ("eth0", "10.224.0.4/16"), ("ib0", "172.16.1.4/16"):
            node.add_link(dev)
            node.add_address(dev, address)
        arrange(node, DEFAULT)
        return node

    @pytest.fixture
    def six(self, eth0: Node, backend: RouteBackend) -> Node:
        """The node with fd00:1::4/64 on eth0, default gateway fd00:1::1, fd00:a::4/64 on ib0."""
        if IPV6 not in backend.families:
            pytest.skip("the backend does not support IPv6")
        eth0.add_address("eth0", "fd00:1::4/64")
        eth0.add_address("ib0", "fd00:a::4/64")
        arrange(eth0, IPV6_DEFAULT)
        return eth0

    @pytest.fixture
    def failing(self) -> RouteBackend:
        """A backend under test that reaches no node; override it, or its errors stay untested."""
        pytest.skip("'failing' is not overridden: give a backend that reaches no node")

    @pytest.fixture
    def denied(self) -> RouteBackend:
        """A backend under test that may not change routes; override it as `failing`."""
        pytest.skip("'denied' is not overridden: give a backend without the privilege of changes")

    @pytest.fixture(params=[IPV4, IPV6])
    def family(self, request: pytest.FixtureRequest) -> int:
        """IPv4 and IPv6, one test for each."""
        family: int = request.param
        return family

    @pytest.fixture
    def world(self, family: int, request: pytest.FixtureRequest) -> Node:
        """The node for the tests that are the same for both families."""
        world: Node = request.getfixturevalue("six" if family == IPV6 else "eth0")
        return world

    # --- every method

    def test_every_failure_is_a_backend_error(self, failing: RouteBackend) -> None:
        """An error of a library or a system call never comes out as it is."""
        for call in (
            failing.links,
            failing.routes,
            partial(failing.routes_of, 142),
            failing.rules,
            partial(failing.lookup, [1]),
            partial(failing.apply, [RouteChange.add(route("9.0.0.0/8 dev lo"))]),
        ):
            with pytest.raises(BackendError):
                call()

    def test_nothing_is_remembered(self, world: Node, family: int, backend: RouteBackend) -> None:
        """Each reading shows what another program has changed since the one before, and back."""
        added = attrs.evolve(MULTIPATH[family], nexthops=(), dev="ib0")
        rule = Rule(100, table=88, family=family)
        look_up = partial(backend.lookup, [added.network], family=family)
        source = Address.parse({IPV4: "10.224.0.4", IPV6: "fd00:1::4"}[family]).number

        def readings() -> dict[str, object]:
            return {
                "links": backend.links(),
                "routes": backend.routes(family),
                "routes_of": backend.routes_of(added.protocol, family),
                "rules": backend.rules(family),
                "lookup": look_up(),
                "lookup of a path": look_up(sources=[source], resolve=True),
            }

        before = readings()
        world.insert_route(added)
        world.add_rule(rule)
        world.add_link("new0")
        stale = [name for name, reading in readings().items() if reading == before[name]]
        assert stale == []
        world.remove_link("new0")
        world.remove_rule(rule)
        world.delete_route(added)
        assert readings() == before

    # --- links

    def test_links_come_with_state_and_addresses(self, eth0: Node, backend: RouteBackend) -> None:
        """Devices are listed in the order of their indexes, each with its state and addresses.

        `up` is the administrator's setting, `carrier` the state of the wire.
        """
        eth0.add_link("down0", up=False)
        eth0.add_link("tun0", carrier=False)
        lo, *added = backend.links()
        assert (lo.name, lo.up, lo.carrier, lo.loopback, lo.ifindex) == ("lo", True, True, True, 1)
        assert [
            (link.name, link.up, link.carrier, [*map(str, link.addresses)]) for link in added
        ] == [
            ("eth0", True, True, ["10.224.0.4/16"]),
            ("ib0", True, True, ["172.16.1.4/16"]),
            ("down0", False, False, []),
            ("tun0", True, False, []),
        ]

    def test_secondary_addresses_are_marked(self, eth0: Node, backend: RouteBackend) -> None:
        """A second address of the same network is secondary, one of another network is not."""
        for address in "10.224.0.5/16", "10.9.0.5/24":
            eth0.add_address("eth0", address)
        link = next(link for link in backend.links() if link.name == "eth0")
        assert {str(own): own.secondary for own in link.addresses} == {
            "10.224.0.4/16": False,
            "10.224.0.5/16": True,
            "10.9.0.5/24": False,
        }

    def test_known_neighbours_belong_to_their_link(self, eth0: Node, backend: RouteBackend) -> None:
        """Peers with a hardware address are listed in order, and go when the device goes down."""
        for peer in "172.16.3.9", "172.16.3.2":
            eth0.add_neighbour("ib0", peer)

        def neighbours() -> list[list[str]]:
            return [[*map(format_ipv4, link.neighbours)] for link in backend.links()]

        assert neighbours() == [[], [], ["172.16.3.2", "172.16.3.9"]]
        eth0.set_up("ib0", up=False)
        assert neighbours() == [[], [], []]

    def test_failed_neighbours_belong_to_their_link(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """Peers that do not answer are listed until they do, or until the device goes down."""
        eth0.fail_neighbour("ib0", "172.16.3.9")
        eth0.fail_neighbour("ib0", "172.16.3.2")

        def failed() -> list[list[str]]:
            return [[*map(str, link.failed)] for link in backend.links()]

        assert failed() == [[], [], ["172.16.3.2", "172.16.3.9"]]
        eth0.fail_neighbour("eth0", "10.224.0.1")
        assert failed() == [[], ["10.224.0.1"], ["172.16.3.2", "172.16.3.9"]]
        eth0.set_up("ib0", up=False)
        assert failed() == [[], ["10.224.0.1"], []]

    def test_links_have_addresses_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """Each has its family and its scope."""
        six.add_address("ib0", "fe80::4/64")
        own = [address for link in backend.links() for address in link.addresses]
        assert [(str(each), each.scope) for each in own if each.family == IPV6] == [
            ("::1/128", SCOPE_HOST),
            ("fd00:1::4/64", SCOPE_UNIVERSE),
            ("fd00:a::4/64", SCOPE_UNIVERSE),
            ("fe80::4/64", SCOPE_LINK),
        ]

    # --- routes

    def test_a_multipath_route_shows_every_leg(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Next hops come in the kernel's order (of IPv6, sorted) with gateway, device and weight.

        Neighbouring addresses leave through different devices, so the answer of a lookup names all
        of them.
        """
        world.insert_route(MULTIPATH[family])
        wanted = MULTIPATH[family]
        [multipath] = [observed for observed in backend.routes(family) if observed.fulfils(wanted)]
        assert multipath.nexthops == wanted.nexthops
        assert multipath.devs == ("eth0", "ib0")
        destinations = [multipath.network + number for number in (1, 2, 3)]
        answers = backend.lookup(destinations, family=family)
        assert [answer.route for answer in answers] == [multipath] * 3

    def test_routes_of_one_table_are_ordered(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """By network, then the longest prefix, then the lower metric; also those of one protocol.

        Metric, protocol, source, table and type are as given.
        """
        elsewhere = _ORDERED[family][0].replace(" proto", " table 4294967295 proto")
        arrange(world, elsewhere, *reversed(_ORDERED[family]))
        ordered = in_order(*_ORDERED[family])
        seen = backend.routes(family)
        assert [observed for observed in seen if observed in ordered] == ordered
        assert find(backend, elsewhere).table == 0xFFFFFFFF
        for protocol in 2, 16, 77:
            assert backend.routes_of(protocol, family) == [
                observed for observed in seen if observed.protocol == protocol
            ]

    def test_a_route_without_carrier_is_marked(self, node: Node, backend: RouteBackend) -> None:
        """A link that is up takes routes without carrier, too, and they are `linkdown`."""
        node.add_link("tun0", carrier=False)
        node.add_address("tun0", "10.5.0.1/16")
        text = "9.0.0.0/8 via 10.5.0.9 dev tun0"
        backend.apply([RouteChange.add(route(text))])
        marked = as_read(text)._replace(flags=FLAG_LINKDOWN)
        assert_same(competing_routes(backend), [marked])
        assert_same([deciding(backend, "9.1.1.1")], [marked])

    def test_a_dead_next_hop_is_seen(self, eth0: Node, backend: RouteBackend) -> None:
        """A next hop whose device is down is dead, and still the same; a model may not answer."""
        wanted = MULTIPATH[IPV4]
        eth0.insert_route(wanted)
        with suppress(UnknownDecisionError):
            eth0.set_up("ib0", up=False)
            [found] = [observed for observed in backend.routes() if observed.fulfils(wanted)]
            assert [(hop.dev, hop.dead) for hop in found.hops] == [("eth0", False), ("ib0", True)]

    # --- rules

    def test_the_rules_of_a_fresh_node(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Local and main, and of IPv4 default, in this order."""
        assert backend.rules(family) == [rule for rule in FIRST_RULES if rule.family == family]

    def test_rules_come_in_the_order_of_their_priority(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Rules of one priority keep their order of insertion, their selectors and action."""
        rule = partial(Rule, family=family)
        rest = address_bits(family) - 32
        added = [
            rule(100, table=88, source=(parse_ipv4("10.224.0.4") << rest, 32)),
            rule(100, action="blackhole", destination=(parse_ipv4("10.9.0.0") << rest, 16)),
            rule(50, table=4000, destination=(parse_ipv4("172.16.0.0") << rest, 16), inverted=True),
            rule(40, table=88, mark=1, mark_mask=0xFF, oif="eth0"),
            rule(30, table=88, iif="lo", tos=8, uids=Range(1000, 1001)),
            rule(
                20,
                table=88,
                ip_protocol=6,
                source_ports=Range(1, 2),
                destination_ports=Range(443, 444),
            ),
            rule(10, table=254, mark_mask=0xFFFFFFFF, suppress_prefix_length=0, suppress_group=1),
        ]
        for addition in added:
            world.add_rule(addition)
        assert backend.rules(family)[1:8] == [*added[:1:-1], *added[:2]]

    # --- lookups

    def test_rules_tables_and_sources_decide(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """On a node with rules by destination and by source, a lookup decides as the model does.

        A backend that asked for the destination alone would call a node healthy whose packets a
        rule sends elsewhere.
        """
        chance = Random(142)  # noqa: S311 (the same nodes each time)
        nested = [Prefix.parse(text) for text in _NESTED[family]]
        own = [Address.parse(text).number for text in _SOURCES[family]]
        bits = address_bits(family)
        destinations = [edge for each in nested for edge in (each.network, each.last)]
        for number in range(_NODES):
            target = chance.choice(nested)
            dev, table = chance.choice(["eth0", "ib0"]), chance.choice([88, 99, 254])
            metric = f" metric {number + 1}" if family == IPV6 else ""
            with suppress(BackendError):
                arrange(world, f"{target} dev {dev} table {table}{metric}")
            rule = Rule(
                chance.randrange(1, 300),
                action=chance.choice(["lookup", "lookup", "prohibit"]),
                table=chance.choice([88, 99]),
                family=family,
            )
            if chance.random() < 0.7:
                selected = chance.choice(nested)
                rule = rule._replace(destination=(selected.network, selected.length))
            if chance.random() < 0.5:
                rule = rule._replace(source=(chance.choice(own), bits))
            if rule.action != "lookup":
                rule = rule._replace(table=0)
            world.add_rule(rule)
            model = Fib.of(backend.links(), backend.routes(family), backend.rules(family))
            for source in (None, *own):
                sources = [source] * len(destinations)
                asked = partial(_ways, destinations=destinations, sources=sources, family=family)
                assert asked(backend) == asked(model)

    def test_the_deciding_route_answers(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """The longest prefix decides, then the lower metric; a route that blocks has an errno.

        The kernel's own routes of IPv6 have the metric 256.
        """
        texts, decided = DECIDED[family]
        arrange(world, *texts)
        assert {address: deciding(backend, address) for address in decided} == decided

    def test_a_route_by_source_hides_the_others(self, six: Node, backend: RouteBackend) -> None:
        """Packets from elsewhere, or without a source, go to a shorter prefix."""
        arrange(six, "fd00:9::/32 dev eth0 metric 1")
        six.insert_route(BY_SOURCE)
        destination, *sources = (
            Address.parse(text).number for text in ("fd00:9::1", "fd00:1::4", "fd00:a::4")
        )
        answers = backend.lookup([destination] * 3, sources=[*sources, None], family=IPV6)
        default = as_read(IPV6_DEFAULT)
        assert [answer.route for answer in answers] == [resting(BY_SOURCE), default, default]

    def test_the_nodes_own_address_is_decided_by_its_owner(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """Own and broadcast addresses are local on the device that has them, not on lo."""
        routes = [answer.route for answer in look_up(backend, "172.16.1.4", "10.224.255.255")]
        assert [local and (local.kind, local.dev) for local in routes] == [
            ("local", "ib0"),
            ("broadcast", "eth0"),
        ]

    def test_no_route_at_all_is_enetunreach(self, node: Node, backend: RouteBackend) -> None:
        """Without a default route most of the world is unreachable."""
        node.add_link("eth0")
        assert deciding(backend, "192.0.2.1") == "ENETUNREACH"

    def test_resolving_names_the_path_and_the_source(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """The answer has one packet's gateway, device and source address."""
        paths = [
            answer.route
            for answer in look_up(backend, "192.0.2.1", "172.16.9.9", "172.16.1.4", resolve=True)
        ]
        assert [
            path and (path.kind, path.dev, path.gateway, format_ipv4(path.source or 0))
            for path in paths
        ] == [
            ("unicast", "eth0", Address.parse("10.224.0.1"), "10.224.0.4"),
            ("unicast", "ib0", None, "172.16.1.4"),
            ("local", "lo", None, "172.16.1.4"),
        ]

    def test_many_lookups_keep_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """Of 2,001 lookups each gets its answer in their order, with refusals."""
        assert backend.lookup([]) == []
        arrange(eth0, "prohibit 9.0.0.0/8")
        destinations = [(9 + number % 2) << 24 | number for number in range(2001)]
        answers = backend.lookup(destinations)
        assert [answer.destination for answer in answers] == destinations
        assert [answer.errno for answer in answers] == [errno.EACCES, 0] * 1000 + [errno.EACCES]
        assert {answer.route for answer in answers[1::2]} == {as_read(DEFAULT)}

    def test_sources_must_match_destinations(self, node: Node, backend: RouteBackend) -> None:
        """A missing source is an error of the caller."""
        with pytest.raises(ValueError):  # noqa: PT011 - the words are the backend's
            backend.lookup([1 << 24, 2 << 24], sources=[None])

    def test_lookups_from_many_threads_do_not_mix(self, eth0: Node, backend: RouteBackend) -> None:
        """Every method may be called from any thread."""
        networks = range(20, 24)
        arrange(eth0, *(f"{network}.0.0.0/8 via 10.224.0.1 dev eth0" for network in networks))

        def work(network: int) -> set[str]:
            answers = backend.lookup([network << 24 | number for number in range(1, 500)])
            return {str(answer.route and answer.route.destination) for answer in answers}

        with ThreadPoolExecutor(len(networks)) as pool:
            assert [*pool.map(work, networks)] == [{f"{network}.0.0.0/8"} for network in networks]

    # --- changes

    def _refused(
        self, backend: RouteBackend, *changes: RouteChange, verify: bool = True
    ) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = [*map(backend.routes, backend.families)]
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes, verify=verify)
        for family, routes in zip(backend.families, before, strict=True):
            assert_same(backend.routes(family), routes)
        assert caught.value.rolled_back
        assert caught.value.left_behind == []
        return caught.value

    def test_an_added_route_is_as_wanted(self, eth0: Node, backend: RouteBackend) -> None:
        """Routes of every kind, table and gateway are read back as added, verified or not."""
        wanted = [
            route("172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 src 10.224.0.4 metric 5"),
            *map(route, ["blackhole 9.1.0.0/16", "9.2.0.0/16 dev ib0 table 1000"]),
            route("default via 10.224.0.1 dev eth0 metric 9"),
            attrs.evolve(MULTIPATH[IPV4], network=9 << 24 | 3 << 16, prefix_length=16),
            route("9.4.0.0/16 via 1.0.0.0 dev ib0", onlink=True),
            route("9.5.0.0/16 dev ib0", tos=8),
        ]
        backend.apply([*map(_add, wanted[1:])])
        backend.apply([_add(wanted[0])], verify=False)
        seen = backend.routes()
        for want in map(resting, wanted):
            assert_same([each for each in seen if route_key(each) == route_key(want)], [want])

    def test_changes_are_made_in_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A gateway may be reached by a route that the same batch added before it."""
        texts = [
            "9.9.9.9 dev eth0 proto 142 scope link",
            "9.0.0.0/8 via 9.9.9.9 dev eth0 proto 142",
        ]
        backend.apply([_add(route(text)) for text in texts])
        assert_same(shown(backend, protocol=142), in_order(*reversed(texts)))

    def test_exactly_the_named_route_is_removed(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Another metric, protocol, device or table stays; an empty batch removes nothing."""
        own = f"{_NEAR[family]} metric 5"
        arrange(
            world,
            own.replace("eth0 proto 142", "ib0 proto static"),
            own,
            f"{own}7",
            f"{own} table 88",
        )
        before = backend.routes(family)
        backend.apply([])
        assert_same(backend.routes(family), before)
        named = find(backend, own)
        backend.apply([_remove(named)])
        assert_same(backend.routes(family), [observed for observed in before if observed != named])

    def test_a_replacement_takes_the_named_route_alone(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """Further routes in one place stay, even if one of them is the first."""
        old = "9.0.0.0/8 via 10.224.0.1 dev eth0"
        new = "9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142"
        arrange(eth0, DHCP, old, BOOT)
        backend.apply([_replace(find(backend, old), route(new))])
        assert_same(competing_routes(backend), in_order(new, DHCP, BOOT))

    def test_a_prepended_route_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """It stands first in its place, also if only the protocol differs, or alone."""
        foreign = OWN.replace("142", "static")
        arrange(eth0, foreign)
        alone = "8.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"
        backend.apply([_prepend(route(text)) for text in (OWN, alone)])
        assert_same(competing_routes(backend), in_order(OWN, foreign))
        decided = [deciding(backend, address) for address in ("9.1.1.1", "8.1.1.1")]
        assert_same(decided, in_order(OWN, alone))

    def test_a_route_is_moved_to_the_front(self, eth0: Node, backend: RouteBackend) -> None:
        """To move a route is to remove and add it, last in a batch, so a refusal moves none."""
        arrange(eth0, DHCP, OWN)
        move = _replace(find(backend, OWN), route(OWN))
        self._refused(backend, move, _add(route(OFF_LINK)), _remove(ABSENT))
        backend.apply([move, _add(route(ON_LINK.replace("9.0.0.0/8", "8.0.0.0/8")))])
        assert_same(competing_routes(backend), in_order(OWN, DHCP))

    def test_an_appended_route_stands_behind(self, eth0: Node, backend: RouteBackend) -> None:
        """It decides when the routes before it are named."""
        arrange(eth0, DHCP)
        backend.apply([_append(route(OWN))])
        assert_same(competing_routes(backend), in_order(DHCP, OWN))
        backend.apply([_remove(find(backend, DHCP))])
        assert_same([deciding(backend, "9.1.1.1")], [as_read(OWN)])

    def test_what_was_read_can_be_put_back(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """Foreign routes are the same when added again, from a reading or by a rollback."""
        usual = backend.routes(family)
        for wanted in _FOREIGN[family]:
            world.insert_route(wanted)
        before = backend.routes(family)
        foreign = [observed for observed in before if observed not in usual]
        self._refused(backend, *map(_remove, foreign), _add(route(_OFF_LINK[family])))
        backend.apply([*map(_remove, foreign)])
        assert_same(backend.routes(family), usual)
        backend.apply([_add(observed.to_route()) for observed in foreign])
        assert_same(backend.routes(family), before)

    def test_unknown_attributes_are_kept(self, eth0: Node, backend: RouteBackend) -> None:
        """An attribute that a backend cannot parse, here an mtu, is installed, read and removed.

        A rollback returns it. A backend that declares that it does not keep metrics refuses them.
        """
        addition = _add(route(OWN, extra=metrics(2, 1400)))
        if not getattr(backend, "keeps_metrics", True):
            assert "metrics" in str(self._refused(backend, addition))
            return
        backend.apply([addition])
        installed = find(backend, OWN, extra=metrics(2, 1400))
        for change in _remove(installed), _replace(installed, route(ON_LINK)):
            self._refused(backend, change, _add(route(OFF_LINK)))
        arrange(eth0, DHCP)
        backend.apply([_remove(installed)])
        assert_same(competing_routes(backend), in_order(DHCP))

    def test_the_nexthop_object_of_a_route_is_kept(self, eth0: Node, backend: RouteBackend) -> None:
        """A route by one is read with its id, returned by a rollback, and removed."""
        if not isinstance(eth0, KernelNode):
            pytest.skip("only a kernel has nexthop objects: test it on a KernelNode")
        eth0.ip("nexthop add id 5 via 10.224.0.9 dev eth0")
        eth0.ip("route add 9.0.0.0/8 nhid 5")
        [installed] = competing_routes(backend)
        assert installed.nexthop_id == 5
        self._refused(backend, _remove(installed), _add(route(OFF_LINK)))
        backend.apply([_remove(installed)])
        assert_same(competing_routes(backend), [])

    def test_verification_finds_a_route_that_did_not_last(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A route whose mtu the kernel limits is accepted, but a reading shows another route."""
        if not getattr(backend, "keeps_metrics", True):
            pytest.skip("the backend does not keep metrics")
        changes = [_add(route(ON_LINK, extra=metrics(2, 70_000)))]
        self._refused(backend, *changes)
        backend.apply(changes, verify=False)
        [limited] = competing_routes(backend)
        assert limited.extra != metrics(2, 70_000)
        assert limited._replace(extra=()) == as_read(ON_LINK)

    # --- refusals

    def test_a_lack_of_privilege_has_its_error(self, denied: RouteBackend) -> None:
        """The kernel's EPERM is a `PermissionDeniedError`, and nothing was changed."""
        before = denied.routes()
        with pytest.raises(PermissionDeniedError) as caught:
            denied.apply([_add(route("9.0.0.0/8 dev lo"))])
        assert caught.value.errno == errno.EPERM
        assert_same(denied.routes(), before)

    def test_each_reason_has_its_errno(
        self, world: Node, family: int, backend: RouteBackend
    ) -> None:
        """An addition never overwrites any route, and a route is not moved within its place.

        No addition makes one IPv6 route of two.
        """
        world.add_link("down0", up=False)
        arrange(world, {IPV4: DHCP, IPV6: IPV6_BOOT}[family])
        for verb, wanted, number in REFUSED[family]:
            change = verb(route(wanted))
            error = self._refused(backend, change)
            [refusal] = error.refusals
            assert (refusal.change, refusal.errno) == (change, number)
            assert error.errno == number

    @pytest.mark.parametrize(
        "detail", [{"metric": 2}, {"protocol": 4}, {"gateway": None}, {"dev": "ib0"}]
    )
    def test_removing_what_is_not_there_is_esrch(
        self, world: Node, family: int, backend: RouteBackend, detail: dict[str, Any]
    ) -> None:
        """A removal names a route that must be there, with every detail."""
        arrange(world, _OWN[family])
        stale = find(backend, _OWN[family])._replace(**detail)
        assert self._refused(backend, _remove(stale)).errno == errno.ESRCH

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize(
        "present",
        [[f"{ON_LINK} metric 5"], [f"{ON_LINK} src 10.224.0.4", ON_LINK]],
        ids=["of another metric", "before it, with a source"],
    )
    def test_a_removal_never_takes_another_route(
        self, eth0: Node, backend: RouteBackend, present: list[str], *, verify: bool
    ) -> None:
        """A deletion that would remove another route is not sent."""
        arrange(eth0, *present)
        addition = _add(route("7.0.0.0/8 dev eth0"))
        [refusal] = self._refused(backend, addition, _remove(ABSENT), verify=verify).refusals
        assert (refusal.change, refusal.errno) == (_remove(ABSENT), errno.ESRCH)

    def test_what_another_program_changed_meanwhile_is_not_overwritten(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A route that another program replaced stays: its replacement is refused."""
        arrange(eth0, BOOT)
        old = find(backend, BOOT)
        eth0.insert_route(route(DHCP), verb="replace")
        assert self._refused(backend, _replace(old, route(ON_LINK))).errno == errno.ESRCH
        assert_same(competing_routes(backend), in_order(DHCP))

    def test_a_rollback_keeps_the_order_of_a_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Removed routes, the last of a place first, come back in their order."""
        arrange(eth0, OWN, DHCP, BOOT)
        present = [observed for observed in backend.routes() if observed.network == 9 << 24]
        self._refused(backend, *map(_remove, reversed(present)), _add(route(OFF_LINK)))

    def test_an_incomplete_rollback_is_reported(self, eth0: Node, backend: RouteBackend) -> None:
        """The error names a removed route that cannot return: another program took its way."""
        way = "7.7.7.7 dev eth0"
        named = "7.0.0.0/8 via 7.7.7.7 dev eth0"
        arrange(eth0, way, named)
        eth0.delete_route(route(way))
        lost = find(backend, named)
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply([_remove(lost), _add(route(OFF_LINK))])
        assert not caught.value.rolled_back
        [difference] = caught.value.left_behind
        assert str(lost) in difference

    def test_a_missing_device_is_named_before_anything_is_done(
        self, eth0: Node, backend: RouteBackend
    ) -> None:
        """A typing error in a device's name changes nothing."""
        before = backend.routes()
        with pytest.raises(LinkNotFoundError) as caught:
            backend.apply([_add(route(OWN)), _add(route("8.0.0.0/8 dev eht0"))])
        assert caught.value.dev == "eht0"
        assert_same(backend.routes(), before)

    def test_one_refusal_undoes_the_whole_batch(self, eth0: Node, backend: RouteBackend) -> None:
        """Changes of every verb before and after the refused one are all rolled back.

        A foreign route that stands before an addition of the batch stays.
        """
        arrange(
            eth0,
            DHCP,
            *(f"{network}.0.0.0/8 via 10.224.0.1 dev eth0 metric 3" for network in (8, 9)),
        )
        first, second = (observed for observed in backend.routes() if observed.metric == 3)
        self._refused(
            backend,
            _add(route("7.7.7.7 dev eth0")),
            _add(route("7.0.0.0/8 via 7.7.7.7 dev eth0")),
            _remove(first),
            _append(route(BOOT)),
            _add(route("6.0.0.0/8 via 192.0.2.77 dev ib0")),
            _replace(second, route("9.0.0.0/8 dev ib0 metric 3")),
        )

    def test_every_refusal_is_named(self, eth0: Node, backend: RouteBackend) -> None:
        """With more refusals than a socket's queue holds, each is named, in order."""
        near = route("20.0.0.0/24 via 10.224.0.1 dev eth0")
        far = route("20.0.0.0/24 via 192.0.2.1 dev eth0")
        changes = [
            _add(attrs.evolve((far, near)[number % 2], network=20 << 24 | number << 8))
            for number in range(1200)
        ]
        error = self._refused(backend, *changes)
        assert [refusal.change for refusal in error.refusals] == changes[::2]
        assert {refusal.errno for refusal in error.refusals} == {errno.ENETUNREACH}

    # --- IPv6

    def test_a_batch_has_routes_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """All are added, all are removed, or none."""
        texts = [IPV6_OWN, "9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142"]
        backend.apply([_add(route(text)) for text in texts])
        installed = [find(backend, text) for text in texts]
        self._refused(backend, *map(_remove, installed), _add(route(IPV6_OFF_LINK)))
        backend.apply([*map(_remove, installed)])
        assert backend.routes_of(142) == backend.routes_of(142, IPV6) == []

    def test_a_replaced_ipv6_route_leaves_its_place_first(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """Two routes by gateways would become one."""
        arrange(six, IPV6_OWN)
        change = _replace(find(backend, IPV6_OWN), route(IPV6_BOOT))
        self._refused(backend, change, _add(route(IPV6_OFF_LINK)))
        backend.apply([change])
        assert competing_routes(backend, IPV6) == in_order(IPV6_BOOT)

    def test_a_removal_of_ipv6_never_takes_another_route(
        self, six: Node, backend: RouteBackend
    ) -> None:
        """A deletion without a gateway, which fits any gateway of the device, is not sent."""
        arrange(six, IPV6_BOOT, IPV6_ON_LINK)
        change = _remove(find(backend, IPV6_ON_LINK))
        [refusal] = self._refused(backend, change).refusals
        assert (refusal.change, refusal.errno) == (change, errno.ESRCH)
