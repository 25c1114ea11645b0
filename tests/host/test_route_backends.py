"""The contract of `RouteBackend`, on each of its implementations."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from support.contracts.kernel_routes import KernelRoutesContract
from support.kernel import DummyNode, needs_kernel, without_net_admin
from support.needs import needs

from hostrouting import RouteBackend
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.pyroute import Pyroute2Backend
from hostrouting.testing import KernelNode, MemoryBackend


class TestMemoryBackend(KernelRoutesContract):
    """The model that needs no kernel, and so reaches its node always."""

    test_every_failure_is_a_backend_error: Any = None
    test_the_nexthop_object_of_a_route_is_kept: Any = None

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: Any) -> Any:
        return node

    @pytest.fixture
    def denied(self, node: Any) -> Any:
        node.refuse_at(1, number=errno.EPERM)
        return node


class OnTheKernel(KernelRoutesContract):
    """The contract in a new network namespace."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    @pytest.fixture
    def denied(self, backend: RouteBackend) -> Iterator[RouteBackend]:
        with without_net_admin():
            yield backend


@needs_kernel
class TestNetlinkBackend(OnTheKernel):
    """Packed messages."""

    @pytest.fixture
    def backend(self, node: Any) -> RouteBackend:
        return NetlinkBackend(netns=node.name)

    @pytest.fixture
    def failing(self) -> RouteBackend:
        return NetlinkBackend(netns="hostrouting-absent")


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
    def backend(self, node: Any) -> Iterator[RouteBackend]:
        # pyroute2 takes long to import, and only these tests need it.
        from pyroute2 import NetNS

        with NetNS(node.name, flags=0) as netns:
            yield Pyroute2Backend(netns)

    @pytest.fixture
    def failing(self, node: Any) -> RouteBackend:
        from pyroute2 import NetNS

        closed = NetNS(node.name, flags=0)
        closed.close()
        return Pyroute2Backend(closed)
