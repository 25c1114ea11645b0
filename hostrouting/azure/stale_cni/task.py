"""CleanStaleCNI: take two snapshots, write the backup, and remove; only on live nodes."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.azure.stale_cni import azure_vnet
from hostrouting.azure.stale_cni.backup import restore_command, write_backup
from hostrouting.azure.stale_cni.leftovers import Verdict
from hostrouting.azure.stale_cni.node import NodeSnapshot, present, read_node
from hostrouting.base.errors import HostFileError, PermissionDeniedError, StaleCNIError
from hostrouting.base.findings import NodeFinding, hindered
from hostrouting.boot.task import NOT_CONFIGURED, NOT_IN_IMAGE, NodeTask
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import EbtablesRule, Host, Neighbour
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.azure.stale_cni.leftovers import Leftover
    from hostrouting.config.optional import StaleCNIConfig

SECONDS_BETWEEN_SNAPSHOTS: Final = 1.0
#: How long it may take to find out what a cancelled run has removed.
_SECONDS_TO_READ = 60.0


@attrs.define(eq=False)
class Swept:
    """The result of one cleanup."""

    #: The verdicts on entries that are left alone.
    spared: Sequence[Verdict] = ()
    #: The path of the backup; None if there was nothing to remove.
    backup: str | None = None
    #: The command that restores an entry, by its subject in the report.
    restore: dict[str, str] = attrs.field(factory=dict)


class CleanStaleCNI(NodeTask):
    """Remove ebtables rules and neighbours of deleted pods that a removed azure-vnet left behind.

    A backup in `staleCni.backupDir` contains the previous state, and a command to restore each
    removed entry. A config without the section changes nothing. Entries that may belong to a live
    pod stay, and nothing is removed while azure-vnet is configured or running (`StaleCNIError`).

    >>> from hostrouting import HostRoutingConfig, StaleCNIConfig
    >>> from hostrouting.testing import FakeHost
    >>> from phases import run
    >>> section = StaleCNIConfig(enabled=True, pod_cidrs=("10.240.0.0/16",))
    >>> run(CleanStaleCNI(HostRoutingConfig(stale_cni=section), host=FakeHost())).changes
    ()
    """

    name = "clean-stale-cni"

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__(config, host=host, logger=logger)
        #: The notes that were logged: a watch runs for months and logs each only once.
        self._logged: set[str] = set()

    @property
    def _section(self) -> StaleCNIConfig:
        return self._config.stale_cni

    @property
    def _is_wanted(self) -> bool:
        return self._section.enabled and self._host.is_live

    # --- the task

    def do(self, ctx: Context) -> None:
        """Remove the entries that two snapshots agree on."""
        if self._is_wanted:
            with self._host.lock.hold(ctx) as held:
                self.sweep(held, Swept())
        else:
            ctx.skip(NOT_IN_IMAGE if self._section.enabled else NOT_CONFIGURED)

    def sweep(self, ctx: Context, swept: Swept) -> None:
        """Do so, with the run lock held by the caller; put the result into `swept`."""
        snapshot = self._confirmed(ctx, swept)
        if snapshot.stale:
            self._remove(ctx, snapshot, swept)
        else:
            self._logger.info("no stale entries of azure-vnet were found", extra={"removed": 0})

    def plan(self, ctx: Context) -> list[Change]:
        """Return the entries that are stale in one snapshot, and why."""
        if not self._is_wanted:
            return []
        try:
            snapshot = self.foresee(ctx)
        except PermissionDeniedError as error:
            # The rest of a plan does not need root.
            self._logger.warning("the cleanup is not planned: %s", error)
            return []
        refused = partial(hindered, "-", optional=not self._section.required)
        if snapshot.doubt:
            return [refused("entries of azure-vnet", snapshot.doubt)]
        obstacle = self.obstacle()
        if not obstacle:
            return [verdict.removal for verdict in snapshot.stale]
        return [refused(str(each.object), f"{obstacle}; {each.reason}") for each in snapshot.stale]

    # --- for others

    def foresee(self, ctx: Context) -> NodeSnapshot:
        """Return a snapshot; raise PermissionDeniedError if ebtables may not be read."""
        snapshot = read_node(ctx, self._section, self._host)
        for note in snapshot.ebtables.notes:
            if note not in self._logged:
                self._logged.add(note)
                # Most nodes have only one of the two backends.
                level = logging.INFO if snapshot.ebtables.texts else logging.WARNING
                line = "some ebtables rules may not be visible: %s"
                self._logger.log(level, line, note, extra={"note": note})
        if snapshot.ebtables.denied:
            raise PermissionDeniedError(
                "finding and removing the leftovers of a CNI needs root (CAP_NET_ADMIN); nothing "
                f"was changed: {'; '.join(snapshot.ebtables.notes)}"
            )
        return snapshot

    def findings(self, ctx: Context) -> tuple[list[NodeFinding], list[Verdict]]:
        """Return a finding for each entry that is stale in one snapshot, and the spared entries.

        A pod whose entries are unknown is also a finding. Both are empty if the section is
        disabled. Raises PermissionDeniedError as `foresee` does.
        """
        if not self._is_wanted:
            return [], []
        snapshot = self.foresee(ctx)
        obstacle = self.obstacle()
        step = f"cannot be removed now: {obstacle}" if obstacle else ""
        finding = partial(NodeFinding, "stale-cni", step=step, apply="" if obstacle else "now")
        findings = [finding(str(verdict.object), verdict.reason) for verdict in snapshot.stale]
        if snapshot.doubt:
            subject = ", ".join(snapshot.unrecorded)
            findings.append(NodeFinding("stale-cni", subject, snapshot.doubt, "warning"))
        return findings, snapshot.spared

    def obstacle(self) -> str | None:
        """Return why `do` would be refused now; None if it would not."""
        files = self._host.files
        if reason := azure_vnet.in_use(files):
            return reason
        folder = self._section.backup_dir
        if exposure := files.exposed(folder):
            return (
                f"other users could replace the script that a cleanup writes to {folder}, which "
                f"root may run: {exposure}; or set staleCni.backupDir to a folder that only root "
                "can write to"
            )
        return None

    # --- its steps

    def _confirmed(self, ctx: Context, swept: Swept) -> NodeSnapshot:
        """Return the second of two snapshots that agree, or the first if nothing in it is stale.

        Raises StaleCNIError if they differ, or if azure-vnet may be running.
        """
        first = self._read(ctx, swept)
        if not first.stale:
            return first
        ctx.sleep(SECONDS_BETWEEN_SNAPSHOTS)
        second = self._read(ctx, swept)
        if _objects(first) != _objects(second):
            raise StaleCNIError(
                "two snapshots of the node differ, so another program is changing it. Nothing was "
                "changed; run this again"
            )
        return second

    def _read(self, ctx: Context, swept: Swept) -> NodeSnapshot:
        snapshot = self.foresee(ctx)
        swept.spared = snapshot.spared
        if snapshot.doubt:
            raise StaleCNIError(f"nothing was changed: {snapshot.doubt}")
        # After the snapshot: azure-vnet holds its lock from the first rule of a new pod to its
        # record.
        if snapshot.stale and (obstacle := self.obstacle()):
            raise StaleCNIError(
                f"{obstacle}. Nothing was changed; run this again once that is resolved"
            )
        return snapshot

    def _remove(self, ctx: Context, snapshot: NodeSnapshot, swept: Swept) -> None:
        objects = [verdict.object for verdict in snapshot.stale]
        swept.restore = {str(each): restore_command(each, snapshot.ebtables) for each in objects}
        try:
            swept.backup = write_backup(
                self._host.files,
                self._section.backup_dir,
                now=ctx.clock.time(),
                commands=swept.restore.values(),
                ebtables=snapshot.ebtables,
                neighbours=snapshot.neighbours,
            )
        except HostFileError as error:
            raise StaleCNIError(
                f"nothing was changed, because no backup can be written: {error}"
            ) from error
        rules = [each for each in objects if isinstance(each, EbtablesRule)]
        neighbours = [each for each in objects if isinstance(each, Neighbour)]
        try:
            if rules:
                self._host.ebtables.delete(ctx, rules)
            if neighbours:
                self._host.link_layer.remove_neighbours(neighbours)
        finally:
            back = [*self._record_removals(ctx, snapshot.stale, swept)]
        if back:
            raise StaleCNIError(
                f"another program adds them again: {len(back)} of {len(objects)} removed entries "
                f"are back, the first is '{back[0]}'; find the program that adds them "
                "(azure-vnet, its monitor, a script?), stop it, and run this again"
            )

    def _record_removals(
        self, ctx: Context, stale: Sequence[Verdict], swept: Swept
    ) -> Iterator[Leftover]:
        """Record the removals that are in effect; yield the entries that are present.

        A program that fails or is interrupted may have removed some of them.
        """
        shielded = ctx.shielded().child(timeout=_SECONDS_TO_READ)
        left = Counter(present(shielded, self._host))
        removed = 0
        for verdict in stale:
            if left[verdict.object]:
                left[verdict.object] -= 1
                yield verdict.object
            else:
                ctx.record(verdict.removal)
                removed += 1
        self._logger.info(
            "stale entries of azure-vnet removed: %d, with a backup in %s",
            removed,
            swept.backup,
            extra={"removed": removed, "backup": swept.backup},
        )


def _objects(snapshot: NodeSnapshot) -> Counter[Leftover]:
    return Counter(verdict.object for verdict in snapshot.stale)
