"""The routes that a check suggests: those that repair a finding, and findings that none repairs."""

import attrs
import pytest
from support.kernel import connect
from support.overlap_checks import prove, shapes
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
    """The connected network of a fabric as a whole is taken by two halves, as the route for the
    same prefix is the kernel's own, with a warning that this is unsafe.
    """
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=2))
    report = prove(node, "172.18.0.0/16")
    warning = (
        "172.18.0.0/16 is the entire connected network of ib0: its peers could no longer be reached through it. "
        f"{NARROWER}"
    )
    assert [(route.destination, route.warning) for route in report.suggested_routes] == [
        ("172.18.0.0/17", warning),
        ("172.18.128.0/17", warning),
    ]


@pytest.mark.parametrize("kind", ["", "bridge"])
def test_an_own_address_stays(node: MemoryBackend, kind: str) -> None:
    """An own address of hardware, with its broadcast address, stays while routes for the rest are
    suggested; one of a bridge is to be removed, which makes its CIDR right without a route.
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
    """A blackhole stays while a route around it is suggested, as a route over it could lead in a
    loop; another refusing route has no such step.
    """
    arrange(node, "blackhole 172.16.9.0/26 proto bird", "unreachable 172.18.8.0/22 proto bird")
    report = prove(node, "172.16.8.0/22")
    assert [(found.kind, found.program, found.stays) for found in report.findings] == [
        ("overlap", None, False),
        ("blocked", "bird", True),
        ("overlap", None, False),
    ]
    assert [route.destination for route in report.suggested_routes] == ["172.16.8.0/22"]
    assert "stays, because" in prove_egress(node, ["172.16.8.0/22"], expected_devs=["eth0"]).steps
    assert (
        "stays, because" not in prove_egress(node, ["172.18.8.0/22"], expected_devs=["eth0"]).steps
    )


def test_a_route_of_another_program_is_hidden_by_the_same(node: MemoryBackend) -> None:
    """A route of another program is hidden by a suggested one to the same destination, with or
    without a metric, even to a single address.
    """
    arrange(node, "10.96.0.10/31 dev ib0", "10.96.0.20 dev ib0 metric 100", "10.96.0.30 dev ib0")
    destinations = ["10.96.0.10/31", "10.96.0.20/32", "10.96.0.30/32"]
    assert [
        route.destination for route in prove(node, "10.96.0.0/16").suggested_routes
    ] == destinations


def test_the_kernels_own_route_is_not_hidden(node: MemoryBackend) -> None:
    """The kernel's own route to a peer, a /32, is not hidden by a suggestion; for one behind a
    foreign route two halves are still suggested.
    """
    node.add_address("ib0", "10.96.0.9/32", peer="10.96.0.10")
    report = prove(node, "10.96.0.10/32")
    assert shapes(report) == [("overlap", "10.96.0.10", "10.96.0.10", "ib0")]
    assert report.suggested_routes == ()
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=2))
    node.insert_route(Route.parse("172.18.0.0/16", dev="ib0", protocol=3), verb="prepend")
    assert len(prove(node, "172.18.0.0/16").suggested_routes) == 2


def test_a_route_that_takes_the_peer_of_an_own_address_has_a_warning(node: MemoryBackend) -> None:
    """A suggested route that takes the peer of an own address has a warning, as more peers of the
    fabric may be near.
    """
    node.add_address("ib0", "10.99.0.9/24", peer="10.96.0.10")
    [route] = prove(node, "10.96.0.0/25").suggested_routes
    assert route.destination == "10.96.0.0/25"
    assert route.warning == (
        f"10.96.0.10 of ib0 is in it, so the route would also take peers of ib0. {NARROWER}"
    )


def test_no_route_is_suggested_that_no_config_may_have(node: MemoryBackend) -> None:
    """No route to multicast or to the whole address space is suggested, as a config cannot have
    one.
    """
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
    """No route is suggested whose packets would have a source that a rule leads into the fabric,
    for all addresses of the CIDR or for some.
    """
    arrange(node, f"{astray} dev ib0 table 88")
    assert prove(node, "172.16.8.0/22").suggested_routes
    node.add_rule(Rule(100, table=88, source=parse_cidr("10.224.0.4/32")))
    report = prove(node, "172.16.8.0/22")
    assert [finding.route for finding in report.findings] == [IB]
    assert report.suggested_routes == ()


def test_no_route_is_suggested_that_repairs_connections_alone(node: MemoryBackend) -> None:
    """No route is suggested that would repair connections and leave datagrams to a rule with
    another table.
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
    """The second suggested half may be a single address, if more specific routes decide the rest of
    it.
    """
    node.insert_route(Route.parse("10.96.0.0/24", dev="ib0", protocol=2))
    for inner in "129/32", "130/31", "132/30", "136/29", "144/28", "160/27", "192/26":
        arrange(node, f"10.96.0.{inner} via 10.224.0.1 dev eth0")
    destinations = [route.destination for route in prove(node, "10.96.0.0/24").suggested_routes]
    assert destinations == ["10.96.0.0/25", "10.96.0.128/32"]


@pytest.mark.parametrize("first", ["dead", "no gateway", "not expected"])
def test_suggested_routes_leave_by_the_first_next_hop_that_will_do(
    node: MemoryBackend, first: str
) -> None:
    """A suggested route passes over a next hop whose device is down or not expected, or that has no
    gateway.
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
    """A suggested route leaves through the default route of the lower metric."""
    connect(node, eth1="10.225.0.4/16")
    arrange(node, "default via 10.225.0.1 dev eth1 metric 200")
    expected = ["eth0", "eth1"]
    [report] = prove_egress(node, ["172.16.8.0/22"], expected_devs=expected).cidrs
    [route] = report.suggested_routes
    assert route.gateway == "10.224.0.1"
    assert route.dev == "eth0"


def test_nothing_is_suggested_where_no_gateway_leads_out(node: MemoryBackend) -> None:
    """No route is suggested on a node whose default route has no gateway."""
    remove_default(node)
    arrange(node, "default dev eth0")
    report = prove(node, "172.16.8.0/22")
    assert not report.ok
    assert report.suggested_routes == ()


def test_nothing_is_suggested_against_local_routes(node: MemoryBackend) -> None:
    """No route is suggested against a `local` route of the main table, as that serves another
    program.
    """
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
    """No route is suggested by an `onlink` gateway that is not known to be on the link, as the
    kernel would refuse it.
    """
    remove_default(node)
    default = Route.parse("0.0.0.0/0", gateway="192.0.2.1", dev="eth0", protocol=3)
    for route in attrs.evolve(default, onlink=True), *reached:
        node.insert_route(route)
    report = prove(node, "172.16.8.0/22")
    assert not report.ok
    assert report.suggested_routes == ()
