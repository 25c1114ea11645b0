"""The errors about a proof, which have its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hostrouting.base.errors import HostRoutingError, Paragraph, lines_of
from hostrouting.route_overlap.report import OverlapReport


class RouteOverlapError(HostRoutingError):
    """Expected addresses would leave by another device; `report` is the whole `OverlapReport`.

    Its text is the report's: each finding, the route that decides it, and the route to add to the
    config. `retryable` is True if only routes or carriers are missing, which may come.
    """

    def __init__(self, report: OverlapReport, *, retryable: bool = False) -> None:
        self.report: OverlapReport = report
        self.retryable: bool = retryable
        super().__init__(str(report))

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The headline with the findings; the text has the steps, too."""
        return (Paragraph(self.report.headline, tuple(self.report.lines())),)


class WorseRoutingError(RouteOverlapError):
    """Expected addresses that leave right would not, by a config: the text has the next step.

    Each of `worse` has a `fact`: the `cidr` of a range of addresses and the `finding` about them,
    or an exit that would move; and the `cause` of a range, a `RouteChange` or None.
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
        """The reason with what is worse, and the next step."""
        return Paragraph(self.reason, tuple(map(str, self.worse))), Paragraph(self.step)
