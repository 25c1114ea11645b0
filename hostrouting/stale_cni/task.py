"""CleanStaleCNI: read, confirm, write down, take away, and look again; for live nodes, since a boot leaves nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError, StaleCNIError
from hostrouting.host import EbtablesRule, Host
from hostrouting.stale_cni import azure_vnet
from hostrouting.stale_cni.backup import boot_id, read_backups, remove_backup, write_backup
from hostrouting.stale_cni.observe import observe
from hostrouting.stale_cni.restore import add_back, by_sort, remove, still_there, what_comes_back
from hostrouting.stale_cni.sweep import agree, judge, questions, subject
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.config import HostRoutingConfig, StaleCNIConfig
    from hostrouting.host import EbtablesReading
    from hostrouting.stale_cni.backup import Backup
    from hostrouting.stale_cni.sweep import Agreement, Leftover, Snapshot, Verdict

__all__ = ["CleanStaleCNI"]

SECONDS_BETWEEN_READINGS: Final = 1.0
#: For putting back what a run took away that was cancelled, or whose time was up.
_SECONDS_TO_RESTORE: Final = 60.0


class CleanStaleCNI:
    """Take away the ebtables rules, neighbours and routes of pods that a removed azure-vnet left, and nothing else.

    All or nothing, and written down before; `undo` puts it back. A config without the section changes nothing at all.
    Refused (`StaleCNIError`) while azure-vnet is configured or at work.
    """

    name = "clean-stale-cni"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        self._section: StaleCNIConfig = config.stale_cni
        self._given_host = host
        self._logger = logger or logging.getLogger(__name__)
        self._said: set[str] = set()

    def do(self, ctx: Context) -> None:
        """Read until readings agree, take away what is stale in all of them, and see whether it comes back."""
        if not self._section.enabled or not self._host.is_live:
            return
        agreement, reading = self._confirmed(ctx)
        for verdict in agreement.changed:
            self._logger.warning(
                "%s is left alone: it changed between readings, so somebody is at work on it",
                subject(verdict.object),
                extra=_fields(verdict),
            )
        if not agreement.stale:
            self._logger.info("nothing stale of azure-vnet was found")
            return
        objects = [verdict.object for verdict in agreement.stale]
        for verdict in agreement.stale:
            self._logger.debug("%s is stale: %s", subject(verdict.object), verdict.reason, extra=_fields(verdict))
        backup = write_backup(
            self._host.files, self._section.backup_dir, objects, texts=reading.texts, now=ctx.clock.time()
        )
        self._sweep(ctx, backup)
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
        verdicts, _ = self.judge_now(ctx)
        return [
            Change("-", subject(verdict.object), f"will be refused: {obstacle}" if obstacle else verdict.reason)
            for verdict in verdicts
            if verdict.kind == "stale"
        ]

    def undo(self, ctx: Context) -> None:
        """Put back what was taken away since this machine was started; what is there already is fine."""
        for backup in self._backups_of_this_boot():
            ctx.check()
            missing, given_up = what_comes_back(backup.objects, self._look(ctx))
            for leftover, reason in given_up:
                self._logger.warning("%s is not put back: %s", subject(leftover), reason)
            add_back(ctx, self._host, missing, progress=self._progress("put back", missing))
            remove_backup(self._host.files, self._section.backup_dir, backup)
            self._logger.info("%d objects of %s are put back", len(missing), backup.path)

    def plan_undo(self, ctx: Context) -> list[Change]:
        """What `undo` would put back."""
        backups = self._backups_of_this_boot()
        if not backups:
            return []
        objects = [leftover for backup in backups for leftover in backup.objects]
        missing = what_comes_back(objects, self._look(ctx)).missing
        return [Change("+", subject(leftover), "put back") for leftover in missing]

    def judge_now(self, ctx: Context) -> tuple[tuple[Verdict, ...], EbtablesReading]:
        """The verdicts of one reading; what it could not see, or not understand, is logged."""
        return self._read(ctx, may_guess=True)

    def obstacle(self) -> str | None:
        """Why `do` would be refused now: azure-vnet may be making rules at this moment."""
        return None if self._section.force else self._in_use()

    @property
    def _host(self) -> Host:
        if self._given_host is None:
            self._given_host = Host.live()
        return self._given_host

    # --- reading

    def _confirmed(self, ctx: Context) -> tuple[Agreement, EbtablesReading]:
        """As many readings as the config asks for; refused as soon as azure-vnet shows up."""
        readings: list[Sequence[Verdict]] = []
        while True:
            self._refuse_if_in_use()
            verdicts, reading = self._read(ctx)
            if reading.denied:
                raise PermissionDeniedError(
                    f"to take away what a removed CNI left needs root (CAP_NET_ADMIN); nothing was changed: "
                    f"{'; '.join(reading.notes)}"
                )
            readings.append(verdicts)
            # On a node without leftovers there is nothing to confirm.
            if len(readings) == self._section.confirmations or not _any_stale(readings):
                return agree(readings), reading
            ctx.sleep(SECONDS_BETWEEN_READINGS)

    def _refuse_if_in_use(self) -> None:
        in_use = self._in_use()
        if in_use and not self._section.force:
            raise StaleCNIError(
                f"{in_use}. Nothing was changed. Remove azure-vnet first; "
                f"staleCni.force cleans all the same, if you know that no pod of it is alive"
            )
        if in_use:
            self._say_once(logging.WARNING, f"going on, as staleCni.force asks: {in_use}")

    def _in_use(self) -> str | None:
        """Why azure-vnet may be making rules at this moment."""
        reasons = azure_vnet.configured(self._host.files) + azure_vnet.locked(self._host.files)
        return f"azure-vnet is still in use: {'; '.join(reasons)}" if reasons else None

    def _read(self, ctx: Context, *, may_guess: bool = False) -> tuple[tuple[Verdict, ...], EbtablesReading]:
        ctx.check()
        snapshot, reading = observe(ctx, self._host, bridge=self._section.bridge)
        # After all else, for the same reason as there.
        snapshot = attrs.evolve(snapshot, endpoints=azure_vnet.read_endpoints(self._host.files))
        verdicts = self._judged(snapshot)
        answered = self._ask(ctx, questions(snapshot, verdicts, bridge=self._section.bridge), may_guess=may_guess)
        if answered:
            verdicts = self._judged(attrs.evolve(snapshot, answered=answered))
        self._tell(verdicts, reading)
        return verdicts, reading

    def _ask(self, ctx: Context, asked: Sequence[tuple[str, str]], *, may_guess: bool) -> frozenset[tuple[str, str]]:
        """Who answers: a pod that has been silent for long is known to nobody, and answers all the same."""
        if not asked:
            return frozenset()
        try:
            return self._host.link_layer.answering(ctx, asked)
        except PermissionDeniedError as error:
            if not may_guess:
                raise
            self._logger.warning("%s; so pods that have been silent for long are taken for stale here", error)
            return frozenset()

    def _judged(self, snapshot: Snapshot) -> tuple[Verdict, ...]:
        return judge(snapshot, pod_cidrs=self._section.pod_cidrs, bridge=self._section.bridge)

    def _tell(self, verdicts: Iterable[Verdict], reading: EbtablesReading) -> None:
        """Say what was not seen, and what was seen but not understood."""
        for note in reading.notes:
            # That one of the two backends is missing is how most nodes are.
            level = logging.INFO if reading.texts else logging.WARNING
            self._say_once(level, f"ebtables rules may go unseen: {note}", note=note)
        unknown = [verdict for verdict in verdicts if verdict.kind == "unknown"]
        if unknown:
            count = len(unknown)
            self._say_once(
                logging.WARNING, f"objects that are not understood, and so left alone: {count}", unknown=count
            )
        for verdict in unknown:
            self._say_once(logging.DEBUG, f"{subject(verdict.object)} is unknown: {verdict.reason}", **_fields(verdict))

    def _say_once(self, level: int, line: str, **fields: object) -> None:
        """What every reading finds again is said after the first one only."""
        if line not in self._said:
            self._said.add(line)
            self._logger.log(level, "%s", line, extra=fields)

    # --- taking away

    def _sweep(self, ctx: Context, backup: Backup) -> None:
        done: list[Leftover] = []
        try:
            remove(ctx, self._host, backup.objects, done, progress=self._progress("deleted", backup.objects))
        except Exception as error:
            left = self._left_behind(ctx, backup, done)
            if left:
                lines = "".join(f"\n  {line}" for line in left)
                raise StaleCNIError(
                    f"{error}\nTHE ROLLBACK IS INCOMPLETE, this is not as before:{lines}\n"
                    f"all of it is written down in {backup.path}; 'hostrouting reset' puts it back"
                ) from error
            remove_backup(self._host.files, self._section.backup_dir, backup)
            if done and isinstance(error, HostRoutingError):
                raise StaleCNIError(f"{error}\nwhat had been taken away before that is back in its place") from error
            raise

    def _left_behind(self, ctx: Context, backup: Backup, done: Sequence[Leftover]) -> list[str]:
        """Put back what is gone; what could not be put back, in words."""
        # Of its own, for ours may be over: that may be why we are here.
        ctx = Context(timeout=_SECONDS_TO_RESTORE, clock=ctx.clock)
        problems: list[str] = []
        try:
            for part in by_sort(what_comes_back(done, self._look(ctx)).missing):
                try:
                    add_back(ctx, self._host, part)
                except HostRoutingError as error:
                    problems.append(str(error))
            missing, given_up = what_comes_back(backup.objects, self._look(ctx))
        except HostRoutingError as error:
            return [*problems, f"what is there now cannot be read: {error}"]
        problems += [subject(leftover) for leftover in missing]
        return problems + [f"{subject(leftover)}: {reason}" for leftover, reason in given_up]

    def _look_again(self, ctx: Context, backup: Backup) -> None:
        """Notice who puts back what was taken away; whoever fought them would fight for ever."""
        ctx.sleep(SECONDS_BETWEEN_READINGS)
        back = still_there(backup.objects, self._look(ctx))
        for leftover in back:
            self._logger.warning("something puts them back: %s", subject(leftover), extra={"object": subject(leftover)})
        if back:
            raise StaleCNIError(
                f"something puts them back: {len(back)} of {len(backup.objects)} objects that were taken away "
                f"are there again, the first is '{subject(back[0])}'. They are left alone; find out who makes them "
                f"(azure-vnet, its monitor, a script?), stop it, and run this again"
            )

    def _look(self, ctx: Context) -> Snapshot:
        return observe(ctx, self._host, bridge=self._section.bridge)[0]

    def _progress(self, what: str, objects: Iterable[Leftover]) -> Callable[[int], None]:
        total = sum(isinstance(leftover, EbtablesRule) for leftover in objects)

        def tell(done: int) -> None:
            self._logger.info("%d of %d ebtables rules %s", done, total, what, extra={"progress": (done, total)})

        return tell

    # --- putting back

    def _backups_of_this_boot(self) -> list[Backup]:
        """The newest first: positions in a chain are those after all earlier sweeps."""
        if not self._host.is_live:
            return []
        backups = read_backups(self._host.files, self._section.backup_dir)
        this_boot = boot_id(self._host.files) if backups else ""
        for backup in backups:
            if backup.boot_id != this_boot:
                self._logger.info(
                    "%s is of %s, before this machine was started again: nothing of it can be put back, and it stays",
                    backup.path,
                    backup.time,
                    extra={"backup": backup.path},
                )
        return [backup for backup in backups if backup.boot_id == this_boot]


def _any_stale(readings: Iterable[Sequence[Verdict]]) -> bool:
    return any(verdict.kind == "stale" for reading in readings for verdict in reading)


def _fields(verdict: Verdict) -> dict[str, object]:
    return {"object": subject(verdict.object), "address": verdict.address, "reason": verdict.reason}
