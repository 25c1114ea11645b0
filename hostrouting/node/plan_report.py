"""The report on a node as it would be after an apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.base.findings import NodeFinding
from hostrouting.base.values import LightValue
from hostrouting.node.report import NodeReport
from hostrouting.route_overlap.report import OverlapReport
from phases.mistakes import NoTruth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.static_routes.forecast import Forecast


@attrs.frozen(kw_only=True)
class PlanReport(LightValue, NoTruth):
    """What an apply would leave on a node, and what it would do to the gates."""

    #: The check of the node after the apply; what an apply makes worse is an error of the kind
    #: `worse`.
    after: NodeReport
    #: True if an apply is refused, unless it is forced.
    is_refused: bool
    #: The units with a gate, and why each gate is open all the same.
    gates: tuple[str, ...]
    broken: str
    #: Why the check is missing.
    undecided: str

    @property
    def fails(self) -> bool:
        """True if STRICT mode will hold the gates, or if an apply is refused."""
        return self.is_refused or self.after.fails

    @property
    def worse(self) -> list[NodeFinding]:
        """What an apply makes worse."""
        return [finding for finding in self.after.findings if finding.kind == "worse"]

    @property
    def sentence(self) -> str:
        """The lines as one, with the first cause only."""
        return "; ".join(self._lines(self.after.overlap.headline))

    def lines(self) -> list[str]:
        """Return the report as text lines."""
        return [*self._lines(self.after.overlap.verdict)]

    def to_mapping(self) -> dict[str, Any]:
        """Return the report for JSON, without empty values."""
        overlap = self.after.overlap
        is_held = self.fails and not (self.is_refused or self.broken)
        values = {
            "verdict": self.sentence,
            "proof": overlap.to_mapping(mode=self.after.mode) if overlap.cidrs else None,
            "worse": [each.reason for each in self.worse],
            "holds": [*self.gates] if is_held else [],
            "late": overlap.refusals,
            "undecided": self.undecided,
            "findings": self.after.all_findings(),
        }
        return {name: value for name, value in values.items() if value}

    def _lines(self, verdict: str) -> Iterator[str]:
        overlap = self.after.overlap
        if self.undecided:
            yield f"after apply: unknown, since {self.undecided}"
        if verdict:
            yield f"after apply: {verdict}"
            yield from overlap.refusals
            yield from (note.text for note in overlap.explanations)
        yield from (each.text for each in self.worse)
        if self.is_refused:
            yield "apply would refuse this"
        elif self.fails:
            held = ", ".join(self.gates) or "none, since no unit has a gate"
            if self.broken:
                held = f"none, break-glass keeps them open: {self.broken}"
            yield f"gates that STRICT holds then: {held}"


def planned_report(
    config: HostRoutingConfig, forecast: Forecast, *, broken: str | None = None
) -> PlanReport:
    """Return the report on a node after an apply, by its forecast.

    `broken` is the reason why every gate is open.
    """
    worse = (NodeFinding("worse", "worse than now", str(each)) for each in forecast.worse)
    after = NodeReport(
        overlap=OverlapReport() if forecast.report is None else forecast.report,
        mode=config.route_overlap.mode,
        findings=tuple(worse),
    )
    return PlanReport(
        after=after,
        is_refused=forecast.is_refused,
        gates=config.gates,
        broken=broken or "",
        undecided=forecast.undecided,
    )
