"""A node's IPv4 routing in memory: the fake that earns its place by passing the kernel's own contract suite."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from hostrouting.host.netlink.route_commit import commit_routes
from hostrouting.testing.admission import shown, shown_path
from hostrouting.testing.faults import OneByOne, Operations, Refused
from hostrouting.testing.memory_node import MemoryNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host.netlink.commit import AnyRoute
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule

__all__ = ["MemoryBackend"]


class MemoryBackend(MemoryNode):
    """A `RouteBackend` without a kernel, with the node's links, addresses, foreign routes and rules in your hands.

    >>> node = MemoryBackend()
    >>> node.add_link("eth0")
    >>> node.add_address("eth0", "10.224.0.4/16")
    >>> node.add_route("default", gateway="10.224.0.1", dev="eth0")
    >>> for route in node.routes():
    ...     if route.table == 254:
    ...         print(route)
    default via 10.224.0.1 dev eth0
    10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4

    It refuses each change that the kernel refuses, with the kernel's errno and words. `fail_at` lets a change fail, and
    `steps.plan` lets another program act within a batch. `events` announces every change. A feature that it does not
    model (nexthop objects, for example) raises ValueError.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The steps of batches, those of rollbacks counted in.
        self.steps: Operations = Operations()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.fib.devices)})"

    def links(self) -> list[Device]:
        """See `RouteBackend.links`."""
        return self.fib.links()

    def routes(self) -> list[ObservedRoute]:
        """See `RouteBackend.routes`."""
        return list(map(shown, self.fib.tables))

    def routes_of(self, protocol: int) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        return [shown(route) for route in self.fib.tables if route.protocol == protocol]

    def rules(self) -> list[Rule]:
        """See `RouteBackend.rules`."""
        return self.fib.rules()

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """See `RouteBackend.lookup`."""
        answers = self.fib.lookup(destinations, sources=sources, resolve=resolve)
        cleaned = shown_path if resolve else shown
        return [answer._replace(route=answer.route and cleaned(answer.route)) for answer in answers]

    def apply(
        self,
        changes: Sequence[RouteChange],
        *,
        verify: bool = True,
        standing: Sequence[ObservedRoute] | None = None,
    ) -> None:
        """Make all the changes, in their order, or none of them."""
        transport: OneByOne[AnyRoute] = OneByOne(self.steps, self.take, self.routes)
        commit_routes(transport, changes, devices=self.fib.devices, verify=verify, standing=standing)

    def fail_at(self, step: int, *, number: int = errno.ENOBUFS) -> None:
        """Refuse the `step`-th change from now (1 is the next), those of a rollback counted in."""
        self.steps.fail(step, Refused(number, "injected fault"))
