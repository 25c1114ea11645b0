"""Prove that every address of a CIDR leaves by a device that may carry it; the kernel answers.

A lookup returns the deciding route with all its next hops. A hash assigns each flow to one of them, so all must be
allowed. If a rule selects by source, the part is looked up again with the source that the kernel chooses after the
first answer. Both answers must be fine: the second one decides for a connected socket, the first one for a datagram
from an unconnected socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.net.addresses import Prefix, bounds, format_ipv4
from hostrouting.net.default_route import default_route
from hostrouting.route_overlap.parts import AllowedDevices, DecidedPart, Node, adjacent, looked_up
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.parts import Part
    from hostrouting.route_overlap.report import SuggestedRoute

__all__ = ["prove_egress"]


def prove_egress(
    backend: Routing,
    cidrs: Sequence[str],
    *,
    allowed_devs: Sequence[str] = DEFAULT_ALLOWED_DEVS,
    expected_devs: Sequence[str] | None = None,
) -> OverlapReport:
    """Prove for every address of `cidrs` that it leaves by an expected device, or by one that a pattern allows.

    `expected_devs=None` means the devices of the default route; without one, every CIDR is `no-route` as a whole.
    It changes nothing and needs no privilege. It raises `BackendError` if the kernel cannot be asked.
    """
    node = Node(backend)
    default = default_route(node.routes)
    suggested: Sequence[Sequence[SuggestedRoute]] = [()] * len(cidrs)
    if expected_devs is None and default is None:
        findings = [[_without_default(cidr)] for cidr in cidrs]
    else:
        expected_devs = default.devs if expected_devs is None and default else expected_devs or ()
        allowed = AllowedDevices(expected_devs, allowed_devs)
        bad = [_bad(parts, allowed, node) for parts in looked_up(node, cidrs, allowed=allowed)]
        if any(bad) and default:
            # Imported late: a node without findings does not need it.
            from hostrouting.route_overlap.suggest import suggestions

            suggested = suggestions(node, bad, default, allowed)
        findings = [[_finding(group, allowed) for group in adjacent(parts, same=_answer)] for parts in bad]
    return OverlapReport(
        expected_devs=tuple(expected_devs or ()),
        cidrs=tuple(
            CidrReport(cidr=str(Prefix.parse(cidr).masked), findings=tuple(found), suggested_routes=tuple(mending))
            for cidr, found, mending in zip(cidrs, findings, suggested, strict=True)
        ),
        not_covered=tuple(str(rule) for rule in node.rules if rule.other_selectors),
    )


def _without_default(cidr: str) -> Finding:
    first, last = map(format_ipv4, bounds(cidr))
    return Finding(kind="no-route", first=first, last=last)


def _bad(parts: Iterable[Part], allowed: AllowedDevices, node: Node) -> list[DecidedPart]:
    """Return the parts with an answer that is not fine; of several such answers the one that a connection gets."""
    bad = []
    for part in parts:
        found = next((pair for pair in part.answers if not allowed.answer_is_fine(pair[0])), None)
        if found is not None:
            bad.append(DecidedPart(part, found[0], node.decider(*found)))
    return bad


def _answer(one: DecidedPart) -> tuple[object, ...]:
    return one.answer[1:]


def _finding(group: Sequence[DecidedPart], allowed: AllowedDevices) -> Finding:
    first = group[0]
    # Adjacent blackholes have one answer, but are different routes.
    texts = dict.fromkeys(str(one.decider) for one in group if one.decider)
    return Finding(
        kind=first.kind,
        first=format_ipv4(first.part.first),
        last=format_ipv4(group[-1].part.last),
        devs=first.devs,
        dev=next(iter(allowed.refused(first.devs)), None),
        route="; ".join(texts) or None,
    )
