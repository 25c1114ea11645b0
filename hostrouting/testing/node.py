"""The handles of a node, in memory or in a namespace, that `RouteBackendContract` and other tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hostrouting.net.routes import MAIN_TABLE, Route

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.net.rules import Rule

__all__ = ["Node"]

_BOOT = 3


class Node(Protocol):
    """The handles of a node. If the kernel would refuse a call, it raises `BackendError`."""

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """Add a device without addresses."""

    def remove_link(self, name: str) -> None:
        """Remove a device with every route over it, multipath routes too."""

    def rename_link(self, name: str, new: str) -> None:
        """Rename a device; older kernels refuse one that is up."""

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Set the device up or down.

        Down removes its routes, but for those of its addresses. Up restores only the kernel's own routes, and the next
        hops of multipath routes.
        """

    def set_group(self, dev: str, group: int) -> None:
        """`ip link set group`: the group of a device, by which rules suppress routes."""

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Add an address, given as CIDR, as `ip address add` does; `peer` is the far end of a point-to-point link."""

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """Remove an address, with the kernel's routes for it and the routes in main that send from it.

        Its secondaries go first. With the last address of a device all its routes go.
        """

    def add_neighbour(self, dev: str, address: str) -> None:
        """Add a neighbour whose hardware address is known, as `ip neigh add` does; it goes with a down device."""

    def insert_route(self, route: Route, *, verb: str = "add") -> None:
        """Add a foreign route in its full description; `verb` is that of `ip route`.

        It is `add`, `prepend`, `append` or `replace`.
        """

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """Delete a route, as another program does."""

    def add_rule(self, rule: Rule) -> None:
        """Add a rule, as `ip rule add` does."""

    def remove_rule(self, rule: Rule) -> None:
        """Delete the first rule that fits, as `ip rule delete` does; a selector that is left out fits any."""

    def add_route(
        self,
        destination: str,
        *,
        gateway: str | None = None,
        dev: str | None = None,
        metric: int = 0,
        table: int = MAIN_TABLE,
        protocol: int = _BOOT,
        kind: str = "unicast",
        source: str | None = None,
    ) -> None:
        """Append a foreign route given as text, as `ip route append` does; `default` is a destination."""
        route = Route.parse(
            "0.0.0.0/0" if destination == "default" else destination,
            gateway=gateway,
            dev=dev,
            metric=metric,
            table=table,
            protocol=protocol,
            kind=kind,
            source=source,
        )
        self.insert_route(route, verb="append")
