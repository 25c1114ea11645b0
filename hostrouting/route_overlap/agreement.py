"""Whether the kernel's answers belong to the reading of a node that cut the parts.

Routing may change between the reading and the lookups, and the answer for the first address of a
part is to hold for all of them. The answer for a single address holds by itself.
"""

from __future__ import annotations

from functools import partial
from itertools import compress
from operator import itemgetter, ne
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.net.addresses import IPV4, Address, Prefix, address_bits
from hostrouting.net.links import source_by
from hostrouting.net.routes import MAIN_TABLE, TABLE_NAMES, Lookup, ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.route_overlap.snapshot import RoutingSnapshot, SourcedLookup

#: The fields of a route by which paths differ.
_hops_of = itemgetter(2, 3, 8, 9, 12)


class Answered(NamedTuple):
    """The parts of each CIDR as `cut` yields them, those of all, and their answers.

    The answers with a source are by the first address of the part.
    """

    ranges: list[tuple[list[int], int]]
    firsts: list[int]
    lasts: list[int]
    plain: list[Lookup]
    sourced: dict[int, list[SourcedLookup]]


class _Several(NamedTuple):
    """The last address, the answer and its source (0 without one) of each part of several ones."""

    lasts: list[int]
    answers: list[Lookup]
    sources: list[int]

    @classmethod
    def of(cls, parts: Answered) -> _Several:
        """Return these of the parts of all CIDRs."""
        several = [*map(ne, parts.firsts, parts.lasts)]
        lasts = [*compress(parts.lasts, several)]
        answers = [*compress(parts.plain, several)]
        sources = [0] * len(answers)
        if parts.sourced:
            for last, plain in [*zip(lasts, answers, strict=True)]:
                for answer, source in parts.sourced.get(plain.destination, ()):
                    lasts.append(last)
                    answers.append(answer)
                    sources.append(source)
        return cls(lasts, answers, sources)


def compare(node: RoutingSnapshot, parts: Answered) -> list[tuple[int, int]]:
    """Add the first addresses of parts with answers of another reading to `node.changed`.

    Return the ranges that newer routes decide at the beginning of a part, each as its first and
    last address.
    """
    several = _Several.of(parts)
    routes = [answer[1] for answer in several.answers]
    deciding = {*routes}
    new = _newer(node, deciding)
    newer = {at: route for at, route in enumerate(routes) if route and route in new} if new else {}
    beginnings = _beginnings(node, several, newer)
    elsewhere = {source for source in {*several.sources} if _leads_elsewhere(node, source)}
    apart = {route for route in deciding if route is None or route[5] != MAIN_TABLE}
    doubtful = [
        at
        for at, route in enumerate(routes if apart or elsewhere else ())
        if at not in newer and (route in apart or several.sources[at] in elsewhere)
    ]
    if doubtful:
        _compare_ends(node, several, doubtful)
    if node.backend.rules(node.family) != node.rules:
        node.changed.update(parts.firsts)
    return beginnings


def _beginnings(
    node: RoutingSnapshot, several: _Several, newer: Mapping[int, ObservedRoute]
) -> list[tuple[int, int]]:
    """Return the ranges of newer routes, by position, that end within their part.

    One that ends elsewhere than its part, or where no part may end, may hide others that are as
    new: then the part has changed.
    """
    beginnings: list[tuple[int, int]] = []
    for at, route in newer.items():
        first = several.answers[at].destination
        end = route.network + (1 << address_bits(node.family) - route.prefix_length) - 1
        if first <= end < several.lasts[at]:
            beginnings.append((first, end))
        elif end != several.lasts[at] or end + 1 not in node.edges:
            node.changed.add(first)
    return beginnings


def _compare_ends(node: RoutingSnapshot, several: _Several, doubtful: Sequence[int]) -> None:
    """Add the parts, by position, whose last address is decided by another table or errno."""
    others = node.lookup(
        [several.lasts[at] for at in doubtful],
        sources=[several.sources[at] or None for at in doubtful],
    )
    pairs = zip(map(several.answers.__getitem__, doubtful), others, strict=True)
    differ = (one.destination for one, other in pairs if _origin(one) != _origin(other))
    node.changed.update(differ)


def _newer(node: RoutingSnapshot, deciding: set[ObservedRoute | None]) -> set[ObservedRoute | None]:
    """Return those of deciding routes that the reading lacks."""
    strange = deciding.difference(node.routes, node.turns, [None])
    networks = {route and route.network for route in strange}
    near = (route for route in node.routes if route[0] in networks) if strange else ()
    known = {*map(_way, (*near, *node.turns))}
    return {route for route in strange if route and _way(route) not in known}


def _way(route: ObservedRoute) -> tuple[int, int, frozenset[tuple[str | None, object]]]:
    """Return the network and the next hops of a route.

    In an answer their order differs from call to call, and headers may be left out. The table may
    be another one (local and main are one at first), and the kind (to a group); the state of
    devices and the time left change by themselves.
    """
    hops = frozenset((hop.dev, hop.gateway) for hop in route.hops)
    return route.network, route.prefix_length, hops


def _origin(answer: Lookup) -> tuple[int, int]:
    """Return what all addresses of a part have alike: an errno, or the table of the route."""
    route = answer.route
    # Of the IPv6 routes that share a nexthop object the kernel may name any.
    return answer.errno, (-route.nexthop_id or route.table) if route else 0


def _leads_elsewhere(node: RoutingSnapshot, source: int) -> bool:
    """Return True if a rule leads packets from a source to a table that few nodes have.

    A new `throw` there, to the first addresses of a part, would leave them to the next table.
    """
    special = (rule for rule in node.rules if rule.table and rule.table not in TABLE_NAMES)
    selecting = (rule for rule in special if rule.inverted or not rule.mark & rule.mark_mask)
    address = Address(node.family, source)
    return any(
        rule.inverted or Prefix(node.family, *rule.source).covers(address) for rule in selecting
    )


def compare_paths(
    node: RoutingSnapshot, paths: Sequence[Lookup], ways: Sequence[Sequence[ObservedRoute]]
) -> None:
    """Add addresses to `node.changed` whose path is by none of their routes.

    A path has no prefix. It may differ for good where a router redirects packets: then the route
    is still the same, and the path is.
    """
    is_ipv4 = node.family == IPV4
    usual: dict[object, set[object]] = {}

    def fits(path: Lookup, at: int) -> bool:
        way = path.route
        if way is None:
            return not ways[at]
        if way.kind == "local":
            # It is by the loopback device, whatever device has the address.
            return any(route.kind == "local" for route in ways[at])
        found = way.dev, way.gateway, way.source if is_ipv4 else None
        for route in ways[at]:
            key = _hops_of(route)
            if key not in usual:
                # The model cannot choose a source of IPv6.
                source = partial(source_by, scope=route.scope, links=node.links)
                own = {hop: route.source or source(hop) if is_ipv4 else None for hop in route.hops}
                usual[key] = {(hop.dev, hop.gateway, own[hop]) for hop in route.hops}
            if found in usual[key]:
                return True
        return False

    odd = [at for at, path in enumerate(paths) if not fits(path, at)]
    if not odd:
        return
    addresses = [paths[at].destination for at in odd]
    answers = node.lookup(addresses)
    others = node.lookup(addresses, resolve=True)
    for at, answer, path in zip(odd, answers, others, strict=True):
        routes = node.turns_of(answer.route) if answer.route else ()
        is_kept = {*map(_way, routes)}.intersection(map(_way, ways[at])) or not (routes or ways[at])
        if not is_kept or fits(path, at):
            node.changed.add(path.destination)
