"""The parts of CIDRs with wrong answers, each with the route or rule that decides it."""

from __future__ import annotations

import errno
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hostrouting.base.commands import quoted
from hostrouting.net.routes import MAIN_TABLE, Lookup, ObservedRoute
from hostrouting.route_overlap.cidr_parts import CidrPart
from hostrouting.route_overlap.snapshot import UNDECIDED, RoutingSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.net.rules import Rule
    from hostrouting.route_overlap.answers import LookedUp

#: Why addresses are a finding; see `Finding`.
Kind: TypeAlias = Literal[
    "overlap", "no-route", "blocked", "local", "dead-end", "announced", "unknown-exit", "undecided"
]
#: The fields of a route that an answer shows in any table.
_SHOWN = itemgetter(0, 1, 3, 7)


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
        if self.answer.errno in UNDECIDED:
            return "undecided"
        if self.answer.route is None:
            # An `unreachable` rule has the errno of a missing route.
            is_missing = self.decider is None and self.answer.errno == errno.ENETUNREACH
            return "no-route" if is_missing else "blocked"
        return "local" if self.answer.route.kind == "local" else "overlap"

    def stays(self, node: RoutingSnapshot) -> bool:
        """Return True for addresses of hardware devices, and for those that a blackhole refuses.

        No route should attract these, and the rest can still be right.
        """
        route = self.answer.route
        if route is not None:
            is_own = route.kind in {"local", "broadcast"}
            return is_own and removal(node, self.answer) is None
        return isinstance(self.decider, ObservedRoute) and self.decider.kind == "blackhole"


def removal(node: RoutingSnapshot, answer: Lookup) -> str | None:
    """Return the command that takes an address away from the node.

    It is None unless exactly one device has the address and is virtual, such as docker0: other
    devices may need it, or connect the operator. A local route to an address that no device has can
    be deleted.
    """
    held = [
        (link, own)
        for link in node.links
        for own in link.addresses
        if (own.family, own.local) == (node.family, answer.destination)
    ]
    if not held and answer.route and answer.route.kind == "local":
        # Not by its table: the kernel may name main for a route of the table local.
        for route in node.routes:
            if _SHOWN(route) == _SHOWN(answer.route):
                # Without a table, ip looks for a local route in table local.
                table = ["table", "main"] if route.table == MAIN_TABLE else []
                return quoted("ip", "route", "del", *str(route).split(), *table)
    if len(held) != 1:
        return None
    [(link, own)] = held
    if link.loopback or link.infiniband or link.may_stand_for_network:
        return None
    return quoted("ip", "address", "del", str(own), "dev", link.name)


def judged(node: RoutingSnapshot, looked: LookedUp) -> tuple[list[list[DecidedPart]], set[str]]:
    """Return the parts of each CIDR that have a wrong answer, and the devices of all answers.

    If a part has several answers, only the first wrong one counts.
    """
    devs = {*looked.devs_left_out}
    bad: list[list[DecidedPart]] = []
    for parts in looked.parts:
        wrong: list[DecidedPart] = []
        for part in parts:
            for answer, source in node.ways(part.answers):
                devs.update(answer.route.devs if answer.route else ())
                if not node.is_fine(answer, source):
                    wrong.append(DecidedPart.of(node, part, answer, source))
                    break
        bad.append(wrong)
    return bad, devs


def merged(
    bad: Sequence[Sequence[DecidedPart]], more: Sequence[Sequence[DecidedPart]]
) -> tuple[list[list[DecidedPart]], list[DecidedPart]]:
    """Return all parts of both by address, and separately those that only `more` has."""
    merged: list[list[DecidedPart]] = []
    new: list[DecidedPart] = []
    for known, others in zip(bad, more, strict=True):
        starts = {decided.part.first for decided in known}
        added = [decided for decided in others if decided.part.first not in starts]
        merged.append(sorted([*known, *added], key=lambda decided: decided.part.first))
        new += added
    return merged, new
