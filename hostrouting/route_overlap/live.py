"""The findings of a node whose routing changes: an event is answered by looking again at the addresses that it touches.

For each CIDR the parts of the last whole proof are kept, by their first addresses, with those that are bad. A change
of the routes to one network cuts the parts at its edges, and only the parts inside are looked up again. A part that was
cut where nothing ends any more does no harm, because adjacent parts with one answer are one finding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.fib import Packet, UnknownDecisionError
from hostrouting.net.addresses import bounds
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE
from hostrouting.route_overlap.parts import DecidedPart, Node, Part, cut, suspects
from hostrouting.route_overlap.proof import Findings, allowed_now, prove_egress, without_default

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.config import RouteOverlapConfig
    from hostrouting.fib import Fib
    from hostrouting.fib.live import Effect
    from hostrouting.fib.tables import Key
    from hostrouting.net.routes import Lookup
    from hostrouting.route_overlap.fabric import Fabric
    from hostrouting.route_overlap.parts import AllowedDevices
    from hostrouting.route_overlap.report import Finding

__all__ = ["Found", "LiveProof"]

#: The findings of each expected CIDR, in the order of the config.
Found: TypeAlias = "tuple[tuple[Finding, ...], ...]"

#: So many cuts may come after a whole proof.
_MOST_CUTS: Final = 10_000


@attrs.define(eq=False)
class _Range:
    """The parts of one CIDR."""

    first: int
    last: int
    #: The first address of each part, sorted.
    starts: list[int]
    #: The bad answers, by the first address of their part.
    bad: dict[int, Lookup]
    #: With more parts, a whole proof forgets the cuts of routes that are gone.
    most: int = attrs.field(init=False)

    @most.default
    def _count(self) -> int:
        return len(self.starts) + _MOST_CUTS

    def cut(self, edge: int) -> None:
        """Let a part begin at an address, with the answer of the part in which it lies."""
        at = bisect_left(self.starts, edge)
        if edge <= self.last and (at == len(self.starts) or self.starts[at] != edge):
            around = self.bad.get(self.starts[at - 1])
            self.starts.insert(at, edge)
            if around is not None:
                self.bad[edge] = around._replace(destination=edge)

    def answer(self, fib: Fib, allowed: AllowedDevices, first: int, last: int) -> bool:
        """Look the parts from `first` to `last` up again; return True if a bad answer came, went or changed."""
        asked = self.starts[bisect_left(self.starts, first) : bisect_right(self.starts, last)]
        changed = False
        for answer in fib.lookup(asked):
            start = answer.destination
            before = self.bad.pop(start, None)
            if not allowed.answer_is_fine(answer):
                self.bad[start] = answer
            changed = changed or self.bad.get(start) != before
        return changed

    def decided(self, fib: Fib) -> Iterable[DecidedPart]:
        """Yield the bad parts, in their order."""
        for start in sorted(self.bad):
            answer = self.bad[start]
            after = bisect_right(self.starts, start)
            last = self.starts[after] - 1 if after < len(self.starts) else self.last
            decider = answer.route or fib.decide(Packet(start)).blocker
            yield DecidedPart(Part(start, last, ((answer, 0),)), answer, decider)


class LiveProof:
    """The findings of `prove_egress` on a model that changes.

    >>> from hostrouting.config import RouteOverlapConfig
    >>> from hostrouting.fib.live import LiveFib
    >>> from hostrouting.net.events import RouteEvent
    >>> from hostrouting.net.routes import ObservedRoute
    >>> from hostrouting.route_overlap.assumed import model_of
    >>> from hostrouting.route_overlap.fabric import Fabric
    >>> from hostrouting.testing import MemoryBackend
    >>> node = MemoryBackend()
    >>> node.add_link("eth0")
    >>> node.add_address("eth0", "10.224.0.4/16")
    >>> node.add_route("default", gateway="10.224.0.1", dev="eth0")
    >>> live, proof = LiveFib(model_of(node)), LiveProof(RouteOverlapConfig(expected_cidrs=("172.16.0.0/16",)))
    >>> proof.findings(live.fib, Fabric())
    ((),)
    >>> new = RouteEvent("add", ObservedRoute.parse("172.16.4.0/24", "ib0", scope=253))
    >>> effect = live.apply([new])
    >>> proof.hear(live.fib, effect)
    True
    >>> [finding.sentence() for finding in proof.findings(live.fib, Fabric())[0]]
    ['172.16.4.0 to 172.16.4.255: overlap, leaves by ib0 (172.16.4.0/24 dev ib0 proto 0 scope link)']
    """

    def __init__(self, section: RouteOverlapConfig) -> None:
        self._cidrs = list(section.cidrs)
        self._ranges = [bounds(cidr) for cidr in self._cidrs]
        self._expected: Sequence[str] | None = section.expected_devs or None
        self._patterns = (*DEFAULT_ALLOWED_DEVS, *section.allowed_devs)
        self._allowed: AllowedDevices | None = None
        #: None if the next findings need a whole proof.
        self._parts: list[_Range] | None = None
        #: True if an address may be announced that the node has now: without it, the next findings are others.
        self._has_fabric = False
        #: None if they are to be collected.
        self._found: Found | None = None

    def concerns(self, network: int, length: int) -> bool:
        """Return True if a network and an expected CIDR have addresses in common."""
        last = network + (1 << 32 - length) - 1
        for low, high in self._ranges:  # noqa: SIM110 - each event of a storm asks, and `any` takes twice the time
            if network <= high and low <= last:
                return True
        return False

    def forget(self) -> None:
        """Let the next findings be those of a whole proof."""
        self._parts = self._found = None

    def hear(self, fib: Fib, effect: Effect) -> bool:
        """Take over changes of the model; return True if the findings may be others now."""
        keys = [key for key in effect.keys if self.concerns(*key[1:])]
        if self._is_beyond(fib, effect, keys):
            self.forget()
        elif self._parts is not None:
            self._answer(fib, keys)
        elif keys or effect.devices or any(table == LOCAL_TABLE for table, _, _ in effect.keys):
            # The node may send from other addresses now.
            self._found = None
        else:
            return False
        return self._found is None

    def _is_beyond(self, fib: Fib, effect: Effect, keys: Iterable[Key]) -> bool:
        """Return True if changes concern more than the addresses of some routes."""
        if effect.rules or any(table == MAIN_TABLE and not length for table, _, length in keys):
            return True
        if not effect.devices or self._has_fabric:
            return effect.devices
        new, old = self._allowed_now(fib), self._allowed
        return new is None or old is None or (new.expected, new.dead_ends) != (old.expected, old.dead_ends)

    def _allowed_now(self, fib: Fib) -> AllowedDevices | None:
        defaults = fib.tables.bucket((MAIN_TABLE, 0, 0))
        return allowed_now(fib.links(), defaults, allowed_devs=self._patterns, expected_devs=self._expected)

    def _answer(self, fib: Fib, keys: Iterable[Key]) -> None:
        networks = [(network, network + (1 << 32 - length) - 1) for _, network, length in keys]
        for one in self._parts or ():
            spans = [(max(low, one.first), min(high, one.last)) for low, high in networks]
            self._answer_range(fib, one, [(low, high) for low, high in spans if low <= high])

    def _answer_range(self, fib: Fib, one: _Range, spans: Sequence[tuple[int, int]]) -> None:
        if len(one.starts) + 2 * len(spans) > one.most:
            self.forget()
            return
        # All cuts come first: an answer must hold for the whole of its part.
        for low, high in spans:
            one.cut(low)
            one.cut(high + 1)
        try:
            for low, high in spans:
                if self._allowed and one.answer(fib, self._allowed, low, high):
                    self._found = None
        except UnknownDecisionError:
            self.forget()

    def findings(self, fib: Fib, fabric: Fabric) -> Found:
        """Return the findings of each expected CIDR; raise UnknownDecisionError if the model does not know them."""
        if self._found is None and self._parts is None:
            self._prove(fib, fabric)
        if self._found is None and self._allowed is not None:
            findings = Findings(self._allowed)
            self._found = tuple(findings.of(one.decided(fib)) for one in self._parts or ())
        return self._found or ()

    def _prove(self, fib: Fib, fabric: Fabric) -> None:
        """Prove every CIDR as a whole."""
        self._allowed = self._allowed_now(fib)
        node = Node(fib)
        self._has_fabric = bool(fabric.addresses or fabric.networks)
        if self._allowed is None:
            self._found = tuple((without_default(cidr),) for cidr in self._cidrs)
        elif node.by_source or (self._has_fabric and not _is_connected(fib, fabric)):
            # An event may change the answers to all addresses.
            report = prove_egress(
                fib, self._cidrs, allowed_devs=self._patterns, expected_devs=self._expected, fabric=fabric
            )
            self._found = tuple(one.findings for one in report.cidrs)
        else:
            self._parts = [
                _Range(low, end - 1, starts, _bad(fib, starts, self._allowed))
                for (low, _), (starts, end) in zip(self._ranges, cut(node, self._cidrs), strict=True)
            ]


def _is_connected(fib: Fib, fabric: Fabric) -> bool:
    # Imported late: most nodes have no announced fabric.
    from hostrouting.route_overlap.assumed import Assumed

    return Assumed(fib, fabric).brings_nothing


def _bad(fib: Fib, starts: Sequence[int], allowed: AllowedDevices) -> dict[int, Lookup]:
    answers = fib.lookup(starts)
    return {starts[i]: answers[i] for i in suspects(answers, allowed) if not allowed.answer_is_fine(answers[i])}
