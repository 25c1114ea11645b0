"""CleanStaleCNI: read, confirm, record, remove and read again; on live nodes only.

A boot removes all that a CNI has left.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.azure.stale_cni import azure_vnet
from hostrouting.azure.stale_cni.journal import Restorable, SweepRecord, Sweeps
from hostrouting.azure.stale_cni.leftovers import Snapshot, compare, identity
from hostrouting.azure.stale_cni.node import NodeReading, Observer, by_sort, observe, wrong_bridge
from hostrouting.azure.stale_cni.verdicts import Verdict, agree
from hostrouting.base.errors import (
    HostFileError,
    HostRoutingError,
    PermissionDeniedError,
    StaleCNIError,
)
from hostrouting.base.findings import NodeFinding, hindered
from hostrouting.boot.task import NodeTask
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.host import Host
from hostrouting.net.rejected import NeighbourRejectedError
from phases import Change, Context, Task, task
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config.siblings import StaleCNIConfig
    from hostrouting.host import EbtablesReading

SECONDS_BETWEEN_READINGS: Final = 1.0
#: A pod's link may be down for a moment, and then the pod cannot answer. A link that stays down
#: does not prove that the pod lives.
READINGS_FOR_DOWN_LINKS: Final = 5
_UNSEEN = "cannot check if a removed CNI left anything"
#: For restoring the objects that a cancelled run, or one that is out of time, has removed.
_SECONDS_TO_RESTORE = 60.0


@attrs.define(eq=False)
class Swept:
    """The result of one sweep."""

    #: The verdicts of the last reading on objects that are left alone.
    spared: Sequence[Verdict] = ()
    #: The path of its record; None if it removed nothing.
    record: str | None = None


class CleanStaleCNI(NodeTask):
    """Remove ebtables rules, neighbours and routes of dead pods that a removed azure-vnet left.

    All are removed or none, and all are recorded in the journal before; `undo` restores them. A
    config without the section changes nothing. While azure-vnet is configured or at work, a sweep
    with anything to remove is refused (`StaleCNIError`).
    """

    name = "clean-stale-cni"
    # Stale objects may shadow routes.
    precedes_proof = True

    @classmethod
    def reset(cls, config: HostRoutingConfig, host: Host, logger: logging.Logger) -> Task:
        """Return the task that restores what was swept: one without the section changes nothing."""
        sweep = cls(config, host=host, logger=logger)
        return task("restore-stale-cni", plan=sweep.plan_undo)(sweep.undo)

    @property
    def _section(self) -> StaleCNIConfig:
        return self._config.stale_cni

    @property
    def _sweeps(self) -> Sweeps:
        return Sweeps(self._host.files, self._section.backup_dir)

    @cached_property
    def _observer(self) -> Observer:
        # One for all readings, since it logs each thing once.
        return Observer(self._section, self._host, self._logger)

    def do(self, ctx: Context) -> None:
        """Read until readings agree, remove the objects that are stale in all, and read again."""
        if not self._section.enabled or not self._host.is_live:
            return
        with self._host.lock.hold(ctx) as held:
            self.sweep(held, Swept())

    def sweep(self, ctx: Context, swept: Swept) -> None:
        """Sweep, with the run lock held by the caller; put the result into `swept`."""
        stale, unsteady, ebtables = self._confirmed(ctx, swept)
        for verdict in unsteady:
            changed = verdict._replace(kind="unknown", reason="it changed between readings")
            self._logger.warning(
                "%s is left alone: it changed between readings, so another program is changing it",
                verdict.object,
                extra=changed.to_mapping(),
            )
            swept.spared = [*swept.spared, changed]
        if not stale:
            self._logger.info("nothing stale of azure-vnet was found", extra={"removed": 0})
            return
        for verdict in stale:
            self._logger.debug(
                "%s is stale: %s", verdict.object, verdict.reason, extra=verdict.to_mapping()
            )
        objects = [verdict.object for verdict in stale]
        try:
            record = self._sweeps.add(objects, texts=ebtables.texts, now=ctx.clock.time())
        except HostFileError as error:
            raise StaleCNIError(f"nothing was changed: {_no_record(error)}") from error
        self._remove(ctx, record, stale, swept)
        self._logger.info(
            "stale objects of azure-vnet removed: %d, recorded in %s",
            len(record.objects),
            record.path,
            extra={"removed": len(record.objects), "backup": record.path},
        )
        self._read_again(ctx, record)

    def plan(self, ctx: Context) -> list[Change]:
        """Return the objects that are stale by one reading, and why."""
        if not self._section.enabled or not self._host.is_live:
            return []
        obstacle = self.obstacle()
        try:
            planned = [verdict.removal for verdict in self._observer.read(ctx).stale]
        except PermissionDeniedError as error:
            # The rest of a plan needs no root.
            self._logger.warning("the sweep is not planned: %s", error)
            return []
        if not obstacle:
            return planned
        refused = partial(hindered, "-", optional=not self._section.required)
        return [refused(change.subject, f"{obstacle}; {change.detail}") for change in planned]

    def undo(self, ctx: Context) -> None:
        """Restore the objects that were swept since the machine was started, if they are absent.

        A record stays if any of its objects could not be restored, which is an error once all else
        is done; one of an earlier boot is removed.
        """
        if not self._host.is_live:
            return
        with self._host.lock.hold(ctx) as held:
            recorded = self._sweeps.read()
            if not recorded.current and not recorded.damaged:
                line = "no sweep since this machine was started is recorded in %s"
                self._logger.info(line, self._section.backup_dir)
            for record in recorded.outlived:
                line = (
                    "%s is of %s, before this machine was restarted: nothing in it can be "
                    "restored, so it is removed"
                )
                self._logger.info(line, record.path, record.time, extra={"backup": record.path})
                self._sweeps.remove(record)
                held.record(_removal(record))
            problems = [record.damage for record in recorded.damaged]
            for record in recorded.current:
                if lost := self._restore(held, record):
                    problems += [*lost, self._stays(record, len(lost))]
            self._sweeps.clean_up()
        if problems:
            raise StaleCNIError("\n  ".join(["not all that was swept is restored:", *problems]))

    def plan_undo(self, ctx: Context) -> list[Change]:
        """Return the records of earlier boots to remove, and the objects to restore."""
        if not self._host.is_live:
            return []
        recorded = self._sweeps.read()
        for record in recorded.damaged:
            self._logger.warning("%s", record.damage)
        missing: Counter[Restorable] = Counter()
        if recorded.current:
            snapshot = self._snapshot(ctx)
            for record in recorded.current:
                # An object that one record restores is present for the next one.
                missing |= Counter(map(identity, compare(record.objects, snapshot).missing))
        return [*map(_removal, recorded.outlived), *map(_addition, missing.elements())]

    def foresee(self, ctx: Context) -> NodeReading:
        """Return one reading.

        Raise PermissionDeniedError if nothing stale was seen, but a lack of privilege may have
        hidden it, and if pods cannot be probed.
        """
        try:
            reading = self._observer.read(ctx)
        except PermissionDeniedError as error:
            raise PermissionDeniedError(f"{_UNSEEN}: {error}") from error
        if not reading.stale and reading.ebtables.denied:
            raise PermissionDeniedError(f"{_UNSEEN}: {'; '.join(reading.ebtables.notes)}")
        return reading

    def suspects(self, ctx: Context) -> list[Verdict]:
        """Return the verdicts on stale objects by one reading without probes, so without a wait."""
        return self._observer.read(ctx, probes=False).stale

    def findings(self, ctx: Context) -> tuple[list[NodeFinding], list[Verdict]]:
        """Return a finding for each object that is stale by one reading, and the spared objects.

        Both are empty if the section is off. Raise PermissionDeniedError as `foresee` does.
        """
        if not self._section.enabled or not self._host.is_live:
            return [], []
        reading = self.foresee(ctx)
        obstacle = self.obstacle()
        step = f"cannot be removed now: {obstacle}" if obstacle else ""
        finding = partial(NodeFinding, "stale-cni", step=step, apply="" if obstacle else "now")
        findings = [finding(str(verdict.object), verdict.reason) for verdict in reading.stale]
        return findings, reading.spared

    def obstacle(self) -> str | None:
        """Return why `do` would be refused now; None if it would not."""
        if reason := wrong_bridge(self._host, self._section.bridge) or self._in_use():
            return reason
        try:
            self._sweeps.refuse_unsafe_folder()
        except HostFileError as error:
            return _no_record(error)
        return None

    def _in_use(self) -> str | None:
        force = self._section.force
        return azure_vnet.in_use(self._host.files, conflist=not force.conflist, lock=not force.lock)

    # --- reading

    def _confirmed(
        self, ctx: Context, swept: Swept
    ) -> tuple[list[Verdict], list[Verdict], EbtablesReading]:
        """Read `confirmations` times; return stale and changed objects, and the last ebtables.

        Raise if something is stale while azure-vnet may be at work.
        """
        readings: list[Sequence[Verdict]] = []
        needed = self._section.confirmations
        while True:
            # Before and after the reading: a new pod has rules before it leaves any other sign.
            in_use = self._in_use()
            reading = self._observer.read(ctx)
            swept.spared = reading.spared
            if reading.ebtables.denied:
                raise PermissionDeniedError(
                    f"removing the leftovers of a CNI needs root (CAP_NET_ADMIN); nothing was "
                    f"changed: {'; '.join(reading.ebtables.notes)}"
                )
            readings.append(reading.stale)
            # A node without leftovers needs no confirmation.
            if not any(readings):
                break
            self._refuse(in_use or self._in_use())
            if reading.down:
                needed = self._section.confirmations + READINGS_FOR_DOWN_LINKS
                time = f"its pod gets {READINGS_FOR_DOWN_LINKS} more readings to answer"
                self._observer.log_once(logging.WARNING, f"{', '.join(reading.down)}: {time}")
            if len(readings) >= needed:
                break
            ctx.sleep(SECONDS_BETWEEN_READINGS)
        return *agree(readings), reading.ebtables

    def _refuse(self, in_use: str | None) -> None:
        if wrong := wrong_bridge(self._host, self._section.bridge):
            raise StaleCNIError(f"{wrong}. Nothing was changed")
        if in_use:
            raise StaleCNIError(
                f"{in_use}. Nothing was changed. Remove azure-vnet first; if none of its pods is "
                f"alive, staleCni.force (its switches conflist and lock) sweeps all the same"
            )
        force = self._section.force
        if ignored := azure_vnet.in_use(self._host.files, conflist=force.conflist, lock=force.lock):
            self._observer.log_once(logging.WARNING, f"staleCni.force overrides: {ignored}")

    # --- removing

    def _remove(
        self, ctx: Context, record: SweepRecord, stale: Sequence[Verdict], swept: Swept
    ) -> None:
        swept.record = record.path
        removed: Sequence[Restorable] = record.objects
        try:
            for sort in by_sort(ctx, self._host, record.objects):
                sort.remove()
        except Exception as error:
            was_begun, removed, problems = self._roll_back(ctx, record)
            if problems:
                lines = "".join(f"\n  {problem}" for problem in problems)
                raise StaleCNIError(
                    f"{error}\nTHE ROLLBACK IS INCOMPLETE, this is not as before:{lines}\n"
                    f"all of it is recorded in {record.path}; {self._reset} restores it"
                ) from error
            self._sweeps.remove(record)
            swept.record = None
            if isinstance(error, CONTEXT_OVER):
                line = "the sweep was stopped (%s); all the objects that it had removed are back"
                self._logger.warning(line, error)
            if was_begun and isinstance(error, HostRoutingError):
                raise StaleCNIError(
                    f"{error}\nthe objects that were removed before that are back"
                ) from error
            raise
        except BaseException:
            # An interrupt: only a reading shows which objects are absent; `undo` restores those.
            with suppress(HostRoutingError):
                removed = compare(removed, self._snapshot(ctx.shielded())).absent
            raise
        finally:
            undo = partial(self._undo_sweep, record)
            lasting = set(removed)
            for verdict in stale:
                if verdict.object in lasting:
                    ctx.record(verdict.removal, undo=undo)

    def _roll_back(
        self, ctx: Context, record: SweepRecord
    ) -> tuple[bool, Sequence[Restorable], list[str]]:
        """Restore the removed objects; return if any were removed, the absent ones, and problems.

        A port that fails or is interrupted may have removed any part of its objects, so only a
        snapshot shows which are absent.
        """
        # Not bound by the caller's context, whose end may be the reason for the rollback.
        ctx = ctx.shielded().child(timeout=_SECONDS_TO_RESTORE)
        problems = []
        try:
            missing = compare(record.objects, self._snapshot(ctx)).missing
            for sort in reversed(by_sort(ctx, self._host, missing)):
                try:
                    sort.add()
                except HostRoutingError as error:
                    problems.append(str(error))
            after = compare(record.objects, self._snapshot(ctx))
        except HostRoutingError as error:
            return True, record.objects, [*problems, f"the present state cannot be read: {error}"]
        lost = (f"{leftover}: {reason}" for leftover, reason in after.lost.items())
        return bool(missing), after.absent, [*problems, *map(str, after.missing), *lost]

    def _read_again(self, ctx: Context, record: SweepRecord) -> None:
        """Raise StaleCNIError if another program adds removed objects again.

        To remove them again would never end.
        """
        # What was to be removed is removed, whether there is time for this or not.
        ctx = ctx.expiring()
        try:
            ctx.sleep(SECONDS_BETWEEN_READINGS)
            back = compare(record.objects, self._snapshot(ctx)).present
        except CONTEXT_OVER as error:
            line = "no time to check if they are added again (%s); they are recorded in %s"
            self._logger.warning(line, error, record.path)
            return
        for leftover in back:
            self._logger.warning(
                "another program added it again: %s", leftover, extra={"object": str(leftover)}
            )
        if back:
            raise StaleCNIError(
                f"another program adds them again: {len(back)} of {len(record.objects)} removed "
                f"objects are back, the first is '{back[0]}'. They are left alone; find the "
                f"program that makes them (azure-vnet, its monitor, a script?), stop it, and run "
                f"this again"
            )

    # --- restoring

    def _undo_sweep(self, record: SweepRecord, ctx: Context) -> bool:
        """Restore the objects of a sweep; return False if other programs have changed some."""
        with self._host.lock.hold(ctx) as held:
            if not self._host.files.exists(record.path):
                self._logger.warning("another run has restored the objects of %s", record.path)
                return True
            lost = self._restore(held, record)
            if not lost:
                return True
            for line in [*lost, self._stays(record, len(lost))]:
                self._logger.warning("%s", line)
            return False

    def _restore(self, ctx: Context, record: SweepRecord) -> list[str]:
        """Restore what is absent; return a line for each object that cannot be restored."""
        ctx.check()
        _, missing, lost = compare(record.objects, self._snapshot(ctx))
        for sort in reversed(by_sort(ctx, self._host, missing)):
            restored: Sequence[Restorable] = ()
            try:
                sort.add()
                restored = sort.objects
            except NeighbourRejectedError as error:
                restored = error.made
                raise
            finally:
                for leftover in restored:
                    ctx.record(_addition(leftover))
        if missing or not lost:
            self._logger.info("objects restored: %d, of %s", len(missing), record.path)
        if not lost:
            self._sweeps.remove(record)
        return [f"{leftover} is not restored: {reason}" for leftover, reason in lost.items()]

    def _stays(self, record: SweepRecord, lost: int) -> str:
        return (
            f"the record {record.path} stays, since {lost} of its objects cannot be restored; "
            f"{self._reset} tries again, or delete it: a restart needs none of them"
        )

    def _snapshot(self, ctx: Context) -> Snapshot:
        return observe(ctx, self._host)[0]

    @property
    def _reset(self) -> str:
        """The step that restores a sweep: with the config, if that names the folder of records."""
        is_usual = self._section.backup_dir == type(self._section)().backup_dir
        return "'hostrouting reset'" if is_usual else "a reset with this config"


def _no_record(error: HostFileError) -> str:
    return f"no record of it can be written: {error}; see staleCni.backupDir"


def _removal(record: SweepRecord) -> Change:
    return Change("-", record.path, f"of {record.time}, before this machine was restarted")


def _addition(restored: Restorable) -> Change:
    return Change("+", str(restored), "restored")
