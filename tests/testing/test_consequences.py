"""The routes that go with a device or an address, unannounced: the model against the kernel."""

from collections.abc import Iterator

import attrs
import pytest
from support.kernel import needs_kernel

from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Address
from hostrouting.net.routes import NextHop, Route
from hostrouting.testing import KernelNode, MemoryBackend, Node, consequences

HOPS = (NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0"))


def fresh(node: MemoryBackend | NetlinkBackend) -> Fib:
    """Return the model of a node on which no rule was ever changed."""
    return attrs.evolve(Fib.of(node.links(), node.routes()), merged=True)


def furnish(node: Node) -> None:
    """Give a node two devices, and a route of each kind that an event removes."""
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_link("ib0")
    node.add_address("ib0", "172.16.1.4/16")
    node.add_address("ib0", "172.16.1.5/16")
    node.add_route("9.1.0.0/16", dev="ib0")
    node.add_route("9.2.0.0/16", dev="eth0", source="172.16.1.4")
    node.add_route("9.3.0.0/16", dev="eth0", source="172.16.1.4", table=100)
    node.insert_route(Route(network=9 << 24 | 4 << 16, prefix_length=16, nexthops=HOPS))


@pytest.fixture
def fib() -> Fib:
    node = MemoryBackend()
    furnish(node)
    return fresh(node)


def gone(before: Fib, after: Fib) -> list[str]:
    """Return the destinations of the routes that went."""
    kept = {str(route) for route in after.routes()}
    return [route.destination for route in before.routes() if str(route) not in kept]


def alive(fib: Fib) -> list[str]:
    """Return the devices of the multipath route's next hops that are alive."""
    [route] = [route for route in fib.routes() if route.nexthops]
    return [hop.dev for hop in route.nexthops if not hop.dead]


def test_a_device_that_goes_down_takes_its_routes(fib: Fib) -> None:
    """Its local routes stay, and of a multipath route its next hop dies, until the device is up again."""
    after = consequences.device_down(fib, "ib0")
    assert gone(fib, after) == ["9.1.0.0/16", "172.16.0.0/16", "172.16.255.255/32"]
    assert alive(after) == ["eth0"]
    assert alive(consequences.device_up(after, "ib0", carrier=True)) == ["eth0", "ib0"]


def test_a_multipath_route_goes_with_its_last_device(fib: Fib) -> None:
    """A route whose next hops are all dead is removed."""
    after = consequences.device_down(consequences.device_down(fib, "ib0"), "eth0")
    assert [route for route in after.routes() if route.nexthops] == []


def test_an_address_takes_the_routes_that_send_from_it(fib: Fib) -> None:
    """Those of the main table only; with the last address of a device its other routes go."""
    address = fib.devices["ib0"].addresses[0]
    after = consequences.address_removed(fib, "ib0", address)
    assert after.devices["ib0"].addresses == ()
    assert [route.destination for route in after.routes() if route.network >> 24 == 9] == ["9.3.0.0/16", "9.4.0.0/16"]
    assert [route.destination for route in after.routes() if "ib0" in route.devs] == ["9.4.0.0/16"]


def test_a_secondary_address_takes_its_local_route_only(fib: Fib) -> None:
    """The network's route belongs to the primary address."""
    after = consequences.address_removed(fib, "ib0", fib.devices["ib0"].addresses[1])
    assert gone(fib, after) == ["172.16.1.5/32"]


def test_a_removed_device_takes_everything_of_it(fib: Fib) -> None:
    """Multipath routes with one next hop on it go, too."""
    after = consequences.device_removed(fib, "ib0")
    assert [*after.devices] == ["lo", "eth0"]
    assert [route for route in after.routes() if "ib0" in route.devs] == []


@needs_kernel
class TestOnTheKernel:
    """The kernel does the same."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            furnish(node)
            yield node

    @pytest.mark.parametrize("event", ["down", "address", "secondary", "removed"])
    def test_the_kernel_removes_the_same_routes(self, node: KernelNode, event: str) -> None:
        """A reading before the event, changed as the model predicts, equals the reading after it."""
        backend = NetlinkBackend(netns=node.name)
        before = fresh(backend)
        primary, secondary = before.devices["ib0"].addresses
        if event == "down":
            node.set_up("ib0", up=False)
            after = consequences.device_down(before, "ib0")
        elif event == "removed":
            node.remove_link("ib0")
            after = consequences.device_removed(before, "ib0")
        else:
            text, address = {"address": ("172.16.1.4/16", primary), "secondary": ("172.16.1.5/16", secondary)}[event]
            node.remove_address("ib0", text)
            after = consequences.address_removed(before, "ib0", address)
        assert sorted(map(str, after.routes())) == sorted(map(str, backend.routes()))

    def test_a_secondary_address_without_the_local_route_of_its_primary(self, node: KernelNode) -> None:
        """The kernel adds no route for it, since the source of each would not be local."""
        memory = MemoryBackend()
        furnish(memory)
        kernel = NetlinkBackend(netns=node.name)
        local = next(route for route in kernel.routes() if str(route).startswith("local 172.16.1.4"))
        for world in memory, node:
            world.delete_route(local)
            world.add_address("ib0", "172.16.1.6/16")
        assert memory.routes() == kernel.routes()
        assert [str(route) for route in kernel.routes() if "172.16.1.6" in str(route)] == []


def test_a_gateway_of_the_nodes_own_is_not_known() -> None:
    """The kernel takes a route by its own address, and sends no packet there; the fake says that it does not know."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    with pytest.raises(UnknownDecisionError, match="does not know gateways that are the node's own"):
        node.add_route("172.16.0.0/16", gateway="10.224.0.4", dev="eth0")
    assert not [route for route in node.routes() if route.gateway]
