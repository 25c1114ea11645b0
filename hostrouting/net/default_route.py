"""The default routes by which routes are completed and devices are expected: the one definition for both families.

Both boot scripts read them alike: `own_defaults` in `boot/assets/shared.sh`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.routes import MAIN_TABLE, OUR_PROTOCOL, ObservedRoute, preference

if TYPE_CHECKING:
    from collections.abc import Iterable


def default_routes(observed: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the default routes of table main that send packets by a device, the one that the kernel prefers first.

    The lowest metric decides, then the highest router preference, then the order of `observed`.

    Routes owned by hostrouting do not count: routes are completed from these. Nor do routes for a
    type of service or for packets from one prefix, which decide few packets; nor one that has
    expired.
    """
    # By position, because this line meets every route of a full table.
    return sorted((route for route in observed if route[1] == 0 and _is_usual(route)), key=_rank)


def default_route(observed: Iterable[ObservedRoute]) -> ObservedRoute | None:
    """Return the default route that the kernel takes: the first with a next hop that is not dead.

    The kernel marks a next hop without carrier as dead only if `ignore_routes_with_linkdown` is
    set.
    """
    return next(
        (route for route in default_routes(observed) if not all(hop.dead for hop in route.hops)),
        None,
    )


def best_default_devs(observed: Iterable[ObservedRoute]) -> tuple[str, ...]:
    """Return the devices of the default routes that the kernel prefers, each once, in the order of `observed`.

    There are several if such a route has several next hops, or several routes are equal.
    """
    alive = [
        (_rank(route), hop.dev)
        for route in default_routes(observed)
        for hop in route.hops
        if not hop.dead
    ]
    return tuple(dict.fromkeys(dev for rank, dev in alive if rank == alive[0][0]))


def expected_exit(ipv4: Iterable[ObservedRoute], ipv6: Iterable[ObservedRoute]) -> tuple[str, ...]:
    """Return the device by which IPv6 should leave; none if it is unknown.

    It is that of the IPv4 default route that decides. Where that may be one of several, or there is
    none, it is the one that all default routes of IPv6 name.
    """
    named = {hop.dev for route in default_routes(ipv6) for hop in route.hops if not hop.dead}
    return next((devs for devs in (best_default_devs(ipv4), tuple(named)) if len(devs) == 1), ())


def _is_usual(route: ObservedRoute) -> bool:
    for_all_packets = route.table == MAIN_TABLE and not route.tos and route.from_prefix is None
    return (
        for_all_packets
        and route.expires >= 0
        and route.kind == "unicast"
        and route.protocol != OUR_PROTOCOL
    )


def _rank(route: ObservedRoute) -> tuple[int, int]:
    """Return the sort key by which the kernel chooses among default routes of a family: the least decides."""
    return route.metric, -preference(route)
