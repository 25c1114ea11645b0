"""The findings of a proof, on a node whose ib0 shadows part of the cluster's addresses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from support.kernel import needs_kernel
from support.overlap_worlds import parts_of

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Address, parse_cidr, parse_ipv4
from hostrouting.net.routes import NextHop, Route
from hostrouting.net.rules import Rule
from hostrouting.route_overlap import CidrReport, Finding, SuggestedRoute, prove_egress
from hostrouting.testing import KernelNode, MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

IB = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"


@pytest.fixture
def node() -> MemoryBackend:
    made = MemoryBackend()
    for dev, address in (("eth0", "10.224.0.4/16"), ("ib0", "172.16.1.4/16")):
        made.add_link(dev)
        made.add_address(dev, address)
    made.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    return made


def prove(node: MemoryBackend, cidr: str, allowed: Sequence[str] = ()) -> CidrReport:
    [report] = prove_egress(node, [cidr], allowed_devs=allowed).cidrs
    return report


def shapes(report: CidrReport) -> list[tuple[str, str, str, str | None]]:
    return [(finding.kind, finding.first, finding.last, finding.dev) for finding in report.findings]


def test_addresses_that_the_default_route_decides_are_fine(node: MemoryBackend) -> None:
    """Nothing more specific in the way: no finding, no suggestion, and the expected devices are the default route's."""
    report = prove_egress(node, ["10.96.0.0/12"])
    assert report.ok
    assert report.expected_devs == ("eth0",)
    assert str(report) == "10.96.0.0/12 leaves by eth0"


def test_a_shadowed_cidr_is_one_finding_with_the_route_that_shadows_it(node: MemoryBackend) -> None:
    """A finding has its kind, range, devices and deciding route, and the report the one route that repairs it."""
    finding = Finding(kind="overlap", first="172.16.8.0", last="172.16.11.255", devs=("ib0",), dev="ib0", route=IB)
    suggested = SuggestedRoute(destination="172.16.8.0/22", gateway="10.224.0.1", dev="eth0", takes_from=("ib0",))
    assert prove(node, "172.16.8.0/22") == CidrReport(
        cidr="172.16.8.0/22", findings=(finding,), suggested_routes=(suggested,)
    )


def test_host_bits_of_a_cidr_are_masked(node: MemoryBackend) -> None:
    """The CIDR is the network."""
    assert prove(node, "10.96.0.255/24") == CidrReport(cidr="10.96.0.0/24")


@pytest.mark.parametrize(
    ("cidr", "probe", "ok"),
    [
        ("172.16.0.0/16", "172.16.0.1", False),
        ("10.0.0.0/8", "10.0.0.1", True),
        ("169.254.169.254/32", "169.254.169.254", True),
        ("10.0.0.255/24", "10.0.0.1", True),
    ],
)
def test_findings_of_a_probe_of_the_first_host_are_found(node: MemoryBackend, cidr: str, probe: str, ok: bool) -> None:
    """The one address of each CIDR that upstream asks about is among those that are judged, and judged alike."""
    report = prove(node, cidr)
    astray = [f for f in report.findings if parse_ipv4(f.first) <= parse_ipv4(probe) <= parse_ipv4(f.last)]
    assert (not astray) is ok


def test_a_partial_overlap_after_the_first_host_is_found(node: MemoryBackend) -> None:
    """A route over one address in the middle of a /8, which no single probe meets."""
    node.add_route("10.50.60.70/32", dev="ib0")
    assert shapes(prove(node, "10.0.0.0/8")) == [("overlap", "10.50.60.70", "10.50.60.70", "ib0")]


def test_own_and_broadcast_addresses_of_the_expected_device_are_fine(node: MemoryBackend) -> None:
    """The node's own network may well be expected."""
    assert prove(node, "10.224.0.0/16").ok


def test_an_own_address_on_another_device_is_local(node: MemoryBackend) -> None:
    """No route can take it; the addresses around it can be taken, and the warning names its owner."""
    report = prove(node, "172.16.1.0/24")
    assert shapes(report) == [
        ("overlap", "172.16.1.0", "172.16.1.3", "ib0"),
        ("local", "172.16.1.4", "172.16.1.4", "ib0"),
        ("overlap", "172.16.1.5", "172.16.1.255", "ib0"),
    ]
    assert [(route.destination, route.warning) for route in report.suggested_routes] == [
        (
            "172.16.1.0/24",
            (
                "ib0's own address 172.16.1.4 lies in it, so it would take peers of ib0, too. "
                "Only narrower expectedCidrs are safe, of addresses that the cluster alone uses"
            ),
        )
    ]


def test_a_known_neighbour_of_the_fabric_is_warned_of(node: MemoryBackend) -> None:
    """A peer that the device talks to now would be taken from it; one elsewhere is no reason to warn."""
    node.add_neighbour("ib0", "172.16.9.7")
    assert [(route.destination, route.warning) for route in prove(node, "172.16.8.0/22").suggested_routes] == [
        (
            "172.16.8.0/22",
            (
                "ib0 talks to 172.16.9.7, which lies in it and would be taken from ib0. "
                "Only narrower expectedCidrs are safe, of addresses that the cluster alone uses"
            ),
        )
    ]
    assert [route.warning for route in prove(node, "172.16.12.0/22").suggested_routes] == [None]


def test_a_whole_fabric_network_is_taken_in_halves_and_with_a_warning(node: MemoryBackend) -> None:
    """The route for the same prefix is the kernel's own, so two halves beat it, with a warning that this is unsafe."""
    report = prove(node, "172.16.0.0/16")
    warning = (
        "172.16.0.0/16 is the connected network of ib0 as a whole: its peers could no longer be reached by it. "
        "Only narrower expectedCidrs are safe, of addresses that the cluster alone uses"
    )
    assert [(route.destination, route.warning) for route in report.suggested_routes] == [
        ("172.16.0.0/17", warning),
        ("172.16.128.0/17", warning),
    ]


def test_a_route_with_a_metric_yields_to_one_suggestion_without(node: MemoryBackend) -> None:
    """The same prefix with metric 0 wins, so no halves are needed."""
    node.add_route("10.96.0.0/12", dev="ib0", metric=100)
    [route] = prove(node, "10.0.0.0/8").suggested_routes
    # It is no connected network, so there is no warning.
    assert (route.destination, route.warning) == ("10.96.0.0/12", None)


def test_a_nested_offender_needs_a_separate_route(node: MemoryBackend) -> None:
    """Addresses that the wider suggestion does not cover get a suggestion, too, from their own device."""
    node.add_link("ib1")
    node.add_route("172.16.9.0/24", dev="ib1")
    assert [(route.destination, route.takes_from) for route in prove(node, "172.16.8.0/22").suggested_routes] == [
        ("172.16.8.0/22", ("ib0",)),
        ("172.16.9.0/25", ("ib1",)),
        ("172.16.9.128/25", ("ib1",)),
    ]


def test_a_host_route_is_suggested_where_it_helps(node: MemoryBackend) -> None:
    """Two addresses by two routes, and one that has a metric by one without."""
    node.add_route("10.96.0.10/31", dev="ib0")
    node.add_route("10.96.0.20/32", dev="ib0", metric=100)
    destinations = ["10.96.0.10/32", "10.96.0.11/32", "10.96.0.20/32"]
    assert [route.destination for route in prove(node, "10.96.0.0/16").suggested_routes] == destinations


def test_a_host_route_without_metric_cannot_be_overridden(node: MemoryBackend) -> None:
    """Nothing is more specific than a /32."""
    node.add_route("10.96.0.10/32", dev="ib0")
    report = prove(node, "10.96.0.0/16")
    assert shapes(report) == [("overlap", "10.96.0.10", "10.96.0.10", "ib0")]
    assert report.suggested_routes == ()


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit"])
def test_a_refusal_of_the_kernel_names_the_route_that_blocks(node: MemoryBackend, kind: str) -> None:
    """The kernel answers with an errno alone; the route is found in the table."""
    node.add_route("10.96.0.0/24", kind=kind)
    [finding] = prove(node, "10.96.0.0/16").findings
    assert finding == Finding(kind="blocked", first="10.96.0.0", last="10.96.0.255", route=f"{kind} 10.96.0.0/24")


def test_adjacent_ranges_with_the_same_refusal_are_one_finding_that_names_both_routes(node: MemoryBackend) -> None:
    """Two blackholes side by side are one answer."""
    node.add_route("10.96.0.0/24", kind="blackhole")
    node.add_route("10.96.1.0/24", kind="blackhole")
    [finding] = prove(node, "10.96.0.0/16").findings
    assert (finding.first, finding.last) == ("10.96.0.0", "10.96.1.255")
    assert finding.route == "blackhole 10.96.0.0/24; blackhole 10.96.1.0/24"


def test_a_rule_can_block_too(node: MemoryBackend) -> None:
    """A rule that prohibits is named as `ip rule` prints it, and no route is suggested against it."""
    node.add_rule(Rule(100, action="prohibit", destination=parse_cidr("10.96.0.0/24")))
    report = prove(node, "10.96.0.0/16")
    assert [finding.route for finding in report.findings] == ["100: from all to 10.96.0.0/24 prohibit"]
    assert report.suggested_routes == ()


def test_a_route_for_a_type_of_service_blocks_no_other_packets(node: MemoryBackend) -> None:
    """Of two that refuse, the more specific one is for few packets: the other one is named."""
    node.insert_route(Route(network=parse_ipv4("10.96.0.0"), prefix_length=24, kind="blackhole", tos=8, protocol=3))
    node.add_route("10.96.0.0/16", kind="prohibit")
    [finding] = prove(node, "10.96.0.0/24").findings
    assert (finding.kind, finding.route) == ("blocked", "prohibit 10.96.0.0/16")


@pytest.mark.parametrize(
    "rule",
    [
        Rule(100, action="blackhole", destination=parse_cidr("10.97.0.0/16")),
        Rule(100, action="blackhole", source=parse_cidr("10.97.0.0/16")),
        Rule(100, action="blackhole", destination=parse_cidr("10.96.0.0/16"), inverted=True),
        Rule(100, table=88, destination=parse_cidr("10.97.0.0/16")),
    ],
    ids=["destination", "source", "not", "table"],
)
def test_a_rule_for_other_packets_blocks_nothing(node: MemoryBackend, rule: Rule) -> None:
    """The rule is tried first and does not match, so the next route is named."""
    node.add_route("10.96.0.0/16", kind="prohibit")
    node.add_route("10.96.0.0/24", kind="blackhole", table=88)
    # The rule is added last, since it may block other destinations.
    node.add_rule(rule)
    [finding] = prove(node, "10.96.0.0/24").findings
    assert (finding.kind, finding.route) == ("blocked", "prohibit 10.96.0.0/16")


def test_a_rule_on_more_than_addresses_does_not_count_as_blocking() -> None:
    """The rule may or may not select a packet: it is counted, and the route is named."""

    class Marked(MemoryBackend):
        def rules(self) -> list[Rule]:
            return [Rule(50, action="blackhole", mark=1, mark_mask=1), *super().rules()]

    node = Marked()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    node.add_route("10.96.0.0/16", kind="prohibit")
    [finding] = prove(node, "10.96.0.0/24").findings
    assert finding.route == "prohibit 10.96.0.0/16"


def test_a_rule_for_packets_without_a_mark_leads_to_the_blackhole(node: MemoryBackend) -> None:
    """The kernel is asked about a packet without a mark, which such a rule selects (WireGuard makes one)."""
    node.add_route("10.96.0.0/24", kind="blackhole", table=88)
    node.add_rule(Rule(100, table=88, mark=1, mark_mask=1, inverted=True))
    [finding] = prove(node, "10.96.0.0/24").findings
    assert (finding.kind, finding.route) == ("blocked", "blackhole 10.96.0.0/24 table 88")


@needs_kernel
def test_a_dead_route_does_not_block() -> None:
    """The kernel skips a more specific route whose device has no carrier, and meets the blackhole after it."""
    with KernelNode.made() as node:
        node.run("sysctl", "-qw", "net.ipv4.conf.all.ignore_routes_with_linkdown=1")
        node.add_link("eth0")
        node.add_address("eth0", "10.224.0.4/16")
        node.add_route("default", gateway="10.224.0.1", dev="eth0")
        node.add_link("ib0", carrier=False)
        node.add_route("10.96.0.0/24", dev="ib0")
        node.add_route("10.96.0.0/16", kind="blackhole")
        [report] = prove_egress(NetlinkBackend(netns=node.name), ["10.96.0.0/24"]).cidrs
    [finding] = report.findings
    assert (finding.kind, finding.route) == ("blocked", "blackhole 10.96.0.0/16")


def test_a_throw_is_no_route(node: MemoryBackend) -> None:
    """The main table declines, and no other one has an opinion."""
    node.add_route("10.96.0.0/24", kind="throw")
    assert [(f.kind, f.first, f.last, f.route) for f in prove(node, "10.96.0.0/16").findings] == [
        ("no-route", "10.96.0.0", "10.96.0.255", None)
    ]


def test_a_rule_to_another_table_cuts_a_cidr(node: MemoryBackend) -> None:
    """The edges of a `to` selector are edges of the answer, and no route in the main table repairs the other table."""
    node.add_route("default", dev="ib0", table=88)
    node.add_rule(Rule(100, table=88, destination=parse_cidr("10.96.4.0/22")))
    report = prove(node, "10.96.0.0/16")
    assert shapes(report) == [("overlap", "10.96.4.0", "10.96.7.255", "ib0")]
    assert report.suggested_routes == ()


def test_the_source_that_the_kernel_chooses_is_asked_about(node: MemoryBackend) -> None:
    """With a rule for packets from eth0's address the plain answer says eth0, and connections leave by ib0."""
    node.add_route("10.96.0.0/16", dev="ib0", table=88)
    node.add_rule(Rule(100, table=88, source=(parse_ipv4("10.224.0.4"), 32)))
    [finding] = prove(node, "10.96.0.0/12").findings
    assert (finding.kind, finding.first, finding.last) == ("overlap", "10.96.0.0", "10.96.255.255")
    assert finding.route == "10.96.0.0/16 dev ib0 table 88 scope link"


def test_no_route_is_suggested_whose_own_source_leads_astray(node: MemoryBackend) -> None:
    """It would make the kernel send from eth0's address, and a rule leads packets of that one into the fabric."""
    node.add_route("172.16.8.0/22", dev="ib0", table=88)
    assert prove(node, "172.16.8.0/22").suggested_routes
    node.add_rule(Rule(100, table=88, source=(parse_ipv4("10.224.0.4"), 32)))
    report = prove(node, "172.16.8.0/22")
    assert [finding.route for finding in report.findings] == [IB]
    assert report.suggested_routes == ()


def test_no_route_is_suggested_that_repairs_connections_alone(node: MemoryBackend) -> None:
    """A datagram goes by a rule to another table, and only a connection, by its source, to the main one."""
    node.add_route("10.96.0.0/16", dev="ib0", metric=7)
    node.add_rule(Rule(40, table=254, source=(parse_ipv4("10.224.0.4"), 32)))
    node.add_route("default", gateway="10.224.0.1", dev="eth0", table=77)
    node.add_rule(Rule(50, table=77, destination=parse_cidr("10.96.0.0/16")))
    assert [route.destination for route in prove(node, "10.96.0.0/16").suggested_routes] == ["10.96.0.0/16"]
    node.add_link("ib1")
    node.add_route("10.96.0.0/16", dev="ib1", table=77, source="10.224.0.4")
    report = prove(node, "10.96.0.0/16")
    assert [finding.dev for finding in report.findings] == ["ib0"]
    assert report.suggested_routes == ()


def test_an_own_address_of_the_expected_device_is_nothing_to_warn_of(node: MemoryBackend) -> None:
    """The address belongs to eth0 and lies in the part that is taken from ib0, so no warning is given."""
    node.add_address("eth0", "172.16.8.9/32")
    assert [route.warning for route in prove(node, "172.16.8.0/22").suggested_routes] == [None]


def test_of_several_neighbours_the_first_is_named(node: MemoryBackend) -> None:
    """By address."""
    node.add_neighbour("ib0", "172.16.9.8")
    node.add_neighbour("ib0", "172.16.9.7")
    [route] = prove(node, "172.16.8.0/22").suggested_routes
    assert route.warning is not None
    assert route.warning.startswith("ib0 talks to 172.16.9.7,")


def test_the_second_half_may_be_a_single_address(node: MemoryBackend) -> None:
    """The first of it: all else there is decided by more specific routes that are fine."""
    node.add_route("10.96.0.0/24", dev="ib0")
    for inner in ("129/32", "130/31", "132/30", "136/29", "144/28", "160/27", "192/26"):
        node.add_route(f"10.96.0.{inner}", gateway="10.224.0.1", dev="eth0")
    destinations = [route.destination for route in prove(node, "10.96.0.0/24").suggested_routes]
    assert destinations == ["10.96.0.0/25", "10.96.0.128/32"]


def test_a_node_without_any_address_has_suggestions_too() -> None:
    """There is no source to ask with: the selectors of such a rule are unknown, and change nothing."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_route("10.224.0.1/32", dev="eth0")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    node.add_route("10.96.0.0/24", kind="blackhole")
    node.add_rule(Rule(100, table=88, source=(parse_ipv4("192.0.2.1"), 32)))
    destinations = [route.destination for route in prove(node, "10.96.0.0/24").suggested_routes]
    assert destinations == ["10.96.0.0/25", "10.96.0.128/25"]


def test_a_rule_that_looks_nothing_up_blocks_nothing() -> None:
    """`goto` may have a table in its description, and never looks into it."""

    class Going(MemoryBackend):
        def rules(self) -> list[Rule]:
            return [Rule(50, action="goto", table=88, goto=32766), *super().rules()]

    node = Going()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    node.add_route("10.96.0.0/24", kind="blackhole", table=88)
    node.add_route("10.96.0.0/16", kind="prohibit")
    [finding] = prove(node, "10.96.0.0/24").findings
    assert finding.route == "prohibit 10.96.0.0/16"


def default_by(node: MemoryBackend, *legs: NextHop) -> None:
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))
    node.insert_route(Route(network=0, prefix_length=0, nexthops=legs, protocol=3))


def gateways(report: CidrReport) -> list[tuple[str, str]]:
    return [(route.gateway, route.dev) for route in report.suggested_routes]


@pytest.mark.parametrize("first", ["dead", "no gateway", "not expected"])
def test_suggested_routes_leave_by_the_first_next_hop_that_will_do(node: MemoryBackend, first: str) -> None:
    """One whose device is down, that has no gateway, or whose device is not expected here, is passed over."""
    node.add_link("eth1")
    node.add_address("eth1", "10.225.0.4/16")
    gateway = None if first == "no gateway" else Address.parse("10.225.0.1")
    default_by(node, NextHop(gateway, "eth1"), NextHop(Address.parse("10.224.0.1"), "eth0"))
    if first == "dead":
        node.set_up("eth1", up=False)
    expected = ["eth0"] if first == "not expected" else None
    [report] = prove_egress(node, ["172.16.8.0/22"], allowed_devs=(), expected_devs=expected).cidrs
    assert gateways(report) == [("10.224.0.1", "eth0")]


def test_nothing_is_suggested_where_no_gateway_leads_out(node: MemoryBackend) -> None:
    """`default dev ppp0` has none that a route could go by."""
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))
    node.add_route("default", dev="eth0")
    report = prove(node, "172.16.8.0/22")
    assert (report.ok, report.suggested_routes) == (False, ())


def test_more_specific_routes_repair_a_route_that_refuses(node: MemoryBackend) -> None:
    """A blackhole of the main table is beaten as any route is; nothing carries its addresses now."""
    node.add_route("10.96.0.0/24", kind="blackhole")
    assert [(route.destination, route.takes_from) for route in prove(node, "10.96.0.0/16").suggested_routes] == [
        ("10.96.0.0/25", ()),
        ("10.96.0.128/25", ()),
    ]


def test_nothing_is_suggested_against_local_routes(node: MemoryBackend) -> None:
    """A route could beat a `local` route of the main table, but that serves another program."""
    node.add_rule(Rule(100, table=88))  # or main and local are one
    node.add_route("10.96.0.0/24", kind="local", dev="ib0", table=254)
    report = prove(node, "10.96.0.0/16")
    assert shapes(report) == [("local", "10.96.0.0", "10.96.0.255", "ib0")]
    assert report.suggested_routes == ()


def test_every_next_hop_must_be_allowed(node: MemoryBackend) -> None:
    """A hash gives each flow one of them, so one bad one is a finding that shows all and names the bad one."""
    legs = (NextHop(Address.parse("10.224.0.1"), "eth0"), NextHop(None, "ib0"))
    node.insert_route(Route(network=parse_ipv4("10.96.0.0"), prefix_length=16, nexthops=legs, protocol=3))
    [finding] = prove(node, "10.96.0.0/16").findings
    assert (finding.devs, finding.dev) == (("eth0", "ib0"), "ib0")


def test_all_next_hops_of_the_default_route_are_expected(node: MemoryBackend) -> None:
    """An ECMP default over two uplinks makes both of them the node's own devices."""
    node.add_link("eth1")
    node.add_address("eth1", "10.225.0.4/16")
    legs = (NextHop(Address.parse("10.225.0.1"), "eth1"), NextHop(Address.parse("10.224.0.1"), "eth0"))
    default = next(route for route in node.routes() if route.prefix_length == 0)
    node.delete_route(default)
    node.insert_route(Route(network=0, prefix_length=0, nexthops=legs, protocol=3))
    report = prove_egress(node, ["10.96.0.0/16"])
    assert report.ok
    assert report.expected_devs == ("eth1", "eth0")


def test_of_two_default_routes_the_lower_metric_counts(node: MemoryBackend) -> None:
    """As the kernel decides: the other one's device is not expected."""
    node.add_route("default", dev="ib0", metric=50)
    assert prove_egress(node, ["10.96.0.0/16"]).expected_devs == ("eth0",)


def test_without_default_route_every_cidr_is_no_route_whole(node: MemoryBackend) -> None:
    """Whatever more specific routes say: there is no device to expect."""
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))
    report = prove_egress(node, ["10.96.0.0/16", "172.16.8.0/22"])
    assert report.expected_devs == ()
    assert [shapes(cidr) for cidr in report.cidrs] == [
        [("no-route", "10.96.0.0", "10.96.255.255", None)],
        [("no-route", "172.16.8.0", "172.16.11.255", None)],
    ]


def test_expected_devices_can_be_given(node: MemoryBackend) -> None:
    """Given devices replace those of the default route."""
    report = prove_egress(node, ["172.16.8.0/22", "10.96.0.0/16"], expected_devs=["ib0"])
    assert [cidr.ok for cidr in report.cidrs] == [True, False]


@pytest.mark.parametrize(("pattern", "ok"), [("ib*", True), ("ib?", True), ("ib[0-7]", True), ("ib", False)])
def test_patterns_allow_devices(node: MemoryBackend, pattern: str, ok: bool) -> None:
    """Shell-style, and the whole name must match."""
    assert prove(node, "172.16.8.0/22", [pattern]).ok is ok


def test_devices_of_cnis_are_allowed_by_default(node: MemoryBackend) -> None:
    """Pod routes inside an expected CIDR are no overlap; docker0's are."""
    for dev, network in (("cni0", "10.244.0.0/24"), ("lxc12ab", "10.244.1.0/24"), ("docker0", "10.244.2.0/24")):
        node.add_link(dev)
        node.add_route(network, dev=dev)
    [report] = prove_egress(node, ["10.244.0.0/16"]).cidrs
    assert shapes(report) == [("overlap", "10.244.2.0", "10.244.2.255", "docker0")]


def test_rules_on_more_than_addresses_are_counted() -> None:
    """A lookup by address does not try a mark: the report says which rules it does not cover."""

    class Marked(MemoryBackend):
        def rules(self) -> list[Rule]:
            return [Rule(50, table=88, mark=1, mark_mask=1), *super().rules()]

    node = Marked()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    report = prove_egress(node, ["10.96.0.0/16"])
    assert report.ok
    assert report.not_covered == ("50: from all fwmark ... lookup 88",)


@pytest.mark.parametrize(
    "reached",
    [
        None,
        Route(network=parse_ipv4("192.0.2.0"), prefix_length=24, dev="ib0", protocol=3),
        Route(network=parse_ipv4("192.0.2.0"), prefix_length=24, dev="eth0", scope=0, protocol=3),
        Route(network=parse_ipv4("192.0.2.1"), prefix_length=32, dev="eth0", kind="local", table=255, protocol=3),
    ],
    ids=["by itself", "by another device", "as if it lay further off", "as an own address"],
)
def test_nothing_is_suggested_through_a_gateway_that_is_not_on_the_link(
    node: MemoryBackend, reached: Route | None
) -> None:
    """Such a route would be refused: the default route is `onlink`, and nothing says that its gateway is on eth0."""
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))
    node.insert_route(
        Route(network=0, prefix_length=0, gateway=Address.parse("192.0.2.1"), dev="eth0", onlink=True, protocol=3)
    )
    if reached is not None:
        node.insert_route(reached)
    report = prove(node, "172.16.8.0/22")
    assert not report.ok
    assert report.suggested_routes == ()


def test_no_cidr_is_no_finding(node: MemoryBackend) -> None:
    """Nothing expected, nothing wrong."""
    assert prove_egress(node, []).ok


def test_parts_show_all_of_a_range(node: MemoryBackend) -> None:
    """Fine or not, every address is in one part."""
    parts = parts_of(node, "172.0.0.0/8")
    assert (parts[0].first, parts[-1].last) == (172 << 24, (173 << 24) - 1)
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(parts))
