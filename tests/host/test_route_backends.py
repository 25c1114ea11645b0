"""The contract of `RouteBackend`, on each of its implementations."""

from collections.abc import Iterator

import pytest
from support.contracts.kernel_routes import KernelRoutesContract
from support.kernel import DummyNode, needs_kernel
from support.needs import needs

from hostrouting.host import RouteBackend
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.net.addresses import IPV4
from hostrouting.testing import KernelNode, MemoryBackend, Node
from hostrouting.testing.contracts.routes import MULTIPATH


class TestMemoryBackend(KernelRoutesContract):
    """The model that needs no kernel."""

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        assert isinstance(node, MemoryBackend)
        return node


class OnTheKernel(KernelRoutesContract):
    """The contract in a new network namespace."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    def test_a_dead_next_hop_is_seen(self, eth0: Node, backend: RouteBackend) -> None:
        """A next hop whose device is down is dead, and still the same next hop."""
        eth0.insert_route(MULTIPATH[IPV4])
        eth0.set_up("ib0", up=False)
        [found] = [one for one in backend.routes() if one.network >> 24 == 9]
        assert [(hop.dev, hop.dead) for hop in found.nexthops] == [("eth0", False), ("ib0", True)]
        assert found.nexthops == MULTIPATH[IPV4].nexthops


@needs_kernel
class TestNetlinkBackend(OnTheKernel):
    """Packed messages."""

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        assert isinstance(node, KernelNode)
        return NetlinkBackend(netns=node.name)


@needs("kernel", "dummy")
@pytest.mark.other_kernel
class TestOnDummies(TestNetlinkBackend):
    """The same on devices of the type `dummy`."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with DummyNode.made() as node:
            yield node


@needs_kernel
class TestPyroute2Backend(OnTheKernel):
    """pyroute2's messages."""

    @pytest.fixture
    def backend(self, node: Node) -> Iterator[RouteBackend]:
        # pyroute2 takes long to import, and only these tests need it.
        from pyroute2 import NetNS

        assert isinstance(node, KernelNode)
        with NetNS(node.name, flags=0) as netns:
            yield Pyroute2Backend(netns)
