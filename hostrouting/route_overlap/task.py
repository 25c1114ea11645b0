"""CheckRouteOverlap: install the check for every boot, prove the routing now, and write the marker.

In this order: a node that fails now must not start its machine at the next boot either.
"""

from __future__ import annotations

import logging
from math import ceil
from typing import TYPE_CHECKING, Final

from hostrouting.boot import RUNTIME_DIRECTORY, PairTask, RecordedFiles
from hostrouting.config import DEFAULT_ALLOWED_DEVS, OverlapMode
from hostrouting.exceptions import RouteOverlapError
from hostrouting.net.default_route import default_route
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.route_overlap.proof import prove_egress
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK, MARKERS, TOLD, boot_part
from phases import Change, DeadlineExceededError

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import RouteBackend
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context

__all__ = ["CheckRouteOverlap", "check_now"]

_logger = logging.getLogger(__name__)

SECONDS_TO_WAIT: Final = 30.0
SECONDS_BETWEEN_LOOKS: Final = 0.5
_MARKER_MODE: Final = 0o644


class CheckRouteOverlap(PairTask):
    """Check that every expected CIDR leaves by the node's own devices, now and at every boot.

    In mode WARN it logs each finding; in mode STRICT it raises RouteOverlapError, and the gates stay closed.
    """

    name = "check-route-overlap"
    _boot_part = staticmethod(boot_part)

    def do(self, ctx: Context) -> None:
        """Install boot files, wait for a default route, prove the routing and write the marker."""
        with self._host.lock.hold(ctx) as held:
            self._boot.install(held, self._part)
            self.act(held)

    # --- the live half, for Configure, which installs the boot files of all its tasks at once

    def act(self, ctx: Context, *, seconds: float = SECONDS_TO_WAIT) -> None:
        """Prove the routing of a live machine, after waiting up to `seconds` for a default route; write the marker."""
        if not self._config.route_overlap.expected_cidrs:
            self.undo_act(ctx)
            return
        if not self._host.is_live:
            return
        report = check_now(ctx, self._config, self._host.routes, seconds=seconds)
        try:
            self._leave_marker(ctx, report)
        finally:
            # Findings are reported even if the marker cannot be written.
            self._tell(report)

    def _tell(self, report: OverlapReport) -> None:
        if report.ok:
            self._logger.info("%s", report, extra={"task": self.name})
            return
        if self._config.route_overlap.mode is OverlapMode.STRICT:
            raise RouteOverlapError(report)
        for cidr, finding in report.findings:
            fields = {"task": self.name, "cidr": cidr, "kind": finding.kind, "dev": finding.dev}
            self._logger.warning("%s", finding.line(cidr), extra=fields)
        self._logger.warning("%s", report.advice, extra={"task": self.name})

    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the removal of markers."""
        ctx.check()
        markers = () if self._config.route_overlap.expected_cidrs else MARKERS
        return [Change("-", marker) for marker in markers if self._host.files.exists(marker)]

    def undo_act(self, ctx: Context) -> None:
        """Remove the markers."""
        ctx.check()
        files = RecordedFiles(ctx, self._host)
        removed = [*map(files.remove, MARKERS), self._host.files.remove(TOLD)]
        if any(removed):
            # The folder was not empty when Boot removed its files.
            self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)

    def _leave_marker(self, ctx: Context, report: OverlapReport) -> None:
        lines = [report.verdict] if report.ok else report.lines()
        marker, other = (MARKER_OK, MARKER_DETECTED) if report.ok else (MARKER_DETECTED, MARKER_OK)
        files = RecordedFiles(ctx, self._host)
        # The new one first: a run that is killed in between leaves both, and then the bad one counts.
        files.write(marker, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"), mode=_MARKER_MODE)
        files.remove(other)


def check_now(
    ctx: Context, config: HostRoutingConfig, backend: RouteBackend, *, seconds: float = SECONDS_TO_WAIT
) -> OverlapReport:
    """Wait for a default route until the end of `ctx`, at most `seconds`, and prove the expected CIDRs.

    The end of the time is not an error, since a missing default route is an answer; a cancelled context raises.
    """
    section = config.route_overlap
    if section.expected_cidrs:
        _wait_for_default_route(ctx.child(timeout=seconds), backend)
    allowed = (*DEFAULT_ALLOWED_DEVS, *section.allowed_devs)
    report = prove_egress(backend, section.expected_cidrs, allowed_devs=allowed)
    if report.ok or not config.static_routes.routes:
        return report
    standing = {(r.network, r.prefix_length, r.metric) for r in backend.routes() if r.protocol == OUR_PROTOCOL}
    absent = [route for route in config.static_routes.routes if (*route.prefix, route.metric) not in standing]
    return report.knowing([route.destination for route in absent])


def _wait_for_default_route(ctx: Context, backend: RouteBackend) -> None:
    """Wait until there is an IPv4 default route or the time is up: DHCP may still be at work."""
    said = False
    while default_route(backend.routes()) is None:
        if not said:
            _logger.warning("waiting up to %.0f s: table main has no IPv4 default route", ceil(ctx.remaining() or 0))
            said = True
        try:
            ctx.sleep(SECONDS_BETWEEN_LOOKS)
        except DeadlineExceededError:
            return
