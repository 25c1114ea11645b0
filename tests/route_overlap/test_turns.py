"""IPv4 default routes that the kernel takes in turns, of which each must be fine."""

import pytest
from support.kernel import connect, kernel_of, needs_kernel
from support.printed import ALIKE, NOT_APPLIED, UNKNOWN_EXIT, next_step, overlap

from hostrouting import prove_egress
from hostrouting.config.sections import HostRoutingConfig, RouteOverlapConfig
from hostrouting.fib import Fib
from hostrouting.host import Rule
from hostrouting.net.addresses import parse_cidr
from hostrouting.node.check import check_node
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from phases import Context

_CIDRS = ["10.96.0.0/12"]
_ROUTES = "default via 10.224.0.1 dev eth0; default via 172.16.0.1 dev ib0"


def _two_exits(node: MemoryBackend | KernelNode, *, metric: int = 0) -> None:
    connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    node.add_route("default", gateway="10.224.0.1", dev="eth0")
    node.add_route("default", gateway="172.16.0.1", dev="ib0", metric=metric)


_CHOICE = (
    "name the right ones in expectedDevs; or run one of these: "
    "ip route del default via 10.224.0.1 dev eth0; ip route del default via 172.16.0.1 dev ib0"
)


def test_without_expected_devices_the_finding_names_both() -> None:
    """Two default routes in turns without expected devices are an unknown exit that names both."""
    node = MemoryBackend()
    _two_exits(node)
    report = prove_egress(node, _CIDRS)
    assert report.lines() == [
        f"10.96.0.0/12: unknown-exit 10.96.0.0-10.111.255.255 through eth0,ib0 ({_ROUTES})"
    ]
    assert str(report) == (
        f"the IPv4 default routes through eth0 and ib0 are used in turn {UNKNOWN_EXIT} 10.96.0.0/12 should leave:\n"
        "  10.96.0.0/12\n"
        f"    {report.cidrs[0].findings[0].sentence()}\n"
        f"the IPv4 default routes through eth0 and ib0: {ALIKE}"
        f"{_CHOICE}"
    )


def test_check_reports_once_that_several_exits_decide() -> None:
    """The check reports once that several exits decide, with its kind and before all further
    findings.
    """
    host = FakeHost()
    _two_exits(host.routes)
    config = HostRoutingConfig(route_overlap=RouteOverlapConfig(expected_cidrs=tuple(_CIDRS)))
    report = check_node(Context(), config, host)
    assert report.lines() == [
        "wrong: the IPv4 default routes through eth0 and ib0 are used in turn",
        report.overlap.verdict,
        (f"warning: several-exits: the IPv4 default routes through eth0 and ib0: {ALIKE}{_CHOICE}"),
        (f"warning: not-applied: hostRouting: {NOT_APPLIED} for the next boot; apply the config"),
        next_step(
            f"no command repairs this: the IPv4 default routes through eth0 and ib0: {ALIKE}{_CHOICE}"
        ),
    ]


def test_with_an_expected_device_the_wrong_one_is_an_overlap() -> None:
    """A second default route in turns by a device that is not expected is an overlap, though a
    lookup names the expected one.
    """
    node = MemoryBackend()
    _two_exits(node)
    report = prove_egress(node, _CIDRS, expected_devs=["eth0"])
    assert report.lines() == [
        f"10.96.0.0/12: overlap 10.96.0.0-10.111.255.255 through eth0,ib0 ({_ROUTES})"
    ]
    [finding] = report.cidrs[0].findings
    addresses = "10.96.0.0 to 10.111.255.255"
    assert finding.sentence() == overlap(addresses, "ib0", among="eth0, ib0", route=_ROUTES)
    [route] = report.suggested_routes
    assert route.destination == "10.96.0.0/12"
    assert route.gateway == "10.224.0.1"
    assert route.dev == "eth0"


def test_both_may_be_expected() -> None:
    """Two default routes in turns are right if both devices are expected."""
    node = MemoryBackend()
    _two_exits(node)
    assert prove_egress(node, _CIDRS, expected_devs=["eth0", "ib0"]).ok


def test_another_metric_has_no_turn() -> None:
    """A default route of a higher metric is not taken in turns."""
    node = MemoryBackend()
    _two_exits(node, metric=200)
    assert prove_egress(node, _CIDRS).ok


@needs_kernel
def test_a_route_without_a_gateway_has_no_turn() -> None:
    """A default route without a gateway is not taken in turns with one of the same metric that has
    a gateway.
    """
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        node.ip("-4 route append default via 10.224.0.1 dev eth0")
        node.ip("-4 route append default dev ib0 scope global")
        report = prove_egress(kernel_of(node), _CIDRS)
        named = {node.ip("route get fibmatch 10.96.0.1") for _ in range(4)}
    assert report.ok, report
    assert named == {"default via 10.224.0.1 dev eth0 \n"}


def test_those_of_another_table_are_not_the_exits() -> None:
    """Default routes in turns of another table than main are not the exits of a node."""
    node = MemoryBackend()
    for dev, gateway in (("eth0", "10.224.0.1"), ("ib0", "172.16.0.1")):
        node.add_link(dev)
        node.add_address(dev, gateway[:-1] + "4/16")
        node.add_route("default", gateway=gateway, dev=dev, table=100)
    node.add_rule(Rule(50, table=100, destination=parse_cidr("10.96.0.0/13")))
    report = prove_egress(node, _CIDRS)
    assert report.devs_in_turn == ()
    assert report.headline == (
        f"the node has no IPv4 default route {UNKNOWN_EXIT} 10.96.0.0/12 should leave"
    )


@needs_kernel
def test_the_kernel_takes_them_in_turns() -> None:
    """The reports of the kernel and of the model are the same, whichever of two default routes in
    turns a lookup names.
    """
    with KernelNode.made() as node:
        _two_exits(node)
        kernel = kernel_of(node)
        expected = prove_egress(kernel, _CIDRS, expected_devs=["eth0"])
        for dev, address in (("eth0", "10.224.0.1"), ("ib0", "172.16.0.1")):
            node.ip(f"neigh replace {address} lladdr 02:00:00:00:00:01 nud stale dev {dev}")
        named = {node.ip("route get fibmatch 10.96.0.1") for _ in range(4)}
        reports = [prove_egress(kernel, _CIDRS, expected_devs=["eth0"]) for _ in range(4)]
        model = Fib.of(kernel.links(), kernel.routes(), kernel.rules())
        reports.append(prove_egress(model, _CIDRS, expected_devs=["eth0"]))
    assert len(named) == 2
    assert not expected.ok
    assert reports == [expected] * 5


@needs_kernel
@pytest.mark.parametrize("is_first", [True, False])
def test_a_gateway_of_ipv6_has_its_turn(is_first: bool) -> None:
    """The kernel takes an IPv4 route `via inet6` in turns with one by an IPv4 gateway."""
    hops = ["via 10.224.0.1 dev eth0", "via inet6 fe80::1 dev ib0"]
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
        for hop in reversed(hops) if is_first else hops:
            node.ip(f"-4 route append default {hop}")
        kernel = kernel_of(node)
        before = prove_egress(kernel, _CIDRS, expected_devs=["eth0"])
        for dev, address in (("eth0", "10.224.0.1"), ("ib0", "fe80::1")):
            node.ip(f"neigh replace {address} lladdr 02:00:00:00:00:01 nud stale dev {dev}")
        named = {node.ip("route get fibmatch 10.96.0.1") for _ in range(4)}
        report = prove_egress(kernel, _CIDRS, expected_devs=["eth0"])
    assert len(named) == 2
    assert before == report
    [finding] = report.cidrs[0].findings
    assert finding.kind == "overlap"
    assert finding.dev == "ib0"
    assert sorted(finding.devs) == ["eth0", "ib0"]
