"""Complete the routes of a config, and compute the changes to them, in an order that the kernel accepts. Pure.

A config leaves to the default routes what it does not say. Nothing here waits.

The kernel lists routes by their place: table, destination, type of service and metric. The first route of a place that
is alive decides. A foreign route in our place stays where it is: ours is added before it and hides it, and when ours
is removed, it decides again.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.fib.model import resting
from hostrouting.net.addresses import IPV4, Address
from hostrouting.net.changes import RouteChange, is_deleted_by
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import FLAG_ONLINK, OUR_PROTOCOL, NextHop, ObservedRoute, Place, Route, place

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.net.routes import Place


class Unresolved(NamedTuple):
    """A route of the config that cannot be completed now, with the reason."""

    route: StaticRoute
    reason: str


@attrs.frozen(kw_only=True)
class Resolution:
    """The routes of the config that are complete, and the routes that are not."""

    routes: tuple[Route, ...]
    missing: tuple[Unresolved, ...]

    @property
    def reasons(self) -> str:
        """The reasons why routes are not complete, each once."""
        return "; ".join(dict.fromkeys(reason for _, reason in self.missing))


def resolve(routes: Sequence[StaticRoute], observed: Routes) -> Resolution:
    """Complete the routes of a config from the default routes in `observed`, which are in the kernel's order.

    A route without `dev` gets the device of the first next hop that is not dead. A route without `gateway` gets the
    gateway of the first next hop on its device, dead or not: the kernel decides about routes over a device that is
    down. If that next hop has no gateway (`default dev ppp0`), the route has none: every address is on such a link.

    Where no default route completes a route, ours that stands in its place stays if it has what the config names.
    """
    hops = [hop for route in default_routes(observed) for hop in route.hops]
    alive = next((hop.dev for hop in hops if not hop.dead), None)
    on_device = {hop.dev: hop for hop in reversed(hops) if hop.gateway is None or hop.gateway.family == IPV4}
    found: list[Route] = []
    missing: list[Unresolved] = []
    for route in routes:
        dev = route.dev or alive
        if dev is None:
            missing.append(Unresolved(route, "table main has no IPv4 default route"))
            continue
        hop = _named_hop(route.gateway, dev) if route.gateway else on_device.get(dev)
        if hop is None:
            missing.append(Unresolved(route, f"no IPv4 default route leaves by {dev}, so it has no gateway there"))
            continue
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
    # Of hundreds of thousands of routes hardly any matter here.
    ours = [route for route in observed if route.protocol == OUR_PROTOCOL] if missing else []
    first = {place(route): route for route in reversed(ours)}
    kept = {
        route: standing for route, _ in missing if (standing := first.get(route.place)) and route.is_met_by(standing)
    }
    return Resolution(
        routes=(*found, *(standing.to_route() for standing in kept.values())),
        missing=tuple(each for each in missing if each.route not in kept),
    )


# Thousands of routes name the same few next hops.
@lru_cache(64)
def _named_hop(gateway: str, dev: str) -> NextHop:
    return NextHop(Address.parse(gateway), dev)


_KERNEL: Final = 2
_network: Final = itemgetter(0, 1)
_RESTING: Final = frozenset({0, FLAG_ONLINK})

#: Routes in the kernel's order.
Routes: TypeAlias = "Sequence[ObservedRoute]"


@attrs.frozen(kw_only=True)
class Reconciliation:
    """The changes to make, and their consequences for the routes of other programs and of the kernel."""

    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: Foreign routes that a change of `changes` hides, by our route.
    hidden: dict[Route, Routes] = attrs.field(factory=dict)
    #: Additions that the kernel will refuse, because its own route, which is never hidden by a new one, has the place.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: The kernel's own routes that came after ours, which stays, by our route.
    connected: dict[Route, ObservedRoute] = attrs.field(factory=dict)

    def settle(self, route: Route, standing: Routes) -> list[ObservedRoute]:
        """Decide how `route` becomes the first of its place; return the other routes of ours, which are to go."""
        if not standing:
            self.changes.append(RouteChange.add(route))
            return []
        if len(standing) == 1 and standing[0].fulfils(route):
            return []
        ours = [other for other in standing if other.protocol == OUR_PROTOCOL]
        foreign = [other for other in standing if other.protocol != OUR_PROTOCOL]
        own = next((other for other in foreign if other.protocol == _KERNEL), None)
        if own is not None and not any(other in ours for other in standing[: standing.index(own)]):
            # It is requested all the same, as an addition to an empty place: the kernel refuses it together with all
            # other bad routes, and the error shows all of them at once.
            change = RouteChange.add(route)
            self.changes.append(change)
            self.in_the_way[change] = own
            return []
        if own is not None:
            self.connected[route] = own
        others = [other for other in ours if not other.fulfils(route)]
        alike = [other for other in ours if is_deleted_by(other, route)]
        first = next((other for other in standing if other not in others), None)
        if first is not None and first.fulfils(route) and alike == [first]:
            return others
        if ours:
            # The kernel moves no route to the front: the same one is removed, and then added.
            gone = (alike or ours[:1])[-1]
            self.changes.append(RouteChange.replace(gone, route))
            ours.remove(gone)
        else:
            self.changes.append(RouteChange.prepend(route))
        if standing[0].protocol != OUR_PROTOCOL:
            self.hidden[route] = foreign
        return ours


def reconcile(desired: Sequence[Route], observed: Routes, *, undecided: Container[Place] = ()) -> Reconciliation:
    """Compare the desired routes with the observed ones; `undecided` places are left as they are.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    made = Reconciliation()
    # By scope: local addresses, then routes on a link, then routes via a gateway on a link.
    wanted = {place(route): route for route in sorted(desired, key=attrgetter("scope"), reverse=True)}
    held = held_in(observed, wanted)
    surplus: list[ObservedRoute] = []
    for spot, route in wanted.items():
        surplus += made.settle(route, held.pop(spot, []))
    for spot, standing in held.items():
        if spot not in undecided:
            surplus += [route for route in standing if route.protocol == OUR_PROTOCOL]
    # In the reverse order: a rollback goes backwards, and then each route finds its gateway.
    made.changes.extend(map(RouteChange.remove, sorted(surplus, key=attrgetter("scope"))))
    return made


def held_in(observed: Routes, places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Return the routes in these places, and in all places that have one of our routes, in the kernel's order."""
    networks = {spot[2:4] for spot in places}
    networks.update(_network(route) for route in observed if route.protocol == OUR_PROTOCOL)
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            held[place(route)].append(route if route.flags in _RESTING else resting(route))
    return dict(held)
