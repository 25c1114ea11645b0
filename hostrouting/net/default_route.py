"""The default routes by which routes are completed and devices are expected: the one definition for both families.

Both boot scripts read them alike: `own_defaults` in `boot/assets/shared.sh`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.net.routes import ObservedRoute

__all__ = ["default_route", "default_routes"]


def default_routes(observed: Iterable[ObservedRoute]) -> Iterator[ObservedRoute]:
    """Return the default routes of table main that send packets by a device, in the order of `observed`.

    Routes owned by hostrouting do not count: routes are completed from these. Nor do routes for a type of service or
    for packets from one prefix, which decide few packets. The kernel's order is by metric.
    """
    for route in observed:
        if route[1] == 0 and _is_usual(route):  # by position, because this line meets every route of a full table
            yield route


def default_route(observed: Iterable[ObservedRoute]) -> ObservedRoute | None:
    """Return the default route that the kernel takes: the first with a next hop that is not dead.

    The kernel marks a next hop without carrier as dead only if `ignore_routes_with_linkdown` is set.
    """
    return next((route for route in default_routes(observed) if not all(hop.dead for hop in route.hops)), None)


def _is_usual(route: ObservedRoute) -> bool:
    for_all_packets = route.table == MAIN_TABLE and not route.tos and route.from_prefix is None
    return for_all_packets and route.kind == "unicast" and route.protocol != OUR_PROTOCOL
