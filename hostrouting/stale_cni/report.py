"""The sweep by itself, for the time after the CNI's exchange, and what it tells: `hostrouting sweep`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.config import require_config
from hostrouting.exceptions import ConfigError, InvalidConfigError, PermissionDeniedError
from hostrouting.stale_cni.observe import fields_of
from hostrouting.stale_cni.sweep import subject
from hostrouting.stale_cni.task import CleanStaleCNI
from phases import Change, TaskFailedError, run

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.stale_cni.sweep import Kind, Verdict
    from phases import Context

__all__ = ["SweepReport", "sweep_node"]

_KINDS: Final[tuple[tuple[Kind, str], ...]] = (
    ("live", "of live pods"),
    ("node", "of the node"),
    ("unknown", "not understood"),
)


@attrs.frozen(kw_only=True)
class SweepReport:
    """What a sweep has taken away, or would, and what it has left alone."""

    #: `changes` is a forecast.
    dry_run: bool
    changes: tuple[Change, ...] = ()
    #: What it has found, and its reasons to leave it alone.
    spared: tuple[Verdict, ...] = ()
    #: Where it is written down; None where nothing was.
    record: str | None = None
    #: Why it would be refused now; None if it would not.
    obstacle: str | None = None
    error: TaskFailedError | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing stale is left that this run, or the next, could not take away."""
        return self.error is None and (self.obstacle is None or not self.changes)

    def to_mapping(self) -> dict[str, Any]:
        """What `sweep --json` prints."""
        spared = [fields_of(verdict) for verdict in self.spared]
        answer: dict[str, Any] = {
            "ok": self.ok,
            "dry_run": self.dry_run,
            "would_remove" if self.dry_run else "removed": [_mapping(change) for change in self.changes],
            "spared": [each for each in spared if each["kind"] != "unknown"],
            "unknown": [each for each in spared if each["kind"] == "unknown"],
        }
        if not self.dry_run:
            answer["record"] = self.record
        if self.obstacle:
            answer["obstacle"] = self.obstacle
        if self.error:
            answer["error"] = str(self.error)
        return answer

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """The report for people: what goes or has gone, reason by reason, and how much was left alone."""
        by_reason: dict[str, list[str]] = {}
        for change in self.changes:
            by_reason.setdefault(change.detail or "", []).append(change.subject)
        for reason, subjects in by_reason.items():
            yield f"{reason}:"
            yield from (f"  - {each}" for each in subjects)
        count = f"{len(self.changes)} stale object{'' if len(self.changes) == 1 else 's'}"
        if self.error is None:
            if not self.changes:
                yield "nothing stale of azure-vnet was found"
            elif self.dry_run:
                yield f"{count} would go{f'; will be refused: {self.obstacle}' if self.obstacle else ''}"
            else:
                yield f"{count} gone, written down in {self.record}"
        counts = Counter(verdict.kind for verdict in self.spared)
        if counts:
            told = ", ".join(f"{counts[kind]} {words}" for kind, words in _KINDS if counts[kind])
            yield f"left alone: {told}{':' if verbose else ' (-v lists them)'}"
        for verdict in self.spared if verbose else ():
            yield f"  = {subject(verdict.object)}: {verdict.reason}"


def sweep_node(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    dry_run: bool = False,
    logger: logging.Logger | None = None,
) -> SweepReport:
    """Sweep under the run lock, or say what a sweep would do, by one reading.

    A config without the section enabled is an `InvalidConfigError`: nobody asks for a sweep who does not want one. What
    a sweep could not do is the report's `error`; what a forecast could not see for lack of privilege, a
    `PermissionDeniedError`.
    """
    if not require_config(config).stale_cni.enabled:
        step = 'write {"staleCni": {"enabled": true, "podCidrs": ["10.240.0.0/16"]}}, with the range of the removed CNI'
        raise InvalidConfigError([ConfigError("hostRouting.staleCni.enabled", f"is not true; {step}")])
    task = CleanStaleCNI(config, host=host, logger=logger)
    if dry_run:
        return _forecast(ctx, task)
    with host.lock.hold(ctx) as held:
        report = run(task, held, logger=logger)
    if report.error is not None and not isinstance(report.error, TaskFailedError):
        raise report.error
    return SweepReport(
        dry_run=False, changes=report.changes, spared=tuple(task.spared), record=task.record, error=report.error
    )


def _forecast(ctx: Context, task: CleanStaleCNI) -> SweepReport:
    reading = task.judge_now(ctx)
    changes = _removals(reading.verdicts)
    if not changes and (reading.ebtables.denied or reading.may_not_ask):
        raise PermissionDeniedError(
            "what a sweep would take away cannot be told without root (CAP_NET_ADMIN to read ebtables rules, "
            "CAP_NET_RAW to ask pods that have been silent for long)"
        )
    return SweepReport(
        dry_run=True, changes=changes, spared=tuple(task.spared), obstacle=task.obstacle() if changes else None
    )


def _removals(verdicts: Sequence[Verdict]) -> tuple[Change, ...]:
    return tuple(Change("-", subject(each.object), each.reason) for each in verdicts if each.kind == "stale")


def _mapping(change: Change) -> dict[str, object]:
    return {"object": change.subject, "reason": change.detail}
