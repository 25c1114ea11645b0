"""Reports of the check about IPv6 that a person can judge: the exits, equal routes, the advice and
the warnings.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.ipv6_decisions import Decision, each_decision, two_links
from support.kernel import connect, kernel_of, needs_kernel
from support.routers import ROUTER, SECOND_ROUTER, Prefix, RouteInformation, WiredNode

from hostrouting import HostRoutingConfig, OverlapReport, explain_routing, prove_egress
from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import IPV6, ObservedRoute, Route, RouteChange
from hostrouting.host.files.store import RootedFiles
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import expectation_on
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.route_overlap.ipv6_lifetimes import endings, learned_by_kernel, vanishing
from hostrouting.static_routes.forecast import Forecaster
from hostrouting.testing import FakeHost
from hostrouting.testing.contracts.routes import arrange
from phases import Context

pytestmark = needs_kernel

CIDR = "fd00:5::/48"
IPV4_WAY = "-4 route add default via 10.1.0.254 dev e0"
WAY = f"-6 route add default via {ROUTER} dev e0"


@pytest.fixture
def node() -> Iterator[WiredNode]:
    """A host with three links, and addresses on the first of them."""
    with WiredNode.made() as made:
        made.add_links("e0", "e1", "e2")
        made.hold("e0", "2001:db8:1::1/64")
        made.ip("-4 address add 10.1.0.1/24 dev e0")
        yield made


def proven(
    node: WiredNode, *commands: str, cidrs: tuple[str, ...] = (CIDR,), **options: Any
) -> OverlapReport:
    for command in commands:
        node.ip(command)
    return prove_egress(kernel_of(node), cidrs, **options)


def warned(report: OverlapReport) -> list[tuple[str, str]]:
    assert {note.severity for note in report.notes} <= {"warning"}
    return [(note.kind, note.subject) for note in report.notes]


def found(report: OverlapReport) -> list[tuple[str, str | None]]:
    return [(finding.kind, finding.dev) for _, finding in report.findings]


@pytest.fixture(scope="module")
def links() -> Iterator[WiredNode]:
    with two_links() as made:
        yield made


@each_decision
def test_the_proof_decides_as_the_kernel(links: WiredNode, decision: Decision) -> None:
    """An address is right if the device that the kernel takes is expected, and those of all equal
    routes; test_judged_worlds.py has random nodes.
    """
    with decision.arranged(links):
        for address, answer in decision.answers.items():
            # The kernel alone answers a question with a source or a device.
            if " " in address or answer == "local":
                continue
            devs = decision.equal or ((answer,) if answer else ())
            [[part]] = [each.parts for each in explain_routing(kernel_of(links), [address])]
            assert part.devs == devs
            report = proven(links, cidrs=(f"{address}/128",), expected_devs=devs or ["e0"])
            assert report.ok == bool(devs)


@pytest.mark.parametrize(
    ("commands", "exits", "unknown"),
    [
        ([IPV4_WAY, WAY], ("e0",), ()),
        # IPv4 decides, wherever the IPv6 default routes lead.
        ([IPV4_WAY, f"-6 route add default via {ROUTER} dev e1"], ("e0",), ()),
        ([IPV4_WAY, "-4 route add default dev e1 metric 9", WAY], ("e0",), ()),
        # Several equal ones of IPv4, next hops by several devices, or none: then those of IPv6 must
        # name one.
        ([IPV4_WAY, "-4 route append default dev e1", WAY], ("e0",), ()),
        (
            ["-4 route add default nexthop dev e0 nexthop dev e1", f"{WAY} metric 9", WAY],
            ("e0",),
            (),
        ),
        ([WAY], ("e0",), ()),
        ([WAY, f"-6 route add default via {ROUTER} dev e1 metric 9"], (), (IPV6,)),
        (
            [f"-6 route add default nexthop via {ROUTER} dev e0 nexthop via {ROUTER} dev e1"],
            (),
            (IPV6,),
        ),
        ([], (), (IPV6,)),
    ],
)
def test_the_exit_of_ipv6(
    node: WiredNode, commands: list[str], exits: tuple[str, ...], unknown: tuple[int, ...]
) -> None:
    """The exit of IPv6 is the device of the one IPv4 default route that decides, or that which all
    IPv6 default routes name.
    """
    report = proven(node, *commands)
    assert (report.expected_devs, report.without_outbound_dev) == (exits, unknown)
    if unknown and commands:
        assert found(report)[0][0] == "unknown-exit"
        assert report.advice.startswith(
            "Name the devices through which IPv6 leaves in expectedDevs"
        )
    lacks_default = not any("-6" in command and "dev e0" in command for command in commands)
    assert (IPV6 in report.lacks_default) == lacks_default


def test_each_of_equal_defaults_must_be_fine(node: WiredNode) -> None:
    """A default route through the fabric is an overlap at an equal metric and preference, and a warning
    at a lower preference.
    """
    with node.router("e0") as right, node.router("e1") as wrong:
        right.advertise()
        wrong.advertise()
        report = proven(node, expected_devs=["e0"])
        assert found(report) == [("overlap", "e1")]
        right.advertise(preference="high")
        report = proven(node, expected_devs=["e0"])
        assert report.ok
        assert [kind for kind, _ in warned(report)] == ["fallback-by-fabric"]
        wrong.advertise(preference="high")
        right.advertise(preference="low")
        report = proven(node, IPV4_WAY)
        assert found(report) == [("overlap", "e1")]


def test_a_route_with_from_hides_and_decides(node: WiredNode) -> None:
    """A route with `from` decides for its sources, and the suggested routes are more specific."""
    report = proven(
        node,
        WAY,
        f"-6 route add {CIDR} from 2001:db8::/32 dev e2",
        f"-6 route add {CIDR} dev e0 metric 1",
    )
    assert found(report) == [("overlap", "e2")]
    assert [route.destination for route in report.suggested_routes] == [
        "fd00:5::/49",
        "fd00:5:0:8000::/49",
    ]


def test_the_advice_mends(node: WiredNode) -> None:
    """Suggested IPv6 routes have metric 1 and the device of a link-local gateway, and make the
    check right.
    """
    report = proven(
        node, WAY, f"-6 route add {CIDR} dev e1", "-6 route add fd00:5::/64 dev e1 metric 1"
    )
    routes = report.merged_routes.routes
    assert {(route.gateway, route.dev, route.metric) for route in routes} == {(ROUTER, "e0", 1)}
    for route in routes:
        node.ip(f"-6 route add {route} proto 142")
    assert proven(node).ok


def test_equal_defaults_are_explained_together(node: WiredNode) -> None:
    """`explain` names the devices and routes of all equal default routes, and of none that is
    worse.
    """
    with node.router("e0") as first, node.router("e1") as second, node.router("e2") as third:
        first.advertise()
        second.advertise()
        third.advertise(preference="low")
    [explanation] = explain_routing(kernel_of(node), ["fd00:5::1"])
    [part] = explanation.parts
    assert (part.by, str(part.route).count(f"default via {ROUTER} dev e")) == ("e0+e1", 2)


def test_a_silent_gateway_is_judged(node: WiredNode) -> None:
    """A route by a silent gateway is an overlap with a warning, although the kernel passes over it
    on a host.
    """
    route = f"{CIDR} via {SECOND_ROUTER} dev e1 metric 1024"
    report = proven(
        node,
        WAY,
        f"-6 route add {route}",
        f"neigh add {SECOND_ROUTER} dev e1 nud failed",
        expected_devs=["e0"],
    )
    assert found(report) == [("overlap", "e1")]
    assert warned(report) == [("silent-gateway", route)]


def test_a_foreign_source_is_reported(node: WiredNode) -> None:
    """A node that sends by e0 from the address of e1 is warned about."""
    node.ip("-6 address del 2001:db8:1::1/64 dev e0")
    node.hold("e1", "2001:db8:2::1/64")
    report = proven(node, IPV4_WAY, WAY)
    assert report.ok
    assert warned(report) == [("foreign-source", "2001:db8:2::1")]
    # A device that is wrong is to get no address.
    assert "foreign-source" not in dict(warned(proven(node, expected_devs=["e1"])))


def test_what_the_kernel_learned_will_vanish(node: WiredNode, tmp_path: Path) -> None:
    """Routes of advertisements that the kernel itself follows are warned about, as forwarding ends
    them.

    Defaults are deleted, others expire, since no advertisement is taken any more; one that never
    expires stays. The network of the source is among them.
    """
    node.switch(e0__accept_ra_rt_info_max_plen=64)
    with node.router("e0") as router:
        endless = RouteInformation("fd00:5:0:2::/64", lifetime=0xFFFFFFFF)
        router.advertise(
            options=[RouteInformation("fd00:5::/64"), endless, Prefix("2001:db8:7::/64")]
        )
    node.ip("-6 address del 2001:db8:1::1/64 dev e0")
    node.wait_for_addresses()
    report = proven(
        node, IPV4_WAY, f"-6 route add fd00:5:0:1::/64 via {ROUTER} dev e0 proto ra metric 9"
    )
    for path in "/proc/net/ipv6_route", "/proc/sys/net/ipv6/conf/e0/accept_ra":
        (tmp_path / path[1:]).parent.mkdir(parents=True)
        (tmp_path / path[1:]).write_text(node.run("cat", path))
    files = RootedFiles(str(tmp_path))
    learned = learned_by_kernel(files, report.deciding)
    assert sorted(str(route) for route in learned) == [
        "2001:db8:7::/64 dev e0 proto kernel metric 256",
        f"default via {ROUTER} dev e0 proto ra metric 1024",
        f"fd00:5:0:2::/64 via {ROUTER} dev e0 proto ra metric 1024",
        f"fd00:5::/64 via {ROUTER} dev e0 proto ra metric 1024",
    ]
    lines = [*vanishing(files, learned)]
    assert {one.subject for one in lines} == {
        str(route) for route in learned if not route.network & 2 << 64
    }
    assert {(one.kind, one.severity) for one in lines} == {("will-vanish", "warning")}
    assert all("net.ipv6.conf.e0.accept_ra=2" in one.reason for one in lines)
    (tmp_path / path[1:]).write_text("2\n")
    assert not [*vanishing(files, learned)]
    (tmp_path / path[1:]).unlink()
    assert not [*vanishing(files, learned)], "unknown"


def test_a_wrong_default_ends_at_its_owner(node: WiredNode) -> None:
    """The advised lines end a wrong default route of the kernel; those for daemons name the
    device.
    """
    with node.router("e1") as router:
        router.advertise()
    report = proven(node, IPV4_WAY)
    assert found(report) == [("overlap", "e1")]
    [route] = report.deciding
    lines = [*endings([route], [route], {"e1"})]
    for line in lines[1:]:
        node.run(*line.partition("#")[0].split())
    assert f"{found(proven(node, WAY))}" == "[]"
    assert "UseGateway=no" in "".join(endings([route], [], {"e1"}))
    assert "then networkctl reload" in report.advice
    again = route._replace(expires=route.expires - 1)
    for learned in [], [route, again]:
        lines = [*endings([route, again], learned, {"e1"})]
        assert lines == [*endings([route], learned[:1], {"e1"})], "each line once"
    hostile = ObservedRoute.parse("::/0", "e$(x)", ROUTER, metric=1024, protocol=9)
    assert not [*endings([hostile], [hostile], hostile.devs)]


def test_only_the_wrong_device_loses_its_default(node: WiredNode) -> None:
    """A learned default by two devices, as networkd merges them, is ended for the wrong device
    alone.
    """
    way = f"-6 route add default proto ra nexthop via {ROUTER} dev e0 nexthop via {ROUTER} dev e1"
    advice = proven(node, IPV4_WAY, way).advice
    assert "then networkctl reload" in advice
    assert "e0, then" not in advice


def test_a_wrong_default_gets_no_advice_to_stay(node: WiredNode) -> None:
    """The warning `will-vanish` is about right routes alone, since a wrong one is to end."""
    host = FakeHost(routes=kernel_of(node))
    with node.router("e0") as right, node.router("e1") as wrong:
        right.advertise()
        wrong.advertise(preference="high")
    host.files.write(
        "/proc/net/ipv6_route", node.run("cat", "/proc/net/ipv6_route").encode(), mode=0o444
    )
    for dev in "e0", "e1":
        host.files.write(f"/proc/sys/net/ipv6/conf/{dev}/accept_ra", b"1", mode=0o644)
    for devs, kinds in (["e0"], []), (["e1"], ["will-vanish"]):
        config = HostRoutingConfig.from_mapping(
            {"routeOverlap": {"expectedCidrs": [CIDR], "expectedDevs": devs}}
        )
        report = check_egress(host, expectation_on(host, config, Fabric()))
        assert [one.kind for one in report.notes if one.kind == "will-vanish"] == kinds


def test_a_plan_that_takes_addresses_is_worse(ctx: Context) -> None:
    """The forecast of an IPv6 change that takes addresses names the change, and the check after the
    change finds the same.
    """
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16", ib0="fd00:9::1/64")
    arrange(
        host.routes, "default via 10.224.0.1 dev eth0", f"::/0 via {ROUTER} dev eth0 metric 1024"
    )
    config = HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"}}
    )
    forecaster = Forecaster(ctx, config, host)
    forecaster.look()
    change = RouteChange.add(Route.parse("fd00:5::/64", gateway=ROUTER, dev="ib0", metric=1))
    forecast = forecaster.changed([change])
    [worse] = forecast.worse
    assert str(worse) == (
        "fd00:5::/48: overlap fd00:5::-fd00:5::ffff:ffff:ffff:ffff through ib0 "
        f"(fd00:5::/64 via {ROUTER} dev ib0 proto 142 metric 1), by the change '{change}'"
    )
    host.routes.apply([change])
    now, _ = forecaster.now(host)
    assert [*map(str, now.worse)] == [str(worse)]


def test_gateways_of_ipv6_are_foreseen(ctx: Context, node: WiredNode) -> None:
    """The forecast of a route by an IPv6 gateway is that of the kernel: the node's own addresses
    and those off the link are refused.
    """
    backend = kernel_of(node)
    forecaster = Forecaster(ctx, HostRoutingConfig(), FakeHost(routes=backend))
    forecaster.look()
    for destination in "10.9.0.0/16", "fd00:9::/64":
        for gateway, is_taken in (
            ("2001:db8:1::9", True),
            ("2001:db8:1::1", False),
            ("2001:db8:9::1", False),
        ):
            change = RouteChange.add(Route.parse(destination, gateway=gateway, dev="e0", metric=1))
            assert bool(forecaster.changed([change]).undecided) is not is_taken
            with nullcontext() if is_taken else pytest.raises(RouteRejectedError):
                backend.apply([change])
