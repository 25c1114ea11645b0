"""CleanStaleCNI: read twice, write the backup, and remove; on live nodes only."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.azure.stale_cni import azure_vnet
from hostrouting.azure.stale_cni.backup import restore_command, write_backup
from hostrouting.azure.stale_cni.leftovers import Verdict
from hostrouting.azure.stale_cni.node import NodeReading, present, read_node
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

SECONDS_BETWEEN_READINGS: Final = 1.0
#: For reading what a cancelled run, or one that is out of time, has removed.
_SECONDS_TO_READ = 60.0


@attrs.define(eq=False)
class Swept:
    """The result of one cleanup."""

    #: The verdicts on entries that are left alone.
    spared: Sequence[Verdict] = ()
    #: The path of the backup; None if nothing was to be removed.
    backup: str | None = None
    #: The command that adds an entry again, by its subject in the report.
    restore: dict[str, str] = attrs.field(factory=dict)


class CleanStaleCNI(NodeTask):
    """Remove ebtables rules and neighbours of dead pods that a removed azure-vnet left.

    `staleCni.backupDir` gets the state before, and a command for each removed entry that adds it
    again. A config without the section changes nothing. Entries that may be of a live pod stay; and
    while azure-vnet is configured or at work, none is removed (`StaleCNIError`).

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
        #: A watch reads for months, and logs each of the few notes once.
        self._logged: set[str] = set()

    @property
    def _section(self) -> StaleCNIConfig:
        return self._config.stale_cni

    @property
    def _is_wanted(self) -> bool:
        return self._section.enabled and self._host.is_live

    # --- the task

    def do(self, ctx: Context) -> None:
        """Remove the entries that two readings agree on."""
        if self._is_wanted:
            with self._host.lock.hold(ctx) as held:
                self.sweep(held, Swept())
        else:
            ctx.skip(NOT_IN_IMAGE if self._section.enabled else NOT_CONFIGURED)

    def sweep(self, ctx: Context, swept: Swept) -> None:
        """Do so with the run lock held by the caller; put the result into `swept`."""
        reading = self._confirmed(ctx, swept)
        if reading.stale:
            self._remove(ctx, reading, swept)
        else:
            self._logger.info("nothing stale of azure-vnet was found", extra={"removed": 0})

    def plan(self, ctx: Context) -> list[Change]:
        """Return the entries that are stale by one reading, and why."""
        if not self._is_wanted:
            return []
        try:
            reading = self.foresee(ctx)
        except PermissionDeniedError as error:
            # The rest of a plan needs no root.
            self._logger.warning("the cleanup is not planned: %s", error)
            return []
        refused = partial(hindered, "-", optional=not self._section.required)
        if reading.doubt:
            return [refused("entries of azure-vnet", reading.doubt)]
        obstacle = self.obstacle()
        if not obstacle:
            return [verdict.removal for verdict in reading.stale]
        return [refused(str(each.object), f"{obstacle}; {each.reason}") for each in reading.stale]

    # --- for others

    def foresee(self, ctx: Context) -> NodeReading:
        """Return one reading; raise PermissionDeniedError if ebtables may not be read."""
        reading = read_node(ctx, self._section, self._host)
        for note in reading.ebtables.notes:
            if note not in self._logged:
                self._logged.add(note)
                # Most nodes lack one of the two backends.
                level = logging.INFO if reading.ebtables.texts else logging.WARNING
                line = "ebtables rules may go unseen: %s"
                self._logger.log(level, line, note, extra={"note": note})
        if reading.ebtables.denied:
            raise PermissionDeniedError(
                "finding and removing the leftovers of a CNI needs root (CAP_NET_ADMIN); nothing "
                f"was changed: {'; '.join(reading.ebtables.notes)}"
            )
        return reading

    def findings(self, ctx: Context) -> tuple[list[NodeFinding], list[Verdict]]:
        """Return a finding for each entry that is stale by one reading, and the spared entries.

        A pod whose entries are not known is a finding, too. Both are empty if the section is off.
        Raise PermissionDeniedError as `foresee` does.
        """
        if not self._is_wanted:
            return [], []
        reading = self.foresee(ctx)
        obstacle = self.obstacle()
        step = f"cannot be removed now: {obstacle}" if obstacle else ""
        finding = partial(NodeFinding, "stale-cni", step=step, apply="" if obstacle else "now")
        findings = [finding(str(verdict.object), verdict.reason) for verdict in reading.stale]
        if reading.doubt:
            subject = ", ".join(reading.unnamed)
            findings.append(NodeFinding("stale-cni", subject, reading.doubt, "warning"))
        return findings, reading.spared

    def obstacle(self) -> str | None:
        """Return why `do` would be refused now; None if it would not."""
        files = self._host.files
        if reason := azure_vnet.in_use(files):
            return reason
        folder = self._section.backup_dir
        if exposure := files.exposed(folder):
            return (
                f"others could replace the script that a cleanup writes to {folder}, and root may "
                f"run it: {exposure}; or let staleCni.backupDir name a folder that only root can "
                "write to"
            )
        return None

    # --- its steps

    def _confirmed(self, ctx: Context, swept: Swept) -> NodeReading:
        """Return the second of two readings that agree, or the first if nothing is stale in it.

        Raise StaleCNIError if they differ, or if azure-vnet may be at work.
        """
        first = self._read(ctx, swept)
        if not first.stale:
            return first
        ctx.sleep(SECONDS_BETWEEN_READINGS)
        second = self._read(ctx, swept)
        if _objects(first) != _objects(second):
            raise StaleCNIError(
                "two readings of the node differ, so another program is changing it. Nothing was "
                "changed; run this again"
            )
        return second

    def _read(self, ctx: Context, swept: Swept) -> NodeReading:
        reading = self.foresee(ctx)
        swept.spared = reading.spared
        if reading.doubt:
            raise StaleCNIError(f"nothing was changed: {reading.doubt}")
        # After the reading: azure-vnet has its lock from the first rule of a new pod to its record.
        if reading.stale and (obstacle := self.obstacle()):
            raise StaleCNIError(
                f"{obstacle}. Nothing was changed; run this again once that is resolved"
            )
        return reading

    def _remove(self, ctx: Context, reading: NodeReading, swept: Swept) -> None:
        objects = [verdict.object for verdict in reading.stale]
        swept.restore = {str(each): restore_command(each, reading.ebtables) for each in objects}
        try:
            swept.backup = write_backup(
                self._host.files,
                self._section.backup_dir,
                now=ctx.clock.time(),
                commands=swept.restore.values(),
                ebtables=reading.ebtables,
                neighbours=reading.neighbours,
            )
        except HostFileError as error:
            raise StaleCNIError(
                f"nothing was changed: no backup can be written: {error}"
            ) from error
        rules = [each for each in objects if isinstance(each, EbtablesRule)]
        neighbours = [each for each in objects if isinstance(each, Neighbour)]
        try:
            if rules:
                self._host.ebtables.delete(ctx, rules)
            if neighbours:
                self._host.link_layer.remove_neighbours(neighbours)
        finally:
            back = [*self._record_removals(ctx, reading.stale, swept)]
        if back:
            raise StaleCNIError(
                f"another program adds them again: {len(back)} of {len(objects)} removed entries "
                f"are back, the first is '{back[0]}'; find the program that makes them "
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


def _objects(reading: NodeReading) -> Counter[Leftover]:
    return Counter(verdict.object for verdict in reading.stale)
