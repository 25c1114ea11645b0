"""A custom backend: it counts the calls and passes them to another backend.

A `RouteBackend` has six methods over the values of hostrouting, so backends can wrap each other.
Its `families` names the address families: a backend of `(IPV4,)` skips the tests of IPv6, and
refuses a config with IPv6. The contract suite tests a class:

    pytest examples/custom_backend.py
"""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from hostrouting.host import IPV4
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts import RouteBackendContract

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Device, Lookup, ObservedRoute, RouteBackend, RouteChange, Rule


class CountingBackend:
    """A backend around another one, with the number of calls of each method."""

    def __init__(self, inner: RouteBackend) -> None:
        self.inner = inner
        self.families = inner.families
        self.calls: Counter[str] = Counter()

    def links(self) -> list[Device]:
        """See `RouteBackend.links`."""
        self.calls["links"] += 1
        return self.inner.links()

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes`."""
        self.calls["routes"] += 1
        return self.inner.routes(family)

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        self.calls["routes_of"] += 1
        return self.inner.routes_of(protocol, family)

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `RouteBackend.rules`."""
        self.calls["rules"] += 1
        return self.inner.rules(family)

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """See `RouteBackend.lookup`."""
        self.calls["lookup"] += len(destinations)
        return self.inner.lookup(destinations, sources=sources, resolve=resolve, family=family)

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """See `RouteBackend.apply`."""
        self.calls["apply"] += 1
        self.inner.apply(changes, verify=verify)


class TestCountingBackend(RouteBackendContract):
    """The tests that the kernel passes, too."""

    @pytest.fixture
    def node(self) -> MemoryBackend:
        """Return the node that the tests arrange."""
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: MemoryBackend) -> RouteBackend:
        """Return the backend that they test."""
        return CountingBackend(node)

    @pytest.fixture
    def failing(self) -> RouteBackend:
        """Return a backend that reaches no node, whose errors they test."""
        return CountingBackend(NetlinkBackend(netns="absent"))

    @pytest.fixture
    def denied(self, node: MemoryBackend) -> RouteBackend:
        """Return a backend whose changes lack the privilege."""
        node.refuse_at(1, number=errno.EPERM)
        return CountingBackend(node)


if __name__ == "__main__":
    counting = CountingBackend(MemoryBackend())
    counting.lookup([0x0A000001, 0x0A000002])
    print(dict(counting.calls))
