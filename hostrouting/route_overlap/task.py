"""CheckRouteOverlap: install the check for every boot, prove the routing now, and write the marker.

The installation comes first: a node that fails now must not start its machine at the next boot.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.base.commands import printable
from hostrouting.base.findings import UNPROVEN, NodeFinding, Severity
from hostrouting.boot import (
    RUNTIME_DIRECTORY,
    WAIT_SECONDS,
    WAITED,
    WAITING,
    PairTask,
    RecordedFiles,
    deploying,
    exits_under,
    installed_over,
)
from hostrouting.config import DEFAULT_ALLOWED_DEVS, HostRoutingConfig, OverlapMode
from hostrouting.config.rules import expected_cidr
from hostrouting.exceptions import HostFileError, HostRoutingError, RouteOverlapError
from hostrouting.net.addresses import FAMILY_NAMES, Prefix, outside
from hostrouting.route_overlap.fabric import POOL, Fabric, read_fabric
from hostrouting.route_overlap.proof import prove_egress
from hostrouting.route_overlap.report import OverlapReport, described
from hostrouting.route_overlap.script import LOGGED, MARKER_DETECTED, MARKER_OK, MARKERS, boot_part
from phases import Change, Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot import Waiting
    from hostrouting.host import Host
    from hostrouting.host.ports import Routing
    from hostrouting.net.exits import Exits
    from hostrouting.net.routes import ObservedRoute

_logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS: Final = 0.5
#: A daemon writes the pool in less.
_SECONDS_TO_WRITE = 0.1
_SECONDS_TO_LOOK = 5
#: The kinds of findings that a lease, a driver or a carrier resolves.
_TRANSIENT = frozenset({"no-route", "dead-end"})
#: The states in which a unit of `after` is not waited for.
_SPARED = frozenset({"not-found", "masked", "skipped"})
#: When a unit ended last, and when its conditions were tested; 0 if never in this boot.
_ENDED, _TESTED = "InactiveEnterTimestampMonotonic", "ConditionTimestampMonotonic"
#: The same time, unless another state followed.
_CHANGED = "StateChangeTimestampMonotonic"
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
        with deploying(ctx, self._host, self._boot, self._parts, self._logger) as deployment:
            ctx = deployment.transaction.ctx
            log_dropped(ctx, deployment.config_over(self._config), self._config, self._logger)
            deployment.carry_out(deployment.install)
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

    def act(self, ctx: Context, waiting: Waiting = WAITING) -> None:
        """Prove the routing of a live machine; update the markers."""
        ctx.check()
        files = RecordedFiles(ctx, self._host)
        if not self._config.route_overlap.cidrs:
            for path in MARKERS:
                files.remove(path)
            for path in (LOGGED, WAITED):
                self._host.files.remove(path)
            # These files kept Boot from removing the folder.
            self._host.files.remove_directory_if_empty(RUNTIME_DIRECTORY)
            return
        if not self._host.is_live:
            return
        with waiting.block():
            report = check_now(ctx, self._config, self._host, seconds=waiting.seconds)
        ctx.result(report, degraded=not report.ok)
        try:
            # Without boot files there is no gate that reads it.
            if self._boot.is_installed:
                leave_marker(files, report)
        finally:
            # Findings are reported even if the marker cannot be written.
            self._report(report)

    def _report(self, report: OverlapReport) -> None:
        log_notes(report, self._logger, task=self.name)
        if report.ok:
            self._logger.info("%s", report, extra={"task": self.name})
        elif self._config.route_overlap.mode is OverlapMode.STRICT:
            raise RouteOverlapError(report, retryable=not _lasting(report))
        else:
            log_findings(report, self._logger, task=self.name)

    def plan_act(self, ctx: Context) -> list[Change]:
        """Return the removal of markers."""
        ctx.check()
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
        ctx.result(None, degraded=True)


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


def leave_marker(files: RecordedFiles, report: OverlapReport) -> None:
    """Write the marker of a report, and remove its opposite."""
    lines = [report.verdict] if report.ok else [*report.lines(), *report.refusals]
    content = "".join(f"{printable(line)}\n" for line in lines).encode()
    marker, opposite = (MARKER_OK, MARKER_DETECTED) if report.ok else (MARKER_DETECTED, MARKER_OK)
    # Write first: a run that is killed in between leaves both, of which MARKER_DETECTED counts.
    try:
        files.write(marker, content, mode=0o644)
    finally:
        # Even on a full disk: a missing marker is better than a wrong one.
        files.remove(opposite)


class Look(NamedTuple):
    """A proof, and the reason to wait and prove again: empty if that does not help."""

    report: OverlapReport
    reason: str


def check_now(
    ctx: Context, config: HostRoutingConfig, host: Host, *, seconds: float | None = None
) -> OverlapReport:
    """Prove the expected CIDRs; wait and prove again while that may help, up to `seconds`.

    An awaited fabric fails it, too. A missing default route is an answer, so neither the end of the
    time nor that of `ctx` is an error; a cancelled context raises.
    """
    waiting = ctx.child(timeout=WAIT_SECONDS).child(timeout=seconds).expiring()
    is_logged = False
    while True:
        report, reason = look_once(ctx, config, host, waiting=waiting)
        if not reason or waiting.remaining() == 0:
            return report
        if not is_logged:
            seconds = ceil(waiting.remaining() or 0)
            _logger.warning("waiting up to %.0f s: %s", seconds, reason, extra={"waits": True})
            is_logged = True
        with suppress(DeadlineExceededError):
            waiting.sleep(SECONDS_BETWEEN_LOOKS)


def look_once(
    ctx: Context, config: HostRoutingConfig, host: Host, *, waiting: Context | None = None
) -> Look:
    """Prove the expected CIDRs once; pause for half-written files as long as `waiting` lasts."""
    section = config.route_overlap
    fabric = announced_fabric(waiting or ctx, section.fabric, host) if section.cidrs else Fabric()
    # Before the proof: a unit may connect meanwhile.
    late = unready_units(ctx, config, host)
    report = prove_now(config, fabric, host, late)
    return Look(report, _reason_to_wait(report, fabric, host))


def _reason_to_wait(report: OverlapReport, fabric: Fabric, host: Host) -> str:
    """Return the finding, or its cause, that may go by itself; else an empty text."""
    for note in report.notes:
        if note.kind == "late-unit":
            return note.text
    if report.ok:
        if fabric.awaited and _has_infiniband(host):
            return f"RDMA is switched on, but {POOL} has no addresses for InfiniBand yet"
        return ""
    for family in report.without_exit:
        if family in report.lacks_default:
            return f"table main has no {FAMILY_NAMES[family]} default route"
    kinds = _lasting(report)
    if report.absent_devs and kinds <= {"overlap"}:
        return f"there is no network device {described(report.absent_devs[0])}"
    return "" if kinds else report.lines()[0]


def unready_units(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return a finding for each unit of `after` that is not up, and has not ended with success."""
    is_strict = config.route_overlap.mode is OverlapMode.STRICT
    severity: Severity = "error" if is_strict else "warning"
    notes = []
    # As in the script: systemd may not answer. That is an answer, too.
    ctx = ctx.child(timeout=_SECONDS_TO_LOOK).expiring()
    for unit in config.after if config.route_overlap.cidrs else ():
        step = f"see: systemctl status '{unit}'"
        try:
            word = _why_unready(ctx, unit, host)
        except (HostRoutingError, DeadlineExceededError) as error:
            word = f"unknown ({error})".partition("\n")[0]
        if word in _SPARED:
            reason = f"is {word}, so routing is proven without it"
            notes.append(NodeFinding("spared-unit", unit, reason, "warning", step))
        elif word:
            reason = f"is {word}, neither active nor ended with success in this boot"
            notes.append(NodeFinding("late-unit", unit, reason, severity, step))
    return notes


def _why_unready(ctx: Context, unit: str, host: Host) -> str:
    """Return an empty text for a unit that is up or has ended with success, otherwise its state."""
    # The state last: a unit that starts and fails meanwhile has ended by then.
    times = host.services.settings(ctx, unit, _ENDED, _TESTED, _CHANGED, "ConditionResult")
    state = host.services.state(ctx, unit)
    is_down, is_failing = state.active_state == "inactive", state.result != "success"
    has_ended = times[_ENDED] == times[_CHANGED] not in {"", "0"}
    # One that has failed is inactive, too, if it is stopped before its restart, or after
    # `systemctl reset-failed`.
    if state.is_running or (is_down and not is_failing and has_ended):
        return ""
    is_untrue = times["ConditionResult"] == "no" and times[_TESTED] not in {"", "0"}
    if is_down and (is_untrue or state.result == "exec-condition"):
        return "skipped"
    # A unit that is masked while it starts goes on.
    if state.load_state in _SPARED and not state.active_state.endswith("activating"):
        return state.load_state
    return f"{state.active_state} ({state.result if is_failing else state.sub_state})"


def _lasting(report: OverlapReport) -> frozenset[str]:
    """Return the kinds of findings that do not go by themselves."""
    return frozenset(finding.kind for _, finding in report.findings) - _TRANSIENT


def prove_now(
    config: HostRoutingConfig, fabric: Fabric, host: Host, late: Sequence[NodeFinding] = ()
) -> OverlapReport:
    """Prove the expected CIDRs as they are under an announced fabric, and beside `late` units."""
    report = prove_config(config, fabric, host.routes, late, exits_under(config, host.files))
    severity: Severity = "warning" if fabric.awaited and _has_infiniband(host) else "note"
    notes = [NodeFinding("fabric", "routeOverlap", note, severity) for note in fabric.notes]
    learned: tuple[ObservedRoute, ...] = ()
    if report.deciding:
        # Imported late: most nodes expect no IPv6.
        from hostrouting.route_overlap.lasting import learned_by_kernel, vanishing

        learned = tuple(learned_by_kernel(host.files, report.deciding))
        # Do not advise to keep a default route that must go.
        kept = [route for route in learned if route.dev not in report.wrong_devs]
        notes = [*vanishing(host.files, kept), *notes]
    return attrs.evolve(report, learned=learned, notes=(*notes, *report.notes))


def prove_config(
    config: HostRoutingConfig,
    fabric: Fabric,
    routing: Routing,
    late: Sequence[NodeFinding] = (),
    pinned: Exits | None = None,
) -> OverlapReport:
    """Prove the expected CIDRs of a config, on a machine or a model."""
    section = config.route_overlap
    report = prove_egress(
        routing,
        list(section.cidrs),
        allowed_devs=(*DEFAULT_ALLOWED_DEVS, *section.allowed_devs),
        expected_devs=section.expected_devs or None,
        fabric=fabric,
        pinned=pinned,
    ).under(config)
    if report.suggested_routes:
        # Imported late: a node without findings does not need it.
        from hostrouting.route_overlap.suggest import is_whole

        report = report.without_chosen(partial(is_whole, routing))
    notes = [*late]
    # Likely mistakes in the section.
    for given in section.masked:
        reason = f"{given!r} has host bits, and is taken as {Prefix.parse(given).masked}"
        notes.append(NodeFinding("host-bits", "routeOverlap.expectedCidrs", reason, "note"))
    for pattern in section.allowed_devs:
        if "*" in pattern and not pattern.strip("*?"):
            advice = "name the devices that are meant"
            reason = f"{pattern!r} allows every device, so nothing is an overlap; {advice}"
            notes.append(NodeFinding("allows-all", "routeOverlap.allowedDevs", reason, "warning"))
    return attrs.evolve(report, notes=(*notes, *report.notes))


def left_unproven(
    earlier: HostRoutingConfig | None, config: HostRoutingConfig
) -> HostRoutingConfig | None:
    """Return the config with the earlier proof of the addresses that it does not prove itself.

    None if it proves all of them.
    """
    if earlier is None or earlier.route_overlap == config.route_overlap:
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


def announced_fabric(ctx: Context, setting: str | tuple[str, ...], host: Host) -> Fabric:
    """Return the announced fabric."""
    if setting != "auto":
        networks = () if setting == "off" else tuple(setting)
        return Fabric(networks=networks, source="routeOverlap.fabric")

    def pause() -> None:
        with suppress(DeadlineExceededError):
            ctx.sleep(_SECONDS_TO_WRITE)

    return read_fabric(host.files, pause=pause)


def _has_infiniband(host: Host) -> bool:
    """Return True if the node has InfiniBand hardware, or a device for IP over it."""
    with suppress(HostFileError):
        if host.files.names("/sys/class/infiniband"):
            return True
    return any(device.is_infiniband for device in host.routes.links())
