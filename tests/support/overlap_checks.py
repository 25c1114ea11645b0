"""Proofs in short: the findings of one CIDR, and reports of one routing from two sources."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from hostrouting.host import Address
from hostrouting.route_overlap.check import check_egress, prove_egress
from hostrouting.route_overlap.expectation import Expectation, prefixes_of
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport


def prove(node: Any, cidr: str, allowed: Sequence[str] = ()) -> CidrReport:
    """Return the report of one CIDR; `node` is a backend, or one that passes on what it lacks."""
    [report] = prove_egress(node, [cidr], allowed_devs=allowed).cidrs
    return report


def check_cidrs(node: Any, cidrs: Iterable[str], **rest: Any) -> OverlapReport:
    """Return the report on CIDRs under the rest of an `Expectation`."""
    return check_egress(node, Expectation(cidrs=prefixes_of(cidrs), **rest))


def shapes(report: CidrReport) -> list[tuple[str, str, str, str | None]]:
    return [(finding.kind, finding.first, finding.last, finding.dev) for finding in report.findings]


def told_alike(reports: Iterable[CidrReport]) -> list[CidrReport]:
    """Return reports without the protocols of routes by several next hops.

    Of those that several programs have added, the kernel shows another one for each packet, and
    parts of the address range differ by nothing else.
    """
    return [
        attrs.evolve(one, findings=tuple(_joined(map(_without_protocol, one.findings))))
        for one in reports
    ]


def _without_protocol(finding: Finding) -> Finding:
    route = finding.route
    if route and " nexthop " in route:
        route = re.sub(r" proto \w+", "", route)
    return attrs.evolve(finding, route=route)


def _joined(findings: Iterable[Finding]) -> list[Finding]:
    found: list[Finding] = []
    for one in findings:
        family, first = Address.parse(one.first)
        is_next = found and Address(family, first - 1) == Address.parse(found[-1].last)
        if is_next and attrs.evolve(found[-1], first=one.first, last=one.last) == one:
            found[-1] = attrs.evolve(found[-1], last=one.last)
        else:
            found.append(one)
    return found
