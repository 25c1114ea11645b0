"""Complete the routes of a config from the node's IPv4 default routes. Pure; nothing here waits."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.net.addresses import IPV4, Address
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import NextHop, ObservedRoute, Route, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.net.routes import Place

__all__ = ["Resolution", "Unresolved", "place_of", "resolve"]


class Unresolved(NamedTuple):
    """A route of the config that cannot be completed now, with the reason."""

    route: StaticRoute
    reason: str


@attrs.frozen(kw_only=True)
class Resolution:
    """The routes of the config that are complete, and the routes that are not."""

    routes: tuple[Route, ...]
    missing: tuple[Unresolved, ...]
    #: The values that were taken from the default route, in words, each once.
    looked_up: tuple[str, ...]

    @property
    def reasons(self) -> str:
        """The reasons why routes are not complete, each once."""
        return "; ".join(dict.fromkeys(reason for _, reason in self.missing))


def resolve(routes: Sequence[StaticRoute], observed: Iterable[ObservedRoute]) -> Resolution:
    """Complete the routes of a config from the default routes in `observed`, which are in the kernel's order.

    A route without `dev` gets the device of the first next hop that is not dead. A route without `gateway` gets the
    gateway of the first next hop on its device, dead or not: the kernel decides about routes over a device that is
    down. If that next hop has no gateway (`default dev ppp0`), the route has none: every address is on such a link.
    """
    hops = [hop for route in default_routes(observed) for hop in route.hops]
    alive = next((hop.dev for hop in hops if not hop.dead), None)
    found: list[Route] = []
    missing: list[Unresolved] = []
    looked_up: dict[str, None] = {}
    for route in routes:
        dev = route.dev or alive
        if dev is None:
            missing.append(Unresolved(route, "table main has no IPv4 default route"))
            continue
        if route.gateway is not None:
            hop = _named_hop(route.gateway, dev)
        else:
            on_device = [hop for hop in hops if hop.dev == dev and (hop.gateway is None or hop.gateway.family == IPV4)]
            if not on_device:
                missing.append(Unresolved(route, f"no IPv4 default route leaves by {dev}, so it has no gateway there"))
                continue
            hop = on_device[0]
        if route.dev is None or route.gateway is None:
            looked_up[_in_words(route, hop, several=len(hops) > 1)] = None
        network, prefix_length = route.prefix
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


def place_of(route: StaticRoute) -> Place:
    """Return the place of a route of the config, which it has before it is complete."""
    return place(ObservedRoute(*route.prefix, metric=route.metric))


# Thousands of routes name the same few next hops.
@lru_cache(64)
def _named_hop(gateway: str, dev: str) -> NextHop:
    return NextHop(Address.parse(gateway), dev)


def _in_words(route: StaticRoute, hop: NextHop, *, several: bool) -> str:
    gateway = "no gateway" if hop.gateway is None else f"gateway {hop.gateway}"
    taken = [f"dev {hop.dev}"] if route.dev is None else []
    taken += [gateway if route.dev is None else f"{gateway} for dev {hop.dev}"] if route.gateway is None else []
    return " and ".join(taken) + (" (the first of several next hops)" if several else "")
