"""Complete the routes of a config, and compute the changes to them, in an order that the kernel accepts. Pure.

Values that a config leaves out come from the default routes. Nothing here waits.

The kernel lists routes by their place: table, destination, type of service and metric. The first
route of a place that is alive decides. A foreign route in our place stays where it is: ours is
added before it and hides it, and when ours is removed, it decides again.

Of IPv6 the kernel would make one route of ours and of a foreign one in the same place, and nothing
can precede it. So ours is added to an empty place only; and where another program has merged a next
hop with ours, or a route for one source hides all others of the destination, nothing is changed.
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

    A route without `dev` gets the device of the first next hop that is not dead; one of IPv6 the
    device by which IPv6 must leave, if a default route leaves by it. A route without `gateway` gets
    the gateway of the first next hop on its device, dead or not: the kernel decides about routes
    over a device that is down. If that next hop has no gateway (`default dev ppp0`), the route has
    none: every address is on such a link.

    Where no default route completes a route, ours that stands in its place stays if it has what the
    config names.
    """
    defaults = default_routes(observed)
    hops = [(route.family, hop) for route in reversed(defaults) for hop in reversed(route.hops)]
    # The best comes last.
    alive = {family: hop.dev for family, hop in hops if not hop.dead}
    on_device = {(family, hop.dev): hop for family, hop in hops}
    by_family = ([route for route in defaults if route.family == family] for family in (IPV4, IPV6))
    exits = expected_exit(*by_family) if IPV6 in alive else ()
    if exits and (IPV6, exits[0]) in on_device:
        # A router in the fabric may advertise a better default route: by it, the proof would find
        # ours.
        alive[IPV6] = exits[0]
    complete: list[Route] = []
    missing: list[Unresolved] = []
    for route in routes:
        family, network, prefix_length = route.prefix
        dev = route.dev or alive.get(family)
        if dev is None:
            missing.append(
                Unresolved(route, f"table main has no {FAMILY_NAMES[family]} default route")
            )
            continue
        hop = _named_hop(route.gateway, dev) if route.gateway else on_device.get((family, dev))
        if hop is None:
            reason = f"no {FAMILY_NAMES[family]} default route leaves by {dev}, so it has no gateway there"
            missing.append(Unresolved(route, reason))
            continue
        complete.append(
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
        route: standing
        for route, _ in missing
        if (standing := first.get(route.place)) and route.is_met_by(standing)
    }
    return Resolution(
        routes=(*complete, *(present.to_route() for present in kept.values())),
        missing=tuple(unresolved for unresolved in missing if unresolved.route not in kept),
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
    #: Foreign routes that a change of `changes` hides, by the route that hides them.
    hidden: dict[Route, Routes] = attrs.field(factory=dict)
    #: Changes that cannot be made, because of this route. Of IPv4 it is the kernel's own, which a
    #: new one never hides.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Installed IPv6 routes that are to go, but stay: another program has merged a next hop with
    #: them.
    merged: list[ObservedRoute] = attrs.field(factory=list)
    #: The kernel's own routes that came after an installed one, which stays, by that route.
    connected: dict[Route, ObservedRoute] = attrs.field(factory=dict)

    def settle(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Decide how `route` becomes the first of its place; return the installed ones to remove."""
        if not present:
            self.changes.append(RouteChange.add(route))
            return []
        if len(present) == 1 and present[0].fulfils(route):
            return []
        if route.family == IPV6:
            return self._settle_alone(route, present)
        installed = ours_in(present)
        foreign = [known for known in present if known.protocol != OUR_PROTOCOL]
        own = next((known for known in foreign if known.protocol == KERNEL_PROTOCOL), None)
        if own is not None:
            if not any(known in installed for known in present[: present.index(own)]):
                self.refuse(route, own)
                return []
            self.connected[route] = own
        surplus = [known for known in installed if not known.fulfils(route)]
        alike = [known for known in installed if is_deleted_by(known, route)]
        first = next((known for known in present if known not in surplus), None)
        if first is not None and first.fulfils(route) and alike == [first]:
            return surplus
        if installed:
            # The kernel moves no route to the front: the same one is removed, and then added.
            replaced = (alike or installed[:1])[-1]
            self.changes.append(RouteChange.replace(replaced, route))
            installed.remove(replaced)
        else:
            self.changes.append(RouteChange.prepend(route))
        if present[0].protocol != OUR_PROTOCOL:
            self.hidden[route] = foreign
        return installed

    def _settle_alone(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Do the same for an IPv6 route, which has to be the only one when it is added."""
        installed = [known for known in ours_in(present) if not is_merged(known)]
        preceding = [*takewhile(lambda known: not known.fulfils(route), present)]
        if preceding != [*present] and all(known in installed for known in preceding):
            return [known for known in installed if not known.fulfils(route)]
        foreign = next((known for known in present if known not in installed), None)
        if foreign is not None:
            self.refuse(route, foreign)
            return []
        self.changes.append(RouteChange.replace(installed[0], route))
        return installed[1:]

    def refuse(self, route: Route, obstacle: ObservedRoute) -> None:
        """Note a route that cannot be added; it is requested all the same, so that one error shows all of them."""
        change = RouteChange.add(route)
        self.changes.append(change)
        self.in_the_way[change] = obstacle


def reconcile(
    desired: Sequence[Route], observed: Routes, *, undecided: Container[Place] = ()
) -> Reconciliation:
    """Compare the desired routes with the observed ones; `undecided` places are left as they are.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    made = Reconciliation()
    # By scope: local addresses, then routes on a link, then routes via a gateway on a link.
    wanted = {place(route): route for route in sorted(desired, key=_rank, reverse=True)}
    by_place = held_in(observed, wanted)
    # By table, family, network and prefix length.
    for_a_source = {key[:4]: present[0] for key, present in by_place.items() if key[4] is not None}
    surplus: list[ObservedRoute] = []
    for key, route in wanted.items():
        present = by_place.pop(key, [])
        if for_a_source and key[:4] in for_a_source:
            made.refuse(route, for_a_source[key[:4]])
        else:
            surplus += made.settle(route, present)
    for key, present in by_place.items():
        if key not in undecided:
            surplus += ours_in(present)
    # In the reverse order: a rollback goes backwards, and then each route finds its gateway.
    removed = sorted((route for route in surplus if not is_merged(route)), key=_rank)
    made.changes.extend(map(RouteChange.remove, removed))
    made.merged.extend(filter(is_merged, surplus))
    return made


def _rank(route: Route | ObservedRoute) -> int:
    # Scopes are of IPv4 only.
    return SCOPE_LINK if route.family == IPV6 and route.gateway is None else route.scope


def ours_in(routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the routes that hostrouting installed."""
    return [route for route in routes if route.protocol == OUR_PROTOCOL]


def held_in(observed: Routes, places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Return the routes in these places, and in those of installed routes, in the kernel's order."""
    networks = {key[2:4] for key in places}
    networks.update(map(_network, ours_in(observed)))
    by_place: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            by_place[place(route)].append(resting(route) if route.flags else route)
    return dict(by_place)
