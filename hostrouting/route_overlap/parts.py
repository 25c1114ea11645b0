"""The parts of a CIDR, each with the answers that all its addresses get.

By longest-prefix match, the deciding route can change only where a route or a selector of a policy
rule begins or ends. So a CIDR is cut there, and one address of each part is looked up, in bulk. The
answer holds for the whole part, unless routing has changed meanwhile (see `agreement`): an answer
by a newer and longer prefix counts for that, and the rest of the part is asked. Where that is not
enough the node is read anew.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from hostrouting.base.commands import quoted
from hostrouting.base.errors import UnknownDecisionError
from hostrouting.net.addresses import IPV4, IPV6, Prefix, address_bits, mask_of
from hostrouting.net.links import source_by
from hostrouting.net.routes import Lookup, ObservedRoute
from hostrouting.route_overlap.agreement import Answered, compare, compare_paths
from hostrouting.route_overlap.snapshot import CHANGING, RoutingSnapshot, SourcedLookup

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from hostrouting.net.rules import Rule

#: Why addresses are a finding; see `Finding`.
Kind: TypeAlias = Literal[
    "overlap", "no-route", "blocked", "local", "dead-end", "announced", "unknown-exit", "undecided"
]

#: The first addresses of the ranges that the kernel treats specially (multicast, for example), and
#: of the next ones.
SPECIAL_EDGES: Final[dict[int, tuple[int, ...]]] = {
    IPV4: (1, 224 << 24, 240 << 24, 0xFFFFFFFF),
    IPV6: (1, 2, 0xFE80 << 112, 0xFEC0 << 112, 0xFF << 120),
}
_route_of = itemgetter(1)
#: How often a node is read, and how often the rests of parts are asked in one reading.
_READINGS = 3
_ROUNDS = 8


class CidrPart(NamedTuple):
    """Addresses from `first` to `last`, with the same answers for all.

    The last answer is that without a source. If a rule or route selects by source, those with the
    sources from which packets may then come precede it. A connection gets the first.
    """

    first: int
    last: int
    answers: tuple[SourcedLookup, ...]

    @property
    def plain(self) -> Lookup:
        """The answer without a source."""
        return self.answers[-1][0]


class LookedUp(NamedTuple):
    """The parts of each CIDR, and the allowed devices by which those leave that are left out."""

    parts: list[list[CidrPart]]
    devs_left_out: frozenset[str]


def read(
    snapshot: Callable[[], RoutingSnapshot], cidrs: Sequence[Prefix], *, times: int = _READINGS
) -> tuple[RoutingSnapshot, LookedUp]:
    """Read a node and look CIDRs up in it, up to so many times while routing changes meanwhile.

    After the last time the answers for the parts concerned have the errno `CHANGING`.
    """
    node = snapshot()
    looked = looked_up(node, cidrs)
    if node.changed and times > 1:
        return read(snapshot, cidrs, times=times - 1)
    return node, looked


def looked_up(node: RoutingSnapshot, cidrs: Sequence[Prefix]) -> LookedUp:
    """Cut each CIDR where the answer may change, and return its parts.

    If the node has expected devices, parts that leave by a single allowed device are left out
    unless a rule selects by source, and a part that an announced route may take has this route as
    its only answer.
    """
    allowed = node.allowed
    is_proof = bool(allowed.expected)
    ranges, firsts, lasts, plain, sourced = _answered(node, cidrs)
    # The announced routes that may take parts, by the position of the part.
    taken: dict[int, tuple[SourcedLookup]] = {}
    if is_proof and node.announced:
        for at, answer in enumerate(plain):
            others = (lookup for lookup, _ in sourced.get(firsts[at], ()))
            if new := node.announced.taker(answer, others):
                taken[at] = ((Lookup(answer.destination, new), 0),)
    indexes: Sequence[int] = range(len(firsts))
    fine: frozenset[str] = frozenset()
    if is_proof and not node.by_source and node.family == IPV4:
        # By position, which is faster than by name: these lines read every answer of a full table.
        suspects: Iterable[int] = ()
        devs = {answer[1] and answer[1][3] for answer in plain}
        fine = frozenset(dev for dev in devs if dev and allowed.allows(dev))
        if node.has_headers or fine != devs:
            routes = enumerate(map(_route_of, plain))
            suspects = [
                at
                for at, route in routes
                if route is None or route[3] not in fine or route.encapsulation
            ]
        indexes = sorted({*suspects, *taken})
    parts: list[list[CidrPart]] = []
    before = 0
    for starts, _ in ranges:
        after = before + len(starts)
        parts.append(
            [
                CidrPart(
                    firsts[i],
                    lasts[i],
                    taken.get(i) or (*sourced.get(firsts[i], ()), (plain[i], 0)),
                )
                for i in indexes[bisect_left(indexes, before) : bisect_left(indexes, after)]
            ]
        )
        before = after
    return LookedUp(parts, fine)


def _answered(node: RoutingSnapshot, cidrs: Sequence[Prefix]) -> Answered:
    """Cut CIDRs and look up their parts, some of which end where a newer route does."""
    known: dict[int, Lookup] = {}
    sourced: dict[int, list[SourcedLookup]] = {}
    rounds = 0
    while True:
        ranges = [*cut(node, cidrs)]
        # The parts of all CIDRs: one question to the kernel costs much less than one for each CIDR.
        firsts = [start for starts, _ in ranges for start in starts]
        lasts = [start - 1 for starts, end in ranges for start in (*starts[1:], end)]
        new = [first for first in firsts if first not in known] if known else firsts
        plain = node.lookup(new)
        if node.by_source:
            sourced |= _sourced(node, plain)
        if known:
            known |= zip(new, plain, strict=True)
            plain = [known[first] for first in firsts]
        parts = Answered(ranges, firsts, lasts, plain, sourced)
        beginnings = compare(node, parts)
        if rounds == _ROUNDS:
            node.changed.update(first for first, _ in beginnings)
        if node.changed or not beginnings:
            return parts if not node.changed else _marked(parts, node.changed)
        known = dict(zip(firsts, plain, strict=True))
        # Pods often get their addresses in order: ask for twice as many of them each time.
        beyond = range(1, 1 + (1 << rounds))
        node.edges.update(end + number for _, end in beginnings for number in beyond)
        rounds += 1


def _marked(parts: Answered, changed: Container[int]) -> Answered:
    """Return parts with answers that are undecided where routing has changed."""
    pairs = zip(parts.firsts, parts.plain, strict=True)
    plain = [Lookup(at, None, CHANGING) if at in changed else answer for at, answer in pairs]
    sourced = {at: answers for at, answers in parts.sourced.items() if at not in changed}
    return parts._replace(plain=plain, sourced=sourced)


def _sourced(node: RoutingSnapshot, plain: Sequence[Lookup]) -> dict[int, list[SourcedLookup]]:
    """Return the answers with each source from which a packet may come, by the first address."""
    owned = zip(plain, _sources(node, plain), strict=True)
    # CIDRs may have parts in common.
    by_first = {answer.destination: own for answer, own in owned}
    pairs = [(first, source) for first, own in by_first.items() for source in own]
    sources = [source for _, source in pairs]
    answers = node.lookup([first for first, _ in pairs], sources=sources)
    sourced: dict[int, list[SourcedLookup]] = defaultdict(list)
    for source, answer in zip(sources, answers, strict=True):
        sourced[answer.destination].append((answer, source))
    return sourced


def cut(node: RoutingSnapshot, cidrs: Sequence[Prefix]) -> Iterator[tuple[list[int], int]]:
    """Yield the first address of each part of a CIDR, and the first address after the CIDR."""
    family = node.family
    bits = address_bits(family)
    # The numbers of addresses, by prefix length.
    sizes = [1 << bits - length for length in range(bits + 1)]
    masked = [cidr.masked for cidr in cidrs]
    ranges = [(prefix.network, prefix.network + sizes[prefix.length]) for prefix in masked]
    unsorted = [*SPECIAL_EDGES[family], *node.edges]
    for rule in node.selecting:
        # Sources, too: the node sends from one of its addresses to the same address.
        for network, length in (rule.destination, rule.source):
            first = network & mask_of(family, length)
            unsorted += [first, first + sizes[length]]
    shift = bits - 8
    octets: set[int] = set()
    for first, end in ranges:
        octets.update(range(first >> shift, (end - 1 >> shift) + 1))
    # By position, which is faster than by name: these lines read every route of a full table. Dumps
    # are ordered by network, so nearly every edge is the beginning of the next route; the remaining
    # ones are sorted in afterwards.
    edges: list[int] = []
    latest = end = -1
    for route in [route for route in node.routes if route[0] >> shift in octets]:
        start = route[0]
        if start > latest:
            edges.append(start)
            latest = start
        elif start < latest:
            unsorted.append(start)  # of another table
        if start != end:
            unsorted.append(end)
        end = start + sizes[route[1]]
    edges += {*unsorted, end}.difference(edges)
    edges.sort()
    for first, end in ranges:
        yield [first, *edges[bisect_right(edges, first) : bisect_left(edges, end)]], end


def _sources(node: RoutingSnapshot, plain: Sequence[Lookup]) -> Iterator[Iterable[int]]:
    """Yield the sources from which a packet may come, for each answer.

    With one next hop, the kernel's answer has the source. With several, a hash of the flow selects
    the next hop and so the source; then every possible source is computed.
    """
    if node.family == IPV6:
        yield from _ipv6_sources(node, plain)
        return
    resolved = node.lookup([answer.destination for answer in plain], resolve=True)
    ways = [node.turns_of(answer.route) if answer.route else () for answer in plain]
    compare_paths(node, resolved, ways)
    for routes, chosen in zip(ways, resolved, strict=True):
        is_by_flow = any(route.nexthops and route.source is None for route in routes)
        if is_by_flow or len(routes) > 1:
            sources = _sources_by_hop(node, routes)
        else:
            sources = [chosen.route.source if chosen.route else None]
        yield dict.fromkeys(filter(None, sources))


def _sources_by_hop(node: RoutingSnapshot, routes: Sequence[ObservedRoute]) -> list[int | None]:
    """Return the source for each next hop of a route, or of routes in turns.

    A hash selects no dead next hop; a route in turns may be taken though its next hop is dead.
    """
    in_turns = len(routes) > 1
    return [
        route.source or source_by(hop, route.scope, node.links)
        for route in routes
        for hop in route.hops
        if in_turns or not hop.dead
    ]


def _ipv6_sources(node: RoutingSnapshot, plain: Sequence[Lookup]) -> Iterator[Iterable[int]]:
    """Yield the IPv6 sources from which a packet may come, for each answer.

    The kernel chooses one by the destination, and a program may name another: so every address of
    the devices counts that is not deprecated. The kernel may prefer an address of another device,
    which is then its answer.
    """
    ways: list[list[ObservedRoute]] = []
    uncertain: list[int] = []
    for at, answer in enumerate(plain):
        routes = [way.route for way in node.candidates(answer, 0) if way.route]
        ways.append(routes)
        if not all(_is_certain(node, route, answer.destination) for route in routes):
            uncertain.append(at)
    chosen: dict[int, int | None] = {}
    # The choice of the kernel is that for the packets of a lookup.
    others: Sequence[int] = ()
    if node.packets:
        others = [source for sources in node.own.values() for source in sources]
    else:
        chosen = _chosen(node, plain, ways, uncertain)
    all_uncertain = {*uncertain}
    for at, routes in enumerate(ways):
        own = [route.source for route in routes]
        for route in routes:
            for dev in route.devs:
                own += node.own.get(dev, ())
        # Last: a model lacks it, and its first fault is to be the same.
        own.append(chosen.get(at))
        if at in all_uncertain:
            own += others
        yield dict.fromkeys(filter(None, own))


def _is_certain(node: RoutingSnapshot, route: ObservedRoute, destination: int) -> bool:
    """Return True if packets to an address leave by a route with a source of its own devices."""
    return route.kind == "unicast" and node.sends_from_own(route, destination)


def _chosen(
    node: RoutingSnapshot,
    plain: Sequence[Lookup],
    ways: Sequence[Sequence[ObservedRoute]],
    uncertain: Sequence[int],
) -> dict[int, int | None]:
    """Return the IPv6 sources that the kernel chooses, by position in `plain`.

    A model cannot choose, and is asked only where it is uncertain; then it raises.
    """
    asked: Sequence[int] = range(len(plain))
    try:
        paths = node.lookup([answer.destination for answer in plain], resolve=True)
    except UnknownDecisionError:
        asked = uncertain
        paths = node.lookup([plain[at].destination for at in asked], resolve=True)

    compare_paths(node, paths, [ways[at] for at in asked])
    return {at: path.route.source for at, path in zip(asked, paths, strict=True) if path.route}


# --- decisions


class DecidedPart(NamedTuple):
    """A part with one of its answers, and the route or rule that decides it.

    `rule` is that of `RoutingSnapshot.special_rule`.
    """

    part: CidrPart
    answer: Lookup
    decider: ObservedRoute | Rule | None
    rule: Rule | None = None

    @classmethod
    def of(cls, node: RoutingSnapshot, part: CidrPart, answer: Lookup, source: int) -> DecidedPart:
        """Return what decides an answer with a source."""
        decider = node.decider(answer, source)
        return cls(part, answer, decider, node.special_rule(decider, answer.destination, source))

    @property
    def kind(self) -> Kind:
        """The kind of `Finding` that this is, if the devices are not allowed."""
        if self.answer.errno == CHANGING:
            return "undecided"
        if self.answer.route is None:
            # An `unreachable` rule has the errno of a missing route.
            is_missing = self.decider is None and self.answer.errno == errno.ENETUNREACH
            return "no-route" if is_missing else "blocked"
        return "local" if self.answer.route.kind == "local" else "overlap"

    def stays(self, node: RoutingSnapshot) -> bool:
        """Return True for an address of hardware, and for what a blackhole refuses.

        No route should take it, and the rest can be right.
        """
        route = self.answer.route
        if route is not None:
            is_own = route.kind in {"local", "broadcast"}
            return is_own and removal(node, self.part.first) is None
        return isinstance(self.decider, ObservedRoute) and self.decider.kind == "blackhole"


def removal(node: RoutingSnapshot, address: int) -> str | None:
    """Return the command that removes an own address from its device, such as docker0.

    None unless one device has it, and is virtual: others may need it, or lead to the operator.
    """
    held = [
        (link, own)
        for link in node.links
        for own in link.addresses
        if (own.family, own.local) == (node.family, address)
    ]
    if len(held) != 1:
        return None
    [(link, own)] = held
    if link.loopback or link.infiniband or link.may_stand_for_network:
        return None
    return quoted("ip", "address", "del", str(own), "dev", link.name)
