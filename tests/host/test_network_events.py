"""The contract of `NetworkEvents` on the fake and on the kernel, and facts that only the kernel can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.kernel import needs_kernel

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.testing import KernelNode, MemoryBackend, MemoryEvents
from hostrouting.testing.contracts import NetworkEventsContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import NetworkEvents, RouteBackend
    from hostrouting.testing import Node


class TestMemoryEvents(NetworkEventsContract):
    """The fake."""

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        assert isinstance(node, MemoryBackend)
        return node

    @pytest.fixture
    def events(self, node: Node) -> NetworkEvents:
        assert isinstance(node, MemoryBackend)
        return node.events

    @pytest.fixture
    def other(self) -> Node:
        return MemoryBackend()

    @pytest.fixture
    def most(self, events: NetworkEvents) -> int:
        assert isinstance(events, MemoryEvents)
        events.most = 3
        return 4


@needs_kernel
class TestNetlinkEvents(NetworkEventsContract):
    """The kernel."""

    @pytest.fixture
    def node(self) -> Iterator[KernelNode]:
        with KernelNode.made() as node:
            yield node

    @pytest.fixture
    def backend(self, node: Node) -> RouteBackend:
        assert isinstance(node, KernelNode)
        return NetlinkBackend(netns=node.name)

    @pytest.fixture
    def events(self, node: Node) -> NetworkEvents:
        assert isinstance(node, KernelNode)
        return NetlinkEvents(netns=node.name)

    @pytest.fixture
    def other(self) -> Iterator[Node]:
        with KernelNode.made() as other:
            yield other

    @pytest.fixture
    def most(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr("hostrouting.host.netlink.events._MOST_BYTES", 5 * 60)
        return 6
