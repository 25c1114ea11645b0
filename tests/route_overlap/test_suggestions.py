"""The routes that a proof suggests: which repair a finding, and where none does."""

import attrs
import pytest
from support.kernel import connect
from support.overlap_proofs import prove, shapes
from support.printed import NARROWER

from hostrouting import prove_egress
from hostrouting.fib import Fib
from hostrouting.host import Address, NextHop, ObservedRoute, Route, Rule
from hostrouting.net.addresses import parse_cidr
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange

IB = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"


def remove_default(node: MemoryBackend) -> None:
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))


def test_a_whole_fabric_network_is_taken_in_halves_and_with_a_warning(node: MemoryBackend) -> None:
    """The route for the same prefix is the kernel's own, so two halves beat it, with a warning that
    this is unsafe.
    """
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=2))
    report = prove(node, "172.18.0.0/16")
    warning = (
        "172.18.0.0/16 is the connected network of ib0 as a whole: its peers could no longer be reached by it. "
        f"{NARROWER}"
    )
    assert [(route.destination, route.warning) for route in report.suggested_routes] == [
        ("172.18.0.0/17", warning),
        ("172.18.128.0/17", warning),
    ]


@pytest.mark.parametrize("kind", ["", "bridge"])
def test_an_own_address_stays(node: MemoryBackend, kind: str) -> None:
    """That of hardware, with its broadcast address: the rest can be right. From docker0 it is to be
    removed, which makes the whole right.
    """
    node.add_link("dev0", kind=kind)
    node.add_address("dev0", "10.96.0.9/25")
    report = prove_egress(node, ["10.96.0.0/24", "172.16.8.0/22"])
    kinds = [(finding.kind, finding.own) for _, finding in report.findings]
    own = [("10.96.0.9",), ("10.96.0.127",)] if not kind else [(), ("10.96.0.127",)]
    assert kinds == [
        ("overlap", ()),
        ("local", own[0]),
        ("overlap", ()),
        ("overlap", own[1]),
        ("overlap", ()),
    ]
    destinations = [route.destination for route in report.suggested_routes]
    whole = ["10.96.0.0/26", "10.96.0.64/26"] if not kind else []
    assert destinations == [*whole, "172.16.8.0/22"]


def test_a_blackhole_stays(node: MemoryBackend) -> None:
    """A route over it could lead in a loop; around it the CIDR can be right. Of another route that
    refuses packets no step says so.
    """
    arrange(node, "blackhole 172.16.9.0/26 proto bird", "unreachable 172.18.8.0/22 proto bird")
    report = prove(node, "172.16.8.0/22")
    assert [(found.kind, found.program, found.stays) for found in report.findings] == [
        ("overlap", None, False),
        ("blocked", "bird", True),
        ("overlap", None, False),
    ]
    assert [route.destination for route in report.suggested_routes] == ["172.16.8.0/22"]
    assert "stays: " in prove_egress(node, ["172.16.8.0/22"], expected_devs=["eth0"]).steps
    assert "stays: " not in prove_egress(node, ["172.18.8.0/22"], expected_devs=["eth0"]).steps


def test_a_route_of_another_program_is_hidden_by_the_same(node: MemoryBackend) -> None:
    """With or without a metric, a single address, too: the own route is added before it."""
    arrange(node, "10.96.0.10/31 dev ib0", "10.96.0.20 dev ib0 metric 100", "10.96.0.30 dev ib0")
    destinations = ["10.96.0.10/31", "10.96.0.20/32", "10.96.0.30/32"]
    assert [
        route.destination for route in prove(node, "10.96.0.0/16").suggested_routes
    ] == destinations


def test_the_kernels_own_route_is_not_hidden(node: MemoryBackend) -> None:
    """Nothing is more specific than the /32 of a peer, and behind a foreign route the kernel's own
    counts, too.
    """
    node.add_address("ib0", "10.96.0.9/32", peer="10.96.0.10")
    report = prove(node, "10.96.0.10/32")
    assert shapes(report) == [("overlap", "10.96.0.10", "10.96.0.10", "ib0")]
    assert report.suggested_routes == ()
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=2))
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=3), verb="prepend")
    assert len(prove(node, "172.18.0.0/16").suggested_routes) == 2


def test_a_route_that_takes_the_peer_of_an_own_address_has_a_warning(node: MemoryBackend) -> None:
    """More peers of the fabric are near that one."""
    node.add_address("ib0", "10.99.0.9/24", peer="10.96.0.10")
    [route] = prove(node, "10.96.0.0/25").suggested_routes
    assert route.destination == "10.96.0.0/25"
    assert route.warning == (
        f"10.96.0.10 of ib0 lies in it, so it would take peers of ib0, too. {NARROWER}"
    )


def test_no_route_is_suggested_that_no_config_may_have(node: MemoryBackend) -> None:
    """There is no route to multicast, and none to the whole address space."""
    remove_default(node)
    arrange(node, "default dev ib0", "default via 10.224.0.1 dev eth0 metric 9")
    cidrs = ["64.0.0.0/3", "0.0.0.0/0", "224.0.0.0/4"]
    [report, *others] = prove_egress(node, cidrs, expected_devs=["eth0"]).cidrs
    assert [route.destination for route in report.suggested_routes] == ["64.0.0.0/3"]
    assert [other.suggested_routes for other in others] == [(), ()]


@pytest.mark.parametrize("astray", ["172.16.8.0/22", "172.16.9.0/24"])
def test_no_route_is_suggested_whose_own_source_leads_astray(
    node: MemoryBackend, astray: str
) -> None:
    """It would make the kernel send from eth0's address, and a rule leads packets of that one into
    the fabric: those to all addresses of the CIDR, or to some.
    """
    arrange(node, f"{astray} dev ib0 table 88")
    assert prove(node, "172.16.8.0/22").suggested_routes
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    report = prove(node, "172.16.8.0/22")
    assert [finding.route for finding in report.findings] == [IB]
    assert report.suggested_routes == ()


def test_no_route_is_suggested_that_repairs_connections_alone(node: MemoryBackend) -> None:
    """A datagram goes by a rule to another table, and only a connection, by its source, to the main
    one.
    """
    arrange(node, "10.96.0.0/16 dev ib0 metric 7")
    node.add_rule(Rule(40, table=254, source=parse_cidr("10.224.0.4/32")))
    arrange(node, "default via 10.224.0.1 dev eth0 table 77")
    node.add_rule(Rule(50, table=77, destination=parse_cidr("10.96.0.0/16")))
    assert [route.destination for route in prove(node, "10.96.0.0/16").suggested_routes] == [
        "10.96.0.0/16"
    ]
    node.add_link("ib1")
    arrange(node, "10.96.0.0/16 dev ib1 table 77 src 10.224.0.4")
    report = prove(node, "10.96.0.0/16")
    assert [finding.dev for finding in report.findings] == ["ib0"]
    assert report.suggested_routes == ()


def test_the_second_half_may_be_a_single_address(node: MemoryBackend) -> None:
    """The first of it: all else there is decided by more specific routes that are fine."""
    node.insert_route(Route.parse("10.96.0.0/24", dev="ib0", protocol=2))
    for inner in "129/32", "130/31", "132/30", "136/29", "144/28", "160/27", "192/26":
        arrange(node, f"10.96.0.{inner} via 10.224.0.1 dev eth0")
    destinations = [route.destination for route in prove(node, "10.96.0.0/24").suggested_routes]
    assert destinations == ["10.96.0.0/25", "10.96.0.128/32"]


@pytest.mark.parametrize("first", ["dead", "no gateway", "not expected"])
def test_suggested_routes_leave_by_the_first_next_hop_that_will_do(
    node: MemoryBackend, first: str
) -> None:
    """One whose device is down, that has no gateway, or whose device is not expected here, is
    passed over.
    """
    connect(node, eth1="10.225.0.4/16")
    node.set_up("eth1", up=first != "dead")
    gateway = None if first == "no gateway" else Address.parse("10.225.0.1")
    passed = NextHop(gateway, "eth1", dead=first == "dead")
    hops = passed, NextHop(Address.parse("10.224.0.1"), "eth0")
    default = ObservedRoute(0, 0, nexthops=hops, protocol=3)
    others = (route for route in node.routes() if route.prefix_length)
    model = Fib.of(node.links(), [default, *others])
    expected = ["eth0"] if first == "not expected" else None
    [report] = prove_egress(model, ["172.16.8.0/22"], allowed_devs=(), expected_devs=expected).cidrs
    [route] = report.suggested_routes
    assert route.gateway == "10.224.0.1"
    assert route.dev == "eth0"


def test_suggested_routes_leave_by_the_default_route_that_decides(node: MemoryBackend) -> None:
    """Of two that would do, by the one of the lower metric."""
    connect(node, eth1="10.225.0.4/16")
    arrange(node, "default via 10.225.0.1 dev eth1 metric 200")
    expected = ["eth0", "eth1"]
    [report] = prove_egress(node, ["172.16.8.0/22"], expected_devs=expected).cidrs
    [route] = report.suggested_routes
    assert route.gateway == "10.224.0.1"
    assert route.dev == "eth0"


def test_nothing_is_suggested_where_no_gateway_leads_out(node: MemoryBackend) -> None:
    """`default dev ppp0` has none that a route could go by."""
    remove_default(node)
    arrange(node, "default dev eth0")
    report = prove(node, "172.16.8.0/22")
    assert not report.ok
    assert report.suggested_routes == ()


def test_nothing_is_suggested_against_local_routes(node: MemoryBackend) -> None:
    """A route could beat a `local` route of the main table, but that serves another program."""
    node.add_rule(Rule(100, table=88))  # or main and local are one
    arrange(node, "local 10.96.0.0/24 dev ib0")
    report = prove(node, "10.96.0.0/16")
    assert shapes(report) == [("local", "10.96.0.0", "10.96.0.255", "ib0")]
    assert report.suggested_routes == ()


@pytest.mark.parametrize(
    "reached",
    [
        [],
        [Route.parse("192.0.2.0/24", dev="ib0", protocol=3)],
        [attrs.evolve(Route.parse("192.0.2.0/24", dev="eth0", protocol=3), scope=0)],
        [Route.parse("192.0.2.1/32", dev="eth0", kind="local", table=255, protocol=3)],
    ],
    ids=["by itself", "by another device", "as if it lay further off", "as an own address"],
)
def test_nothing_is_suggested_through_a_gateway_that_is_not_on_the_link(
    node: MemoryBackend, reached: list[Route]
) -> None:
    """Such a route would be refused: the default route is `onlink`, and nothing shows that its
    gateway is on eth0.
    """
    remove_default(node)
    default = Route.parse("0.0.0.0/0", gateway="192.0.2.1", dev="eth0", protocol=3)
    for route in attrs.evolve(default, onlink=True), *reached:
        node.insert_route(route)
    report = prove(node, "172.16.8.0/22")
    assert not report.ok
    assert report.suggested_routes == ()
