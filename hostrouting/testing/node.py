"""What a test may do to a node, in memory or in a namespace: the handles that `RouteBackendContract` turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hostrouting.net.routes import MAIN_TABLE, Route

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.net.rules import Rule

__all__ = ["Node"]

_BOOT = 3


class Node(Protocol):
    """A node in a test's hands. What the kernel would refuse is a `BackendError`."""

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """A new device, without addresses."""

    def remove_link(self, name: str) -> None:
        """The device goes, and every route over it with it, multipath routes too."""

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Set the device up or down.

        Down takes its routes, but for those of its own addresses; up brings back only the kernel's own, and the legs
        of multipath routes.
        """

    def set_group(self, dev: str, group: int) -> None:
        """`ip link set group`: the group of a device, by which rules suppress routes."""

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """`ip address add`: the address as CIDR, `peer` the far end of a point-to-point link."""

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """The address goes, with the routes that the kernel made for it and those in main that send from it.

        Its secondaries go first; and when it was the device's last, so does every route over the device.
        """

    def add_neighbour(self, dev: str, address: str) -> None:
        """`ip neigh add`: a peer on the link whose hardware address is known; it goes when the device goes down."""

    def insert_route(self, route: Route, *, append: bool = False, replace: bool = False) -> None:
        """Somebody else's route in its full description: `ip route add`, `append` or `replace`."""

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """Somebody else deletes a route."""

    def add_rule(self, rule: Rule) -> None:
        """`ip rule add`."""

    def remove_rule(self, rule: Rule) -> None:
        """`ip rule delete`: the first rule that fits; a selector that is left out fits any."""

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
        """`ip route append`: a route of somebody else's, by its text; `default` is a destination."""
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
        self.insert_route(route, append=True)
