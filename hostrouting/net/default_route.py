"""The default routes of a node, which complete routes and give the expected devices.

Both boot scripts read them alike: `own_defaults` in `boot/assets/shared.sh`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute, preference

if TYPE_CHECKING:
    from collections.abc import Iterable


def default_routes(observed: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the default routes of table main that send packets by a device, best first.

    The lowest metric decides, then the highest router preference, then the order of `observed`.

    Excluded are routes owned by hostrouting, since these complete them; routes for a type of
    service or for packets from one prefix, which decide few packets; and expired ones.
    """
    # By position, which is faster: this line runs for each route of a full table.
    return sorted((route for route in observed if route[1] == 0 and _is_usual(route)), key=_rank)


def default_route(observed: Iterable[ObservedRoute]) -> ObservedRoute | None:
    """Return the default route that the kernel takes: the first with a next hop that is not dead.

    The kernel marks a next hop without carrier as dead only if `ignore_routes_with_linkdown` is
    set.
    """
    alive = (route for route in default_routes(observed) if not all(hop.dead for hop in route.hops))
    return next(alive, None)


def best_default_devs(observed: Iterable[ObservedRoute]) -> tuple[str, ...]:
    """Return the devices of the best default routes without duplicates, in the order of `observed`.

    There are several if such a route has several next hops, or several routes are equal.
    """
    hops = ((_rank(route), hop) for route in default_routes(observed) for hop in route.hops)
    alive = [(rank, hop.dev) for rank, hop in hops if not hop.dead]
    return tuple(dict.fromkeys(dev for rank, dev in alive if rank == alive[0][0]))


def expected_exit(ipv4: Iterable[ObservedRoute], ipv6: Iterable[ObservedRoute]) -> tuple[str, ...]:
    """Return the device by which IPv6 should leave; empty if it is unknown.

    It is that of the best IPv4 default route. If there are several devices or none, it is the one
    that all IPv6 default routes share.
    """
    by_ipv6 = {hop.dev for route in default_routes(ipv6) for hop in route.hops if not hop.dead}
    return next((devs for devs in (best_default_devs(ipv4), tuple(by_ipv6)) if len(devs) == 1), ())


def _is_usual(route: ObservedRoute) -> bool:
    for_all_packets = route.table == MAIN_TABLE and not route.tos and route.from_prefix is None
    is_usable = route.expires >= 0 and route.kind == "unicast"
    return for_all_packets and is_usable and route.protocol != OUR_PROTOCOL


def _rank(route: ObservedRoute) -> tuple[int, int]:
    """Return the kernel's sort key among default routes of a family: the least decides."""
    return route.metric, -preference(route)
