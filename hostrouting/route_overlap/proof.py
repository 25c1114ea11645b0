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
from hostrouting.route_overlap.parts import AllowedDevices, BadPart, Blockers, questions
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.net.rules import Rule
    from hostrouting.route_overlap.parts import Question
    from hostrouting.route_overlap.report import SuggestedRoute

__all__ = ["AllowedDevices", "BadPart", "prove_egress"]


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
    routes, rules = backend.routes(), backend.rules()
    default = default_route(routes)
    suggested: Sequence[Sequence[SuggestedRoute]] = [()] * len(cidrs)
    if expected_devs is None and default is None:
        return _report((), zip(cidrs, map(_without_default, cidrs), suggested, strict=True), rules)
    expected_devs = default.devs if expected_devs is None and default else expected_devs or ()
    allowed = AllowedDevices(expected_devs, allowed_devs)
    blockers = Blockers(routes, rules)
    bad = [_bad_parts(question, allowed, blockers) for question in questions(backend, cidrs, routes, rules)]
    if any(bad) and default:
        # Imported late: a node without findings does not need it.
        from hostrouting.route_overlap.suggest import suggestions

        suggested = suggestions(backend, bad, default, allowed, blockers)
    findings = (_findings(parts, allowed) for parts in bad)
    return _report(expected_devs, zip(cidrs, findings, suggested, strict=True), rules)


def _report(
    expected_devs: Iterable[str],
    cidrs: Iterable[tuple[str, tuple[Finding, ...], Sequence[SuggestedRoute]]],
    rules: Iterable[Rule],
) -> OverlapReport:
    return OverlapReport(
        expected_devs=tuple(expected_devs),
        cidrs=tuple(
            CidrReport(cidr=str(Prefix.parse(cidr).masked), findings=findings, suggested_routes=tuple(suggested))
            for cidr, findings, suggested in cidrs
        ),
        not_covered=tuple(str(rule) for rule in rules if rule.other_selectors),
    )


def _bad_parts(question: Question, allowed: AllowedDevices, blockers: Blockers) -> list[BadPart]:
    bad = []
    for part in question.suspects(allowed):
        answer_and_source = allowed.bad_answer(part)
        if answer_and_source is not None:
            answer, source = answer_and_source
            bad.append(BadPart(part, answer, blockers.find(part.first, source) if answer.route is None else None))
    return bad


def _without_default(cidr: str) -> tuple[Finding, ...]:
    first, last = map(format_ipv4, bounds(cidr))
    return (Finding(kind="no-route", first=first, last=last),)


def _findings(bad: Sequence[BadPart], allowed: AllowedDevices) -> tuple[Finding, ...]:
    """Return the findings: adjacent parts with the same answer become one."""
    groups: list[list[BadPart]] = []
    for one in bad:
        last = groups[-1][-1] if groups else None
        same = last is not None and last.answer[1:] == one.answer[1:] and last.part.last + 1 == one.part.first
        if same:
            groups[-1].append(one)
        else:
            groups.append([one])
    return tuple(_finding(group, allowed) for group in groups)


def _finding(group: Sequence[BadPart], allowed: AllowedDevices) -> Finding:
    first = group[0]
    devs = first.answer.route.devs if first.answer.route else ()
    # Adjacent blackholes have one answer, but are different routes.
    texts = dict.fromkeys(one.text for one in group if one.text)
    return Finding(
        kind=first.kind,
        first=format_ipv4(first.part.first),
        last=format_ipv4(group[-1].part.last),
        devs=devs,
        dev=next(iter(allowed.refused(devs)), None),
        route="; ".join(texts) or None,
    )
