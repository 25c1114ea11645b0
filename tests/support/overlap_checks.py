"""Proofs in short: the findings of one CIDR, and reports of one routing from two sources."""

from collections.abc import Iterable, Sequence
from typing import Any

from hostrouting.route_overlap.check import check_egress, prove_egress
from hostrouting.route_overlap.expectation import Expectation, prefixes_of
from hostrouting.route_overlap.report import CidrReport, OverlapReport


def prove(node: Any, cidr: str, allowed: Sequence[str] = ()) -> CidrReport:
    """Return the report of one CIDR; `node` is a backend, or one that passes on what it lacks."""
    [report] = prove_egress(node, [cidr], allowed_devs=allowed).cidrs
    return report


def check_cidrs(node: Any, cidrs: Iterable[str], **rest: Any) -> OverlapReport:
    """Return the report on CIDRs under the rest of an `Expectation`."""
    return check_egress(node, Expectation(cidrs=prefixes_of(cidrs), **rest))


def shapes(report: CidrReport) -> list[tuple[str, str, str, str | None]]:
    return [(finding.kind, finding.first, finding.last, finding.dev) for finding in report.findings]
