"""Silent gateways: those that are probed, and the kernel's answer, which a packet renews."""

import sys
from collections.abc import Iterator

import pytest
from support.kernel import connect, host_of, kernel_of, needs_kernel, powerless
from support.memory_links import silence
from support.needs import needs
from support.printed import ASKED_AGAIN
from support.way_out_nodes import dead_default

from hostrouting import HostRoutingConfig, check_node
from hostrouting.base.findings import NodeFinding
from hostrouting.host import Address, NextHop, Route
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.route_overlap.check import silent_routers
from hostrouting.testing import FakeHost, KernelNode
from hostrouting.testing.contracts.routes import arrange
from phases import Context

SILENT = NodeFinding("silent-gateway", "10.224.0.1 dev eth0", ASKED_AGAIN, "warning")


def test_the_gateways_by_expected_devices_are_probed() -> None:
    """The gateways of default and own routes by expected devices are probed once each, and no
    others.
    """
    host = FakeHost()
    node = host.routes
    connect(node, eth0="10.224.0.4/16", eth1="10.225.0.4/16", ib0="172.16.1.4/16")
    for dev in "eth0", "eth1", "ib0":
        for gateway in "10.224.0.1", "10.224.0.8", "10.224.0.9", "10.225.0.1", "172.16.0.1":
            silence(host.link_layer, dev, gateway)
    hops = (
        NextHop(Address.parse("10.224.0.1"), "eth0"),
        NextHop(Address.parse("10.225.0.1"), "eth1"),
    )
    node.insert_route(Route.parse("0.0.0.0/0", nexthops=hops, protocol=3))
    arrange(
        node,
        "default via 172.16.0.1 dev ib0 metric 100",
        "default dev eth1 metric 200",
        "10.96.0.0/16 via 10.224.0.9 dev eth0 proto 142",
        "10.97.0.0/16 via 10.224.0.1 dev eth0 proto 142",
        "10.98.0.0/16 via 10.224.0.8 dev eth0",
    )
    assert [found.subject for found in silent_routers(Context(), host, ["eth0", "eth1"])] == [
        "10.224.0.1 dev eth0",
        "10.225.0.1 dev eth1",
        "10.224.0.9 dev eth0",
    ]


@needs_kernel
def test_the_gateway_of_a_dead_route_is_not_probed() -> None:
    """The gateway of a route by a device without carrier that the kernel passes over is not probed,
    as the carrier is the trouble.
    """
    fake = FakeHost()
    connect(fake.routes, eth0="10.224.0.4/16", eth1="10.225.0.4/16")
    for dev, gateway in ("eth0", "10.224.0.1"), ("eth1", "10.225.0.1"):
        silence(fake.link_layer, dev, gateway)
    with dead_default() as node:
        host = host_of(kernel_of(node), link_layer=fake.link_layer)
        assert [*silent_routers(Context(), host, ["eth0", "eth1"])] == [SILENT]


@pytest.mark.parametrize("cidrs", [["10.96.0.0/16"], []])
def test_a_silent_gateway_is_a_warning(cidrs: list[str]) -> None:
    """A silent gateway is a warning of `check`, which stays right, and only if addresses are
    expected.
    """
    host = FakeHost()
    connect(host.routes, eth0="10.224.0.4/16")
    arrange(host.routes, "default via 10.224.0.1 dev eth0")
    silence(host.link_layer, "eth0", "10.224.0.1")
    config = HostRoutingConfig.from_mapping(
        {"routeOverlap": {"expectedCidrs": cidrs, "mode": "STRICT"}}
    )
    report = check_node(Context(), config, host)
    assert report.ok
    assert [finding for finding in report.findings if finding.kind == "silent-gateway"] == (
        [SILENT] if cidrs else []
    )


@pytest.fixture
def pair() -> Iterator[tuple[KernelNode, KernelNode]]:
    """A node, and a router at the far end of its eth0, which has no address yet."""
    with KernelNode.made() as node, KernelNode.made() as router:
        node.ip(f"link add eth0 up type veth peer name eth0 netns {router.name}")
        router.ip("link set eth0 up")
        node.add_address("eth0", "10.224.0.4/16")
        node.ip("route append default via 10.224.0.1 dev eth0")
        # One question, and the kernel shows FAILED a second later.
        node.run("sysctl", "-qw", "net.ipv4.neigh.eth0.mcast_solicit=1")
        yield node, router


def router_findings(node: KernelNode) -> list[NodeFinding]:
    host = host_of(kernel_of(node), link_layer=NetlinkLinkLayer(netns=node.name))
    return [*silent_routers(Context(), host, ["eth0"])]


def state(node: KernelNode) -> str:
    return node.ip("neigh show 10.224.0.1").split()[-1]


@pytest.mark.slow
@needs_kernel
def test_one_packet_resolves_it_again(pair: tuple[KernelNode, KernelNode]) -> None:
    """A gateway that came back while the kernel has it as FAILED is resolved again by the check,
    and found right.
    """
    node, router = pair
    assert router_findings(node) == [SILENT]
    assert state(node) == "FAILED"
    router.add_address("eth0", "10.224.0.1/16")
    assert state(node) == "FAILED"
    assert router_findings(node) == []
    assert state(node) == "REACHABLE"


@pytest.mark.slow
@needs_kernel
def test_a_question_that_was_under_way(pair: tuple[KernelNode, KernelNode]) -> None:
    """A gateway that comes back between the last try of an earlier resolution and its end is
    resolved again by the check.
    """
    node, router = pair
    node.run("sysctl", "-qw", "net.ipv4.neigh.eth0.mcast_solicit=3")
    assert router_findings(node) == [SILENT]
    assert state(node) == "INCOMPLETE"
    router.add_address("eth0", "10.224.0.1/16")
    assert router_findings(node) == []


@needs_kernel
def test_a_wire_that_is_cut_is_another_finding(pair: tuple[KernelNode, KernelNode]) -> None:
    """A gateway by a device without carrier is not probed, as the check calls that a dead end."""
    node, router = pair
    router.set_up("eth0", up=False)
    assert router_findings(node) == []


PROGRAM = """
from hostrouting.exceptions import HostRoutingError
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from phases import Context
try:
    print(sorted(NetlinkLinkLayer().silent(Context(), [("eth0", "10.224.0.1")])))
except HostRoutingError as error:
    print(error)
"""


@pytest.mark.slow
@needs_kernel
def test_it_needs_no_privilege(pair: tuple[KernelNode, KernelNode]) -> None:
    """The probe of a gateway needs no privilege, as any user may send a datagram."""
    node, router = pair
    assert node.run(*powerless(), sys.executable, "-c", PROGRAM) == "[('eth0', '10.224.0.1')]\n"
    router.add_address("eth0", "10.224.0.1/16")
    assert node.run(*powerless(), sys.executable, "-c", PROGRAM) == "[]\n"


@needs("kernel", "nft")
def test_a_packet_filter_may_refuse(pair: tuple[KernelNode, KernelNode]) -> None:
    """A gateway to which a packet filter refuses the datagram counts as not probed, and that is
    logged.
    """
    node, _ = pair
    node.run(
        "nft",
        "add table ip t; add chain ip t o { type filter hook output priority 0; policy drop; }",
    )
    refusal = "a datagram to 10.224.0.1 through eth0 is not permitted; its answer is unknown\n"
    assert node.run(sys.executable, "-c", PROGRAM) == refusal
