"""Reports of one routing from two sources: the kernel, and its model."""

import re
from collections.abc import Iterable

import attrs

from hostrouting.host import Address
from hostrouting.route_overlap.report import CidrReport, Finding


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
