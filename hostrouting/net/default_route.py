"""The node's own IPv4 default routes: the one definition, by which routes are completed and devices are expected.

Both boot scripts read them alike: `own_defaults` in `boot/assets/shared.sh`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.routes import FLAG_DEAD, MAIN_TABLE, OUR_PROTOCOL, NextHop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.net.routes import ObservedRoute

__all__ = ["default_route", "default_routes", "next_hops"]


def default_routes(observed: Iterable[ObservedRoute]) -> Iterator[ObservedRoute]:
    """The IPv4 default routes of table main that send packets by a device: the lowest metric first.

    One that carries our own mark cannot be what we go by, and one for a type of service is for few packets.
    """
    for route in observed:
        if route[1] == 0 and _is_own_default(route):  # by position, for this line meets every route of a full table
            yield route


def default_route(observed: Iterable[ObservedRoute]) -> ObservedRoute | None:
    """The default route that the kernel takes: the first that has a next hop which is not dead."""
    return next((route for route in default_routes(observed) if not all(hop.dead for hop in next_hops(route))), None)


def next_hops(route: ObservedRoute) -> tuple[NextHop, ...]:
    """All next hops of a route, be it one."""
    if route.nexthops or route.dev is None:
        return route.nexthops
    dead = bool(route.flags & FLAG_DEAD)
    return (NextHop(route.gateway, route.dev, onlink=route.onlink, extra=route.extra, dead=dead),)


def _is_own_default(route: ObservedRoute) -> bool:
    is_everybodys = route.table == MAIN_TABLE and not route.tos
    return is_everybodys and route.kind == "unicast" and route.protocol != OUR_PROTOCOL
