"""CheckRouteOverlap: install the check for every boot, prove the routing now, and write the marker.

In this order: a node that fails now must not start its machine at the next boot either.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from math import ceil, inf
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.boot import RUNTIME_DIRECTORY, PairTask, RecordedFiles
from hostrouting.config import DEFAULT_ALLOWED_DEVS, OverlapMode
from hostrouting.exceptions import HostFileError, RouteOverlapError
from hostrouting.findings import NodeFinding
from hostrouting.net.default_route import default_route, leads_out_by
from hostrouting.net.routes import OUR_PROTOCOL
from hostrouting.route_overlap.fabric import POOL, Fabric, read_fabric
from hostrouting.route_overlap.proof import prove_egress
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK, MARKERS, TOLD, boot_part
from phases import Change, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.findings import Severity
    from hostrouting.host import Host, RouteBackend
    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context

__all__ = [
    "CheckRouteOverlap",
    "announced_fabric",
    "check_now",
    "leave_marker",
    "prove_now",
    "tell_findings",
    "tell_notes",
]

_logger = logging.getLogger(__name__)

SECONDS_TO_WAIT: Final = 30.0
SECONDS_BETWEEN_LOOKS: Final = 0.5
#: A daemon that writes the pool in this moment has ended after that.
_SECONDS_OF_A_WRITE: Final = 0.1
#: Later, addresses that are still missing in the pool are hardly under way.
_SECONDS_OF_A_BOOT: Final = 300
_IPOIB_COLONS: Final = 19
_MARKER_MODE: Final = 0o644
#: A daemon may have filled an expected CIDR with routes; more lines than these help nobody.
_MOST_LINES: Final = 100


class CheckRouteOverlap(PairTask):
    """Check that every expected CIDR leaves by the node's own devices, now and at every boot.

    In mode WARN it logs each finding; in mode STRICT it raises RouteOverlapError, and the gates stay closed.
    """

    name = "check-route-overlap"
    _boot_part = staticmethod(boot_part)

    def do(self, ctx: Context) -> None:
        """Install boot files, wait for a default route, prove the routing and write the marker."""
        with self._host.lock.hold(ctx) as held:
            self._boot.install(held, self._part, self._intent_with(self._part))
            self.act(held)

    # --- the live half, for Configure, which installs the boot files of all its tasks at once

    def act(self, ctx: Context, *, seconds: float = SECONDS_TO_WAIT) -> None:
        """Prove the routing of a live machine, after waiting up to `seconds` for a default route; write the marker."""
        if not self._config.route_overlap.cidrs:
            self.undo_act(ctx)
            return
        if not self._host.is_live:
            return
        report = check_now(ctx, self._config, self._host, seconds=seconds)
        try:
            leave_marker(RecordedFiles(ctx, self._host), report)
        finally:
            # Findings are reported even if the marker cannot be written.
            self._tell(report)

    def _tell(self, report: OverlapReport) -> None:
        tell_notes(report, self._logger, task=self.name)
        if report.ok:
            self._logger.info("%s", report, extra={"task": self.name})
        elif self._config.route_overlap.mode is OverlapMode.STRICT:
            raise RouteOverlapError(report)
        else:
            tell_findings(report, self._logger, task=self.name)

    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the removal of markers."""
        ctx.check()
        markers = () if self._config.route_overlap.cidrs else MARKERS
        return [Change("-", marker) for marker in markers if self._host.files.exists(marker)]

    def undo_act(self, ctx: Context) -> None:
        """Remove the markers."""
        ctx.check()
        files = RecordedFiles(ctx, self._host)
        removed = [*map(files.remove, MARKERS), self._host.files.remove(TOLD)]
        if any(removed):
            # The folder was not empty when Boot removed its files.
            self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)


def tell_notes(report: OverlapReport, logger: logging.Logger, *, task: str) -> None:
    """Log the notes of a report."""
    for note in report.notes:
        level = logging.WARNING if note.severity == "warning" else logging.DEBUG
        logger.log(level, "%s", note.text, extra={"task": task, "kind": note.kind})


def tell_findings(report: OverlapReport, logger: logging.Logger, *, task: str, level: int = logging.WARNING) -> None:
    """Log a line for each finding, and one that says how to resolve them; the marker file has the rest of very many."""
    for cidr, finding in report.findings[:_MOST_LINES]:
        fields = {"task": task, "cidr": cidr, "kind": finding.kind, "dev": finding.dev}
        logger.log(level, "%s", finding.line(cidr), extra=fields)
    if len(report.findings) > _MOST_LINES:
        more = len(report.findings) - _MOST_LINES
        logger.log(level, "%d more findings are in %s", more, MARKER_DETECTED, extra={"task": task})
    logger.log(level, "%s", report.advice, extra={"task": task})


def leave_marker(files: RecordedFiles, report: OverlapReport) -> None:
    """Write the marker of a report, and remove the other one."""
    lines = [report.verdict] if report.ok else report.lines()
    marker, other = (MARKER_OK, MARKER_DETECTED) if report.ok else (MARKER_DETECTED, MARKER_OK)
    # The new one first: a run that is killed in between leaves both, and then the bad one counts.
    try:
        files.write(marker, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"), mode=_MARKER_MODE)
    finally:
        # On a full disk, no marker is better than a wrong one.
        files.remove(other)


def check_now(
    ctx: Context, config: HostRoutingConfig, host: Host, *, seconds: float = SECONDS_TO_WAIT
) -> OverlapReport:
    """Wait for a default route and the announced fabric until the end of `ctx`, and prove the expected CIDRs.

    It waits at most `seconds` in all. The end of the time is not an error, since a missing default route is an answer;
    a cancelled context raises.
    """
    section = config.route_overlap
    fabric = Fabric()
    if section.cidrs:
        waiting = ctx.child(timeout=seconds)
        _wait_for_default_route(waiting, host.routes, section.expected_devs)
        fabric = announced_fabric(waiting, section.fabric, host)
    return prove_now(host.routes, config, fabric, host)


def prove_now(routing: Routing, config: HostRoutingConfig, fabric: Fabric, host: Host) -> OverlapReport:
    """Prove the expected CIDRs on `routing`, the host's or a reading of it, as they are under an announced fabric."""
    section = config.route_overlap
    report = prove_egress(
        routing,
        list(section.cidrs),
        allowed_devs=(*DEFAULT_ALLOWED_DEVS, *section.allowed_devs),
        expected_devs=section.expected_devs or None,
        fabric=fabric,
    ).with_names(section.cidrs)
    severity: Severity = "warning" if fabric.awaited and _has_infiniband(host) else "note"
    notes = tuple(NodeFinding("fabric", "routeOverlap", note, severity) for note in fabric.notes)
    report = attrs.evolve(report, notes=(*notes, *report.notes))
    if report.ok or not config.static_routes.routes:
        return report
    standing = {(r.network, r.prefix_length, r.metric) for r in routing.routes() if r.protocol == OUR_PROTOCOL}
    absent = [route for route in config.static_routes.routes if (*route.prefix, route.metric) not in standing]
    return report.knowing([route.destination for route in absent])


def _wait_for_default_route(ctx: Context, backend: RouteBackend, devs: Sequence[str]) -> None:
    """Wait until there is an IPv4 default route (by one of `devs`, if any) or the time is up: DHCP may be at work."""

    def is_there() -> bool:
        routes = backend.routes()
        return leads_out_by(routes, devs) if devs else default_route(routes) is not None

    by = f" by {' or '.join(devs)}" if devs else ""
    _wait(ctx, is_there, f"table main has no IPv4 default route{by}")


def announced_fabric(ctx: Context, setting: str | tuple[str, ...], host: Host) -> Fabric:
    """Return the announced fabric; soon after the boot, wait for the addresses if only they are missing."""
    if setting == "off" or not isinstance(setting, str):
        return Fabric(networks=() if setting == "off" else tuple(setting), source="routeOverlap.fabric")

    def pause() -> None:
        with suppress(DeadlineExceededError):
            ctx.sleep(_SECONDS_OF_A_WRITE)

    def read() -> Fabric:
        return read_fabric(host.files, now=ctx.clock.time(), uptime=_uptime(host), pause=pause)

    fabric = read()
    # The first check of a boot waits, and not each one after it.
    waits = fabric.awaited and not any(map(host.files.exists, MARKERS))
    if waits and (_uptime(host) or inf) < _SECONDS_OF_A_BOOT and _has_infiniband(host):
        reason = f"RDMA is switched on, but {POOL} has no addresses for InfiniBand yet"
        _wait(ctx, lambda: not read().awaited, reason)
        fabric = read()
    return fabric


def _uptime(host: Host) -> float | None:
    """Return the seconds since the boot; None if they are unknown."""
    with suppress(HostFileError, ValueError):
        return float((host.files.read("/proc/uptime") or b"").partition(b" ")[0])
    return None


def _has_infiniband(host: Host) -> bool:
    """Return True if the node has InfiniBand hardware, or a device for IP over it, whose address has 20 octets."""
    with suppress(HostFileError):
        if host.files.names("/sys/class/infiniband"):
            return True
    return any(device.mac.count(":") == _IPOIB_COLONS for device in host.routes.links())


def _wait(ctx: Context, is_there: Callable[[], bool], reason: str) -> None:
    """Wait until something is there or the time of the context is up."""
    said = False
    # Without any time to wait there is nothing to say.
    while not is_there() and ctx.remaining() != 0:
        if not said:
            _logger.warning("waiting up to %.0f s: %s", ceil(ctx.remaining() or 0), reason)
            said = True
        try:
            ctx.sleep(SECONDS_BETWEEN_LOOKS)
        except DeadlineExceededError:
            return
