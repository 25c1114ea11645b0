"""CleanStaleCNI: read, confirm, write down, take away, and look again; for live nodes, since a boot leaves nothing."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from hostrouting.config import require_config
from hostrouting.exceptions import HostFileError, HostRoutingError, PermissionDeniedError, StaleCNIError
from hostrouting.findings import RESTORED, refused
from hostrouting.host import EbtablesRule, Host
from hostrouting.journal import refuse_unsafe_folder, set_aside
from hostrouting.stale_cni import azure_vnet
from hostrouting.stale_cni.backup import clean_up, read_backups, remove_backup, write_backup
from hostrouting.stale_cni.observe import Observer, fields_of, observe, wrong_bridge
from hostrouting.stale_cni.restore import add_back, by_sort, remove, still_there, what_comes_back
from hostrouting.stale_cni.sweep import agree, identity, subject
from phases import CancelledError, Change, Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostrouting.config import HostRoutingConfig, StaleCNIConfig
    from hostrouting.host import EbtablesReading
    from hostrouting.stale_cni.backup import Backup
    from hostrouting.stale_cni.observe import Reading
    from hostrouting.stale_cni.sweep import Agreement, Leftover, Snapshot, Verdict

__all__ = ["CleanStaleCNI"]

SECONDS_BETWEEN_READINGS: Final = 1.0
#: A pod's link may be down for a moment, and then nobody can be asked there; one that stays down is no sign of life.
READINGS_FOR_THE_DEAF: Final = 5
#: For putting back what a run took away that was cancelled, or whose time was up.
_SECONDS_TO_RESTORE: Final = 60.0
#: How a context ends.
_OVER: Final = (CancelledError, DeadlineExceededError)
_OUTLIVED: Final = "%s is of %s, before this machine was started again: nothing of it can be put back, so it is removed"
_NO_RECORD: Final = "no record of it can be written: {}; see staleCni.backupDir"
_WRONG_BRIDGE: Final = "staleCni.bridge must name the bridge of azure-vnet's pods: {}"


class CleanStaleCNI:
    """Take away the ebtables rules, neighbours and routes of pods that a removed azure-vnet left, and nothing else.

    All or nothing, and written down before; `undo` puts it back. A config without the section changes nothing at all.
    Refused (`StaleCNIError`) where something is stale while azure-vnet is configured or at work.
    """

    name = "clean-stale-cni"
    records = True

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        self._section: StaleCNIConfig = require_config(config).stale_cni
        self._host = host or Host.live()
        self._logger = logger or logging.getLogger(__name__)
        self._observer = Observer(self._section, self._logger)
        #: What the last reading has found and left alone.
        self.spared: list[Verdict] = []
        #: Where the last `do` has written down what it took away; None where it took away nothing.
        self.record: str | None = None

    def do(self, ctx: Context) -> None:
        """Read until readings agree, take away what is stale in all of them, and see whether it comes back."""
        self.spared, self.record = [], None
        if not self._section.enabled or not self._host.is_live:
            return
        with self._host.lock.hold(ctx) as held:
            self._do(held)

    def _do(self, ctx: Context) -> None:
        agreement, reading = self._confirmed(ctx)
        for verdict in agreement.changed:
            self._logger.warning(
                "%s is left alone: it changed between readings, so somebody is at work on it",
                subject(verdict.object),
                extra=fields_of(verdict),
            )
            reason = "it changed between readings"
            self.spared.append(verdict._replace(kind="unknown", reason=reason))
        if not agreement.stale:
            self._logger.info("nothing stale of azure-vnet was found")
            return
        objects = [verdict.object for verdict in agreement.stale]
        for verdict in agreement.stale:
            self._logger.debug("%s is stale: %s", subject(verdict.object), verdict.reason, extra=fields_of(verdict))
        backup = self._written_down(ctx, objects, reading)
        self.record = backup.path
        self._sweep(ctx, backup, {identity(verdict.object): verdict.reason for verdict in agreement.stale})
        self._logger.info(
            "%d stale objects of azure-vnet are gone, all of them written down in %s",
            len(objects),
            backup.path,
            extra={"removed": len(objects), "backup": backup.path},
        )
        self._look_again(ctx, backup)

    def plan(self, ctx: Context) -> list[Change]:
        """What would go, by one reading, and why."""
        if not self._section.enabled or not self._host.is_live:
            return []
        obstacle = self.obstacle()
        return [
            Change("-", subject(verdict.object), self._foreseen(verdict.reason, obstacle))
            for verdict in self.judge_now(ctx).verdicts
            if verdict.kind == "stale"
        ]

    def _foreseen(self, reason: str, obstacle: str | None) -> str:
        if obstacle is None:
            return reason
        # A refusal of what is optional fails nothing, and so is none of the whole plan's.
        return refused(f"{obstacle}; {reason}") if self._section.required else f"{reason}; {refused(obstacle)}"

    def undo(self, ctx: Context) -> None:
        """Put back what was taken away since this machine was started; what is there already is fine.

        A record in which something remains that could not be put back stays; one of another boot goes.
        """
        if not self._host.is_live:
            return
        with self._host.lock.hold(ctx) as held:
            self._undo(held)

    def _undo(self, ctx: Context) -> None:
        current, outlived, bad = read_backups(self._host.files, self._section.backup_dir)
        if not current and not bad:
            self._logger.info("no sweep since this machine was started is recorded in %s", self._section.backup_dir)
        for backup in outlived:
            self._logger.info(_OUTLIVED, backup.path, backup.time, extra={"backup": backup.path})
            remove_backup(self._host.files, self._section.backup_dir, backup)
            ctx.record(_removal(backup))
        for path, reason in bad:
            self._logger.warning("%s; %s", reason, set_aside(self._host.files, path), extra={"backup": path})
        for backup in current:
            self._put_back(ctx, backup)
        clean_up(self._host.files, self._section.backup_dir)

    def _put_back(self, ctx: Context, backup: Backup) -> None:
        ctx.check()
        missing, given_up = what_comes_back(backup.objects, self._look(ctx))
        for leftover, reason in given_up:
            self._logger.warning("%s is not put back: %s", subject(leftover), reason)
        done: list[Leftover] = []
        try:
            add_back(ctx, self._host, missing, done, progress=self._progress("put back", missing))
        finally:
            for leftover in done:
                ctx.record(Change("+", subject(leftover), RESTORED))
        if missing or not given_up:
            self._logger.info("%d objects of %s are put back", len(missing), backup.path)
        if given_up:
            self._logger.warning(
                "the record %s stays, for %d of its objects could not be put back; '%s' tries again",
                backup.path,
                len(given_up),
                self._reset,
            )
        else:
            remove_backup(self._host.files, self._section.backup_dir, backup)

    def plan_undo(self, ctx: Context) -> list[Change]:
        """What `undo` would put back, and which records have outlived their boot."""
        if not self._host.is_live:
            return []
        current, outlived, bad = read_backups(self._host.files, self._section.backup_dir)
        for damaged in bad:
            self._logger.warning("%s", damaged.reason)
        coming: Counter[Leftover] = Counter()
        if current:
            snapshot = self._look(ctx)
            for backup in current:
                # What one record puts back, another finds there.
                coming |= Counter(map(identity, what_comes_back(backup.objects, snapshot).missing))
        return [
            *map(_removal, outlived),
            *(Change("+", subject(leftover), RESTORED) for leftover in coming.elements()),
        ]

    def judge_now(self, ctx: Context) -> Reading:
        """One reading; what it could not see, ask or understand is logged."""
        return self._read(ctx, may_guess=True)

    def obstacle(self) -> str | None:
        """Why `do` would be refused now.

        The bridge is another, azure-vnet may be making rules at this moment, or others may write to `backupDir`.
        """
        wrong = wrong_bridge(self._host, self._section.bridge)
        if wrong:
            return _WRONG_BRIDGE.format(wrong)
        in_use, _ = self._in_use()
        if in_use:
            return in_use
        try:
            refuse_unsafe_folder(self._host.files, self._section.backup_dir)
        except HostFileError as error:
            return _NO_RECORD.format(error)
        return None

    # --- reading

    def _read(self, ctx: Context, *, may_guess: bool = False) -> Reading:
        reading = self._observer.read(ctx, self._host, may_guess=may_guess)
        self.spared = [verdict for verdict in reading.verdicts if verdict.kind != "stale"]
        return reading

    def _confirmed(self, ctx: Context) -> tuple[Agreement, EbtablesReading]:
        """As many readings as the config asks for; refused where something is stale and azure-vnet may be at work."""
        readings: list[Sequence[Verdict]] = []
        needed = self._section.confirmations
        while True:
            # Before and after: a pod that is made while we read has rules before anything else tells of it.
            in_use = self._in_use()
            found = self._read(ctx)
            if found.ebtables.denied:
                raise PermissionDeniedError(
                    f"to take away what a removed CNI left needs root (CAP_NET_ADMIN); nothing was changed: "
                    f"{'; '.join(found.ebtables.notes)}"
                )
            readings.append(found.verdicts)
            # On a node without leftovers there is nothing to confirm.
            if not _any_stale(readings):
                return agree(readings), found.ebtables
            self._refuse(in_use, self._in_use())
            if found.deaf:
                needed = self._section.confirmations + READINGS_FOR_THE_DEAF
                given = f"is given {READINGS_FOR_THE_DEAF} readings more to answer"
                self._observer.say_once(logging.WARNING, f"{', '.join(found.deaf)}: whoever is behind {given}")
            if len(readings) >= needed:
                return agree(readings), found.ebtables
            ctx.sleep(SECONDS_BETWEEN_READINGS)

    def _refuse(self, *looks: tuple[str | None, str | None]) -> None:
        wrong = wrong_bridge(self._host, self._section.bridge)
        if wrong:
            raise StaleCNIError(f"{_WRONG_BRIDGE.format(wrong)}. Nothing was changed")
        in_use, overlooked = (next(filter(None, told), None) for told in zip(*looks, strict=True))
        if in_use:
            raise StaleCNIError(
                f"{in_use}. Nothing was changed. Remove azure-vnet first; staleCni.force (its switches conflist and "
                f"lock) cleans all the same, if you know that no pod of it is alive"
            )
        if overlooked:
            self._observer.say_once(logging.WARNING, f"going on, as staleCni.force asks: {overlooked}")

    def _in_use(self) -> tuple[str | None, str | None]:
        """Why azure-vnet may be making rules at this moment, and what of that the config says to overlook."""
        files, force = self._host.files, self._section.force
        found = ((azure_vnet.configured(files), force.conflist), (azure_vnet.locked(files), force.lock))
        told = ([r for reasons, forced in found if forced is wanted for r in reasons] for wanted in (False, True))
        in_use, overlooked = (f"azure-vnet is still in use: {'; '.join(each)}" if each else None for each in told)
        return in_use, overlooked

    # --- taking away

    def _written_down(self, ctx: Context, objects: Sequence[Leftover], reading: EbtablesReading) -> Backup:
        try:
            return write_backup(
                self._host.files, self._section.backup_dir, objects, texts=reading.texts, now=ctx.clock.time()
            )
        except HostFileError as error:
            raise StaleCNIError(f"nothing was changed, for {_NO_RECORD.format(error)}") from error

    def _sweep(self, ctx: Context, backup: Backup, reasons: Mapping[Leftover, str]) -> None:
        done: list[Leftover] = []
        try:
            remove(ctx, self._host, backup.objects, done, progress=self._progress("deleted", backup.objects))
        except Exception as error:
            was_begun = bool(done)
            left = self._left_behind(ctx, backup, done)
            if left:
                lines = "".join(f"\n  {line}" for line in left)
                raise StaleCNIError(
                    f"{error}\nTHE ROLLBACK IS INCOMPLETE, this is not as before:{lines}\n"
                    f"all of it is written down in {backup.path}; '{self._reset}' puts it back"
                ) from error
            remove_backup(self._host.files, self._section.backup_dir, backup)
            self.record = None
            if isinstance(error, _OVER):
                self._logger.warning(
                    "the sweep was stopped (%s); all that it had taken away is back in its place", error
                )
            if was_begun and isinstance(error, HostRoutingError):
                raise StaleCNIError(f"{error}\nwhat had been taken away before that is back in its place") from error
            raise
        finally:
            gone = set(done)
            undo = partial(self._restore, backup.path)
            for leftover in backup.objects:
                if leftover in gone:
                    ctx.record(Change("-", subject(leftover), reasons[identity(leftover)]), undo=undo)

    def _restore(self, path: str, ctx: Context) -> None:
        """Restore what one sweep removed, unless its record is gone: then it was restored already."""
        with self._host.lock.hold(ctx) as held:
            current, _, _ = read_backups(self._host.files, self._section.backup_dir)
            for backup in current:
                if backup.path == path:
                    self._put_back(held, backup)

    def _left_behind(self, ctx: Context, backup: Backup, done: list[Leftover]) -> list[str]:
        """Put back what is gone; what could not be put back, in words, and in `done`."""
        # Of its own, for ours may be over: that may be why we are here.
        ctx = Context(timeout=_SECONDS_TO_RESTORE, clock=ctx.clock)
        problems: list[str] = []
        try:
            for part in by_sort(what_comes_back(done, self._look(ctx)).missing):
                try:
                    add_back(ctx, self._host, part, [])
                except HostRoutingError as error:
                    problems.append(str(error))
            missing, given_up = what_comes_back(backup.objects, self._look(ctx))
        except HostRoutingError as error:
            return [*problems, f"what is there now cannot be read: {error}"]
        done[:] = [*missing, *(leftover for leftover, _ in given_up)]
        problems += [subject(leftover) for leftover in missing]
        return problems + [f"{subject(leftover)}: {reason}" for leftover, reason in given_up]

    def _look_again(self, ctx: Context, backup: Backup) -> None:
        """Notice who puts back what was taken away; whoever fought them would fight for ever."""
        try:
            ctx.sleep(SECONDS_BETWEEN_READINGS)
            back = still_there(backup.objects, self._look(ctx))
        except _OVER as error:
            # The sweep stands, all of it.
            self._logger.warning(
                "not looked at again whether something puts them back (%s); the record is %s", error, backup.path
            )
            return
        for leftover in back:
            self._logger.warning("something puts them back: %s", subject(leftover), extra={"object": subject(leftover)})
        if back:
            raise StaleCNIError(
                f"something puts them back: {len(back)} of {len(backup.objects)} objects that were taken away "
                f"are there again, the first is '{subject(back[0])}'. They are left alone; find out who makes them "
                f"(azure-vnet, its monitor, a script?), stop it, and run this again"
            )

    def _look(self, ctx: Context) -> Snapshot:
        return observe(ctx, self._host)[0]

    def _progress(self, what: str, objects: Iterable[Leftover]) -> Callable[[int], None]:
        total = sum(isinstance(leftover, EbtablesRule) for leftover in objects)

        def tell(done: int) -> None:
            self._logger.info("%d of %d ebtables rules %s", done, total, what, extra={"progress": (done, total)})

        return tell

    # --- putting back

    @property
    def _reset(self) -> str:
        """The command that undoes a sweep, which has to know where the records lie."""
        is_usual = self._section.backup_dir == type(self._section)().backup_dir
        return "hostrouting reset" if is_usual else "hostrouting reset CONFIG"


def _any_stale(readings: Iterable[Sequence[Verdict]]) -> bool:
    return any(verdict.kind == "stale" for reading in readings for verdict in reading)


def _removal(backup: Backup) -> Change:
    return Change("-", backup.path, f"of {backup.time}, before this machine was started again")
