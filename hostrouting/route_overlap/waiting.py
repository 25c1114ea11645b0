"""Check a node once, wait for what may resolve itself, and write the marker of the result.

The task, the command and the boot program all check in this way.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.commands import printable
from hostrouting.base.errors import HostFileError, HostRoutingError
from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.base.waits import begin_wait
from hostrouting.boot.layout import WAIT_SECONDS
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.net.outbound import no_default_route
from hostrouting.route_overlap.check import check_egress
from hostrouting.route_overlap.expectation import Accepted, expectation_on
from hostrouting.route_overlap.fabric import POOL, Fabric, announced_fabric, has_infiniband
from hostrouting.route_overlap.report import OverlapReport, described
from hostrouting.route_overlap.script import COPIES, MARKER_DETECTED, MARKER_OK
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import FileStore, Host

_logger = logging.getLogger(__name__)

SECONDS_BETWEEN_CHECKS: Final = 0.5
_SECONDS_TO_LOOK = 5
#: The kinds of findings that disappear with a lease, a driver or a carrier.
_TRANSIENT = frozenset({"no-route", "dead-end"})
#: The states in which a unit of `after` is not waited for.
_SPARED = frozenset({"not-found", "masked", "skipped"})
#: When a unit last ended; 0 if never since the boot.
_ENDED = "InactiveEnterTimestampMonotonic"
#: When its conditions were last tested; 0 if never since the boot.
_TESTED = "ConditionTimestampMonotonic"
#: When its state last changed.
_CHANGED = "StateChangeTimestampMonotonic"


class Checked(NamedTuple):
    """A report, and the reason to wait and check again: empty if waiting does not help."""

    report: OverlapReport
    reason: str
    #: The fabric that the check took into account.
    fabric: Fabric


def check_with_wait(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    seconds: float | None = None,
    accepted: Accepted | None = None,
) -> OverlapReport:
    """Check the expected CIDRs; wait and check again while that may help, up to `seconds`.

    Suggested routes are added to the section that is `accepted`, or to that of the config.

    It also waits for an awaited fabric. A missing default route is an answer, so neither the end of
    the time nor the deadline of `ctx` is an error; a cancelled context raises.
    """
    waiting = ctx.child(timeout=WAIT_SECONDS).child(timeout=seconds).expiring()
    is_logged = False
    while True:
        report, reason, _ = check_once(ctx, config, host, waiting=waiting, accepted=accepted)
        if not reason or waiting.remaining() == 0:
            return report
        if not is_logged:
            longest = ceil(waiting.remaining() or 0)
            begin_wait(ctx, _logger, reason, seconds=longest, level=logging.WARNING)
            is_logged = True
        with suppress(DeadlineExceededError):
            waiting.sleep(SECONDS_BETWEEN_CHECKS)


def check_once(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    waiting: Context | None = None,
    accepted: Accepted | None = None,
) -> Checked:
    """Check the expected CIDRs once; pause for half-written files as long as `waiting` lasts.

    `accepted` is that of `check_with_wait`.
    """
    section = config.route_overlap
    fabric = announced_fabric(waiting or ctx, section.fabric, host) if section.cidrs else Fabric()
    # Before the check, because a unit may connect a network meanwhile.
    late = unready_units(ctx, config, host)
    report = check_egress(host, expectation_on(host, config, fabric, late=late, accepted=accepted))
    return Checked(report, _reason_to_wait(report, fabric, host), fabric)


def _reason_to_wait(report: OverlapReport, fabric: Fabric, host: Host) -> str:
    """Return the finding, or the cause, that may disappear by itself; otherwise an empty text."""
    for note in report.notes:
        if note.kind == "late-unit":
            return note.text
    if report.ok:
        if fabric.awaited and has_infiniband(host):
            return f"RDMA is switched on, but {POOL} has no addresses for InfiniBand yet"
        return ""
    if any(cause.kind == "lost-rule" for cause in report.causes):
        # No program adds it again.
        return ""
    for family in report.without_outbound_dev:
        if family in report.lacks_default:
            return f"table main has {no_default_route(family, report.fabric_devs)}"
    kinds = lasting_kinds(report)
    if report.absent_devs and kinds <= {"overlap"}:
        return f"there is no network device {described(report.absent_devs[0])}"
    return "" if kinds else report.lines()[0]


def unready_units(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return a finding for each unit of `after` that is not active and has not succeeded."""
    is_strict = config.route_overlap.mode is OverlapMode.STRICT
    severity: Severity = "error" if is_strict else "warning"
    notes = []
    # As in the script: if systemd does not answer, that is also a finding.
    ctx = ctx.child(timeout=_SECONDS_TO_LOOK).expiring()
    # Without boot files, nothing depends on systemd.
    for unit in config.after if config.route_overlap.cidrs and host.has_boot else ():
        step = f"see: systemctl status '{unit}'"
        try:
            word = _why_unready(ctx, unit, host)
        except (HostRoutingError, DeadlineExceededError) as error:
            word = f"unknown ({error})".partition("\n")[0]
        if word in _SPARED:
            reason = f"is {word}, so routing is checked without it"
            notes.append(NodeFinding("spared-unit", unit, reason, "warning", step))
        elif word:
            reason = f"is {word}: neither active nor successfully finished since the boot"
            notes.append(NodeFinding("late-unit", unit, reason, severity, step))
    return notes


def _why_unready(ctx: Context, unit: str, host: Host) -> str:
    """Return an empty text for a unit that is active or has succeeded, otherwise its state."""
    # Read the state last: if the unit starts and fails meanwhile, it has ended by then.
    times = host.services.settings(ctx, unit, _ENDED, _TESTED, _CHANGED, "ConditionResult")
    state = host.services.state(ctx, unit)
    is_down = state.active_state == "inactive"
    is_failing = state.result != "success"
    has_ended = times[_ENDED] == times[_CHANGED] not in {"", "0"}
    # A failed unit is also inactive if it was stopped before its restart, or after
    # `systemctl reset-failed`.
    if state.is_running or (is_down and not is_failing and has_ended):
        return ""
    is_untrue = times["ConditionResult"] == "no" and times[_TESTED] not in {"", "0"}
    if is_down and (is_untrue or state.result == "exec-condition"):
        return "skipped"
    # A unit that is masked while it starts keeps starting.
    if state.load_state in _SPARED and not state.active_state.endswith("activating"):
        return state.load_state
    return f"{state.active_state} ({state.result if is_failing else state.sub_state})"


def lasting_kinds(report: OverlapReport) -> frozenset[str]:
    """Return the kinds of findings that do not disappear by themselves."""
    lasting = [finding for _, finding in report.findings if finding.cause != "changing"]
    return frozenset(finding.kind for finding in lasting) - _TRANSIENT


def leave_marker(ctx: Context, host: Host, report: OverlapReport) -> None:
    """Write the marker of a report, remove the other one, and copy both to upstream's paths.

    The marker of a healthy node contains the time, because routing may have changed since.
    """
    files = RecordedFiles(ctx, host, restoring=lambda _: _copying(host.files))
    lines = [report.verdict] if report.ok else [*report.lines(), *report.refusals]
    content = "".join(f"{printable(line)}\n" for line in lines).encode()
    marker, opposite = (MARKER_OK, MARKER_DETECTED) if report.ok else (MARKER_DETECTED, MARKER_OK)
    write = files.write_dated if report.ok else files.write
    # Write first: a run that is killed in between leaves both, and then MARKER_DETECTED counts.
    try:
        write(marker, content, mode=0o644)
    finally:
        # Even on a full disk: a missing marker is better than a wrong one.
        files.remove(opposite)
        copy_markers(host.files)


@contextmanager
def _copying(files: FileStore) -> Iterator[None]:
    yield
    copy_markers(files)


def copy_markers(files: FileStore) -> None:
    """Copy the markers to upstream's paths if possible: nothing here depends on the copies."""
    for marker, copy in COPIES.items():
        with suppress(HostFileError):
            content = files.read(marker)
            if content is None:
                files.remove(copy)
            else:
                files.write(copy, content, mode=0o644)
