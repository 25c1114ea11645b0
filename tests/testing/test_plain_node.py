"""What the fake answers by itself, and what it leaves to a kernel."""

from collections.abc import Callable

import pytest

from hostrouting.exceptions import BackendError
from hostrouting.fib import UnknownDecisionError
from hostrouting.net.addresses import Address
from hostrouting.net.routes import NextHop, Route
from hostrouting.testing import MemoryBackend

TWO_WAYS = Route(
    network=9 << 24,
    prefix_length=8,
    nexthops=(NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0")),
)


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    for dev, address in ("eth0", "10.224.0.4/16"), ("ib0", "172.16.1.4/16"):
        node.add_link(dev)
        node.add_address(dev, address)
    node.add_address("eth0", "fd00:1::4/64")
    return node


def shown(node: MemoryBackend) -> list[str]:
    """Return the foreign routes."""
    return [str(route) for route in node.routes() if route.protocol != 2]


@pytest.mark.parametrize(
    "act",
    [
        lambda node: node.set_up("ib0", up=False),
        lambda node: node.remove_link("ib0"),
        lambda node: node.remove_address("eth0", "10.224.0.4/16"),
        lambda node: node.add_route("fd00:9::/32", gateway="fd00:1::8", dev="eth0"),
        lambda node: node.add_route("8.0.0.0/8", gateway="10.224.0.4", dev="eth0"),
        lambda node: node.delete_route(node.routes()[-1]),
    ],
    ids=["next hop", "removed device", "secondary", "merged", "own gateway", "local route"],
)
def test_what_only_a_kernel_can_answer(
    node: MemoryBackend, act: Callable[[MemoryBackend], None]
) -> None:
    """The error names the node that can answer, and nothing changed."""
    node.insert_route(TWO_WAYS)
    node.add_address("eth0", "10.224.0.5/16")
    node.add_route("fd00:9::/32", gateway="fd00:1::9", dev="eth0")
    before = [*node.routes(), *node.routes(10)]
    with pytest.raises(
        UnknownDecisionError, match=r"^only a kernel can answer .*: test it on a .*KernelNode$"
    ):
        act(node)
    assert [*node.routes(), *node.routes(10)] == before


def test_a_source_that_another_device_has(node: MemoryBackend) -> None:
    """A route from an address goes with the last device that has it."""
    node.add_link("eth1")
    node.add_address("eth1", "172.16.1.4/24")
    node.add_route("9.0.0.0/8", dev="eth0", source="172.16.1.4")
    node.remove_address("ib0", "172.16.1.4/16")
    assert shown(node) == ["9.0.0.0/8 dev eth0 scope link src 172.16.1.4"]
    node.remove_address("eth1", "172.16.1.4/24")
    assert shown(node) == []


def test_a_device_that_is_made_again_has_carrier(node: MemoryBackend) -> None:
    """Its name is all that it has of the old one."""
    node.add_link("tun0", carrier=False)
    node.remove_link("tun0")
    node.add_link("tun0")
    assert [link.carrier for link in node.links() if link.name == "tun0"] == [True]


def test_a_route_replaces_itself(node: MemoryBackend) -> None:
    """The kernel takes the first route of a place again, and refuses one that stands behind
    another.
    """
    for gateway in "10.224.0.9", "10.224.0.8":
        node.add_route("9.0.0.0/8", gateway=gateway, dev="eth0")
    first, second = (route.to_route() for route in node.routes() if route.network == 9 << 24)
    node.insert_route(first, verb="replace")
    with pytest.raises(BackendError, match="File exists"):
        node.insert_route(second, verb="replace")


def test_a_gateway_behind_another_gateway_is_refused(node: MemoryBackend) -> None:
    """It is on no link."""
    node.add_route("192.0.2.0/24", gateway="10.224.0.9", dev="eth0")
    with pytest.raises(BackendError, match="Nexthop has invalid gateway"):
        node.add_route("8.0.0.0/8", gateway="192.0.2.1", dev="eth0")
