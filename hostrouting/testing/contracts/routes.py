"""The promises of `RouteBackend` for links, routes, rules and lookups, as tests."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from hostrouting.net.addresses import Address, format_ipv4, parse_ipv4
from hostrouting.net.routes import LOCAL_TABLE, NextHop, Route
from hostrouting.net.rules import Range, Rule

if TYPE_CHECKING:
    from hostrouting.host import Lookup, ObservedRoute, RouteBackend
    from hostrouting.testing.node import Node

__all__ = ["RouteReadingContract"]


def ours(backend: RouteBackend) -> list[str]:
    return [str(route) for route in backend.routes() if route.protocol == 142]


def main(backend: RouteBackend) -> list[str]:
    return [str(route) for route in backend.routes() if route.table == 254]


def find(backend: RouteBackend, text: str) -> ObservedRoute:
    (found,) = [route for route in backend.routes() if str(route) == text]
    return found


def place(backend: RouteBackend) -> list[str]:
    """Return the routes of 9.0.0.0/8, which the tests of places use, in their order."""
    return [str(route) for route in backend.routes() if route.network == 9 << 24]


def ask(backend: RouteBackend, *addresses: str) -> list[Lookup]:
    return backend.lookup([parse_ipv4(address) for address in addresses])


def deciding(backend: RouteBackend, address: str) -> str:
    (answer,) = ask(backend, address)
    return errno.errorcode[answer.errno] if answer.route is None else str(answer.route)


class RouteReadingContract:
    """Each test has a fresh `node` with a loopback device that is up, and nothing else; `backend` sees that node."""

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
        """`up` is the administrator's setting, `carrier` the state of the wire."""
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
        assert main(backend) == ["10.3.0.2 dev ppp0 proto kernel scope link src 10.3.0.1"]

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
        """Metric, protocol, source, table and type are as given."""
        eth0.add_route("10.1.0.0/16", gateway="10.224.0.9", dev="eth0", metric=77, protocol=186)
        eth0.add_route("10.2.0.0/16", dev="eth0", source="10.224.0.4", protocol=16)
        eth0.add_route("10.3.0.0/16", kind="blackhole")
        eth0.add_route("10.4.0.0/16", kind="unreachable", metric=4294967295)
        eth0.add_route("10.5.0.0/16", kind="prohibit")
        eth0.add_route("10.6.0.0/16", kind="throw", table=1000)
        eth0.add_route("10.7.0.1/32", gateway="10.224.0.9", dev="eth0", table=4294967295)
        # The kernel chooses the order of the tables.
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
        route = find(
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
        """A device that is down keeps no route but the local one of its address."""
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
        """A rule shows its selectors and its action; rules of one priority keep their order of insertion."""
        own = parse_ipv4("10.224.0.4")
        added = [
            Rule(100, table=88, source=(own, 32)),
            Rule(100, action="blackhole", destination=(parse_ipv4("10.9.0.0"), 16)),
            Rule(50, table=4000, destination=(parse_ipv4("172.16.0.0"), 16), inverted=True),
        ]
        for rule in added:
            node.add_rule(rule)
        assert backend.rules()[1:4] == [added[2], added[0], added[1]]

    def test_rules_keep_all_their_selectors(self, eth0: Node, backend: RouteBackend) -> None:
        """A rule that a lookup by address does not decide is read with everything that it selects by."""
        added = [
            Rule(60, table=88, mark=1, mark_mask=0xFF, oif="eth0"),
            Rule(61, table=88, iif="lo", tos=8, uids=Range(1000, 1001)),
            Rule(62, table=88, ip_protocol=6, source_ports=Range(1, 2), destination_ports=Range(443, 444)),
            Rule(63, table=254, suppress_prefix_length=0, suppress_group=1),
        ]
        for rule in added:
            eth0.add_rule(rule)
        assert backend.rules()[1:5] == added

    # --- lookups

    def test_the_longest_prefix_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """A lookup answers with the route in the table, not with the address."""
        eth0.add_route("172.16.8.0/24", gateway="10.224.0.1", dev="eth0")
        assert deciding(backend, "172.16.8.9") == "172.16.8.0/24 via 10.224.0.1 dev eth0"
        assert deciding(backend, "172.16.9.9") == "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"
        assert deciding(backend, "192.0.2.1") == "default via 10.224.0.1 dev eth0"

    def test_of_two_metrics_the_lower_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel prefers the lower metric, whichever route came first."""
        eth0.add_route("9.0.0.0/8", dev="ib0", metric=7)
        eth0.add_route("9.0.0.0/8", dev="eth0", metric=3)
        assert deciding(backend, "9.1.1.1") == "9.0.0.0/8 dev eth0 scope link metric 3"

    def test_every_leg_of_a_multipath_route_is_in_the_answer(self, eth0: Node, backend: RouteBackend) -> None:
        """Neighbouring addresses leave by different devices, so the answer names all of them."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops))
        for answer in ask(backend, "9.1.1.1", "9.1.1.2", "9.1.1.3"):
            assert answer.route is not None
            assert answer.route.devs == ("eth0", "ib0")

    def test_the_nodes_own_address_is_decided_by_its_owner(self, eth0: Node, backend: RouteBackend) -> None:
        """An own address is local on the device that holds it, not on lo; so is the broadcast address."""
        own, broadcast = ask(backend, "172.16.1.4", "10.224.255.255")
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
        """Each of the three kinds has its errno."""
        eth0.add_route("9.0.0.0/8", kind=kind)
        assert deciding(backend, "9.1.1.1") == number

    def test_no_route_at_all_is_enetunreach(self, node: Node, backend: RouteBackend) -> None:
        """Without a default route most of the world is unreachable."""
        node.add_link("eth0")
        assert deciding(backend, "192.0.2.1") == "ENETUNREACH"

    def test_throw_ends_the_search_in_its_table_only(self, eth0: Node, backend: RouteBackend) -> None:
        """After a throw the next rule's table is asked."""
        eth0.add_rule(Rule(100, table=88))
        eth0.add_route("0.0.0.0/0", dev="ib0", table=88)
        eth0.add_route("9.0.0.0/8", kind="throw", table=88)
        assert deciding(backend, "9.1.1.1") == "default via 10.224.0.1 dev eth0"
        assert deciding(backend, "8.1.1.1") == "default dev ib0 table 88 scope link"

    def test_a_rule_by_destination_chooses_the_table(self, eth0: Node, backend: RouteBackend) -> None:
        """`to` selects its addresses, and `not to` all others."""
        eth0.add_route("0.0.0.0/0", dev="ib0", table=88)
        eth0.add_rule(Rule(100, table=88, destination=(9 << 24, 8)))
        assert deciding(backend, "9.1.1.1") == "default dev ib0 table 88 scope link"
        assert deciding(backend, "8.1.1.1") == "default via 10.224.0.1 dev eth0"
        eth0.add_rule(Rule(99, action="prohibit", destination=(9 << 24, 8), inverted=True))
        assert deciding(backend, "8.1.1.1") == "EACCES"

    def test_a_rule_by_source_wants_the_source(self, eth0: Node, backend: RouteBackend) -> None:
        """A lookup misses a `from` rule, and the same lookup with the source of the packet does not."""
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
        """The answer has one packet's gateway, device and source address."""
        asked = [parse_ipv4(text) for text in ("192.0.2.1", "172.16.9.9", "172.16.1.4")]
        paths = [answer.route for answer in backend.lookup(asked, resolve=True)]
        assert [path and (path.kind, path.dev, path.gateway, path.source) for path in paths] == [
            ("unicast", "eth0", Address.parse("10.224.0.1"), parse_ipv4("10.224.0.4")),
            ("unicast", "ib0", None, parse_ipv4("172.16.1.4")),
            ("local", "lo", None, parse_ipv4("172.16.1.4")),
        ]

    def test_many_lookups_keep_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A thousand questions get a thousand answers, each in its place, refusals among them."""
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
        """A missing source is an error of the caller."""
        with pytest.raises(ValueError, match="1 sources for 2 destinations: give one for each, or none"):
            backend.lookup([1 << 24, 2 << 24], sources=[None])

    def test_lookups_from_many_threads_do_not_mix(self, eth0: Node, backend: RouteBackend) -> None:
        """Every method may be called from any thread."""
        for network in range(20, 24):
            eth0.add_route(f"{network}.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        wrong: list[Lookup] = []

        def work(network: int) -> None:
            for _ in range(5):
                answers = backend.lookup([network << 24 | number for number in range(1, 100)])
                wrong.extend(a for a in answers if a.route is None or a.route.network != network << 24)

        threads = [threading.Thread(target=work, args=(network,)) for network in range(20, 24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
