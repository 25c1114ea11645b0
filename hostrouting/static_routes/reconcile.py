"""Complete the routes of a config, and compute the changes to them, in an order that the kernel accepts. Pure.

A config leaves to the default routes what it does not say. Nothing here waits.

The kernel lists routes by their place: table, destination, type of service and metric. The first route of a place that
is alive decides. A foreign route in our place stays where it is: ours is added before it and hides it, and when ours
is removed, it decides again.

Of IPv6 the kernel would make one route of ours and of a foreign one in the same place, and nothing can precede it. So
ours is added to an empty place only; and where another program has merged a next hop with ours, or a route for one
source hides all others of the destination, nothing is changed.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.net.addresses import FAMILY_NAMES, IPV4, IPV6, Address
from hostrouting.net.changes import RouteChange, is_deleted_by, is_merged
from hostrouting.net.default_route import default_routes, expected_exit
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    OUR_PROTOCOL,
    SCOPE_LINK,
    NextHop,
    ObservedRoute,
    Place,
    Route,
    place,
    resting,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hostrouting.config import StaticRoute


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
    """Complete the routes of a config from their family's default routes in `observed`, in the kernel's order.

    A route without `dev` gets the device of the first next hop that is not dead; one of IPv6 the device by which IPv6
    must leave, if a default route leaves by it. A route without `gateway` gets the
    gateway of the first next hop on its device, dead or not: the kernel decides about routes over a device that is
    down. If that next hop has no gateway (`default dev ppp0`), the route has none: every address is on such a link.

    Where no default route completes a route, ours that stands in its place stays if it has what the config names.
    """
    defaults = default_routes(observed)
    hops = [(route.family, hop) for route in reversed(defaults) for hop in reversed(route.hops)]
    # The best comes last.
    alive = {family: hop.dev for family, hop in hops if not hop.dead}
    on_device = {(family, hop.dev): hop for family, hop in hops}
    by_family = ([route for route in defaults if route.family == family] for family in (IPV4, IPV6))
    exits = expected_exit(*by_family) if IPV6 in alive else ()
    if exits and (IPV6, exits[0]) in on_device:
        # A router in the fabric may advertise a better default route: by it, the proof would find ours.
        alive[IPV6] = exits[0]
    found: list[Route] = []
    missing: list[Unresolved] = []
    for route in routes:
        family, network, prefix_length = route.prefix
        dev = route.dev or alive.get(family)
        if dev is None:
            missing.append(Unresolved(route, f"table main has no {FAMILY_NAMES[family]} default route"))
            continue
        hop = _named_hop(route.gateway, dev) if route.gateway else on_device.get((family, dev))
        if hop is None:
            reason = f"no {FAMILY_NAMES[family]} default route leaves by {dev}, so it has no gateway there"
            missing.append(Unresolved(route, reason))
            continue
        found.append(
            Route(
                network=network,
                prefix_length=prefix_length,
                gateway=hop.gateway,
                dev=dev,
                metric=route.metric,
                onlink=hop.onlink,
                family=family,
            )
        )
    # Of hundreds of thousands of routes hardly any matter here.
    first = {place(route): route for route in reversed(ours_in(observed) if missing else ())}
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


_network: Final = itemgetter(0, 1)

#: Routes in the kernel's order.
Routes: TypeAlias = "Sequence[ObservedRoute]"


@attrs.frozen(kw_only=True)
class Reconciliation:
    """The changes to make, and their consequences for the routes of other programs and of the kernel."""

    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: Foreign routes that a change of `changes` hides, by our route.
    hidden: dict[Route, Routes] = attrs.field(factory=dict)
    #: Changes that cannot be made, because of this route. Of IPv4 it is the kernel's own, which a new one never hides.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Our IPv6 routes that are to go, but stay: another program has merged a next hop with them.
    merged: list[ObservedRoute] = attrs.field(factory=list)
    #: The kernel's own routes that came after ours, which stays, by our route.
    connected: dict[Route, ObservedRoute] = attrs.field(factory=dict)

    def settle(self, route: Route, standing: Routes) -> list[ObservedRoute]:
        """Decide how `route` becomes the first of its place; return the other routes of ours, which are to go."""
        if not standing:
            self.changes.append(RouteChange.add(route))
            return []
        if len(standing) == 1 and standing[0].fulfils(route):
            return []
        if route.family == IPV6:
            return self._settle_alone(route, standing)
        ours = ours_in(standing)
        foreign = [other for other in standing if other.protocol != OUR_PROTOCOL]
        own = next((other for other in foreign if other.protocol == KERNEL_PROTOCOL), None)
        if own is not None:
            if not any(other in ours for other in standing[: standing.index(own)]):
                self.refuse(route, own)
                return []
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

    def _settle_alone(self, route: Route, standing: Routes) -> list[ObservedRoute]:
        """Do the same for an IPv6 route, which has to be the only one when it is added."""
        ours = [other for other in ours_in(standing) if not is_merged(other)]
        preceding = [*takewhile(lambda other: not other.fulfils(route), standing)]
        if preceding != [*standing] and all(other in ours for other in preceding):
            return [other for other in ours if not other.fulfils(route)]
        foreign = next((other for other in standing if other not in ours), None)
        if foreign is not None:
            self.refuse(route, foreign)
            return []
        self.changes.append(RouteChange.replace(ours[0], route))
        return ours[1:]

    def refuse(self, route: Route, standing: ObservedRoute) -> None:
        """Note a route that cannot be added; it is requested all the same, so that one error shows all of them."""
        change = RouteChange.add(route)
        self.changes.append(change)
        self.in_the_way[change] = standing


def reconcile(desired: Sequence[Route], observed: Routes, *, undecided: Container[Place] = ()) -> Reconciliation:
    """Compare the desired routes with the observed ones; `undecided` places are left as they are.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    made = Reconciliation()
    # By scope: local addresses, then routes on a link, then routes via a gateway on a link.
    wanted = {place(route): route for route in sorted(desired, key=_rank, reverse=True)}
    held = held_in(observed, wanted)
    for_a_source = {spot[:4]: standing[0] for spot, standing in held.items() if spot[4] is not None}
    surplus: list[ObservedRoute] = []
    for spot, route in wanted.items():
        standing = held.pop(spot, [])
        if for_a_source and spot[:4] in for_a_source:
            made.refuse(route, for_a_source[spot[:4]])
        else:
            surplus += made.settle(route, standing)
    for spot, standing in held.items():
        if spot not in undecided:
            surplus += ours_in(standing)
    # In the reverse order: a rollback goes backwards, and then each route finds its gateway.
    gone = sorted((route for route in surplus if not is_merged(route)), key=_rank)
    made.changes.extend(map(RouteChange.remove, gone))
    made.merged.extend(filter(is_merged, surplus))
    return made


def _rank(route: Route | ObservedRoute) -> int:
    # IPv6 has no scopes.
    return SCOPE_LINK if route.family == IPV6 and route.gateway is None else route.scope


def ours_in(routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the routes that hostrouting installed."""
    return [route for route in routes if route.protocol == OUR_PROTOCOL]


def held_in(observed: Routes, places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Return the routes in these places, and in all places that have one of our routes, in the kernel's order."""
    networks = {spot[2:4] for spot in places}
    networks.update(map(_network, ours_in(observed)))
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            held[place(route)].append(resting(route) if route.flags else route)
    return dict(held)
