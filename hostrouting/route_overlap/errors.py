"""The errors of a check, which contain its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hostrouting.base.errors import HostRoutingError, Paragraph, lines_of
from hostrouting.route_overlap.report import OverlapReport


class RouteOverlapError(HostRoutingError):
    """Expected addresses would leave through another device; `report` is the `OverlapReport`.

    The text is the report's: each finding, the route that decides it, and the route to add to the
    config. `retryable` is True if only routes or carriers are missing, which may still appear.
    """

    def __init__(self, report: OverlapReport, *, retryable: bool = False) -> None:
        self.report: OverlapReport = report
        self.retryable: bool = retryable
        super().__init__(str(report))

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The headline with the findings; the text also has the steps."""
        return (Paragraph(self.report.headline, tuple(self.report.lines())),)


class WorseRoutingError(RouteOverlapError):
    """A config would misroute expected addresses that are routed correctly now.

    The text has the next step. Each item of `worse` has a `fact`, which is the `cidr` of a range of
    addresses and the `finding` about them, and a `cause`, which is a `RouteChange` or None.
    """

    code = "worse-routing"

    def __init__(
        self, report: OverlapReport, reason: str, step: str, worse: Sequence[Any] = ()
    ) -> None:
        super().__init__(report)
        self.reason = reason
        self.step = step
        self.worse = worse
        self.args = (lines_of(self.paragraphs, indent=""),)

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The reason, what would get worse, and the next step."""
        return Paragraph(self.reason, tuple(map(str, self.worse))), Paragraph(self.step)
