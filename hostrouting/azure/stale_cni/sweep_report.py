"""Sweep a node, and report what was removed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.stale_cni.task import CleanStaleCNI, Swept
from hostrouting.base.errors import ConfigMistake, InvalidConfigError, sentence_of
from hostrouting.config.sections import HostRoutingConfig, require_config
from phases import Change, Context, TaskFailedError, run
from phases import task as part

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Mapping

    from hostrouting.azure.stale_cni.leftovers import Verdict
    from hostrouting.host import Host

_KINDS = {"live": "of live pods", "node": "of the node", "unknown": "not understood"}


@attrs.frozen(kw_only=True)
class SweepReport:
    """The entries that a sweep removed or would remove, and those that it leaves alone."""

    #: True if `changes` are a forecast.
    dry_run: bool
    changes: tuple[Change, ...] = ()
    #: The verdicts on the entries that are left alone.
    spared: tuple[Verdict, ...] = ()
    #: The backup file, with a command for each removed entry; None if nothing was removed.
    backup: str | None = None
    #: The command that restores an entry, by the subject of its removal.
    restore: Mapping[str, str] = attrs.field(factory=dict)
    #: Why a sweep would be refused now; None if it would not.
    obstacle: str | None = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """True unless the sweep failed, or stale entries cannot be removed."""
        return self.error is None and self.obstacle is None

    @property
    def verdict(self) -> str:
        """The answer in one line."""
        if self.error is not None:
            return sentence_of(self.error)
        count = f"{len(self.changes)} stale {'entry' if len(self.changes) == 1 else 'entries'}"
        if not self.changes:
            nothing = "no stale entries of azure-vnet were found"
            return f"nothing can be removed: {self.obstacle}" if self.obstacle else nothing
        if not self.dry_run:
            return f"removed {count}; `sh {self.backup}` adds them again"
        refused = f"; will be refused: {self.obstacle}" if self.obstacle else ""
        return f"would remove {count}{refused}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the output of `sweep --json`."""
        answer: dict[str, Any] = {"ok": self.ok, "verdict": self.verdict, "dry_run": self.dry_run}
        removed = [self._removal(change) for change in self.changes]
        answer["would_remove" if self.dry_run else "removed"] = removed
        answer["spared"] = []
        answer["unknown"] = []
        for verdict in self.spared:
            key = "unknown" if verdict.kind == "unknown" else "spared"
            answer[key].append(verdict.to_mapping())
        if not self.dry_run:
            answer["backup"] = self.backup
        if self.obstacle:
            answer["obstacle"] = self.obstacle
        if self.error:
            answer["error"] = str(self.error)
        return answer

    def _removal(self, change: Change) -> dict[str, str | None]:
        removal = {"object": change.subject, "reason": change.detail}
        if not self.dry_run:
            removal["restore"] = self.restore[change.subject]
        return removal

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield the report as text: the removed objects by reason, and how many are left alone."""
        by_reason: dict[str, list[str]] = {}
        for change in self.changes:
            by_reason.setdefault(change.detail or "", []).append(change.subject)
        for reason, subjects in by_reason.items():
            yield f"{reason}:"
            yield from (f"  - {subject}" for subject in subjects)
        if self.error is None:
            yield self.verdict
        counts: Counter[str] = Counter(verdict.kind for verdict in self.spared)
        if counts:
            parts = [f"{counts[kind]} {words}" for kind, words in _KINDS.items() if counts[kind]]
            yield f"left alone: {', '.join(parts)}{':' if verbose else ' (-v lists them)'}"
        for verdict in self.spared if verbose else ():
            yield f"  = {verdict.object}: {verdict.reason}"


def sweep_node(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    dry_run: bool = False,
    logger: logging.Logger | None = None,
) -> SweepReport:
    """Sweep a node under the run lock, or forecast a sweep from one snapshot.

    Raises InvalidConfigError if the section is not enabled. An error of the sweep is in the
    report's `error`; a forecast raises PermissionDeniedError if ebtables may not be read.
    """
    if not require_config(config).stale_cni.enabled:
        reason = (
            'is not true; write {"staleCni": {"enabled": true, "podCidrs": ["10.240.0.0/16"]}}, '
            "with the pod networks of the removed CNI"
        )
        raise InvalidConfigError([ConfigMistake("hostRouting.staleCni.enabled", reason)])
    task = CleanStaleCNI(config, host=host, logger=logger)
    if dry_run:
        snapshot = task.foresee(ctx)
        changes = tuple(stale.removal for stale in snapshot.stale)
        return SweepReport(
            dry_run=True,
            changes=changes,
            spared=tuple(snapshot.spared),
            obstacle=snapshot.doubt or (task.obstacle() if changes else None),
        )
    swept = Swept()
    with host.lock.hold(ctx) as held:
        done = run(part(task.name)(partial(task.sweep, swept=swept)), held, logger=logger)
    # A cancelled run may have removed entries, which only the report lists.
    if done.error is not None and not (isinstance(done.error, TaskFailedError) or done.changes):
        raise done.error
    return SweepReport(
        dry_run=False,
        changes=done.changes,
        spared=tuple(swept.spared),
        backup=swept.backup if done.changes else None,
        restore=swept.restore,
        error=done.error,
    )
