"""The check at the end of a run: its wait, its markers and its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.apply.carry_out import forget_boot
from hostrouting.apply.run import CHECK
from hostrouting.base.findings import UNPROVEN
from hostrouting.boot.installed_config import installed_over, refuse_local_over
from hostrouting.boot.layout import WAIT_SECONDS
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.boot.task import NOT_CONFIGURED, NOT_IN_IMAGE
from hostrouting.config.sections import OverlapMode
from hostrouting.route_overlap.errors import RouteOverlapError
from hostrouting.route_overlap.logs import dropped_cidrs, log_findings, log_notes
from hostrouting.route_overlap.script import LOGGED, MARKERS
from hostrouting.route_overlap.waiting import (
    Checked,
    check_with_wait,
    copy_markers,
    lasting_kinds,
    leave_marker,
)
from phases import Change
from phases.hosting import leave

if TYPE_CHECKING:
    import logging

    from hostrouting.boot.boot import Boot
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.expectation import Accepted
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context


@attrs.frozen(eq=False, repr=False)
class AddressCheck:
    """The check of the addresses that a config expects, for two tasks.

    `CheckRouteOverlap` and `Configure` use it.
    """

    config: HostRoutingConfig
    host: Host
    boot: Boot
    logger: logging.Logger

    def plan_dropped(self) -> list[Change]:
        """Return a change for each network that only the installed config checks."""
        earlier = installed_over(self.host.files, self.config)
        return [
            Change("-", f"check of {cidr}", "expected by the installed config", UNPROVEN)
            for cidr in dropped_cidrs(earlier, self.config)
        ]

    def do(
        self,
        ctx: Context,
        *,
        seconds: float = WAIT_SECONDS,
        checked: Checked | None = None,
        accepted: Accepted | None = None,
    ) -> OverlapReport | None:
        """Check the addresses of a running node, update the markers, and return the report.

        If the run has just `checked` them, that is the answer, unless a wait may help. `accepted`
        is the argument of `check_with_wait`.
        """
        ctx.check()
        if not self.config.route_overlap.cidrs:
            files = RecordedFiles(ctx, self.host)
            for path in MARKERS:
                files.remove(path)
            copy_markers(self.host.files)
            forget_boot(self.host, LOGGED)
            ctx.skip(NOT_CONFIGURED)
            return None
        if not self.host.is_live:
            ctx.skip(NOT_IN_IMAGE)
            return None
        if checked is not None and not checked.reason:
            report = checked.report
        else:
            report = check_with_wait(
                ctx, self.config, self.host, seconds=seconds, accepted=accepted
            )
        leave(ctx, report)
        if not report.ok:
            ctx.degrade(report.first_wrong)
        try:
            # Without boot files, there is no gate to read the marker.
            if self.boot.is_installed:
                leave_marker(ctx, self.host, report)
        finally:
            # Report findings even if the marker cannot be written.
            self._report(report)
        return report

    def _report(self, report: OverlapReport) -> None:
        log_notes(report, self.logger, task=CHECK)
        if report.ok:
            self.logger.info("%s", report, extra={"task": CHECK})
        elif self.config.route_overlap.mode is OverlapMode.STRICT:
            raise RouteOverlapError(report, retryable=not lasting_kinds(report))
        else:
            log_findings(report, self.logger, task=CHECK)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the removal of markers; refuse new networks that contain the node itself."""
        ctx.check()
        if self.config.route_overlap.local:
            refuse_local_over(installed_over(self.host.files, self.config), self.config)
        markers = () if self.config.route_overlap.cidrs else MARKERS
        return [Change("-", marker) for marker in markers if self.host.files.exists(marker)]
