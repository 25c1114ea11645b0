"""The answers of a node for the parts of CIDRs, all from one moment.

One address of each part is looked up, in bulk. If routing changes meanwhile, the affected parts are
divided and looked up again, until nothing changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.net.addresses import IPV4, IPV6, Prefix
from hostrouting.net.links import source_by
from hostrouting.net.routes import Lookup, ObservedRoute
from hostrouting.route_overlap.cidr_parts import CidrPart, cut, range_of
from hostrouting.route_overlap.snapshot import CHANGING, RoutingSnapshot, SourcedLookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_Item = TypeVar("_Item")
_route_of = itemgetter(1)
#: How often parts are looked up again while routing changes. Looking up all of them counts several
#: times because it takes as long as a check, and so does each round in a big table: in a storm of
#: changes, a check should take at most twice its usual time.
_ROUNDS = 32
_ROUNDS_OF_ALL = 4
_ROUTES_OF_A_ROUND = 10_000


class LookedUp(NamedTuple):
    """The parts of each CIDR, and the allowed devices of the parts that are left out."""

    parts: list[list[CidrPart]]
    devs_left_out: frozenset[str]


class _Ranges:
    """Sorted ranges of addresses that do not overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            if not self._lasts or first > self._lasts[-1]:
                self._firsts.append(first)
                self._lasts.append(last)
            else:
                self._lasts[-1] = max(last, self._lasts[-1])

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def within(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges that overlap the range from `first` to `last`."""
        at = bisect_left(self._lasts, first)
        while at < len(self._firsts) and self._firsts[at] <= last:
            yield self._firsts[at], self._lasts[at]
            at += 1

    def common(self, other: _Ranges) -> _Ranges:
        """Return the addresses that are in both."""
        return _Ranges(
            (max(first, begin), min(last, end))
            for begin, end in zip(other._firsts, other._lasts, strict=True)
            for first, last in self.within(begin, end)
        )


class _Answered(NamedTuple):
    """The parts of ranges of addresses, and the answer for the last address of each part.

    The key of the answers with a source is the address that was looked up.
    """

    #: The number of parts of each range.
    counts: list[int]
    firsts: list[int]
    lasts: list[int]
    plain: list[Lookup]
    sourced: dict[int, list[SourcedLookup]]

    def meeting(self, ranges: _Ranges) -> Iterator[tuple[int, int, int]]:
        """Yield the parts that overlap `ranges`: the index of their range, and their slice."""
        begin = 0
        for at, count in enumerate(self.counts):
            end = begin + count
            stop = begin
            for first, last in ranges.within(self.firsts[begin], self.lasts[end - 1]):
                start = max(bisect_left(self.lasts, first, begin, end), stop)
                stop = max(bisect_right(self.firsts, last, begin, end), start)
                if start < stop:
                    yield at, start, stop
            begin = end

    def cut_out(self, ranges: _Ranges) -> _Answered:
        """Return the parts after dividing those that overlap `ranges` but keep their answer."""
        counts = [*self.counts]
        firsts, lasts, plain = [*self.firsts], [*self.lasts], [*self.plain]
        for at, _, stop in reversed([*self.meeting(ranges)]):
            # Of the parts that overlap a range, only the last one may end after it.
            part = stop - 1
            pieces = [*self._pieces(part, ranges)]
            counts[at] += len(pieces) - 1
            firsts[part:stop] = [first for first, _, _ in pieces]
            lasts[part:stop] = [last for _, last, _ in pieces]
            plain[part:stop] = [answer for _, _, answer in pieces]
        return self._replace(counts=counts, firsts=firsts, lasts=lasts, plain=plain)

    def _pieces(self, part: int, ranges: _Ranges) -> Iterator[tuple[int, int, Lookup]]:
        """Yield the pieces of a part that overlaps `ranges`: those inside of a range, and the rest.

        The answer belongs to the last address. If a range contains that address, nothing is known
        about the rest, so the part stays one piece. Otherwise the pieces outside of the ranges keep
        the answer: a new route to a pod does not make the rest of its network unknown.
        """
        first, end, answer = self.firsts[part], self.lasts[part], self.plain[part]
        met = [*ranges.within(first, end)]
        _, furthest = met[-1]
        if furthest < end:
            for begin, last in met:
                if begin > first:
                    yield first, begin - 1, answer
                yield max(begin, first), last, Lookup(last, None)
                first = last + 1
        yield first, end, answer

    def with_parts(self, spans: Sequence[tuple[int, int, int]], new: _Answered) -> _Answered:
        """Return the parts after replacing each span with its new parts."""
        counts = [*self.counts]
        for (at, start, stop), count in zip(spans, new.counts, strict=True):
            counts[at] += count - (stop - start)
        plain = _spliced(self.plain, new.plain, spans, new.counts)
        sourced = {**self.sourced}
        for answer in new.plain:
            # The rules may have changed since.
            sourced.pop(answer.destination, None)
        return _Answered(
            counts,
            _spliced(self.firsts, new.firsts, spans, new.counts),
            _spliced(self.lasts, new.lasts, spans, new.counts),
            plain,
            {**sourced, **new.sourced},
        )

    def undecided_in(self, ranges: _Ranges) -> _Answered:
        """Return the parts, undecided where they overlap `ranges`."""
        plain = [*self.plain]
        sourced = {**self.sourced}
        for _, start, stop in self.meeting(ranges):
            for at in range(start, stop):
                plain[at] = Lookup(self.lasts[at], None, CHANGING)
                sourced.pop(self.lasts[at], None)
        return self._replace(plain=plain, sourced=sourced)


def _spliced(
    old: list[_Item],
    new: list[_Item],
    spans: Iterable[tuple[int, int, int]],
    counts: Iterable[int],
) -> list[_Item]:
    """Return the old list after replacing each span with its number of new items."""
    spliced: list[_Item] = []
    copied = taken = 0
    for (_, start, stop), count in zip(spans, counts, strict=True):
        spliced += old[copied:start]
        spliced += new[taken : taken + count]
        copied = stop
        taken += count
    return [*spliced, *old[copied:]]


def read(
    make: Callable[[], RoutingSnapshot], cidrs: Sequence[Prefix]
) -> tuple[RoutingSnapshot, LookedUp]:
    """Return a snapshot of a node, and the parts of CIDRs with their answers from one moment.

    If the routing of a part did not change between its snapshot and its answer, the answer is
    correct for that moment, whatever happens later. So each round looks up again only what changed
    during the previous one. If routing keeps changing, the answers for the affected parts have the
    errno `CHANGING`.
    """
    node = make()
    whole = [*map(range_of, cidrs)]
    answered = _answered(node, whole)
    unsettled = _Ranges((first, end - 1) for first, end in whole)
    left = _ROUNDS
    while True:
        changed = node.backend.catch_up(node.family)
        unsettled = _Ranges((network.network, network.last) for network in changed).common(
            unsettled
        )
        answered = answered.cut_out(unsettled) if unsettled else answered
        spans = [*answered.meeting(unsettled)]
        if not spans:
            break
        if left <= 0:
            answered = answered.undecided_in(unsettled)
            break
        cost = 1 + len(node.routes) // _ROUTES_OF_A_ROUND
        are_all = any(not network.length for network in changed)
        left -= cost * _ROUNDS_OF_ALL if are_all else cost
        node = make()
        ranges = [
            (answered.firsts[start], answered.lasts[stop - 1] + 1) for _, start, stop in spans
        ]
        unsettled = _Ranges((first, end - 1) for first, end in ranges)
        answered = answered.with_parts(spans, _answered(node, ranges))
    return node, _selected(node, answered)


def looked_up(node: RoutingSnapshot, cidrs: Sequence[Prefix]) -> LookedUp:
    """Divide each CIDR where the answer may change, and return its parts."""
    return _selected(node, _answered(node, [*map(range_of, cidrs)]))


def _selected(node: RoutingSnapshot, answered: _Answered) -> LookedUp:
    """Return the parts of each CIDR.

    If there are expected devices, parts that leave through a single allowed device are left out,
    unless a rule selects by source. If an announced route may attract a part, this route is its
    only answer.
    """
    allowed = node.allowed
    is_proof = bool(allowed.expected)
    counts, firsts, lasts, plain, sourced = answered
    # The announced routes that may attract parts, by the position of the part.
    taken: dict[int, tuple[SourcedLookup]] = {}
    if is_proof and node.announced:
        for at, answer in enumerate(plain):
            others = (lookup for lookup, _ in sourced.get(answer.destination, ()))
            if new := node.announced.taker(answer, others):
                taken[at] = ((Lookup(answer.destination, new), 0),)
    indexes: Sequence[int] = range(len(firsts))
    fine: frozenset[str] = frozenset()
    if is_proof and not node.by_source and node.family == IPV4:
        # By position, which is faster than by name: these lines read every answer of a full table.
        suspects: Iterable[int] = ()
        devs = {answer[1] and answer[1][3] for answer in plain}
        fine = frozenset(dev for dev in devs if dev and allowed.allows(dev))
        if node.has_exceptions or fine != devs:
            routes = enumerate(map(_route_of, plain))
            suspects = [
                at
                for at, route in routes
                if route is None
                or route[3] not in fine
                or route[7] == "local"
                or route.encapsulation
            ]
        indexes = sorted({*suspects, *taken})
    parts: list[list[CidrPart]] = []
    before = 0
    for count in counts:
        after = before + count
        parts.append(
            [
                CidrPart(
                    firsts[i],
                    lasts[i],
                    taken.get(i) or (*sourced.get(plain[i].destination, ()), (plain[i], 0)),
                )
                for i in indexes[bisect_left(indexes, before) : bisect_left(indexes, after)]
            ]
        )
        before = after
    return LookedUp(parts, fine)


def _answered(node: RoutingSnapshot, ranges: Sequence[tuple[int, int]]) -> _Answered:
    """Divide ranges, and look up their parts."""
    cuts = [*cut(node, ranges)]
    # All parts at once: one request to the kernel is much cheaper than one for each.
    firsts = [start for starts in cuts for start in starts]
    ends = [end for _, end in ranges]
    lasts = [
        start - 1 for starts, end in zip(cuts, ends, strict=True) for start in (*starts[1:], end)
    ]
    # The last address of each: pods get addresses in order, so the first address of a gap is the
    # next one to change.
    plain = node.lookup(lasts)
    return _Answered([*map(len, cuts)], firsts, lasts, plain, _sourced(node, plain))


def _sourced(node: RoutingSnapshot, plain: Sequence[Lookup]) -> dict[int, list[SourcedLookup]]:
    """Return the answers for each source from which a packet may come, by destination.

    Without routes and rules that select by source, there are none.
    """
    if not node.by_source:
        return {}
    owned = zip(plain, _sources(node, plain), strict=True)
    # CIDRs may overlap.
    by_first = {answer.destination: own for answer, own in owned}
    pairs = [(first, source) for first, own in by_first.items() for source in own]
    sources = [source for _, source in pairs]
    answers = node.lookup([first for first, _ in pairs], sources=sources)
    sourced: dict[int, list[SourcedLookup]] = defaultdict(list)
    for source, answer in zip(sources, answers, strict=True):
        sourced[answer.destination].append((answer, source))
    return sourced


def _sources(node: RoutingSnapshot, plain: Sequence[Lookup]) -> Iterator[Iterable[int]]:
    """Yield the sources from which a packet may come, for each answer.

    With one next hop, the kernel's answer contains the source. With several, a hash of the flow
    selects the next hop and thereby the source, so every possible source is computed.
    """
    if node.family == IPV6:
        yield from _ipv6_sources(node, plain)
        return
    resolved = node.lookup([answer.destination for answer in plain], resolve=True)
    ways = [node.turns_of(answer.route) if answer.route else () for answer in plain]
    for routes, chosen in zip(ways, resolved, strict=True):
        is_by_flow = any(route.nexthops and route.source is None for route in routes)
        if is_by_flow or len(routes) > 1:
            sources = _sources_by_hop(node, routes)
        else:
            sources = [chosen.route.source if chosen.route else None]
        yield dict.fromkeys(filter(None, sources))


def _sources_by_hop(node: RoutingSnapshot, routes: Sequence[ObservedRoute]) -> list[int | None]:
    """Return the source for each next hop of a route, or of routes that are used in turn.

    A hash never selects a dead next hop, but a route used in turn may have one.
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

    The kernel chooses one by the destination, but a program may choose another. So every address of
    the devices counts unless it is deprecated. If the kernel prefers an address of another device,
    its answer shows it.
    """
    ways: list[list[ObservedRoute]] = []
    uncertain: list[int] = []
    for at, answer in enumerate(plain):
        routes = [way.route for way in node.candidates(answer, 0) if way.route]
        ways.append(routes)
        if not all(_is_certain(node, route, answer.destination) for route in routes):
            uncertain.append(at)
    chosen: dict[int, int | None] = {}
    # The kernel's choice is for the packets of a lookup only.
    others: Sequence[int] = ()
    if node.packets:
        others = [source for sources in node.own.values() for source in sources]
    else:
        chosen = _chosen(node, plain, uncertain)
    all_uncertain = {*uncertain}
    for at, routes in enumerate(ways):
        own = [route.source for route in routes]
        for route in routes:
            for dev in route.devs:
                own += node.own.get(dev, ())
        # Last: a model has none, and should find the same fault first.
        own.append(chosen.get(at))
        if at in all_uncertain:
            own += others
        yield dict.fromkeys(filter(None, own))


def _is_certain(node: RoutingSnapshot, route: ObservedRoute, destination: int) -> bool:
    """Return True if packets sent by a route have a source of one of its devices."""
    return route.kind == "unicast" and node.sends_from_own(route, destination)


def _chosen(
    node: RoutingSnapshot, plain: Sequence[Lookup], uncertain: Sequence[int]
) -> dict[int, int | None]:
    """Return the IPv6 sources that the kernel chooses, by position in `plain`.

    A model cannot choose: it is asked only where the choice is uncertain, and then raises.
    """
    asked: Sequence[int] = range(len(plain))
    try:
        paths = node.lookup([answer.destination for answer in plain], resolve=True)
    except UnknownDecisionError:
        asked = uncertain
        paths = node.lookup([plain[at].destination for at in asked], resolve=True)
    return {at: path.route.source for at, path in zip(asked, paths, strict=True) if path.route}
