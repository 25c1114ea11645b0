"""The parts of a CIDR, each with one answer of the kernel, and the judgement on the answers.

By longest-prefix match, the deciding route can change only where a route or a selector of a policy rule begins or ends.
So a CIDR is cut there, and one address of each part is looked up, in bulk. The answer holds for the whole part.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from hostrouting.fib.rules import Packet, Policy
from hostrouting.fib.sources import source_by
from hostrouting.fib.tables import Tables
from hostrouting.net.addresses import bounds, netmask
from hostrouting.net.routes import DEVICELESS_KINDS, MAIN_TABLE, signature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule

__all__ = ["AllowedDevices", "BadPart", "Blockers", "Part", "Question", "questions"]

#: The first addresses of the ranges that the kernel treats specially (multicast, for example), and of the next ones.
_SPECIAL_EDGES: Final = (1, 224 << 24, 240 << 24, 0xFFFFFFFF)
_SIZES: Final = tuple(1 << 32 - length for length in range(33))
_REFUSING_ACTIONS: Final = frozenset({"blackhole", "unreachable", "prohibit"})
_route_of = itemgetter(1)


class Part(NamedTuple):
    """Addresses from `first` to `last`, with one answer for all.

    `plain` is the answer without a source; `sources` are those that the kernel would then choose and that some rule
    may select, and `sourced` the answer with each of them.
    """

    first: int
    last: int
    plain: Lookup
    sources: tuple[int, ...] = ()
    sourced: tuple[Lookup, ...] = ()

    @property
    def answers(self) -> Sequence[tuple[Lookup, int]]:
        """The answers with their sources (0: none); the first is the one that a connection gets."""
        return [*zip(self.sourced, self.sources, strict=True), (self.plain, 0)]


class Question:
    """One CIDR, cut into parts that begin at `firsts`, and the backend's answers for them."""

    def __init__(self, backend: Routing, cidr: str, firsts: list[int], *, by_source: bool) -> None:
        self._backend = backend
        self._firsts = firsts
        self._end = bounds(cidr)[1] + 1
        self._by_source = by_source
        self._plain: Sequence[Lookup] = ()

    def parts(self) -> Iterator[Part]:
        """Return every part."""
        self._plain = self._backend.lookup(self._firsts)
        if not self._by_source:
            yield from map(self._part, range(len(self._firsts)))
            return
        sources = _sources(self._backend, self._plain)
        destinations = [first for first, own in zip(self._firsts, sources, strict=True) for _ in own]
        answers = iter(self._backend.lookup(destinations, sources=[source for own in sources for source in own]))
        for index, own in enumerate(sources):
            yield self._part(index, own, tuple(next(answers) for _ in own))

    def suspects(self, is_fine: dict[str | None, bool]) -> Iterator[Part]:
        """Return every part, except those that are fine because the single device of their answer is."""
        if self._by_source:
            yield from self.parts()
            return
        self._plain = self._backend.lookup(self._firsts)
        # By position, which is faster than by name: these lines read every answer of a full table.
        if all(is_fine[dev] for dev in {answer[1] and answer[1][3] for answer in self._plain}):
            return
        bad = [i for i, route in enumerate(map(_route_of, self._plain)) if route is None or not is_fine[route[3]]]
        yield from map(self._part, bad)

    def _part(self, index: int, sources: tuple[int, ...] = (), sourced: tuple[Lookup, ...] = ()) -> Part:
        following = self._firsts[index + 1] if index + 1 < len(self._firsts) else self._end
        return Part(self._firsts[index], following - 1, self._plain[index], sources, sourced)


def questions(
    backend: Routing, cidrs: Sequence[str], routes: Sequence[ObservedRoute], rules: Sequence[Rule]
) -> list[Question]:
    """Cut each CIDR where `routes` and `rules` say that the answer may change."""
    ranges = [bounds(cidr) for cidr in cidrs]
    common = list(_SPECIAL_EDGES)
    for network, length in [selector for rule in rules for selector in (rule.destination, rule.source)]:
        # Sources, too: the node sends from one of its addresses to the same address.
        common += [network & netmask(length), (network & netmask(length)) + _SIZES[length]]
    near = routes
    if len(ranges) > 1:
        low, high = min(first for first, _ in ranges), max(last for _, last in ranges)
        # By position, which is faster than by name: this line reads every route of a full table.
        near = [route for route in routes if low <= route[0] <= high]
    by_source = _select_by_source(rules)
    return [
        Question(backend, cidr, _starts(first, last, near, common), by_source=by_source)
        for cidr, (first, last) in zip(cidrs, ranges, strict=True)
    ]


def _select_by_source(rules: Iterable[Rule]) -> bool:
    return any(rule.source[1] for rule in rules)


def _starts(first: int, last: int, routes: Iterable[ObservedRoute], common: Iterable[int]) -> list[int]:
    """Return the first address of each part, sorted."""
    # Two networks are disjoint, or one contains the other: a network that ends inside the CIDR also begins inside it.
    # One loop, by position, because it reads every route of a full table. Dumps are ordered by network, so nearly every
    # edge is the beginning of the next route; the others are sorted in afterwards.
    starts, others = [first], list(common)
    latest = end = first
    for route in routes:
        start = route[0]
        if first <= start <= last:
            if start > latest:
                starts.append(start)
                latest = start
            elif start < latest:
                others.append(start)  # of another table
            if start != end:
                others.append(end)
            end = start + _SIZES[route[1]]
    others.append(end)
    edges = sorted({edge for edge in others if first < edge <= last})
    missing = [edge for edge in edges if (at := bisect_left(starts, edge)) == len(starts) or starts[at] != edge]
    starts += missing
    starts.sort()
    return starts


def _sources(backend: Routing, plain: Sequence[Lookup]) -> list[tuple[int, ...]]:
    """Return the sources from which the kernel may send, for each answer.

    With one next hop, the kernel tells the source. With several, a hash of the flow selects the next hop and so the
    source; then every possible source is computed.
    """
    resolved = backend.lookup([answer.destination for answer in plain], resolve=True)
    links = backend.links()
    sources: list[tuple[int, ...]] = []
    for answer, chosen in zip(plain, resolved, strict=True):
        found: list[int | None] = [chosen.route.source if chosen.route else None]
        if answer.route is not None and answer.route.nexthops and answer.route.source is None:
            alive = [hop for hop in answer.route.nexthops if not hop.dead]
            found = [source_by(hop, answer.route.scope, links) for hop in alive]
        sources.append(tuple(dict.fromkeys(source for source in found if source)))
    return sources


# --- judgement


class BadPart(NamedTuple):
    """A part with an answer that is not fine; `blocker` is the refusing route or rule if the answer is an errno."""

    part: Part
    answer: Lookup
    blocker: ObservedRoute | Rule | None

    @property
    def kind(self) -> Literal["overlap", "no-route", "blocked", "local"]:
        """One of the kinds of `Finding`."""
        if self.answer.route is None:
            return "no-route" if self.answer.errno == errno.ENETUNREACH else "blocked"
        return "local" if self.answer.route.kind == "local" else "overlap"

    @property
    def text(self) -> str | None:
        """The deciding route or rule."""
        decider = self.answer.route or self.blocker
        return None if decider is None else str(decider)


class AllowedDevices(dict["str | None", bool]):
    """The devices that may carry expected traffic: expected ones and those that match a pattern; a dict for speed."""

    def __init__(self, expected: Iterable[str], patterns: Iterable[str]) -> None:
        # A route with several next hops has no device: its next hops need a closer look.
        super().__init__([(None, False), *((dev, True) for dev in expected)])
        self._patterns = tuple(patterns)

    def __missing__(self, dev: str) -> bool:
        from fnmatch import fnmatchcase

        # Byte for byte, as bash does in the C locale.
        name = dev.encode(errors="surrogateescape").decode("latin-1")
        self[dev] = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return self[dev]

    def refused(self, devs: Iterable[str]) -> tuple[str, ...]:
        """Return those of `devs` that are not allowed."""
        return tuple(dev for dev in devs if not self[dev])

    def answer_is_fine(self, answer: Lookup) -> bool:
        """Return True if every next hop is allowed."""
        return answer.route is not None and bool(answer.route.devs) and not self.refused(answer.route.devs)

    def bad_answer(self, part: Part) -> tuple[Lookup, int] | None:
        """Return an answer that is not fine, with its source (0: none); of several the one that a connection gets."""
        return next((pair for pair in part.answers if not self.answer_is_fine(pair[0])), None)


class Blockers:
    """The routes and rules of a node that refuse packets: the kernel answers such a lookup only with an errno.

    Use it only for addresses that the kernel refuses. No table that the kernel tries before the refusing one has a
    route that forwards them, so the refusing routes are enough.
    """

    def __init__(self, routes: Iterable[ObservedRoute], rules: Sequence[Rule]) -> None:
        self._routes = routes
        self._policy = Policy(rules)
        #: True if an answer may depend on the source.
        self.by_source: bool = _select_by_source(rules)

    @cached_property
    def _refusing(self) -> Tables:
        # By position, which is faster than by name: this line reads every route of a full table.
        return Tables.of(route for route in self._routes if route[7] in DEVICELESS_KINDS)

    def find(self, destination: int, source: int) -> ObservedRoute | Rule | None:
        """Return the route or rule that refuses this packet; None if no route matches it."""
        for rule, _ in self._policy.selected(Packet(destination, source)):
            if rule.other_selectors:
                continue
            if rule.action in _REFUSING_ACTIONS:
                return rule
            route = self._refusing.search((rule.table,), destination) if rule.action == "lookup" else None
            if route is not None and route.kind != "throw":
                return route
        return None

    def held_in_main(self, candidates: Collection[ObservedRoute]) -> list[ObservedRoute]:
        """Return those in the main table: before the first rule, the kernel reports local ones as part of it, too."""
        networks = {candidate.network for candidate in candidates}
        held = {
            (route.network, signature(route))
            for route in self._routes
            if route[0] in networks and route.table == MAIN_TABLE
        }
        return [candidate for candidate in candidates if (candidate.network, signature(candidate)) in held]
