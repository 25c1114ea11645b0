"""Complete the routes of a config, and compute the changes to them in a safe order.

The default routes supply the values that a config leaves out. All is pure but for `read`.

The kernel lists routes by their place: table, destination, type of service and metric. The first
route of a place that is alive decides. A foreign route in the place of a wanted one stays where it
is: hostrouting adds its route in front and hides it, and when that route is removed, the foreign
one applies again.

In IPv6 the kernel would merge two routes in one place, and nothing can precede a route. So
hostrouting adds a route to an empty place only. Where another program has merged a next hop with a
route of hostrouting, or a route for one source hides all routes of a destination, nothing changes.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.net.addresses import FAMILY_NAMES, IPV4, IPV6, Address
from hostrouting.net.outbound import (
    fabric_default_devs,
    no_default_route,
    outside_fabric,
    working_devs,
)
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    OUR_PROTOCOL,
    SCOPE_LINK,
    NextHop,
    ObservedRoute,
    Route,
    RouteChange,
    RouteKey,
    default_routes,
    expected_outbound_dev,
    is_deleted_by,
    is_merged,
    resting,
    route_key,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from hostrouting.config.sections import StaticRoute
    from hostrouting.host.ports import RouteBackend
    from hostrouting.net.links import Device


#: Routes in the kernel's order.
Routes: TypeAlias = "Sequence[ObservedRoute]"


def read(routing: RouteBackend, wanted: Iterable[StaticRoute | Route | ObservedRoute]) -> Routes:
    """Return all IPv4 routes, and all IPv6 routes if any is wanted, else those of hostrouting.

    A route by an IPv6 gateway needs the networks of this family, too.
    """
    routes = routing.routes()
    if IPV6 not in routing.families:
        return routes
    if any(route.family == IPV6 or ":" in str(route.gateway) for route in wanted):
        return [*routes, *routing.routes(IPV6)]
    return [*routes, *routing.routes_of(OUR_PROTOCOL, IPV6)]


class Resolution(NamedTuple):
    """The routes of the config that are complete, and those that are not, with the reason."""

    routes: tuple[Route, ...]
    missing: tuple[tuple[StaticRoute, str], ...]

    @property
    def reasons(self) -> str:
        """The reasons why routes are not complete, each once."""
        return "; ".join(dict.fromkeys(reason for _, reason in self.missing))


def resolve(
    routes: Sequence[StaticRoute],
    observed: Routes,
    devs: Collection[str] = (),
    links: Sequence[Device] = (),
) -> Resolution:
    """Complete the routes of a config from the default routes of their family in `observed`.

    A route without `dev` gets the device of the first next hop that is not dead; one of IPv6 the
    device by which IPv6 must leave, if a default route leaves by it. No InfiniBand device among
    `links` is one (see `outside_fabric`). Those of `devs` that work precede both, whatever default
    route came later (see `working_devs`). A route without `gateway` gets the gateway of the first
    next hop on its device, dead or not: the kernel decides about routes over a device that is down.
    If that next hop has no gateway (`default dev ppp0`), the route has none: every address is on
    such a link.

    Where no default route completes a route, an installed one stays if it has the values that the
    config gives. `observed` is in the kernel's order.
    """
    defaults = default_routes(observed)
    leading = outside_fabric(defaults, links)
    alive: dict[int, str] = {}
    on_device: dict[tuple[int, str], NextHop] = {}
    for default in defaults:
        for hop in default.hops:
            on_device.setdefault((default.family, hop.dev), hop)
            if not hop.dead and default in leading:
                alive.setdefault(default.family, hop.dev)
    ipv4 = [route for route in leading if route.family == IPV4]
    ipv6 = [route for route in leading if route.family == IPV6]
    shared = expected_outbound_dev(ipv4, ipv6) if IPV6 in alive else ()
    if shared and (IPV6, shared[0]) in on_device:
        # A router in the fabric may advertise a better default route, which the proof would reject.
        alive[IPV6] = shared[0]
    alive |= working_devs(devs, links, observed)
    fabric = fabric_default_devs(defaults, links)
    complete, missing = _completed(tuple(routes), (*alive.items(),), (*on_device.items(),), fabric)
    first: dict[RouteKey, ObservedRoute] = {}
    # Of hundreds of thousands of routes hardly any matter here.
    for own in owned_in(observed) if missing else ():
        first.setdefault(route_key(own), own)
    restored = []
    lacking = []
    for route, reason in missing:
        installed = first.get(route.route_key)
        if installed and route.is_met_by(installed):
            restored.append(installed.to_route())
        else:
            lacking.append((route, reason))
    return Resolution(routes=(*complete, *restored), missing=tuple(lacking))


#: What a config gives of a route.
_given: Final = attrgetter("prefix", "gateway", "dev", "metric")


# For the forecast, the change and the verdict of one apply, and for each event in watch.
@lru_cache(maxsize=1)
def _completed(
    routes: Sequence[StaticRoute],
    alive: Sequence[tuple[int, str]],
    on_device: Sequence[tuple[tuple[int, str], NextHop]],
    fabric: Sequence[tuple[int, str]],
) -> tuple[Sequence[Route], Sequence[tuple[StaticRoute, str]]]:
    """Return the routes that these devices and next hops of default routes complete, and the rest.

    The default routes are not the key: those with a dead next hop are equal to those without.
    """
    devices, hops = dict(alive), dict(on_device)
    complete: list[Route] = []
    missing: list[tuple[StaticRoute, str]] = []
    for route in routes:
        prefix, gateway, named_dev, metric = _given(route)
        family, network, prefix_length = prefix
        dev = named_dev or devices.get(family)
        if dev is None:
            reason = f"table main has {no_default_route(family, fabric)}"
            missing.append((route, reason))
            continue
        hop = _named_hop(gateway, dev) if gateway else hops.get((family, dev))
        if hop is None:
            name = FAMILY_NAMES[family]
            reason = f"no {name} default route leaves by {dev}, so it has no gateway there"
            missing.append((route, reason))
            continue
        complete.append(
            Route(
                network=network,
                prefix_length=prefix_length,
                gateway=hop.gateway,
                dev=dev,
                onlink=hop.onlink,
                family=family,
                metric=metric,
            )
        )
    return complete, missing


# Thousands of routes name the same few next hops.
@lru_cache(64)
def _named_hop(gateway: str, dev: str) -> NextHop:
    return NextHop(Address.parse(gateway), dev)


_network: Final = itemgetter(0, 1)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Reconciliation:
    """The changes to make, and their consequences for foreign routes and the kernel's own."""

    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: Foreign routes that a change of `changes` hides, by the new route.
    hidden: dict[Route, Routes] = attrs.field(factory=dict)
    #: Changes that cannot be made, because of this route. In IPv4 it is the kernel's own, which is
    #: never hidden.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Unwanted IPv6 routes of hostrouting that stay: another program merged a next hop with them.
    merged: list[ObservedRoute] = attrs.field(factory=list)
    #: The kernel's own routes behind a wanted route that stays, by that route.
    connected: dict[Route, ObservedRoute] = attrs.field(factory=dict)
    #: The reading.
    observed: Routes = ()

    def place_first(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Make `route` the first of its place; return the routes of hostrouting to remove there."""
        if not present:
            self.changes.append(RouteChange.add(route))
            return []
        if len(present) == 1 and present[0].fulfils(route):
            return []
        if route.family == IPV6:
            return self._place_alone(route, present)
        owned = owned_in(present)
        foreign = [rival for rival in present if rival.protocol != OUR_PROTOCOL]
        connected = next((rival for rival in foreign if rival.protocol == KERNEL_PROTOCOL), None)
        if connected is not None:
            if not owned_in(present[: present.index(connected)]):
                self.refuse(route, connected)
                return []
            self.connected[route] = connected
        outdated = [own for own in owned if not own.fulfils(route)]
        alike = [own for own in owned if is_deleted_by(own, route)]
        first = next((rival for rival in present if rival not in outdated), None)
        if first is not None and first.fulfils(route) and alike == [first]:
            return outdated
        if owned:
            # The kernel moves no route to the front: the same one is removed, and then added.
            replaced = (alike or owned[:1])[-1]
            self.changes.append(RouteChange.replace(replaced, route))
            owned.remove(replaced)
        else:
            self.changes.append(RouteChange.prepend(route))
        if present[0].protocol != OUR_PROTOCOL:
            self.hidden[route] = foreign
        return owned

    def place_last(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Do the same for the last position: the first route of the place decides, or none."""
        owned = owned_in(present)
        same = next((own for own in owned if own.fulfils(route)), None)
        if same is not None and (same is not present[0] or len(present) == 1):
            return [own for own in owned if own is not same]
        if route.family == IPV6 or not present:
            return self.place_first(route, present)
        replaced = same or next(iter(owned), None)
        self.changes.append(RouteChange(replaced, route, "append"))
        return [own for own in owned if own is not replaced]

    def _place_alone(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Do the same for an IPv6 route, which has to be the only one when it is added."""
        owned = [own for own in owned_in(present) if not is_merged(own)]
        preceding = [*takewhile(lambda rival: not rival.fulfils(route), present)]
        if preceding != [*present] and all(rival in owned for rival in preceding):
            return [own for own in owned if not own.fulfils(route)]
        foreign = next((rival for rival in present if rival not in owned), None)
        if foreign is not None:
            self.refuse(route, foreign)
            return []
        self.changes.append(RouteChange.replace(owned[0], route))
        return owned[1:]

    def refuse(self, route: Route, present: ObservedRoute) -> None:
        """Refuse a route, but request it all the same, so that one error lists all refusals."""
        change = RouteChange.add(route)
        self.changes.append(change)
        self.in_the_way[change] = present


def reconcile(
    desired: Sequence[Route],
    observed: Routes,
    *,
    undecided: Container[RouteKey] = (),
    behind: Container[RouteKey] = (),
) -> Reconciliation:
    """Compare the desired routes with the observed ones; `undecided` places are left as they are.

    A desired route comes first in its place, but in those `behind` last.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    outcome = Reconciliation(observed=observed)
    # By scope: local addresses, then routes on a link, then routes via a gateway on a link.
    wanted = {route_key(route): route for route in sorted(desired, key=_rank, reverse=True)}
    by_place = present_in(observed, wanted)
    for_a_source = {key[:4]: routes[0] for key, routes in by_place.items() if key[4] is not None}
    surplus: list[ObservedRoute] = []
    for key, route in wanted.items():
        present = by_place.pop(key, [])
        if for_a_source and key[:4] in for_a_source:
            outcome.refuse(route, for_a_source[key[:4]])
        else:
            placed = outcome.place_last if key in behind else outcome.place_first
            surplus += placed(route, present)
    for key, present in by_place.items():
        if key not in undecided:
            surplus += owned_in(present)
    # In the reverse order: a rollback goes backwards, and then each route finds its gateway.
    removed = sorted((route for route in surplus if not is_merged(route)), key=_rank)
    outcome.changes.extend(map(RouteChange.remove, removed))
    outcome.merged.extend(filter(is_merged, surplus))
    return outcome


def _rank(route: Route | ObservedRoute) -> int:
    # IPv6 routes lack scopes.
    return SCOPE_LINK if route.family == IPV6 and route.gateway is None else route.scope


def owned_in(routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the routes that hostrouting installed."""
    return [route for route in routes if route.protocol == OUR_PROTOCOL]


def present_in(observed: Routes, places: Iterable[RouteKey]) -> dict[RouteKey, list[ObservedRoute]]:
    """Return the routes in these places and in all places with a route of hostrouting, in order."""
    networks = {key[2:4] for key in places}
    networks.update(map(_network, owned_in(observed)))
    present: defaultdict[RouteKey, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            present[route_key(route)].append(resting(route) if route.flags else route)
    return dict(present)
