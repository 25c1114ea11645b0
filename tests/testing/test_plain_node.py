"""The answers of the fake by itself, and the decisions that it leaves to a kernel."""

from collections.abc import Callable

import attrs
import pytest
from support.kernel import connect

from hostrouting.exceptions import BackendError
from hostrouting.fib import UnknownDecisionError
from hostrouting.host import IPV4, IPV6, Encapsulation
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import MULTIPATH, arrange, competing_routes, in_order
from hostrouting.testing.route_texts import route


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    node.add_address("eth0", "fd00:1::4/64")
    return node


@pytest.mark.parametrize(
    "act",
    [
        lambda node: node.set_up("ib0", up=False),
        lambda node: node.remove_link("ib0"),
        lambda node: node.remove_address("eth0", "10.224.0.4/16"),
        lambda node: arrange(node, "fd00:9::/32 via fd00:1::8 dev eth0 metric 1024"),
        lambda node: arrange(node, "8.0.0.0/8 via 10.224.0.4 dev eth0"),
        lambda node: arrange(node, "fd00:8::/32 via fd00:1::4 dev eth0 metric 1024"),
        lambda node: node.delete_route(node.routes()[-1]),
    ],
    ids=[
        "next hop",
        "removed device",
        "secondary",
        "merged",
        "own gateway",
        "own IPv6 gateway",
        "local route",
    ],
)
def test_what_only_a_kernel_can_answer(
    node: MemoryBackend, act: Callable[[MemoryBackend], None]
) -> None:
    """A change whose result only a kernel decides raises an error that names the node for it, and
    changes nothing.
    """
    node.insert_route(MULTIPATH[IPV4])
    node.add_address("eth0", "10.224.0.5/16")
    arrange(node, "fd00:9::/32 via fd00:1::9 dev eth0 metric 1024")
    before = [*node.routes(), *node.routes(10)]
    with pytest.raises(
        UnknownDecisionError, match=r"^only a kernel can answer .*: test it on a .*KernelNode$"
    ):
        act(node)
    assert [*node.routes(), *node.routes(10)] == before


def test_an_address_brings_its_routes(node: MemoryBackend) -> None:
    """An address adds its routes as in the kernel: a /31 has no broadcast, a secondary address is
    local only, and a peer has a route unless it is an address of the device itself. Addresses can
    be removed in any order.
    """
    connect(node, e1="10.9.0.0/31", e2="10.8.0.1/24")
    node.add_address("e2", "10.8.0.2/24")
    node.add_address("e2", "10.7.0.1/32", peer="10.7.0.2")
    node.add_address("e1", "10.7.0.2/32")
    node.add_address("e1", "10.7.0.1/32", peer="10.7.0.2")
    assert sorted(
        (route.dev, route.kind, route.destination)
        for route in node.routes()
        if route.dev in ("e1", "e2")
    ) == [
        ("e1", "local", "10.7.0.1/32"),
        ("e1", "local", "10.7.0.2/32"),
        ("e1", "local", "10.9.0.0/32"),
        ("e1", "unicast", "10.9.0.0/31"),
        ("e2", "broadcast", "10.8.0.255/32"),
        ("e2", "local", "10.7.0.1/32"),
        ("e2", "local", "10.8.0.1/32"),
        ("e2", "local", "10.8.0.2/32"),
        ("e2", "unicast", "10.7.0.2/32"),
        ("e2", "unicast", "10.8.0.0/24"),
    ]
    # No secondary address is left without its primary one.
    node.remove_address("e2", "10.7.0.1/32", peer="10.7.0.2")
    node.remove_address("e2", "10.8.0.2/24")


def test_a_source_that_another_device_has(node: MemoryBackend) -> None:
    """A route with a source is removed with the last device that has the address."""
    connect(node, eth1="172.16.1.4/24")
    arrange(node, text := "9.0.0.0/8 dev eth0 scope link src 172.16.1.4")
    node.remove_address("ib0", "172.16.1.4/16")
    assert competing_routes(node) == in_order(text)
    node.remove_address("eth1", "172.16.1.4/24")
    assert competing_routes(node) == []


def test_a_device_that_is_made_again_has_carrier(node: MemoryBackend) -> None:
    """A device that is added again under an old name has a carrier."""
    node.add_link("tun0", carrier=False)
    node.remove_link("tun0")
    node.add_link("tun0")
    assert [link.carrier for link in node.links() if link.name == "tun0"] == [True]


def test_a_route_replaces_itself(node: MemoryBackend) -> None:
    """A replacement by the first route of a place is accepted, as by the kernel, and one by a route
    behind another is refused.
    """
    first, second = (f"9.0.0.0/8 via 10.224.0.{last} dev eth0" for last in (9, 8))
    arrange(node, first, second)
    node.insert_route(route(first), verb="replace")
    with pytest.raises(BackendError, match="File exists"):
        node.insert_route(route(second), verb="replace")


def test_routes_of_ipv6_may_differ_by_their_tunnels(node: MemoryBackend) -> None:
    """Two IPv6 routes that differ by their tunnels are not duplicates."""
    for header in b"a", b"b":
        tunnel = Encapsulation(1, header)
        wanted = attrs.evolve(route("fd00:9::/48 dev eth0 metric 1"), encapsulation=tunnel)
        node.insert_route(wanted, verb="append")
    assert len(competing_routes(node, IPV6)) == 2
