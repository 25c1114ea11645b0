"""CheckRouteOverlap: install the check for every boot, prove the routing now, and write the marker.

The installation comes first: a node that fails now must not start its machine at the next boot.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.findings import UNPROVEN
from hostrouting.boot.deployment import WAITING, deploying
from hostrouting.boot.intent import installed_over, refuse_local_over
from hostrouting.boot.layout import RUNTIME_DIRECTORY, WAITED
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.boot.task import PairTask
from hostrouting.config import HostRoutingConfig, OverlapMode
from hostrouting.config.rules import expected_cidr
from hostrouting.exceptions import RouteOverlapError
from hostrouting.net.addresses import Prefix, outside
from hostrouting.route_overlap.look import check_now, lasting_kinds, leave_marker
from hostrouting.route_overlap.script import LOGGED, MARKER_DETECTED, MARKERS, boot_part
from phases import Change, Context
from phases.hosting import leave

if TYPE_CHECKING:
    from hostrouting.boot.deployment import Waiting
    from hostrouting.route_overlap.look import Accepted, Look
    from hostrouting.route_overlap.report import OverlapReport

_logger = logging.getLogger(__name__)

#: A daemon may have filled an expected CIDR with routes: too many lines hide the cause.
_MOST_LINES = 100


class CheckRouteOverlap(PairTask):
    """Check that every expected CIDR leaves by the node's own devices, now and at every boot.

    In mode WARN it logs each finding and is degraded; in mode STRICT it raises RouteOverlapError,
    and the gates stay closed. The `OverlapReport` is the result of its step, see `Report.find`.

    If it drops addresses that the config installed when the outermost run began expects, it logs
    them and is degraded.
    """

    name = "check-route-overlap"
    section = "route_overlap"
    _boot_part = staticmethod(boot_part)

    @property
    def proves(self) -> bool:
        """True if a run that skips it is degraded."""
        return bool(self._config.route_overlap.cidrs)

    def do(self, ctx: Context) -> None:
        """Install boot files, prove the routing and write the marker."""
        from hostrouting.apply.story import Selection, Story
        from hostrouting.static_routes.task import ConfigureStaticRoutes

        with deploying(ctx, self._host, self._boot, self._logger) as run:
            ctx = run.transaction.ctx
            earlier = run.config_over(self._config)
            routes = ConfigureStaticRoutes(self._config, host=self._host)
            wanted = Selection(
                self._config, routes, lambda _: self._parts, changes_routes=False, is_judged=False
            )
            story = Story(wanted, self._host, self._boot, self._logger, run)
            story.decide_files()
            refuse_local_over(earlier, self._config)
            log_dropped(ctx, earlier, self._config, self._logger)
            story.carry_out(story.install, lambda _: None, None)
            self.act(ctx)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the changes that `do` would make now, and the addresses that it would drop."""
        return [*super().plan(ctx), *self.plan_dropped()]

    def plan_dropped(self) -> list[Change]:
        """Return a change for each network of the installed config that would be unproven."""
        earlier = installed_over(self._host.files, self._config)
        return [
            Change("-", f"proof of {cidr}", "expected by the installed config", UNPROVEN)
            for cidr in dropped_cidrs(earlier, self._config)
        ]

    # --- the live half

    def act(
        self,
        ctx: Context,
        waiting: Waiting = WAITING,
        look: Look | None = None,
        accepted: Accepted | None = None,
    ) -> OverlapReport | None:
        """Prove the routing of a live machine; update the markers, and return the proof.

        A `look` that was just made is the proof, unless a wait may help. `accepted` is that of
        `check_now`.
        """
        ctx.check()
        files = RecordedFiles(ctx, self._host)
        if not self._config.route_overlap.cidrs:
            for path in MARKERS:
                files.remove(path)
            for path in (LOGGED, WAITED):
                self._host.files.remove(path)
            # These files kept Boot from removing the folder.
            self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)
            return None
        if not self._host.is_live:
            return None
        if look is not None and not look.reason:
            report = look.report
        else:
            report = self._prove(ctx, waiting, accepted)
        leave(ctx, report)
        if not report.ok:
            ctx.degrade(report.first_wrong)
        try:
            # Without boot files there is no gate that reads it.
            if self._boot.is_installed:
                leave_marker(files, report)
        finally:
            # Findings are reported even if the marker cannot be written.
            self._report(report)
        return report

    def _prove(self, ctx: Context, waiting: Waiting, accepted: Accepted | None) -> OverlapReport:
        with waiting.block():
            return check_now(
                ctx, self._config, self._host, seconds=waiting.seconds, accepted=accepted
            )

    def _report(self, report: OverlapReport) -> None:
        log_notes(report, self._logger, task=self.name)
        if report.ok:
            self._logger.info("%s", report, extra={"task": self.name})
        elif self._config.route_overlap.mode is OverlapMode.STRICT:
            raise RouteOverlapError(report, retryable=not lasting_kinds(report))
        else:
            log_findings(report, self._logger, task=self.name)

    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the removal of markers; refuse networks of the node itself that are new."""
        ctx.check()
        if self._config.route_overlap.local:
            refuse_local_over(installed_over(self._host.files, self._config), self._config)
        markers = () if self._config.route_overlap.cidrs else MARKERS
        return [Change("-", marker) for marker in markers if self._host.files.exists(marker)]


def log_dropped(
    ctx: Context,
    earlier: HostRoutingConfig | None,
    config: HostRoutingConfig,
    logger: logging.Logger,
) -> None:
    """Log the addresses that the earlier config proves and the new one does not: a degraded run."""
    if dropped := ", ".join(dropped_cidrs(earlier, config)):
        text = "the proof of %s: the installed config has this, and the new one does not"
        logger.warning(text, dropped, extra={"dropped": dropped})
        ctx.degrade(text % dropped)


def dropped_cidrs(earlier: HostRoutingConfig | None, config: HostRoutingConfig) -> tuple[str, ...]:
    """Return the networks that the earlier config proves and the new one does not."""
    left = left_unproven(earlier, config)
    return left.route_overlap.expected_cidrs if left else ()


def log_notes(report: OverlapReport, logger: logging.Logger, *, task: str) -> None:
    """Log the notes of a report."""
    for note in report.notes:
        level = logging.DEBUG if note.severity == "note" else logging.WARNING
        logger.log(level, "%s", note.text, extra={"task": task, "event": "note", "kind": note.kind})


def log_findings(
    report: OverlapReport, logger: logging.Logger, *, task: str, level: int = logging.WARNING
) -> None:
    """Log each finding and how to resolve them; the marker file has those left out."""
    for cidr, finding in report.findings[:_MOST_LINES]:
        fields = {"cidr": cidr, "kind": finding.kind, "dev": finding.dev}
        extra = {"task": task, "event": "alarm", **fields}
        logger.log(level, "%s", finding.line(cidr), extra=extra)
    note = {"task": task, "event": "note"}
    more = len(report.findings) - _MOST_LINES
    if more > 0:
        logger.log(level, "%d more findings are in %s", more, MARKER_DETECTED, extra=note)
    if report.advice:
        logger.log(level, "%s", report.advice, extra={**note, "advice": True})


def left_unproven(
    earlier: HostRoutingConfig | None, config: HostRoutingConfig
) -> HostRoutingConfig | None:
    """Return the config with the earlier proof of the addresses that it does not prove itself.

    None if it proves all of them.
    """
    if earlier is None or {*config.route_overlap.cidrs}.issuperset(earlier.route_overlap.cidrs):
        return None
    proven = sorted(map(Prefix.parse, config.route_overlap.cidrs))
    left = []
    for cidr in earlier.route_overlap.cidrs:
        for part in outside(Prefix.parse(cidr), proven):
            # Of a large IPv6 network the parts that no route decides alone are never proven.
            with suppress(ValueError):
                left.append(expected_cidr(str(part)))
    if not left:
        return None
    section = attrs.evolve(earlier.route_overlap, expected_cidrs=tuple(left), expected=())
    return attrs.evolve(config, route_overlap=section)
