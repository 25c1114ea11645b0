"""Boot: installs units, scripts and the gates on the disk and in systemd, and removes them."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hostrouting.base.findings import NodeFinding
from hostrouting.boot.gates import (
    broken_glass,
    gate_faults,
    gates_down,
    held_gates,
    is_starting,
    is_unsuitable,
    mark_bound,
    refuse_early_gates,
    refuse_faulty_gates,
    release,
    release_ungated,
    unread_gates,
)
from hostrouting.boot.generation import Survey, generation_folders
from hostrouting.boot.layout import (
    GATE_RUN_FILES,
    GATE_UNITS,
    HELD_TEMPLATE,
    READY_LINKS,
    READY_UNIT,
    READY_WANTS,
    RUNTIME_DIRECTORY,
    SCRIPT_DIRECTORY,
    UNFINISHED,
    UNIT_DIRECTORY,
    WATCH_UNITS,
    drop_in_of,
    gate_drop_in,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.recorded import RecordedFiles
from hostrouting.boot.steps import MASKED, Steps
from hostrouting.config import DEFAULT_GATES, OWN_UNITS
from hostrouting.exceptions import HostFileError, InvalidConfigError, UnitError
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.boot.intent import Part
    from hostrouting.boot.layout import BootUnit
    from hostrouting.boot.steps import Step
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

_logger = logging.getLogger(__name__)

#: The plan for a disk that is right, if systemd has not read all of it.
RELOAD: Final = Change("~", "systemd", "it has not read all unit files: daemon-reload")
_BLOCK: Final = 4096
_UNGUARDED: Final = (
    "no unit file matches it, so nothing waits for routing there yet; if it is not to be installed later, correct "
    "hostRouting.gates"
)
_UNREAD: Final = "the files are back, but systemd has not read them; run: systemctl daemon-reload"
_NOT_ASKED: Final = "runs already and goes on; its gate asks for the first time at its next start"


class UnreadFilesError(UnitError):
    """An undo has restored the files, and could not let systemd read them."""


class Boot:
    """The boot side of one machine or image, with the units (`gates`) that wait until routing is right.

    Every method ends in the wanted state, wherever an earlier run was killed, and can be killed
    between any two steps. In between, no gate is held by a unit that cannot run or by the scripts
    of two configs, the intent is that of the scripts, and a machine that loses its power boots. An
    image gets the same files and links, and nothing runs.
    """

    def __init__(
        self, host: Host, *, gates: Sequence[str], logger: logging.Logger | None = None
    ) -> None:
        self._host = host
        self._gates = tuple(gates)
        self._logger = logger or _logger
        self._disk = Survey(host.files)

    @property
    def is_installed(self) -> bool:
        """True if a run has installed anything that gates wait for."""
        return self._disk.has(unit_path(READY_UNIT))

    @property
    def has_traces(self) -> bool:
        """True if anything owned by hostrouting is there, even only a gate that waits for units which are gone."""
        return bool(self._disk.gates()) or any(
            self._disk.has(unit_path(name)) for name in GATE_UNITS
        )

    def changes_nothing(self, config: HostRoutingConfig) -> bool:
        """Return True, with a warning, for a config that asks for nothing; raise InvalidConfigError over another one.

        A whole agent config without ours is never refused: as with upstream, what is installed
        stays.
        """
        if not (void := config.void):
            return False
        if config.given is not None and self.installed_units():
            raise InvalidConfigError(void)
        self._logger.warning(
            "nothing is changed, and what is installed stays: %s", "; ".join(map(" ".join, void))
        )
        return True

    def drift(self, ctx: Context, *parts: Part) -> list[Change]:
        """Return the changes that `install` would make, also for gates that it would refuse; needs no root.

        A change that an administrator's mask prevents has a refusal as its detail. systemd is asked
        only if the disk is right.
        """
        steps = self._steps(parts)
        is_unread = not steps and self._must_reload(ctx, units_in(parts))
        return [RELOAD] if is_unread else _changes(steps)

    def plan_install(self, ctx: Context, *parts: Part) -> list[Change]:
        """Return the changes that `install` would make; raise UnitError for gates that it would refuse."""
        self._refuse_gates(ctx, units_in(parts), self._steps(parts))
        return self.drift(ctx, *parts)

    def refuse_gates(self, ctx: Context, *parts: Part) -> list[Step]:
        """Raise UnitError for masked files, and for gates that never open or start too early; or return the steps."""
        steps = self._steps(parts)
        masked = [change.subject for change in _changes(steps) if change.kind]
        if masked:
            raise UnitError(f"cannot install {', '.join(masked)}: {MASKED}")
        self._refuse_gates(ctx, units_in(parts), steps)
        return steps

    def exposed(self, *parts: Part) -> str:
        """Return what others than root could change of that which root will run; "" if there is nothing."""
        units = units_in(parts)
        named = [
            word
            for unit in (ready_unit(), *units)
            for word in (*unit.words("ExecStart"), *unit.paths)
        ]
        paths = (
            path
            for path in (SCRIPT_DIRECTORY, UNIT_DIRECTORY, *named)
            if units and path.startswith("/")
        )
        # A folder is the reason for all below it.
        return "; ".join(dict.fromkeys(filter(None, map(self._host.files.exposed, paths))))

    def refuse_exposed(self, *parts: Part) -> None:
        """Raise HostFileError if there is anything of that."""
        if reasons := self.exposed(*parts):
            raise HostFileError(
                f"root would run what others can change; nothing was changed: {reasons}"
            )

    def refuse_unwritable(self, *parts: Part) -> None:
        """Raise HostFileError if `install` has files to change and the file system is read-only or full."""
        states = [state for step in self._steps(parts) for state in step.after.values()]
        if not states:
            return
        # Each file takes at least one block, and so may a link.
        size = sum(
            _BLOCK + len(state[0]) if isinstance(state, tuple) else _BLOCK
            for state in states
            if state
        )
        for folder in (SCRIPT_DIRECTORY, UNIT_DIRECTORY):
            try:
                self._host.files.refuse_unwritable(folder, size=size)
            except HostFileError as error:
                raise HostFileError(
                    f"{error}; nothing was changed, live or for the next boot"
                ) from error

    def is_right(self, *parts: Part) -> bool:
        """Return True if `install` would change nothing on the disk."""
        return not self._steps(parts)

    def recorded(self, ctx: Context) -> RecordedFiles:
        """Return the account of the files that one or several calls of `install` change."""
        return RecordedFiles(ctx, self._host, restoring=self._restoring)

    def install(
        self, ctx: Context, *parts: Part, removes: bool = True, files: RecordedFiles | None = None
    ) -> bool:
        """Install units, their intent and the gates on the disk; return True if that changed anything.

        Files that are right stay untouched, and each departure is removed; with the last unit all
        is, the intent and the gates first. systemd reads the disk once, if anything changed;
        nothing is started, and no machine stops. Without `removes` the files of an earlier config
        stay beside those of this one, which are in force: an undo then needs no space. Another
        `install` removes them. Raises UnitError, before any change, for a gate that must be up
        before the units of hostrouting can run, and for a file that an administrator has masked.
        """
        units = units_in(parts)
        steps = self.refuse_gates(ctx, *parts)
        if units and not removes:
            steps = [step for step in steps if None not in step.after.values()]
        with self._noted(changes_files=bool(steps)):
            if self._host.is_live and self._disk.foreign_links():
                mark_bound(ctx, self._host.services, self._gates)
            self._take(steps, files or self.recorded(ctx))
            if not self._host.is_live:
                return bool(steps)
            changed = bool(steps) or self._must_reload(ctx, units)
            if changed:
                self._reload(ctx)
            if changed and not steps:
                ctx.record(RELOAD, undo=lambda _: None)
            # A machine that requires a unit by a link which is still there would stop with it.
            if not removes:
                return changed
            return self._stop_old_runs(ctx, units, are_outdated=bool(steps)) or changed

    def _stop_old_runs(
        self, ctx: Context, units: Sequence[BootUnit], *, are_outdated: bool
    ) -> bool:
        """Stop the units that a start would not run with their new scripts; return True if there were any.

        Upstream left units `active (exited)`; no unit of hostrouting stays so. Runs of outdated
        scripts may wait 30 s for nothing that the new ones need; gates ask again.
        """
        states = [self._host.services.state(ctx, unit.name) for unit in units]
        waits = {"activating"} if are_outdated else ()
        old = [
            each.name for each in states if each.sub_state == "exited" or each.active_state in waits
        ]
        for name in old:
            self._stop(ctx, name)
        return bool(old)

    def findings(self, ctx: Context) -> Iterator[NodeFinding]:
        """Yield the gates that are open, faulty or masked, and those that name no unit; needs no root."""
        reason = broken_glass(self._host.files)
        if reason:
            yield NodeFinding(
                "disabled",
                "gates",
                f"every gate is open, whatever the routes are: {reason}",
                "warning",
            )
        yield from gate_faults(ctx, self._host.services, self._gates)
        absent = [gate for gate in self._gates if not self._host.services.state(ctx, gate).exists]
        for gate in absent:
            # Most nodes have only one of the default gates.
            if gate not in DEFAULT_GATES or len(absent) == len(self._gates):
                yield NodeFinding("gate-missing", gate, _UNGUARDED, "warning")

    def down(self, ctx: Context) -> Iterator[NodeFinding]:
        """Yield the units with a gate that are down, although the node wants them; needs no root."""
        return gates_down(ctx, self._host.services, self._gates)

    def notices(self, ctx: Context) -> list[NodeFinding]:
        """Return the findings with which `install` goes on; call it before.

        They include the machines that run although their gate is new: afterwards it is unknown
        which these are.
        """
        found = [finding for finding in self.findings(ctx) if not is_unsuitable(finding)]
        new = [gate for gate in self._gates if self._disk.differs(gate_drop_in(gate))]
        states = [state for gate in new for state in self._host.services.loaded(ctx, gate)]
        return [
            *found,
            *(
                NodeFinding("gate-new", each.name, _NOT_ASKED, "note")
                for each in states
                if each.is_running
            ),
        ]

    def held(self, ctx: Context) -> list[str]:
        """Return the held units."""
        return (
            held_gates(ctx, self._host.services) if self._host.is_live and self.has_traces else []
        )

    def release(
        self, ctx: Context, before: Sequence[str], *, is_right: bool
    ) -> tuple[list[str], list[str]]:
        """Start the held gates if routing is right; return the units that are held, and those that start.

        `before` are the units that were held before this run. Failures of hostrouting's units date
        from an earlier check, and are reset.
        """
        services = self._host.services
        held = self.held(ctx)
        # The others were stopped, masked or disabled meanwhile.
        released = [
            name for name in before if name not in held and is_starting(ctx, services, name)
        ]
        if not (is_right and self._host.is_live and self.is_installed):
            return held, released
        for name in self.installed_units():
            if services.state(ctx, name).active_state == "failed":
                services.stop(ctx, name)
        return [], [*released, *release(ctx, self._host)]

    def installed_units(self) -> list[str]:
        """Return the units of hostrouting that are on the disk, except for the marks of held units."""
        return [
            name for name in sorted(OWN_UNITS - {HELD_TEMPLATE}) if self._disk.has(unit_path(name))
        ]

    def _steps(self, parts: Sequence[Part]) -> list[Step]:
        return Steps(self._host.files, self._disk, self._gates).between(parts)

    def _refuse_gates(self, ctx: Context, units: Sequence[BootUnit], steps: Sequence[Step]) -> None:
        ctx.check()
        self.refuse_exposed(*units)
        # To follow the order of units takes several calls of systemctl for each gate, so only if
        # there are changes.
        if steps and units:
            refuse_faulty_gates(ctx, self._host.services, self._gates)
            refuse_early_gates(
                ctx, self._host.services, self._gates, units, self._disk.required_units()
            )

    def _must_reload(self, ctx: Context, units: Collection[BootUnit]) -> bool:
        """Return True if systemd works with other files than those on the disk.

        NeedDaemonReload notices neither new folders of drop-ins nor new links of a loaded unit.
        Another run may also have prepared this machine as an image.
        """
        if not self._host.is_live:
            return False
        is_unfinished = self._host.files.exists(UNFINISHED)
        if is_unfinished or not units:
            return is_unfinished
        services = self._host.services
        required = set(self._disk.required_units())
        states = [
            services.state(ctx, name) for name in (READY_UNIT, *(unit.name for unit in units))
        ]
        return (
            not required <= states[0].requires
            or not OWN_UNITS.isdisjoint(states[0].requires - required)
            or any(not state.exists or state.needs_reload for state in states)
            or bool(unread_gates(ctx, services, self._gates))
        )

    def _take(self, steps: Sequence[Step], files: RecordedFiles) -> None:
        try:
            for step in steps:
                for change in step.changes:
                    self._logger.info(
                        "boot: %s", change, extra={"action": change.action, "path": change.subject}
                    )
                files.put(step.after, step.changes)
                if step.folder is not None:
                    self._host.files.remove_directory_if_empty(step.folder)
        finally:
            files.record_rest()

    @contextmanager
    def _restoring(self, ctx: Context) -> Iterator[None]:
        """Let systemd read the files that an undo restores inside."""
        with self._noted(changes_files=True):
            yield
            if self._host.is_live:
                try:
                    self._reload(ctx)
                except Exception as error:
                    raise UnreadFilesError(f"{_UNREAD}: {error}") from error

    @contextmanager
    def _noted(self, *, changes_files: bool) -> Iterator[None]:
        """Leave a note on the machine while systemd has not read all changes, and clean up in the end.

        A run that is killed inside leaves the note for the next one.
        """
        touched = self._touched_gates()
        if changes_files and self._host.is_live:
            self._note()
        try:
            yield
        except Exception:
            # On a full disk the folder of a new generation may stay empty.
            with suppress(HostFileError):
                self._clean_up(touched)
            raise
        self._finish(touched)

    def _finish(self, touched: Iterable[str]) -> None:
        self._clean_up(touched)
        if self._host.is_live:
            self._host.files.remove(UNFINISHED)

    def finish(self) -> None:
        """Clean up after an install that failed and was undone."""
        self._finish(self._touched_gates())

    def _note(self) -> None:
        text = b"A run of hostrouting changes unit files. If none runs now, the next one will finish its work.\n"
        try:
            self._host.files.write(UNFINISHED, text, mode=0o644)
        except HostFileError as error:
            # /run may be full. Without the note the next run finishes this one in all cases but
            # one: it is killed right now.
            self._logger.warning("%s; going on without it", error)

    def _touched_gates(self) -> list[str]:
        """Return the units for which a run may have left an empty folder of drop-ins: this run, or a killed one."""
        has_traces = self.has_traces or self._host.files.exists(UNFINISHED)
        return sorted(
            {*self._gates, *([*self._disk.gates(), *DEFAULT_GATES] if has_traces else ())}
        )

    def _clean_up(self, touched: Iterable[str]) -> None:
        """Remove the leftovers of killed runs: files under way and empty folders."""
        files = self._host.files
        for folder in (
            *self._disk.folders(),
            *((RUNTIME_DIRECTORY, "/run") if self._host.is_live else ()),
        ):
            files.sweep(folder)
        for gate in touched:
            files.remove_directory_if_empty(drop_in_of(gate).rpartition("/")[0])
        for folder in (READY_LINKS, READY_WANTS, *generation_folders(files)):
            if not files.names(folder):
                files.remove_directory_if_empty(folder)
        if not self.is_installed:
            for path in GATE_RUN_FILES:
                files.remove(path)
            for folder in (SCRIPT_DIRECTORY, RUNTIME_DIRECTORY):
                files.remove_directory_if_empty(folder)

    def _reload(self, ctx: Context) -> None:
        """Make systemd read all files, and reset units whose files are gone: failed ones, and those of upstream."""
        # Before: systemd forgets with the file how to stop a service, and waits 90 s for a program
        # that hangs.
        self._stop_gone(ctx, WATCH_UNITS)
        self._host.services.daemon_reload(ctx)
        # Not before: while systemd still knows the gates, a gate that restarts by itself would be
        # held again.
        release_ungated(ctx, self._host.services)
        # All units of hostrouting, because a killed run may have removed others.
        self._stop_gone(ctx, OWN_UNITS)

    def _stop_gone(self, ctx: Context, names: Collection[str]) -> None:
        for name in sorted(names):
            gone = not self._disk.has(unit_path(name))
            if gone and self._host.services.state(ctx, name).active_state != "inactive":
                self._stop(ctx, name)

    def _stop(self, ctx: Context, name: str) -> None:
        for gate in self._gates:
            for state in self._host.services.loaded(ctx, gate):
                if state.is_running and name in state.requires:
                    raise UnitError(
                        f"cannot stop {name}, because {state.name} requires it and would stop, too; see: "
                        f"systemctl cat {state.name}; remove that Requires=, and try again"
                    )
        self._host.services.stop(ctx, name)


def _changes(steps: Iterable[Step]) -> list[Change]:
    return [change for step in steps for change in step.changes]
