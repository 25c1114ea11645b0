"""One reading of a node's routing, by which several questions about one moment are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.host import Host
from hostrouting.net.addresses import IPV4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device
    from hostrouting.net.routes import Lookup, ObservedRoute, RouteChange
    from hostrouting.net.rules import Rule


class Reading:
    """A `RouteBackend` that reads routes, rules and devices once, and forgets them after a change.

    Lookups go to the kernel: a reading has no answer to them.
    """

    def __init__(self, backend: RouteBackend) -> None:
        self._backend = backend
        self.families: tuple[int, ...] = backend.families
        self._routes: dict[int, list[ObservedRoute]] = {}
        self._rules: dict[int, list[Rule]] = {}
        self._links: list[Device] | None = None

    def links(self) -> list[Device]:
        """See `Routing.links`."""
        if self._links is None:
            self._links = self._backend.links()
        return [*self._links]

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `Routing.routes`."""
        if family not in self._routes:
            self._routes[family] = self._backend.routes(family)
        return [*self._routes[family]]

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        if family not in self._routes:
            return self._backend.routes_of(protocol, family)
        return [route for route in self._routes[family] if route.protocol == protocol]

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `Routing.rules`."""
        if family not in self._rules:
            self._rules[family] = self._backend.rules(family)
        return [*self._rules[family]]

    def lookup(self, destinations: Sequence[int], **options: Any) -> list[Lookup]:
        """See `Routing.lookup`."""
        return self._backend.lookup(destinations, **options)

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """See `RouteBackend.apply`."""
        self._routes.clear()
        self._rules.clear()
        self._links = None
        self._backend.apply(changes, verify=verify)


def at_one_moment(host: Host) -> Host:
    """Return the host with one reading of its routing."""
    ports = {field.name: getattr(host, field.name) for field in attrs.fields(Host)}
    return Host(**{**ports, "routes": Reading(host.routes)})
