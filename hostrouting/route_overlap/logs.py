"""What a run logs about a check, and about addresses that a new config no longer checks."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.rules import expected_cidr
from hostrouting.net.addresses import Prefix, outside
from hostrouting.route_overlap.script import MARKER_DETECTED

if TYPE_CHECKING:
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context

#: A daemon may have filled an expected CIDR with routes: too many lines hide the cause.
_MOST_LINES = 100


def log_dropped(
    ctx: Context,
    earlier: HostRoutingConfig | None,
    config: HostRoutingConfig,
    logger: logging.Logger,
) -> None:
    """Log, and degrade the run for, addresses that the new config no longer checks."""
    if dropped := ", ".join(dropped_cidrs(earlier, config)):
        text = "the check of %s: the installed config has this, and the new one does not"
        logger.warning(text, dropped, extra={"dropped": dropped})
        ctx.degrade(text % dropped)


def dropped_cidrs(earlier: HostRoutingConfig | None, config: HostRoutingConfig) -> tuple[str, ...]:
    """Return the networks that the earlier config checks and the new one does not."""
    left = left_unproven(earlier, config)
    return left.route_overlap.expected_cidrs if left else ()


def log_notes(report: OverlapReport, logger: logging.Logger, *, task: str) -> None:
    """Log the notes of a report."""
    for note in report.notes:
        level = logging.DEBUG if note.severity == "note" else logging.WARNING
        extra = {"task": task, "event": "note", "kind": note.kind, "finding": note.to_mapping()}
        logger.log(level, "%s", note.text, extra=extra)


def log_findings(
    report: OverlapReport, logger: logging.Logger, *, task: str, level: int = logging.WARNING
) -> None:
    """Log each finding and how to fix them; if there are many, the marker file has the rest."""
    for cidr, finding in report.findings[:_MOST_LINES]:
        fields = {"cidr": cidr, "kind": finding.kind, "dev": finding.dev}
        extra = {"task": task, "event": "alarm", **fields, "finding": finding.to_mapping()}
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
    """Return the config with the earlier check of the addresses that it does not check itself.

    None if it checks all of them.
    """
    if earlier is None or {*config.route_overlap.cidrs}.issuperset(earlier.route_overlap.cidrs):
        return None
    checked = sorted(map(Prefix.parse, config.route_overlap.cidrs))
    left = []
    for cidr in earlier.route_overlap.cidrs:
        for part in outside(Prefix.parse(cidr), checked):
            # The parts of a large IPv6 network that no single route decides are never checked.
            with suppress(ValueError):
                left.append(expected_cidr(str(part)))
    if not left:
        return None
    section = attrs.evolve(earlier.route_overlap, expected_cidrs=tuple(left), expected=())
    return attrs.evolve(config, route_overlap=section)
