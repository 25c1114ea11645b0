"""Suggest the fewest routes that fix findings: through the default gateway, specific enough to win.

A route in the main table changes only decisions of the main table, and there only those of less
specific routes and of routes to the same network, because it is added before them. So each
offending route of the main table is treated separately: the suggestion is the smallest network
around all addresses in the CIDR that this route decides. If the kernel's own route has the same
network, which no route can precede, the two halves of the network are suggested. Addresses inside
that a more specific route decides are not affected.

The node's own addresses on hardware devices stay, and so does what a blackhole refuses, because a
route would send those packets in a loop. If any other address of a CIDR cannot be fixed by a route,
nothing is suggested for this CIDR, because it would still be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.base.errors import InvalidConfigError
from hostrouting.fib import UnknownDecisionError
from hostrouting.fib.model import Fib
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits
from hostrouting.net.links import source_by
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    MAIN_TABLE,
    OUR_PROTOCOL,
    ObservedRoute,
    signature,
)
from hostrouting.route_overlap.fabric import is_present
from hostrouting.route_overlap.report import SuggestedRoute
from hostrouting.route_overlap.snapshot import RoutingSnapshot, SourcedLookup, is_same

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.judgement import DecidedPart

_FIXABLE_KINDS = frozenset({"unicast", "unreachable", "prohibit"})
#: A network and its prefix length.
_Network: TypeAlias = "tuple[int, int]"


class _Way(NamedTuple):
    """The next hop of suggested routes, and the addresses from which packets may then come."""

    gateway: Address
    dev: str
    sources: tuple[int, ...]


def suggestions(
    node: RoutingSnapshot, bad: Sequence[Sequence[DecidedPart]]
) -> list[list[SuggestedRoute]]:
    """Return routes for the bad parts of each CIDR, as far as the main table can fix them."""
    way = _find_way(node)
    if way is None:
        return [[] for _ in bad]
    firsts = [decided.part.first for parts in bad for decided in parts]
    main = [route for route in node.around(firsts) if route.table == MAIN_TABLE]
    if node.family == IPV4:
        # No route without a metric can precede the kernel's own one.
        own = (KERNEL_PROTOCOL, 0, 0)
        kept = {route[:2] for route in main if (route.protocol, route.tos, route.metric) == own}
    else:
        # None is added where another route has the lowest metric, or where sources would not see
        # it.
        foreign = (route for route in main if route.protocol != OUR_PROTOCOL)
        kept = {route[:2] for route in foreign if route.from_prefix or route.metric == 1}
    kept.add((0, 0))
    in_main = {(route.network, signature(route)) for route in (*main, *node.turns)}
    return [_suggest(node, way, in_main, kept, parts) if parts else [] for parts in bad]


def _find_way(node: RoutingSnapshot) -> _Way | None:
    """Return the first next hop of a default route with a gateway on an expected device."""
    hops = [
        (route.scope, hop)
        for route in node.defaults
        for hop in route.hops
        if node.allowed.leads_out(hop.dev)
    ]
    routes = node.around(hop.gateway.number for _, hop in hops if hop.gateway)
    if node.family == IPV4 and any(hop.gateway and hop.gateway.family == IPV6 for _, hop in hops):
        routes += node.backend.routes(IPV6)
    model = Fib.of(node.links, routes, node.rules)
    for scope, hop in hops:
        # Routes of a config are never `onlink`.
        if hop.gateway and model.accepts(hop._replace(onlink=False)):
            own: Sequence[int | None] = [source_by(hop, scope, node.links)]
            if node.family == IPV6:
                own = node.own.get(hop.dev, ())
            return _Way(hop.gateway, hop.dev, tuple(filter(None, own)))
    return None


def is_whole(routing: Routing, route: ObservedRoute) -> bool:
    """Return True if the device of a route is up, and the kernel would accept its gateway now."""
    links = routing.links()
    if not any(link.up and link.carrier for link in links if link.name == route.dev):
        return False
    families = {route.family, route.gateway.family if route.gateway else route.family}
    routes = (observed for family in families for observed in routing.routes(family))
    model = Fib.of(links, routes, routing.rules(route.family))
    return all(map(model.accepts, route.hops))


def _suggest(
    node: RoutingSnapshot,
    way: _Way,
    in_main: Container[tuple[int, tuple[object, ...]]],
    kept: Container[_Network],
    bad: Sequence[DecidedPart],
) -> list[SuggestedRoute]:
    """Return routes for the bad parts of a CIDR, but none to the networks in `kept`.

    The result is empty if the routes would not fix all parts.
    """
    firsts = [decided.part.first for decided in bad]
    sources = way.sources if node.by_source else ()
    new = [(source, node.lookup(firsts, sources=[source] * len(bad))) for source in sources]
    taken = _taken(node, way, firsts)
    by_offender: dict[ObservedRoute, list[tuple[int, int]]] = defaultdict(list)
    for at, decided in enumerate(bad):
        part = decided.part
        offender = decided.decider
        if decided.stays(node):
            continue
        # A rule decides before any table.
        if not isinstance(offender, ObservedRoute) or offender.kind not in _FIXABLE_KINDS:
            return []
        answers: Sequence[SourcedLookup] = part.answers
        if is_same(node.decider(part.plain, 0), offender):
            # With the new route, the kernel chooses another source, by which a rule may select.
            answers = [(lookups[at], source) for source, lookups in new]
        resolves = all(is_same(node.decider(*fault), offender) for fault in node.faults(answers))
        if not resolves or part.first in taken:
            return []
        by_offender[offender].append((part.first, part.last))
    routes: list[SuggestedRoute] = []
    for offender, ranges in by_offender.items():
        if (offender.network, signature(offender)) not in in_main:
            # Before the first rule, the kernel reports routes of table local as part of main, too.
            return []
        places = _cover(ranges, kept, address_bits(node.family))
        networks = [Prefix(node.family, *place) for place in places]
        takes_from = tuple(filter(is_present, node.allowed.refused(offender)))
        try:
            routes += [
                SuggestedRoute(
                    destination=str(network),
                    gateway=str(way.gateway),
                    dev=way.dev,
                    takes_from=takes_from,
                    warning=_warning(node, network, networks, offender, takes_from),
                    offender=offender,
                )
                for network in networks
            ]
        except InvalidConfigError:
            # A config cannot have a route to such a network.
            return []
    return sorted(routes, key=lambda route: route.to_config().prefix)


def _taken(node: RoutingSnapshot, way: _Way, addresses: Sequence[int]) -> Container[int]:
    """Return the addresses that an announced network may attract despite any route, by a rule."""
    announced = node.announced
    if announced is None:
        return ()
    new = (ObservedRoute(address, 32, way.gateway, way.dev) for address in addresses)
    now = (route for route in node.around(addresses) if is_present(route.dev))
    model = Fib.of(node.links, [*now, *new], node.rules)
    sources = (None, *(way.sources if node.by_source else ()))
    with suppress(UnknownDecisionError):
        answers = [model.lookup(addresses, sources=[source] * len(addresses)) for source in sources]
        rows = zip(*answers, strict=True)
        return {plain.destination for plain, *sourced in rows if announced.taker(plain, sourced)}
    return ()


def _warning(
    node: RoutingSnapshot,
    network: Prefix,
    networks: Sequence[Prefix],
    offender: ObservedRoute,
    takes_from: Sequence[str],
) -> str | None:
    """Return which connections a route to the network would break."""
    links = [link for link in node.links if link.name in takes_from]
    advice = "Only narrower expectedCidrs are safe, with addresses that only the cluster uses"
    size = 1 << address_bits(network.family) - offender.prefix_length
    covered = sum(part.last + 1 - part.network for part in networks)
    if offender.protocol == KERNEL_PROTOCOL and covered == size:
        owner = ", ".join(takes_from) or "the fabric"
        return (
            f"{offender.destination} is the entire connected network of {owner}: "
            f"its peers could no longer be reached through it. {advice}"
        )
    for link in links:
        for own in link.addresses:
            end = Address(own.family, own.peer)
            if network.covers(end):
                return (
                    f"{end} of {link.name} is in it, so the route would also take peers of "
                    f"{link.name}. {advice}"
                )
    for link in links:
        for peer in (Address(IPV4, number) for number in link.neighbours):
            if network.covers(peer):
                return (
                    f"{link.name} talks to {peer}, which is in it and could no longer be reached "
                    f"through {link.name}. {advice}"
                )
    return None


def _cover(
    ranges: Sequence[tuple[int, int]], kept: Container[_Network], bits: int
) -> Iterator[_Network]:
    """Return the fewest networks around all (sorted) ranges, without those in `kept`.

    >>> list(_cover([(0x0A000005, 0x0A0000FF)], (), 32)) == [(0x0A000000, 24)]
    True
    >>> covering = [(0x0A000000, 25), (0x0A000080, 25)]
    >>> list(_cover([(0x0A000000, 0x0A0000FF)], [(0x0A000000, 24)], 32)) == covering
    True
    """
    first = ranges[0][0]
    last = ranges[-1][1]
    free = (first ^ last).bit_length()
    network = first >> free << free, bits - free
    if network not in kept:
        yield network
    elif free:
        middle = network[0] | 1 << free - 1
        yield from _cover(
            [(low, min(high, middle - 1)) for low, high in ranges if low < middle], kept, bits
        )
        yield from _cover(
            [(max(low, middle), high) for low, high in ranges if high >= middle], kept, bits
        )
