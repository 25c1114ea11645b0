"""A proof of one CIDR, and its findings in short."""

from collections.abc import Sequence

from hostrouting.route_overlap import CidrReport, prove_egress
from hostrouting.testing import MemoryBackend


def prove(node: MemoryBackend, cidr: str, allowed: Sequence[str] = ()) -> CidrReport:
    [report] = prove_egress(node, [cidr], allowed_devs=allowed).cidrs
    return report


def shapes(report: CidrReport) -> list[tuple[str, str, str, str | None]]:
    return [(finding.kind, finding.first, finding.last, finding.dev) for finding in report.findings]
