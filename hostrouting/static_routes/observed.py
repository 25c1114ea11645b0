"""The routes of a node that a config concerns, and its own, completed from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.addresses import IPV6
from hostrouting.net.exits import Exits, working
from hostrouting.net.routes import OUR_PROTOCOL, ObservedRoute, Route
from hostrouting.static_routes.reconcile import Resolution, Routes, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.addresses import Address


def read(routing: RouteBackend, wanted: Iterable[StaticRoute | Route | ObservedRoute]) -> Routes:
    """Return all IPv4 routes, and all IPv6 routes if any is wanted, else those of hostrouting.

    A route by an IPv6 gateway needs the networks of this family, too.
    """
    routes = routing.routes()
    if IPV6 not in routing.families:
        return routes
    if any(route.family == IPV6 or _is_ipv6(route.gateway) for route in wanted):
        return [*routes, *routing.routes(IPV6)]
    return [*routes, *routing.routes_of(OUR_PROTOCOL, IPV6)]


def _is_ipv6(gateway: Address | str | None) -> bool:
    return gateway is not None and ":" in str(gateway)


def resolved(
    routes: Sequence[StaticRoute], observed: Routes, routing: RouteBackend, pinned: Exits
) -> Resolution:
    """Complete routes from the default routes in `observed`, by the pinned exits that work."""
    links = routing.links()
    return resolve(routes, observed, working(pinned, links, observed), links)
