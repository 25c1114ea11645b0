"""The promises of `RouteBackend` for IPv6, as tests; a backend that does not know it skips them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from hostrouting.exceptions import RouteRejectedError
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import NextHop, ObservedRoute, Route
from hostrouting.net.rules import Rule
from hostrouting.testing.contracts.routes import RouteReadingContract, arrange, ask, deciding, find, route, shown

if TYPE_CHECKING:
    from hostrouting.host import RouteBackend
    from hostrouting.testing.node import Node

_add, _remove = RouteChange.add, RouteChange.remove
_NINE: Final = Prefix.parse("fd00:9::/32")
_UPLINK: Final = Prefix.parse("fd00:1::/64")
DEFAULT: Final = "default via fd00:1::1 dev eth0 metric 1024"
OURS: Final = "fd00:9::/32 via fd00:1::1 dev eth0 proto 142 metric 1"
OTHERS: Final = "fd00:9::/32 via fd00:a::9 dev ib0 metric 1"
ON_LINK: Final = "fd00:9::/32 dev ib0 metric 1"
LONGER: Final = "fd00:9:5::/48 dev ib0 metric 9"
CONNECTED: Final = "fd00:a::/64 dev eth0 metric 1"
OFF_LINK: Final = "fd00:8::/32 via fd00:99::1 dev eth0 proto 142 metric 1"
#: A route with two next hops, sorted.
MULTIPATH: Final = Route(
    network=_NINE.network,
    prefix_length=32,
    metric=7,
    protocol=4,
    family=IPV6,
    nexthops=(NextHop(Address.parse("fd00:1::9"), "eth0", weight=3), NextHop(Address.parse("fd00:a::9"), "ib0")),
)
#: Only packets from the uplink's network take it.
FROM: Final = attrs.evolve(route("fd00:9::/32 dev ib0 metric 5"), from_prefix=_UPLINK)


def place(backend: RouteBackend) -> list[str]:
    """Return the routes of fd00:9::/32 in their order."""
    return shown(backend, family=IPV6, network=_NINE.network)


class Ipv6RoutesContract(RouteReadingContract):
    """The node `six` is `eth0` with fd00:1::4/64 on eth0, its default route by fd00:1::1, and fd00:a::4/64 on ib0."""

    @pytest.fixture
    def six(self, eth0: Node, backend: RouteBackend) -> Node:
        """The same node with IPv6."""
        if IPV6 not in backend.families:
            pytest.skip("it knows no IPv6")
        for dev, address in ("eth0", "fd00:1::4/64"), ("ib0", "fd00:a::4/64"):
            eth0.add_address(dev, address)
        arrange(eth0, DEFAULT)
        return eth0

    # --- reading

    def test_links_have_addresses_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """Each has its family."""
        [eth0] = [link for link in backend.links() if link.name == "eth0"]
        assert [(own.family, str(own)) for own in eth0.addresses] == [(IPV4, "10.224.0.4/16"), (IPV6, "fd00:1::4/64")]

    def test_ipv6_routes_are_read_in_order(self, six: Node, backend: RouteBackend) -> None:
        """Of every kind and table; by network, then the longest prefix first, then the lower metric."""
        ordered = [
            "fd00:9::/64 via fd00:1::9 dev eth0 proto bgp metric 77",
            "blackhole fd00:9::/48 metric 5",
            "prohibit fd00:9::/48 metric 9",
            "fd00:9::9 dev ib0 proto dhcp src fd00:a::4 metric 1024",
            "unreachable fd00:9:1::/48 metric 4294967295",
            "fd00:9:2::/48 via fe80::1 dev ib0 metric 1024",
        ]
        elsewhere = "throw fd00:9::/32 table 1000 metric 1024"
        arrange(six, *reversed(ordered), elsewhere)
        near = [one for one in backend.routes(IPV6) if _NINE.covers(Address(IPV6, one.network))]
        assert [str(one) for one in near if one.table == 254] == ordered
        assert [str(one) for one in near if one.table == 1000] == [elsewhere]
        assert "local fd00:1::4 dev eth0 table local proto kernel" in shown(backend, family=IPV6)
        assert backend.routes_of(16, IPV6) == [one for one in near if one.prefix_length == 128]

    def test_an_ipv6_route_by_several_gateways_is_one(self, six: Node, backend: RouteBackend) -> None:
        """Its next hops are sorted, in a reading and in every answer."""
        six.insert_route(MULTIPATH)
        [found] = [one for one in backend.routes(IPV6) if one.network == _NINE.network]
        assert found.fulfils(MULTIPATH)
        assert [one.route for one in ask(backend, "fd00:9::1", "fd00:9::2", "fd00:9::3")] == [found] * 3

    def test_ipv6_rules_are_read_in_order(self, six: Node, backend: RouteBackend) -> None:
        """A fresh node has two: local and main."""
        fresh = [Rule(priority, table=table, protocol=2, family=IPV6) for priority, table in ((0, 255), (32766, 254))]
        assert backend.rules(IPV6) == fresh
        added = [
            Rule(50, table=88, source=_UPLINK[1:], family=IPV6),
            Rule(60, action="prohibit", destination=_NINE[1:], inverted=True, oif="eth0", family=IPV6),
        ]
        for rule in added:
            six.add_rule(rule)
        assert backend.rules(IPV6) == [fresh[0], *added, fresh[1]]
        assert len(backend.rules()) == 3

    @pytest.mark.parametrize(
        ("texts", "address", "decided"),
        [
            pytest.param([OURS, LONGER], "fd00:9:5::1", LONGER, id="longest prefix"),
            pytest.param([f"{ON_LINK}024", OURS], "fd00:9::1", OURS, id="lower metric"),
            pytest.param([CONNECTED], "fd00:a::9", CONNECTED, id="over a connected one"),
            pytest.param([], "2001:db8::1", DEFAULT, id="default"),
            pytest.param([], "fd00:a::4", "local fd00:a::4 dev ib0 table local proto kernel", id="own address"),
            pytest.param(["blackhole fd00:9::/32 metric 1"], "fd00:9::1", "EINVAL", id="blackhole"),
            pytest.param(["unreachable fd00:9::/32 metric 1"], "fd00:9::1", "EHOSTUNREACH", id="unreachable"),
            pytest.param(["prohibit fd00:9::/32 metric 1"], "fd00:9::1", "EACCES", id="prohibit"),
            pytest.param(["throw default metric 1 table 254"], "2001:db8::1", "ENETUNREACH", id="throw"),
        ],
    )
    def test_the_deciding_ipv6_route_answers(
        self, six: Node, backend: RouteBackend, texts: list[str], address: str, decided: str
    ) -> None:
        """The longest prefix decides, then the lower metric, the kernel's own routes having 256."""
        arrange(six, *(text.replace("default", "::/0") for text in texts))
        assert deciding(backend, address) == decided

    def test_a_route_by_source_hides_the_others(self, six: Node, backend: RouteBackend) -> None:
        """Whatever the metrics: packets from elsewhere, or from nowhere yet, go to a shorter prefix."""
        arrange(six, OURS)
        six.insert_route(FROM)
        asked = Address.parse("fd00:9::1").number
        sources = [Address.parse("fd00:1::4").number, Address.parse("fd00:a::4").number, None]
        answers = backend.lookup([asked] * 3, sources=sources, family=IPV6)
        assert [str(one.route) for one in answers] == [str(FROM), DEFAULT, DEFAULT]
        assert _UPLINK in [one.from_prefix for one in backend.routes(IPV6)]

    def test_resolving_an_ipv6_address(self, six: Node, backend: RouteBackend) -> None:
        """The answer has one packet's gateway, device and source address."""
        arrange(six, "fd00:9::/32 via fd00:1::9 dev eth0 src fd00:1::4 metric 1")
        paths = [one.route for one in ask(backend, "fd00:9::1", "fd00:a::4", resolve=True)]
        assert [path and (path.kind, path.dev, path.gateway, path.source, path.from_prefix) for path in paths] == [
            ("unicast", "eth0", Address.parse("fd00:1::9"), Address.parse("fd00:1::4").number, None),
            ("local", "lo", None, Address.parse("fd00:a::4").number, None),
        ]

    def test_many_ipv6_lookups_keep_their_order(self, six: Node, backend: RouteBackend) -> None:
        """A thousand questions get a thousand answers, each in its place, refusals among them."""
        arrange(six, "prohibit fd00:9::/32 metric 1")
        asked = [_NINE.network + ((number % 2) << 96) + number for number in range(1000)]
        answers = backend.lookup(asked, family=IPV6)
        assert [answer.destination for answer in answers] == asked
        assert [answer.errno for answer in answers] == [errno.EACCES, 0] * 500

    # --- changes

    def test_a_batch_has_routes_of_both_families(self, six: Node, backend: RouteBackend) -> None:
        """All are added, all are removed, or none."""
        wanted = [route(OURS), route("9.0.0.0/8 via 10.224.0.1 dev eth0 proto 142")]
        backend.apply([*map(_add, wanted)])
        held = [find(backend, str(one)) for one in wanted]
        assert [one.fulfils(want) for one, want in zip(held, wanted, strict=True)] == [True, True]
        self._refused_of_ipv6(backend, *map(_remove, held), _add(route(OFF_LINK)))
        backend.apply([*map(_remove, held)])
        assert backend.routes_of(142) == backend.routes_of(142, IPV6) == []

    def test_what_was_read_of_ipv6_can_be_put_back(self, six: Node, backend: RouteBackend) -> None:
        """Routes with several gateways, by source and to nowhere come back whole, also by a rollback."""
        arrange(
            six, "fd00:9::/32 via fd00:1::9 dev eth0 metric 9 proto bgp src fd00:1::4", "prohibit fd00:9::/48 metric 3"
        )
        for one in MULTIPATH, attrs.evolve(FROM, metric=8):
            six.insert_route(one)
        before = backend.routes(IPV6)
        foreign = [one for one in before if _NINE.covers(Address(IPV6, one.network))]
        self._refused_of_ipv6(backend, *map(_remove, foreign), _add(route(OFF_LINK)))
        backend.apply([*map(_remove, foreign)])
        assert backend.routes(IPV6) == [one for one in before if one not in foreign]
        backend.apply([_add(one.to_route()) for one in foreign])
        assert backend.routes(IPV6) == before

    def test_exactly_the_named_ipv6_route_is_removed(self, six: Node, backend: RouteBackend) -> None:
        """Another metric, table, source prefix or device at the same destination stays."""
        arrange(six, "fd00:9::/32 dev eth0 metric 1", ON_LINK, f"{ON_LINK}0", "fd00:9::/32 dev ib0 table 88 metric 1")
        six.insert_route(attrs.evolve(FROM, metric=1))
        before = backend.routes(IPV6)
        gone = find(backend, ON_LINK)
        backend.apply([_remove(gone)])
        assert backend.routes(IPV6) == [one for one in before if one != gone]

    def test_a_replaced_ipv6_route_leaves_its_place_first(self, six: Node, backend: RouteBackend) -> None:
        """Two routes by gateways would become one."""
        arrange(six, OURS)
        change = RouteChange.replace(find(backend, OURS), route(OTHERS))
        self._refused_of_ipv6(backend, change, _add(route(OFF_LINK)))
        backend.apply([change])
        assert place(backend) == [OTHERS]

    def test_an_ipv6_route_without_a_gateway_stands_behind(self, six: Node, backend: RouteBackend) -> None:
        """It merges with no other."""
        arrange(six, OURS)
        backend.apply([RouteChange.append(route(ON_LINK))])
        assert place(backend) == [OURS, ON_LINK]

    def _refused_of_ipv6(self, backend: RouteBackend, *changes: RouteChange) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = backend.routes(IPV6), backend.routes()
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes)
        assert (backend.routes(IPV6), backend.routes()) == before
        assert caught.value.left_behind == []
        return caught.value

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            pytest.param(OURS, errno.EEXIST, id="a place with another gateway"),
            pytest.param(ON_LINK, errno.EEXIST, id="a place with a gateway"),
            pytest.param("fd00:a::/64 via fd00:1::1 dev eth0 metric 256", errno.EEXIST, id="connected route"),
            pytest.param(OFF_LINK, errno.EHOSTUNREACH, id="gateway off the link"),
            pytest.param("fd00:8::/32 dev down0 metric 1", errno.ENETDOWN, id="device that is down"),
            pytest.param("fd00:8::/32 dev eth0 src fd00:1::99 metric 1", errno.EINVAL, id="foreign source address"),
        ],
    )
    def test_each_reason_of_ipv6_has_its_errno(self, six: Node, backend: RouteBackend, text: str, number: int) -> None:
        """No addition makes one route of two."""
        six.add_link("down0", up=False)
        arrange(six, OTHERS)
        error = self._refused_of_ipv6(backend, _add(route(text)))
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [(f"+ {text}", number)]

    @pytest.mark.parametrize(
        ("standing", "named"),
        [
            pytest.param([f"{OURS}7", ON_LINK], OURS, id="of another metric"),
            pytest.param([OURS.replace("142", "static")], OURS, id="of another owner"),
            pytest.param([], OURS, id="none"),
        ],
    )
    def test_removing_what_is_not_there_of_ipv6_is_esrch(
        self, six: Node, backend: RouteBackend, standing: list[str], named: str
    ) -> None:
        """A removal names metric and protocol."""
        arrange(six, *standing)
        ours = ObservedRoute(**{name: getattr(route(named), name) for name in ObservedRoute._fields[:11]}, family=IPV6)
        assert self._refused_of_ipv6(backend, _remove(ours)).errno == errno.ESRCH

    def test_a_removal_of_ipv6_never_takes_another_route(self, six: Node, backend: RouteBackend) -> None:
        """A deletion without a gateway fits a route by any gateway of the device: it is not sent."""
        by_gateway = "fd00:9::/32 via fd00:a::9 dev ib0 metric 1"
        arrange(six, by_gateway, ON_LINK)
        error = self._refused_of_ipv6(backend, _remove(find(backend, ON_LINK)))
        assert f"the kernel would remove '{by_gateway}' instead" in str(error)
