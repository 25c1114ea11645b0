"""What a route leaves open is looked up from the node's IPv4 default routes; pure, and without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.addresses import format_ipv4, parse_cidr, parse_ipv4
from hostrouting.host.routes import FLAG_DEAD, MAIN_TABLE, OUR_PROTOCOL, NextHop, ObservedRoute, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.config import StaticRoute

__all__ = ["Resolution", "Unresolved", "default_hops", "resolve"]

#: The attribute of a next hop whose gateway is of the other family (`via inet6 fe80::1`).
_RTA_VIA: Final = 18


class Unresolved(NamedTuple):
    """A route of the config that cannot be completed now, and why."""

    route: StaticRoute
    reason: str


@attrs.frozen(kw_only=True)
class Resolution:
    """Every route of the config that is complete, and every one that is not."""

    routes: tuple[Route, ...]
    missing: tuple[Unresolved, ...]
    #: What was taken from the default route, in words, each once.
    looked_up: tuple[str, ...]

    @property
    def reasons(self) -> str:
        """Why something is missing, each reason once."""
        return "; ".join(dict.fromkeys(reason for _, reason in self.missing))


def default_hops(observed: Iterable[ObservedRoute]) -> list[NextHop]:
    """The next hops of all IPv4 default routes of table main: lowest metric first, else in the kernel's order.

    A route that carries our own mark cannot be what we go by, and one for a type of service is for few packets. A next
    hop that is dead the kernel does not use either.
    """
    hops: list[NextHop] = []
    for route in observed:
        if route.prefix_length or route.table != MAIN_TABLE or route.tos or route.kind != "unicast":
            continue
        if route.protocol == OUR_PROTOCOL:
            continue
        if route.nexthops:
            hops += [hop for hop in route.nexthops if not hop.dead]
        elif route.dev is not None and not route.flags & FLAG_DEAD:
            hops.append(NextHop(route.gateway, route.dev, onlink=route.onlink, extra=route.extra))
    return hops


def resolve(routes: Sequence[StaticRoute], observed: Iterable[ObservedRoute]) -> Resolution:
    """Complete the routes of a config from the default routes in `observed`, which are in the kernel's order.

    An empty `dev` is that of the first next hop; an empty `gateway` that of the first next hop on the device. Where
    this one has none (`default dev ppp0`), neither has the route: whatever lies behind such a link is on it.
    """
    hops = default_hops(observed)
    found: list[Route] = []
    missing: list[Unresolved] = []
    looked_up: dict[str, None] = {}
    named: dict[tuple[str, str], NextHop] = {}
    for route in routes:
        if route.dev is None and not hops:
            missing.append(Unresolved(route, "table main has no IPv4 default route"))
            continue
        dev = hops[0].dev if route.dev is None else route.dev
        if route.gateway is not None:
            hop = named.get((route.gateway, dev)) or NextHop(parse_ipv4(route.gateway), dev)
            named[route.gateway, dev] = hop
        else:
            on_device = [hop for hop in hops if hop.dev == dev and not _has_foreign_gateway(hop)]
            if not on_device:
                missing.append(Unresolved(route, f"no IPv4 default route leaves by {dev}, so it has no gateway there"))
                continue
            hop = on_device[0]
        if route.dev is None or route.gateway is None:
            looked_up[_in_words(route, hop, several=len(hops) > 1)] = None
        network, prefix_length = parse_cidr(route.destination)
        found.append(
            Route(
                network=network,
                prefix_length=prefix_length,
                gateway=hop.gateway,
                dev=dev,
                metric=route.metric,
                onlink=hop.onlink,
            )
        )
    return Resolution(routes=tuple(found), missing=tuple(missing), looked_up=tuple(looked_up))


def _has_foreign_gateway(hop: NextHop) -> bool:
    return any(number == _RTA_VIA for number, _ in hop.extra)


def _in_words(route: StaticRoute, hop: NextHop, *, several: bool) -> str:
    gateway = "no gateway" if hop.gateway is None else f"gateway {format_ipv4(hop.gateway)}"
    taken = [f"dev {hop.dev}"] if route.dev is None else []
    taken += [gateway if route.dev is None else f"{gateway} for dev {hop.dev}"] if route.gateway is None else []
    return " and ".join(taken) + (" (the first of several next hops)" if several else "")
