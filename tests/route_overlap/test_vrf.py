"""A node with a VRF: the addresses of its devices bring their routes to another table than main."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.announced_fabrics import Announced, announcements, check_announced, report_under
from support.kernel import connect, kernel_of, node_with_vrf
from support.needs import needs
from support.node_worlds import World, announced_worlds

from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.testing import KernelNode

pytestmark = [needs("kernel", "vrf"), pytest.mark.other_kernel]

some_devices = st.sets(small_world.devices(), min_size=1)


@pytest.fixture
def node() -> Iterator[KernelNode]:
    """A node with its uplink, and the fabric's device in a VRF; that has no address yet."""
    with node_with_vrf(["e1"]) as made:
        connect(made, eth0="10.224.0.4/16")
        made.ip("route add default via 10.224.0.1")
        made.add_link("e1")
        yield made


def test_an_address_brings_its_routes_to_the_table_of_its_vrf(node: KernelNode) -> None:
    """An address of a device in a VRF adds its routes to the VRF's table alone, and a packet
    outside of the VRF leaves as before.
    """
    kernel = kernel_of(node)
    before = [str(route) for route in kernel.routes() if route.table != 10]
    node.add_address("e1", "172.16.1.4/16")
    assert [str(route) for route in kernel.routes() if route.table != 10] == before
    shown = {str(route) for route in kernel.routes() if route.table == 10}
    assert shown >= {
        "172.16.0.0/16 dev e1 table 10 proto kernel scope link src 172.16.1.4",
        "local 172.16.1.4 dev e1 table 10 proto kernel scope host src 172.16.1.4",
    }
    [answer] = kernel.lookup([parse_ipv4("172.16.8.1")])
    assert answer.route is not None
    assert answer.route.dev == "eth0"


def test_the_default_route_of_a_vrf_is_not_the_nodes(node: KernelNode) -> None:
    """No check expects the device of a default route in the table of a
    VRF.
    """
    node.ip("route delete default")
    node.ip("route add default dev e1 table 10")
    report = report_under(node, Fabric(), ["172.16.8.0/22"])
    assert report.expected_devs == ()
    assert not report.ok


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(world=announced_worlds(), announced=announcements, in_vrf=some_devices)
def test_nothing_is_missed(world: World, announced: Announced, in_vrf: set[str]) -> None:
    """Each address that the kernel of a node with a VRF loses with the fabric is found before."""
    with node_with_vrf(in_vrf) as node:
        announced.prepare(node)
        world.arrange(node)
        check_announced(node, announced, world.cidrs, allowed=world.allowed)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(world=announced_worlds(), in_vrf=some_devices)
def test_the_model_decides_packets_outside_of_vrfs(world: World, in_vrf: set[str]) -> None:
    """A lookup that names no device has the same answer from the kernel and from the model on a
    node with a VRF.
    """
    with node_with_vrf(in_vrf) as node:
        world.arrange(node)
        kernel = kernel_of(node)
        model = Fib.of(kernel.links(), kernel.routes(), kernel.rules())
        for place in small_world.places():
            with suppress(UnknownDecisionError):
                assert model.lookup([place]) == kernel.lookup([place])
