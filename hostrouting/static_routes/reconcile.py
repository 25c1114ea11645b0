"""Fill in the routes of a config, and compute the changes to them in a safe order.

Values that a config leaves out come from the default routes. Everything except `read` is pure.

The kernel distinguishes routes by their key: table, destination, type of service and metric. Of
several routes with the same key, it uses the first that is alive. A foreign route with the key of a
wanted one stays: hostrouting adds its route in front and hides it, and when that route is removed,
the foreign one is used again.

For IPv6, the kernel would merge two routes with the same key, and no route can be added in front of
another. So hostrouting adds a route only if there is none with its key. If another program has
merged a next hop into one of our routes, or a route for one source hides all routes to a
destination, hostrouting changes nothing there.
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
    """Return all IPv4 routes, and all IPv6 routes if any are wanted, otherwise only our own.

    An IPv4 route with an IPv6 gateway also needs the IPv6 routes.
    """
    routes = routing.routes()
    if IPV6 not in routing.families:
        return routes
    if any(route.family == IPV6 or ":" in str(route.gateway) for route in wanted):
        return [*routes, *routing.routes(IPV6)]
    return [*routes, *routing.routes_of(OUR_PROTOCOL, IPV6)]


class Resolution(NamedTuple):
    """The routes of the config that are complete, and the incomplete ones with the reason."""

    routes: tuple[Route, ...]
    missing: tuple[tuple[StaticRoute, str], ...]

    @property
    def reasons(self) -> str:
        """Why routes are incomplete, each reason once."""
        return "; ".join(dict.fromkeys(reason for _, reason in self.missing))


def resolve(
    routes: Sequence[StaticRoute],
    observed: Routes,
    devs: Collection[str] = (),
    links: Sequence[Device] = (),
) -> Resolution:
    """Fill in the gateways and devices of a config's routes from the default routes in `observed`.

    The device of a route without `dev` is, in this order:

    - the outbound device named by `devs`, if it works (see `working_devs`)
    - for IPv6, the device that IPv6 is expected to use, if a default route uses it
    - the device of the first next hop that is not dead, but no InfiniBand device among `links`

    A route without `gateway` gets the gateway of the first next hop on its device, dead or not,
    because the kernel decides about routes over a device that is down. If that next hop has no
    gateway (`default dev ppp0`), neither has the route: every address is on such a link.

    If no default route helps, an installed route is kept if it agrees with the values that the
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
        # A router in the fabric may advertise a better default route, which the check would reject.
        alive[IPV6] = shared[0]
    alive |= working_devs(devs, links, observed)
    fabric = fabric_default_devs(defaults, links)
    complete, missing = _completed(tuple(routes), (*alive.items(),), (*on_device.items(),), fabric)
    first: dict[RouteKey, ObservedRoute] = {}
    # Hardly any of the many routes matter here.
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


#: The values of a route that a config may give.
_given: Final = attrgetter("prefix", "gateway", "dev", "metric")


# The forecast, the change and the check of one apply share it, and so do all events of a watch.
@lru_cache(maxsize=1)
def _completed(
    routes: Sequence[StaticRoute],
    alive: Sequence[tuple[int, str]],
    on_device: Sequence[tuple[tuple[int, str], NextHop]],
    fabric: Sequence[tuple[int, str]],
) -> tuple[Sequence[Route], Sequence[tuple[StaticRoute, str]]]:
    """Return the routes completed from these devices and next hops, and the incomplete ones.

    The default routes themselves cannot be the cache key, because equality ignores dead next hops.
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
            reason = f"no {name} default route uses {dev}, so its gateway is unknown"
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


# Thousands of routes share a few next hops.
@lru_cache(64)
def _named_hop(gateway: str, dev: str) -> NextHop:
    return NextHop(Address.parse(gateway), dev)


_network: Final = itemgetter(0, 1)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Reconciliation:
    """The changes to make, and their effect on foreign routes and the kernel's own."""

    #: First additions and replacements, on-link routes before those via gateways; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: The foreign routes that a new route hides, by that route.
    hidden: dict[Route, Routes] = attrs.field(factory=dict)
    #: Changes that cannot be made, with the route that prevents them. For IPv4 it is the kernel's
    #: own, which is never hidden.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Unwanted IPv6 routes of ours that stay, because another program merged a next hop with them.
    merged: list[ObservedRoute] = attrs.field(factory=list)
    #: The kernel's own routes that an installed route already hides, by that route.
    connected: dict[Route, ObservedRoute] = attrs.field(factory=dict)
    #: The snapshot.
    observed: Routes = ()

    def place_first(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Put `route` first among those with its key; return our other routes there to remove."""
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
            # The kernel cannot move a route to the front: remove it and add it again.
            replaced = (alike or owned[:1])[-1]
            self.changes.append(RouteChange.replace(replaced, route))
            owned.remove(replaced)
        else:
            self.changes.append(RouteChange.prepend(route))
        if present[0].protocol != OUR_PROTOCOL:
            self.hidden[route] = foreign
        return owned

    def place_last(self, route: Route, present: Routes) -> list[ObservedRoute]:
        """Do the same for the last position, where a foreign route comes first."""
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
        """Do the same for an IPv6 route, which must be the only one with its key."""
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
        """Note what is in the way, but keep the change, so that one error lists all refusals."""
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
    """Compare the desired routes with the observed ones; leave `undecided` keys as they are.

    A desired route is put before others with its key, or after them if the key is in `behind`.

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
    # In reverse order, so that during a rollback each route finds its gateway.
    removed = sorted((route for route in surplus if not is_merged(route)), key=_rank)
    outcome.changes.extend(map(RouteChange.remove, removed))
    outcome.merged.extend(filter(is_merged, surplus))
    return outcome


def _rank(route: Route | ObservedRoute) -> int:
    # IPv6 routes have no scopes.
    return SCOPE_LINK if route.family == IPV6 and route.gateway is None else route.scope


def owned_in(routes: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    """Return the routes that hostrouting installed."""
    return [route for route in routes if route.protocol == OUR_PROTOCOL]


def present_in(observed: Routes, keys: Iterable[RouteKey]) -> dict[RouteKey, list[ObservedRoute]]:
    """Return the routes with these keys, and with the keys of our own routes, in order."""
    networks = {key[2:4] for key in keys}
    networks.update(map(_network, owned_in(observed)))
    present: defaultdict[RouteKey, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Hardly any of the many routes matter here.
        if _network(route) in networks:
            present[route_key(route)].append(resting(route) if route.flags else route)
    return dict(present)
