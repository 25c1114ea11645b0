"""What `RouteBackend` promises, as tests: derive a class and override the fixtures.

class TestMyBackend(RouteBackendContract):
@pytest.fixture
def node(self):                     # what the tests do to the node: see `Node`
with KernelNode.made() as node:
yield node

@pytest.fixture
def backend(self, node):            # what is tested
return MyBackend(netns=node.name)
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from hostrouting.exceptions import LinkNotFoundError, RouteRejectedError
from hostrouting.net.addresses import Address, format_ipv4, parse_ipv4
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import LOCAL_TABLE, NextHop, Route
from hostrouting.net.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import Lookup, ObservedRoute, RouteBackend
    from hostrouting.testing.node import Node

__all__ = ["RouteBackendContract"]

_add, _prepend, _append = RouteChange.add, RouteChange.prepend, RouteChange.append
_remove, _replace = RouteChange.remove, RouteChange.replace


def _ours(backend: RouteBackend) -> list[str]:
    return [str(route) for route in backend.routes() if route.protocol == 142]


def _main(backend: RouteBackend) -> list[str]:
    return [str(route) for route in backend.routes() if route.table == 254]


def _find(backend: RouteBackend, text: str) -> ObservedRoute:
    (found,) = [route for route in backend.routes() if str(route) == text]
    return found


def _place(backend: RouteBackend) -> list[str]:
    """The routes of 9.0.0.0/8, where the tests of places happen, in their order."""
    return [str(route) for route in backend.routes() if route.network == 9 << 24]


def _ask(backend: RouteBackend, *addresses: str) -> list[Lookup]:
    return backend.lookup([parse_ipv4(address) for address in addresses])


def _deciding(backend: RouteBackend, address: str) -> str:
    (answer,) = _ask(backend, address)
    return errno.errorcode[answer.errno] if answer.route is None else str(answer.route)


class RouteBackendContract:
    """`node` is fresh for every test: a loopback device that is up, and nothing else; `backend` sees that node."""

    @pytest.fixture
    def node(self) -> Node:
        """The node that the tests arrange."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        """The backend to be asked, which sees `node`."""
        raise NotImplementedError

    @pytest.fixture
    def eth0(self, node: Node) -> Node:
        """A node with eth0 on 10.224.0.4/16, its default route by 10.224.0.1, and a fabric on ib0."""
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        node.add_route("default", gateway="10.224.0.1", dev="eth0")
        node.add_link("ib0")
        node.add_address("ib0", "172.16.1.4/16")
        return node

    # --- links

    def test_links_come_with_state_and_addresses(self, eth0: Node, backend: RouteBackend) -> None:
        """Devices are listed in the order of their indexes, each with its state and addresses."""
        eth0.add_link("down0", up=False)
        lo, *others = backend.links()
        assert (lo.name, lo.up, lo.carrier, lo.loopback, lo.ifindex) == ("lo", True, True, True, 1)
        assert [(link.name, link.up, link.carrier) for link in others] == [
            ("eth0", True, True),
            ("ib0", True, True),
            ("down0", False, False),
        ]
        assert [(format_ipv4(own.local), own.prefix_length) for own in others[0].addresses] == [("10.224.0.4", 16)]
        assert others[2].addresses == ()

    def test_a_link_without_carrier_is_up(self, node: Node, backend: RouteBackend) -> None:
        """Up is the administrator's word, carrier the wire's."""
        node.add_link("tun0", carrier=False)
        assert [(link.up, link.carrier) for link in backend.links() if link.name == "tun0"] == [(True, False)]

    def test_secondary_addresses_are_marked(self, eth0: Node, backend: RouteBackend) -> None:
        """A second address of the same network is secondary, one of another network is not."""
        eth0.add_address("eth0", "10.224.0.5/16")
        eth0.add_address("eth0", "10.9.0.5/24")
        link = next(link for link in backend.links() if link.name == "eth0")
        assert {format_ipv4(own.local): own.secondary for own in link.addresses} == {
            "10.224.0.4": False,
            "10.224.0.5": True,
            "10.9.0.5": False,
        }

    def test_point_to_point_addresses_name_their_peer(self, node: Node, backend: RouteBackend) -> None:
        """The network of a point-to-point address is its peer's."""
        node.add_link("ppp0")
        node.add_address("ppp0", "10.3.0.1/32", peer="10.3.0.2")
        (own,) = backend.links()[1].addresses
        assert (format_ipv4(own.local), format_ipv4(own.peer)) == ("10.3.0.1", "10.3.0.2")
        assert _main(backend) == ["10.3.0.2 dev ppp0 proto kernel scope link src 10.3.0.1"]

    def test_known_neighbours_belong_to_their_link(self, eth0: Node, backend: RouteBackend) -> None:
        """Peers whose hardware address is known are listed in order, and go when the device goes down."""
        for peer in "172.16.3.9", "172.16.3.2":
            eth0.add_neighbour("ib0", peer)

        def known() -> dict[str, list[str]]:
            return {link.name: [format_ipv4(peer) for peer in link.neighbours] for link in backend.links()}

        assert known() == {"lo": [], "eth0": [], "ib0": ["172.16.3.2", "172.16.3.9"]}
        eth0.set_up("ib0", up=False)
        assert known()["ib0"] == []

    # --- routes

    def test_an_address_brings_its_routes(self, node: Node, backend: RouteBackend) -> None:
        """An address makes a connected, a local and a broadcast route."""
        node.add_link("ib0")
        before = set(backend.routes())
        node.add_address("ib0", "172.16.1.4/16")
        assert {str(route) for route in set(backend.routes()) - before} == {
            "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4",
            "local 172.16.1.4 dev ib0 table local proto kernel scope host src 172.16.1.4",
            "broadcast 172.16.255.255 dev ib0 table local proto kernel scope link src 172.16.1.4",
        }

    def test_routes_of_every_kind_are_read(self, eth0: Node, backend: RouteBackend) -> None:
        """Metric, protocol, source, table and type are as they were given."""
        eth0.add_route("10.1.0.0/16", gateway="10.224.0.9", dev="eth0", metric=77, protocol=186)
        eth0.add_route("10.2.0.0/16", dev="eth0", source="10.224.0.4", protocol=16)
        eth0.add_route("10.3.0.0/16", kind="blackhole")
        eth0.add_route("10.4.0.0/16", kind="unreachable", metric=4294967295)
        eth0.add_route("10.5.0.0/16", kind="prohibit")
        eth0.add_route("10.6.0.0/16", kind="throw", table=1000)
        eth0.add_route("10.7.0.1/32", gateway="10.224.0.9", dev="eth0", table=4294967295)
        # The order of the tables is the kernel's own affair.
        assert sorted(str(route) for route in backend.routes() if 10 << 24 < route.network < 10 << 24 | 8 << 16) == [
            "10.1.0.0/16 via 10.224.0.9 dev eth0 proto bgp metric 77",
            "10.2.0.0/16 dev eth0 proto dhcp scope link src 10.224.0.4",
            "10.7.0.1 via 10.224.0.9 dev eth0 table 4294967295",
            "blackhole 10.3.0.0/16",
            "prohibit 10.5.0.0/16",
            "throw 10.6.0.0/16 table 1000",
            "unreachable 10.4.0.0/16 metric 4294967295",
        ]

    def test_a_multipath_route_shows_every_leg(self, eth0: Node, backend: RouteBackend) -> None:
        """Next hops come in the kernel's order with gateway, device and weight."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0", weight=3), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=10 << 24, prefix_length=8, nexthops=hops, protocol=4))
        route = _find(
            backend,
            "10.0.0.0/8 proto static nexthop via 10.224.0.9 dev eth0 weight 3 nexthop dev ib0 weight 1",
        )
        assert route.nexthops == hops
        assert route.devs == ("eth0", "ib0")

    def test_routes_of_one_table_are_ordered(self, eth0: Node, backend: RouteBackend) -> None:
        """By network, then the longest prefix first, then the lower metric."""
        for text, metric in ("10.0.0.0/8", 9), ("10.0.0.0/8", 0), ("10.0.0.0/16", 5), ("9.0.0.0/8", 0):
            eth0.add_route(text, gateway="10.224.0.1", dev="eth0", metric=metric)
        assert [(route.destination, route.metric) for route in backend.routes() if route.protocol == 3] == [
            ("0.0.0.0/0", 0),
            ("9.0.0.0/8", 0),
            ("10.0.0.0/16", 5),
            ("10.0.0.0/8", 0),
            ("10.0.0.0/8", 9),
        ]

    def test_a_link_that_goes_down_takes_its_routes(self, eth0: Node, backend: RouteBackend) -> None:
        """No route is left over a device that is down, but for the local one of its address."""
        eth0.set_up("ib0", up=False)
        assert [str(route) for route in backend.routes() if route.dev == "ib0"] == [
            "local 172.16.1.4 dev ib0 table local proto kernel scope host src 172.16.1.4"
        ]

    # --- rules

    def test_a_fresh_node_has_three_rules(self, node: Node, backend: RouteBackend) -> None:
        """Local, main and default, in this order."""
        fresh = [(0, LOCAL_TABLE), (32766, 254), (32767, 253)]
        assert backend.rules() == [Rule(priority, table=table, protocol=2) for priority, table in fresh]

    def test_rules_come_in_the_order_of_their_priority(self, node: Node, backend: RouteBackend) -> None:
        """A rule shows its selectors and what it does; those of one priority keep the order they came in."""
        own = parse_ipv4("10.224.0.4")
        added = [
            Rule(100, table=88, source=(own, 32)),
            Rule(100, action="blackhole", destination=(parse_ipv4("10.9.0.0"), 16)),
            Rule(50, table=4000, destination=(parse_ipv4("172.16.0.0"), 16), inverted=True),
        ]
        for rule in added:
            node.add_rule(rule)
        assert backend.rules()[1:4] == [added[2], added[0], added[1]]

    # --- lookups

    def test_the_longest_prefix_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """A lookup answers with the route in the table, not with the address."""
        eth0.add_route("172.16.8.0/24", gateway="10.224.0.1", dev="eth0")
        assert _deciding(backend, "172.16.8.9") == "172.16.8.0/24 via 10.224.0.1 dev eth0"
        assert _deciding(backend, "172.16.9.9") == "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
        assert _deciding(backend, "192.0.2.1") == "default via 10.224.0.1 dev eth0"

    def test_of_two_metrics_the_lower_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel prefers the lower metric whatever came first."""
        eth0.add_route("9.0.0.0/8", dev="ib0", metric=7)
        eth0.add_route("9.0.0.0/8", dev="eth0", metric=3)
        assert _deciding(backend, "9.1.1.1") == "9.0.0.0/8 dev eth0 scope link metric 3"

    def test_every_leg_of_a_multipath_route_is_in_the_answer(self, eth0: Node, backend: RouteBackend) -> None:
        """Neighbouring addresses leave by different devices, so the answer has to name them all."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops))
        for answer in _ask(backend, "9.1.1.1", "9.1.1.2", "9.1.1.3"):
            assert answer.route is not None
            assert answer.route.devs == ("eth0", "ib0")

    def test_the_nodes_own_address_is_decided_by_its_owner(self, eth0: Node, backend: RouteBackend) -> None:
        """An own address is local on the device that holds it, not on lo; so is the broadcast address."""
        own, broadcast = _ask(backend, "172.16.1.4", "10.224.255.255")
        assert own.route is not None
        assert (own.route.kind, own.route.dev) == ("local", "ib0")
        assert broadcast.route is not None
        assert (broadcast.route.kind, broadcast.route.dev) == ("broadcast", "eth0")

    @pytest.mark.parametrize(
        ("kind", "number"),
        [("blackhole", "EINVAL"), ("unreachable", "EHOSTUNREACH"), ("prohibit", "EACCES")],
    )
    def test_routes_that_send_nothing_answer_with_an_errno(
        self, eth0: Node, backend: RouteBackend, kind: str, number: str
    ) -> None:
        """Each of the three says no in its own way."""
        eth0.add_route("9.0.0.0/8", kind=kind)
        assert _deciding(backend, "9.1.1.1") == number

    def test_no_route_at_all_is_enetunreach(self, node: Node, backend: RouteBackend) -> None:
        """Without a default route most of the world is unreachable."""
        node.add_link("eth0")
        assert _deciding(backend, "192.0.2.1") == "ENETUNREACH"

    def test_throw_ends_the_search_in_its_table_only(self, eth0: Node, backend: RouteBackend) -> None:
        """After a throw the next rule's table is asked."""
        eth0.add_rule(Rule(100, table=88))
        eth0.add_route("0.0.0.0/0", dev="ib0", table=88)
        eth0.add_route("9.0.0.0/8", kind="throw", table=88)
        assert _deciding(backend, "9.1.1.1") == "default via 10.224.0.1 dev eth0"
        assert _deciding(backend, "8.1.1.1") == "default dev ib0 table 88 scope link"

    def test_a_rule_by_destination_chooses_the_table(self, eth0: Node, backend: RouteBackend) -> None:
        """`to` holds for its addresses, and `not to` for all others."""
        eth0.add_route("0.0.0.0/0", dev="ib0", table=88)
        eth0.add_rule(Rule(100, table=88, destination=(9 << 24, 8)))
        assert _deciding(backend, "9.1.1.1") == "default dev ib0 table 88 scope link"
        assert _deciding(backend, "8.1.1.1") == "default via 10.224.0.1 dev eth0"
        eth0.add_rule(Rule(99, action="prohibit", destination=(9 << 24, 8), inverted=True))
        assert _deciding(backend, "8.1.1.1") == "EACCES"

    def test_a_rule_by_source_wants_the_source(self, eth0: Node, backend: RouteBackend) -> None:
        """A plain lookup misses a `from` rule; the same lookup with the source that the packet will have does not."""
        eth0.add_route("0.0.0.0/0", dev="ib0", table=88)
        eth0.add_rule(Rule(100, table=88, source=(parse_ipv4("10.224.0.4"), 32)))
        asked = [parse_ipv4("9.1.1.1")] * 2
        plain, from_eth0 = backend.lookup(asked, sources=[None, parse_ipv4("10.224.0.4")])
        assert str(plain.route) == "default via 10.224.0.1 dev eth0"
        assert str(from_eth0.route) == "default dev ib0 table 88 scope link"

    def test_a_foreign_source_is_refused(self, eth0: Node, backend: RouteBackend) -> None:
        """The node cannot send from an address that it does not hold."""
        (answer,) = backend.lookup([parse_ipv4("9.1.1.1")], sources=[parse_ipv4("10.224.0.99")])
        assert answer == (parse_ipv4("9.1.1.1"), None, errno.ENETUNREACH)

    def test_resolving_names_the_path_and_the_source(self, eth0: Node, backend: RouteBackend) -> None:
        """What one packet would meet: the gateway, the device, and the address that it is sent from."""
        asked = [parse_ipv4(text) for text in ("192.0.2.1", "172.16.9.9", "172.16.1.4")]
        paths = [answer.route for answer in backend.lookup(asked, resolve=True)]
        assert [path and (path.kind, path.dev, path.gateway, path.source) for path in paths] == [
            ("unicast", "eth0", Address.parse("10.224.0.1"), parse_ipv4("10.224.0.4")),
            ("unicast", "ib0", None, parse_ipv4("172.16.1.4")),
            ("local", "lo", None, parse_ipv4("172.16.1.4")),
        ]

    def test_many_lookups_keep_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A thousand questions get a thousand answers, each to its own, refusals among them."""
        eth0.add_route("9.0.0.0/8", kind="prohibit")
        asked = [(9 + number % 2) << 24 | number for number in range(1000)]
        answers = backend.lookup(asked)
        assert [answer.destination for answer in answers] == asked
        assert [answer.errno for answer in answers] == [errno.EACCES, 0] * 500
        assert {str(answer.route) for answer in answers[1::2]} == {"default via 10.224.0.1 dev eth0"}

    def test_no_question_no_answer(self, node: Node, backend: RouteBackend) -> None:
        """An empty lookup is answered by an empty list."""
        assert backend.lookup([]) == []

    def test_sources_must_match_destinations(self, node: Node, backend: RouteBackend) -> None:
        """A source too few is a mistake of the caller's."""
        with pytest.raises(ValueError, match="1 sources for 2 destinations: give one for each, or none"):
            backend.lookup([1 << 24, 2 << 24], sources=[None])

    def test_lookups_from_many_threads_do_not_mix(self, eth0: Node, backend: RouteBackend) -> None:
        """Every method may be called from any thread."""
        for network in range(20, 24):
            eth0.add_route(f"{network}.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        wrong: list[Lookup] = []

        def ask(network: int) -> None:
            for _ in range(5):
                answers = backend.lookup([network << 24 | number for number in range(1, 100)])
                wrong.extend(a for a in answers if a.route is None or a.route.network != network << 24)

        threads = [threading.Thread(target=ask, args=(network,)) for network in range(20, 24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    # --- applying

    def test_an_added_route_is_there_and_ours(self, eth0: Node, backend: RouteBackend) -> None:
        """What was added is read back as it was wanted, with our protocol number."""
        wanted = Route.parse("172.16.8.0/22", gateway="10.224.0.1", dev="eth0", metric=5, source="10.224.0.4")
        backend.apply([_add(wanted)])
        text = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 src 10.224.0.4 metric 5"
        assert _ours(backend) == [text]
        assert _find(backend, text).fulfils(wanted)

    def test_every_kind_can_be_added(self, eth0: Node, backend: RouteBackend) -> None:
        """Blackholes, legs, other tables, gateways said to be on the link: all are read back as they were wanted."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0", weight=2), NextHop(None, "ib0"))
        wanted = [
            Route.parse("9.1.0.0/16", kind="blackhole"),
            Route.parse("9.2.0.0/16", dev="ib0", table=1000),
            Route.parse("0.0.0.0/0", gateway="10.224.0.1", dev="eth0", metric=9),
            Route(network=9 << 24 | 3 << 16, prefix_length=16, nexthops=hops),
            Route(
                network=9 << 24 | 4 << 16, prefix_length=16, gateway=Address.parse("1.0.0.0"), dev="ib0", onlink=True
            ),
            Route(network=9 << 24 | 5 << 16, prefix_length=16, dev="ib0", tos=8),
        ]
        backend.apply([_add(route) for route in wanted])
        seen = backend.routes()
        assert all(any(route.fulfils(want) for route in seen) for want in wanted)

    def test_changes_are_made_in_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A gateway may be reached by a route that the same batch added before it."""
        on_link = Route.parse("9.9.9.9/32", dev="eth0")
        via = Route.parse("9.0.0.0/8", gateway="9.9.9.9", dev="eth0")
        backend.apply([_add(on_link), _add(via)])
        assert _ours(backend) == [
            "9.0.0.0/8 via 9.9.9.9 dev eth0 proto 142",
            "9.9.9.9 dev eth0 proto 142 scope link",
        ]

    def test_another_metric_is_another_route(self, eth0: Node, backend: RouteBackend) -> None:
        """The metric is part of what the kernel tells routes apart by."""
        backend.apply([_add(Route.parse("9.0.0.0/8", dev="eth0", metric=metric)) for metric in (2, 1)])
        assert _ours(backend) == [
            "9.0.0.0/8 dev eth0 proto 142 scope link metric 1",
            "9.0.0.0/8 dev eth0 proto 142 scope link metric 2",
        ]

    def test_exactly_the_named_route_is_removed(self, eth0: Node, backend: RouteBackend) -> None:
        """Another metric, protocol or table at the same destination stays."""
        for metric, protocol, table in (0, 3, 254), (5, 142, 254), (7, 142, 254), (5, 142, 88):
            eth0.add_route("9.0.0.0/8", dev="eth0", metric=metric, protocol=protocol, table=table)
        before = backend.routes()
        gone = _find(backend, "9.0.0.0/8 dev eth0 proto 142 scope link metric 5")
        backend.apply([_remove(gone)])
        assert backend.routes() == [route for route in before if route != gone]

    def test_a_route_is_replaced_in_its_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Another gateway, device and protocol take the place of the old ones."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        before = _find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")
        backend.apply([_replace(before, Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="ib0"))])
        assert _place(backend) == ["9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142"]

    def test_a_replacement_takes_the_named_route_alone(self, eth0: Node, backend: RouteBackend) -> None:
        """Of several routes in one place the others stay, also where one of them is the first."""
        for gateway in "10.224.0.9", "10.224.0.1", "10.224.0.8":
            eth0.add_route("9.0.0.0/8", gateway=gateway, dev="eth0")
        backend.apply(
            [_replace(_find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0"), Route.parse("9.0.0.0/8", dev="ib0"))]
        )
        assert _place(backend) == [
            "9.0.0.0/8 dev ib0 proto 142 scope link",
            "9.0.0.0/8 via 10.224.0.9 dev eth0",
            "9.0.0.0/8 via 10.224.0.8 dev eth0",
        ]

    def test_a_prepended_route_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """It stands before what is there, and in an empty place it is the only one."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0")
        ours = [Route.parse(f"{number}.0.0.0/8", gateway="10.224.0.1", dev="eth0") for number in (9, 8)]
        backend.apply([_prepend(route) for route in ours])
        assert _place(backend) == [str(ours[0]), "9.0.0.0/8 via 10.224.0.9 dev eth0"]
        assert _deciding(backend, "9.1.1.1") == str(ours[0])
        assert _deciding(backend, "8.1.1.1") == str(ours[1])

    def test_an_appended_route_stands_behind(self, eth0: Node, backend: RouteBackend) -> None:
        """It decides when those before it are gone."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0")
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_append(ours)])
        assert _place(backend) == ["9.0.0.0/8 via 10.224.0.9 dev eth0", str(ours)]
        backend.apply([_remove(_find(backend, "9.0.0.0/8 via 10.224.0.9 dev eth0"))])
        assert _deciding(backend, "9.1.1.1") == str(ours)

    def test_identical_routes_of_two_protocols_coexist(self, eth0: Node, backend: RouteBackend) -> None:
        """The protocol is part of what is identical, and of what a removal names."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0", protocol=4)
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_prepend(ours)])
        assert _place(backend) == [str(ours), "9.0.0.0/8 via 10.224.0.1 dev eth0 proto static"]
        backend.apply([_remove(_find(backend, str(ours)))])
        assert _place(backend) == ["9.0.0.0/8 via 10.224.0.1 dev eth0 proto static"]

    def test_there_and_back_without_a_hole(self, eth0: Node, backend: RouteBackend) -> None:
        """Prepend ours, remove theirs; append theirs, remove ours: the table is as before."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0", protocol=16)
        before = backend.routes()
        theirs = _find(backend, "9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp")
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_prepend(ours)])
        backend.apply([_remove(theirs)])
        assert _place(backend) == [str(ours)]
        backend.apply([_append(theirs.to_route()), _remove(_find(backend, str(ours)))])
        assert backend.routes() == before

    def test_what_was_read_can_be_put_back(self, eth0: Node, backend: RouteBackend) -> None:
        """Foreign routes of every kind, taken away and added again from what was read, are the same routes."""
        eth0.add_route("9.1.0.0/16", gateway="10.224.0.9", dev="eth0", metric=77, protocol=186)
        eth0.add_route("9.2.0.0/16", dev="eth0", source="10.224.0.4", protocol=16)
        eth0.add_route("9.3.0.0/16", kind="unreachable", table=99)
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0", weight=3), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops, protocol=4))
        before = backend.routes()
        foreign = [route for route in before if route.network >> 24 == 9]
        backend.apply([_remove(route) for route in foreign])
        assert [route for route in backend.routes() if route.network >> 24 == 9] == []
        backend.apply([_add(route.to_route()) for route in foreign])
        assert backend.routes() == before

    def test_a_dead_next_hop_is_seen(self, eth0: Node, backend: RouteBackend) -> None:
        """A leg whose device is down is dead, and still the same leg."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops, protocol=4))
        eth0.set_up("ib0", up=False)
        [route] = [route for route in backend.routes() if route.network >> 24 == 9]
        assert [(hop.dev, hop.dead) for hop in route.nexthops] == [("eth0", False), ("ib0", True)]
        assert route.nexthops == hops

    def test_no_change_is_no_change(self, eth0: Node, backend: RouteBackend) -> None:
        """An empty batch is fine and does nothing."""
        before = backend.routes()
        backend.apply([])
        assert backend.routes() == before

    def test_reading_back_can_be_left_out(self, eth0: Node, backend: RouteBackend) -> None:
        """Without verification the same routes are installed."""
        backend.apply([_add(Route.parse("9.0.0.0/8", dev="eth0"))], verify=False)
        assert _ours(backend) == ["9.0.0.0/8 dev eth0 proto 142 scope link"]

    # --- refusals

    def _refused(self, backend: RouteBackend, *changes: RouteChange) -> RouteRejectedError:
        before = backend.routes()
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes)
        assert backend.routes() == before
        assert caught.value.rolled_back
        assert caught.value.left_behind == []
        return caught.value

    def test_an_occupied_place_is_eexist(self, eth0: Node, backend: RouteBackend) -> None:
        """Adding never displaces: what stands there stays, whoever it belongs to."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        error = self._refused(backend, _add(Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="ib0")))
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("+ 9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142", errno.EEXIST)
        ]

    def test_a_connected_route_is_not_overwritten(self, eth0: Node, backend: RouteBackend) -> None:
        """Metric 0 on a connected prefix is the kernel's own place."""
        error = self._refused(backend, _add(Route.parse("172.16.0.0/16", gateway="10.224.0.1", dev="eth0")))
        assert error.errno == errno.EEXIST

    def test_removing_what_is_not_there_is_esrch(self, eth0: Node, backend: RouteBackend) -> None:
        """A removal names what must be there."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        stale = _find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")._replace(gateway=Address.parse("10.224.0.2"))
        assert self._refused(backend, _remove(stale)).errno == errno.ESRCH

    @pytest.mark.parametrize("verb", [_prepend, _append])
    def test_adding_what_stands_there_is_eexist(
        self, eth0: Node, backend: RouteBackend, verb: Callable[[Route], RouteChange]
    ) -> None:
        """A route cannot stand twice in one place, and is not moved within it."""
        wanted = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        eth0.insert_route(wanted)
        assert self._refused(backend, verb(wanted)).errno == errno.EEXIST

    def test_what_another_program_changed_meanwhile_is_not_overwritten(self, eth0: Node, backend: RouteBackend) -> None:
        """A replacement of what another program has replaced by then is refused, and theirs stays alone."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        old = _find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")
        eth0.insert_route(Route.parse("9.0.0.0/8", gateway="10.224.0.2", dev="eth0", protocol=16), replace=True)
        change = _replace(old, Route.parse("9.0.0.0/8", dev="ib0"))
        assert self._refused(backend, change).errno == errno.ESRCH
        assert _place(backend) == ["9.0.0.0/8 via 10.224.0.2 dev eth0 proto dhcp"]

    def test_a_rollback_leaves_what_took_the_place(self, eth0: Node, backend: RouteBackend) -> None:
        """What was put back behind a route that is not ours any more is taken away again; that route stays."""
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        eth0.insert_route(ours)
        held = _find(backend, str(ours))
        eth0.insert_route(Route.parse("9.0.0.0/8", gateway="10.224.0.2", dev="eth0", protocol=16), replace=True)
        recorded = Route.parse("9.0.0.0/8", gateway="10.224.0.9", dev="eth0", protocol=16)
        assert self._refused(backend, _append(recorded), _remove(held)).errno == errno.ESRCH
        assert _place(backend) == ["9.0.0.0/8 via 10.224.0.2 dev eth0 proto dhcp"]

    def test_a_rollback_keeps_the_order_of_a_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Routes that were removed, the last of a place first, come back in their order."""
        for gateway in "10.224.0.7", "10.224.0.9", "10.224.0.8":
            eth0.add_route("9.0.0.0/8", gateway=gateway, dev="eth0")
        standing = [route for route in backend.routes() if route.network == 9 << 24]
        absent = standing[0]._replace(gateway=Address.parse("10.224.0.6"))
        self._refused(backend, *map(_remove, reversed(standing)), _remove(absent))

    def test_a_gateway_off_the_link_is_enetunreach(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel wants a gateway on the link of its device."""
        error = self._refused(backend, _add(Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="eth0")))
        assert error.errno == errno.ENETUNREACH

    def test_a_device_that_is_down_is_enetdown(self, eth0: Node, backend: RouteBackend) -> None:
        """A route without gateway wants its device up."""
        eth0.set_up("ib0", up=False)
        assert self._refused(backend, _add(Route.parse("9.0.0.0/8", dev="ib0"))).errno == errno.ENETDOWN

    def test_a_foreign_source_address_is_einval(self, eth0: Node, backend: RouteBackend) -> None:
        """A route cannot send from an address that the node does not hold."""
        change = _add(Route.parse("9.0.0.0/8", dev="eth0", source="10.224.0.99"))
        assert self._refused(backend, change).errno == errno.EINVAL

    def test_missing_carrier_is_no_reason_to_refuse(self, node: Node, backend: RouteBackend) -> None:
        """A link that is up takes routes, whatever its wire says."""
        node.add_link("tun0", carrier=False)
        node.add_address("tun0", "10.5.0.1/16")
        backend.apply([_add(Route.parse("9.0.0.0/8", gateway="10.5.0.9", dev="tun0"))])
        assert _ours(backend) == ["9.0.0.0/8 via 10.5.0.9 dev tun0 proto 142 linkdown"]

    def test_a_missing_device_is_named_before_anything_is_done(self, eth0: Node, backend: RouteBackend) -> None:
        """A typing mistake in a device's name changes nothing."""
        before = backend.routes()
        changes = [_add(Route.parse("9.0.0.0/8", dev="eth0")), _add(Route.parse("8.0.0.0/8", dev="eht0"))]
        with pytest.raises(LinkNotFoundError) as caught:
            backend.apply(changes)
        assert caught.value.dev == "eht0"
        assert str(caught.value) == "no such device: eht0; nothing was changed. The node has lo, eth0, ib0"
        assert backend.routes() == before

    def test_one_refusal_undoes_the_whole_batch(self, eth0: Node, backend: RouteBackend) -> None:
        """Additions, replacements and removals before and after the refused change are all taken back."""
        for network in 8, 9:
            eth0.add_route(f"{network}.0.0.0/8", gateway="10.224.0.1", dev="eth0", metric=3, protocol=16)
        first, second = (route for route in backend.routes() if route.protocol == 16)
        self._refused(
            backend,
            _add(Route.parse("7.7.7.7/32", dev="eth0")),
            _add(Route.parse("7.0.0.0/8", gateway="7.7.7.7", dev="eth0")),
            _remove(first),
            _add(Route.parse("6.0.0.0/8", gateway="192.0.2.77", dev="ib0")),
            _replace(second, Route.parse("9.0.0.0/8", dev="ib0", metric=3)),
        )

    def test_every_refusal_is_named(self, eth0: Node, backend: RouteBackend) -> None:
        """More refusals than a socket's queue holds: each is named, in order, and all that succeeded is taken back."""
        routes = [
            Route(
                network=20 << 24 | number << 8,
                prefix_length=24,
                gateway=Address.parse("10.224.0.1" if number % 2 else "192.0.2.1"),
                dev="eth0",
            )
            for number in range(1200)
        ]
        error = self._refused(backend, *map(_add, routes))
        assert [refusal.change for refusal in error.refusals] == [str(_add(route)) for route in routes[::2]]
        assert {refusal.errno for refusal in error.refusals} == {errno.ENETUNREACH}
