"""Boot: installs and removes scripts, units and gates, on the disk and in systemd."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.base.errors import (
    HostFileError,
    InvalidConfigError,
    UnfinishedUndoError,
    UnitError,
)
from hostrouting.base.findings import NodeFinding, hindered
from hostrouting.boot.gates import (
    AGENTS,
    Gates,
    break_glass_file,
    is_gated,
    is_starting,
    is_unsuitable,
    ungated_agents,
    why_gates_are_open,
)
from hostrouting.boot.installed_config import UNCHANGED, NewConfig
from hostrouting.boot.layout import (
    ANSWER,
    APPLIED_PATH,
    DROP_IN_NAME,
    FREE_UNITS,
    PROGRAM_PATH,
    READY_LINKS,
    READY_UNIT,
    READY_WANTS,
    RETRY_UNIT,
    RUNTIME_DIRECTORY,
    SCRIPT_DIRECTORY,
    STARTING_LINKS,
    STATE_DIRECTORY,
    UNFINISHED,
    UNIT_DIRECTORY,
    BootUnit,
    drop_in_of,
    is_strict,
    paths_of,
    ready_unit,
    unit_path,
    units_in,
)
from hostrouting.boot.program import program_failure
from hostrouting.boot.recorded import (
    DiskStep,
    RecordedFiles,
    with_states,
)
from hostrouting.boot.steps import MASKED, Steps, Survey, generation_folders
from hostrouting.config.sections import (
    DEFAULT_GATES,
    GATE_UNITS,
    OWN_UNITS,
    HostRoutingConfig,
    OverlapMode,
)
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.base.findings import Severity
    from hostrouting.boot.installed_config import BootPart
    from hostrouting.config.optional import Section
    from hostrouting.host import Exposure, Host, UnitState

_logger = logging.getLogger(__name__)

#: The plan if the disk is as it should be but systemd has not read all of it.
RELOAD: Final = Change("~", "systemd", "it has not read all unit files: daemon-reload")
_BLOCK = 4096


class Boot:
    """What runs at boot on a machine or image, with the units (`gates`) that wait for routing.

    Every method can be killed between any two steps, and the next run completes its work. At any
    time in between, the scripts and the installed config belong together, no gate is held because a
    unit cannot run or because scripts of two configs are mixed, and a machine that loses power
    still boots. An image gets the same files and links, but nothing is run.
    """

    def __init__(
        self, host: Host, *, gates: Sequence[str] = (), logger: logging.Logger | None = None
    ) -> None:
        self._host = host
        self._gates = tuple(gates)
        self._logger = logger or _logger
        self._files = host.files
        self._services = host.services
        #: What systemd reports of the gates.
        self.gates = Gates(host.services, self._gates)
        self._disk = Survey(host.files)

    @property
    def is_installed(self) -> bool:
        """True if anything is installed that gates wait for."""
        return self._disk.has(unit_path(READY_UNIT))

    @property
    def has_traces(self) -> bool:
        """True if any gate or unit of hostrouting exists, even a gate whose units were removed."""
        units = (self._disk.has(unit_path(name)) for name in GATE_UNITS)
        return bool(self._disk.gates()) or any(units)

    @property
    def is_unfinished(self) -> bool:
        """True if a killed run has changed files that systemd may not have read."""
        return self._files.exists(UNFINISHED)

    def has_part_of(self, section: Section) -> bool:
        """Return True if a unit of a section, its mask, a link to it, or a file is on the disk."""
        has_path = any(map(self._disk.owns, paths_of(section)))
        return has_path or any(map(self._disk.links_to, section.units))

    def foreign(self, *parts: BootPart) -> list[NodeFinding]:
        """Return a finding for each file of another owner: an error if the config needs its path.

        Such files and links to them are left alone.
        """
        new = next((part for part in parts if isinstance(part, NewConfig)), UNCHANGED)
        findings = []
        for name, section in new.config.sections.items():
            severity: Severity = "error" if section.asks else "note"
            if name not in new.kept:
                findings += self._disk.foreign(paths_of(section), severity=severity)
        return findings

    def changes_nothing(self, ctx: Context, config: HostRoutingConfig) -> bool:
        """Return True and log a warning if the config installs nothing.

        A key that looks like a misspelled `hostRouting` degrades the task.

        Raises InvalidConfigError if a config is installed, because the new one would remove it. An
        agent's config without `hostRouting` is never refused: as with upstream, what is installed
        stays.
        """
        if not (void := config.void):
            return False
        if config.given is not None and self.installed_units():
            raise InvalidConfigError(void)
        reason = "; ".join(map(" ".join, void))
        self._logger.warning("nothing is changed, and what is installed stays: %s", reason)
        if config.misspelt:
            ctx.degrade(reason)
        return True

    def drift(self, ctx: Context, *parts: BootPart) -> list[Change]:
        """Return the changes that `install` would make if it refused no gate; does not need root.

        If an administrator's mask prevents a change, its detail says so. systemd is queried only if
        the disk is as it should be.
        """
        return self._changes_by(ctx, self._steps(parts, are_planned=True), parts)

    def _changes_by(
        self, ctx: Context, steps: Sequence[DiskStep], parts: Sequence[BootPart]
    ) -> list[Change]:
        is_unread = not steps and self._must_reload(ctx, units_in(parts))
        return [RELOAD] if is_unread else _changes(steps)

    def plan_install(self, ctx: Context, *parts: BootPart, force: bool = False) -> list[Change]:
        """Return the changes that `install` would make; raise UnitError if it refuses a gate."""
        steps = self._steps(parts, are_planned=True)
        changes = self._changes_by(ctx, steps, parts)
        self._refuse_gates(ctx, parts, changes)
        self.require_program(ctx, steps, force=force, is_planned=True)
        refused = [
            hindered("~", found.subject, f"it {found.sentence}")
            for found in self.foreign(*parts)
            if found.severity == "error"
        ]
        return [*refused, *changes]

    def steps_to_install(self, ctx: Context, *parts: BootPart) -> list[DiskStep]:
        """Return the steps of `install`.

        Raises UnitError for masked or foreign files, and for unsuitable gates, which would never
        open or start before the units that they wait for.
        """
        steps = self._steps(parts)
        masked = [change.subject for change in _changes(steps) if change.kind]
        if masked:
            raise UnitError(f"cannot install {', '.join(masked)}: {MASKED}")
        foreign = [found.text for found in self.foreign(*parts) if found.severity == "error"]
        if foreign:
            raise UnitError("\n".join(foreign))
        self._refuse_gates(ctx, parts, steps)
        return with_states(self._files, steps)

    def require_program(
        self,
        ctx: Context,
        steps: Sequence[DiskStep],
        *,
        force: bool = False,
        is_planned: bool = False,
    ) -> None:
        """Raise UnitError if the gates would be STRICT but a boot could not run the program.

        They would hold their units even on a healthy node. With `force`, or in WARN mode, this is
        only a warning. A plan does not try to run the program.
        """
        after = {path: state for step in steps for path, state in step.after.items()}
        contents = {path: state[0] for path, state in after.items() if isinstance(state, tuple)}
        ends = f"/{PROGRAM_PATH.rpartition('/')[2]}"
        programs = [content for path, content in contents.items() if path.endswith(ends)]
        new = programs[0] if programs and not is_planned else None
        finding = program_failure(ctx, self._host, new) if steps else None
        if finding is None:
            return
        gates = {path: self._files.read(path) for path in map(drop_in_of, self._disk.gates())}
        gates |= {path: contents.get(path) for path in after if path.endswith(DROP_IN_NAME)}
        if not force and any(map(is_strict, filter(None, gates.values()))):
            error = UnitError(f"{finding.text}, or set the mode to WARN")
            error.code = finding.kind
            raise error
        self._logger.warning("%s", finding.text, extra={"kind": finding.kind})

    def exposed(self, *parts: BootPart) -> list[Exposure]:
        """Return why users other than root could change what root runs or relies on."""
        units = units_in(parts)
        if not units:
            return []
        paths = [SCRIPT_DIRECTORY, UNIT_DIRECTORY, APPLIED_PATH, PROGRAM_PATH]
        if self._host.is_live:
            # The answer in it can open gates.
            paths.append(ANSWER)
        for unit in (ready_unit(), *units):
            paths += [*unit.words("ExecStart"), *unit.paths]
        exposures = [self._files.exposed(path) for path in paths if path.startswith("/")]
        # One reason for a directory covers everything below it.
        return list(dict.fromkeys(filter(None, exposures)))

    def refuse_exposed(self, *parts: BootPart) -> None:
        """Raise HostFileError if users other than root could change what root runs or relies on."""
        if exposures := self.exposed(*parts):
            reasons = "; ".join(map(str, exposures))
            raise HostFileError(
                "root would run or rely on files that others can change; nothing was changed: "
                f"{reasons}"
            )

    def refuse_unwritable(self, steps: Sequence[DiskStep]) -> None:
        """Raise HostFileError if these steps would write to a read-only or full file system."""
        states = [state for step in steps for state in step.after.values()]
        if not states:
            return
        contents = [state[0] for state in states if isinstance(state, tuple)]
        # Each file needs at least one block, and a link may need one.
        size = sum(map(len, contents)) + _BLOCK * sum(map(bool, states))
        for folder in (SCRIPT_DIRECTORY, UNIT_DIRECTORY):
            try:
                self._files.refuse_unwritable(folder, size=size)
            except HostFileError as error:
                raise HostFileError(
                    f"{error}; nothing was changed, neither now nor for the next boot"
                ) from error

    def recorded(self, ctx: Context) -> RecordedFiles:
        """Return a record for the files that one or more calls of `install` change."""
        return RecordedFiles(ctx, self._host, restoring=self._restoring)

    def install(
        self,
        ctx: Context,
        *parts: BootPart,
        stops_outdated: bool = True,
        files: RecordedFiles | None = None,
        planned: Sequence[DiskStep] | None = None,
    ) -> bool:
        """Install units, the config and the gates, and remove units; return True if changed.

        Files that need no change are not touched. When the last unit is removed, so is everything
        else, beginning with the installed config and the gates. If anything changed, systemd reads
        its files again, once. Nothing is started, and no machine is stopped. `stops_outdated` also
        stops units that still run an earlier script.

        `planned` may be steps that `steps_to_install` returned. They are carried out as they are,
        and `ConflictError` is raised if another program has changed a file since. Without them,
        raises UnitError before any change if a gate is unsuitable or a file is masked.
        """
        units = units_in(parts)
        files = files or self.recorded(ctx)
        steps = self.steps_to_install(ctx, *parts) if planned is None else planned
        with self._noted(ctx, changes_files=bool(steps)):
            if not self._host.is_live:
                self._take(steps, files)
                return bool(steps)
            changed = self._take_live(ctx, units, steps, files)
            # Upstream's links are gone by now; a machine that requires a unit would stop with it.
            has_stopped = stops_outdated and self._stop_outdated(ctx, units, changed=bool(steps))
            return changed or has_stopped

    def _take_live(
        self,
        ctx: Context,
        units: Sequence[BootUnit],
        steps: Sequence[DiskStep],
        files: RecordedFiles,
    ) -> bool:
        """Take the steps and make systemd read them; return False if there was nothing to do."""
        if self._disk.upstream_links():
            self.gates.mark_bound(ctx)
        refused = self.gates.unmarked(ctx) if units and steps else []
        self._take(steps, files)
        changed = bool(steps) or self._must_reload(ctx, units)
        if changed:
            self._reload(ctx)
        self.gates.mark(ctx, refused)
        if changed and not steps:
            ctx.record(RELOAD, undo=lambda _: None)
        return changed

    def _stop_outdated(self, ctx: Context, units: Sequence[BootUnit], *, changed: bool) -> bool:
        """Stop units that still run earlier scripts; return True if there were any.

        Upstream left its units `active (exited)`, which those of hostrouting never are. An outdated
        script may be waiting up to 30 s for routing that the new scripts do not need.
        """
        waits = {"activating"} if changed else ()
        started = (unit.name for unit in units if unit.is_unit)
        states = self._services.states(ctx, *started)
        outdated = [
            state.name
            for state in states
            if state.sub_state == "exited" or state.active_state in waits
        ]
        for name in outdated:
            self._stop(ctx, name)
        return bool(outdated)

    def findings(
        self, ctx: Context, *, mode: OverlapMode = OverlapMode.WARN
    ) -> Iterator[NodeFinding]:
        """Yield a finding for each gate that is open, faulty, masked or missing.

        In STRICT mode, also for each agent without a gate. Does not need root.
        """
        if cause := why_gates_are_open(self._files):
            reason = f"every gate is open regardless of routing: {cause}"
            path = break_glass_file(self._files)
            command = quoted("rm", path) if path else ""
            yield NodeFinding("disabled", "gates", reason, "warning", command=command)
        yield from self.gates.faults(ctx)
        others = AGENTS if mode is OverlapMode.STRICT else ()
        states = self._services.states(ctx, *dict.fromkeys((*self._gates, *others)))
        absent = [state.name for state in states[: len(self._gates)] if not state.exists]
        for gate in absent:
            # Most nodes have only one of the default gates.
            if gate not in DEFAULT_GATES or len(absent) == len(self._gates):
                reason = (
                    "has no unit file, so nothing waits for routing there yet; correct "
                    "hostRouting.gates unless it will be installed later"
                )
                yield NodeFinding("gate-missing", gate, reason, "warning")
        yield from ungated_agents(states, self._gates)

    def notices(self, ctx: Context, *, mode: OverlapMode = OverlapMode.WARN) -> list[NodeFinding]:
        """Return the findings that do not prevent `install`; call it before.

        They include machines that run without a gate now and get one from `install`.
        """
        findings = [
            finding for finding in self.findings(ctx, mode=mode) if not is_unsuitable(finding)
        ]
        for gate in self._gates:
            if not self._disk.has(drop_in_of(gate)):
                states = self._services.loaded(ctx, gate)
                running = [state.name for state in states if state.is_running]
                reason = "keeps running; its gate checks routing when it starts next"
                findings += [NodeFinding("gate-new", name, reason, "note") for name in running]
        return findings

    def held(self, ctx: Context) -> list[str]:
        """Return the held units."""
        has_gates = self._host.is_live and self.has_traces
        return self.gates.held(ctx) if has_gates else []

    def release(
        self, ctx: Context, before: Sequence[str], *, is_right: bool
    ) -> tuple[list[str], list[str]]:
        """Get held units started if routing is healthy; return those still held, and the others.

        `before` are the units that were held before this run. Failed units of hostrouting are
        reset, because their failures are due to an earlier check. Only hostrouting-retry.service
        starts held units: it knows which ones must stay down and which units depend on them.
        """
        wakes = is_right and self._host.is_live and self.is_installed
        if wakes:
            for state in self._services.states(ctx, *self.installed_units()):
                if state.active_state == "failed":
                    self._services.stop(ctx, state.name)
        # Queried once, because a gate may pass by itself at any time.
        held = self.held(ctx)
        if wakes and held:
            # It is already running, unless it has just been killed.
            self._services.start(ctx, RETRY_UNIT)
        passed = [name for name in before if name not in held]
        # Units that do not start have been stopped, masked or disabled in the meantime.
        released = [name for name in passed if is_starting(ctx, self._services, name)]
        return ([], [*released, *held]) if wakes else (held, released)

    def installed_units(self) -> list[str]:
        """Return the units of hostrouting on the disk, without templates."""
        names = sorted(name for name in OWN_UNITS if "@" not in name)
        return [name for name in names if self._disk.has(unit_path(name))]

    def _steps(self, parts: Sequence[BootPart], *, are_planned: bool = False) -> list[DiskStep]:
        return Steps(self._host, self._disk, self._gates, are_planned).between(parts)

    def _refuse_gates(
        self, ctx: Context, parts: Sequence[BootPart], changes: Sequence[object]
    ) -> None:
        ctx.check()
        units = units_in(parts)
        self.refuse_exposed(*units)
        if units and self._host.is_live:
            # In a chroot systemctl does nothing, so only the routes would change.
            self._services.state(ctx, READY_UNIT)
        # Checking the order of units takes several calls of systemctl for each gate.
        if changes and units:
            self.gates.refuse(ctx, units, self._disk.required_units())

    def _must_reload(self, ctx: Context, units: Collection[BootUnit]) -> bool:
        """Return True if systemd has loaded files that differ from those on the disk.

        NeedDaemonReload ignores new links of a loaded unit and, before systemd 257, new drop-in
        directories. This machine may also have been prepared as an image by another run.
        """
        if not self._host.is_live:
            return False
        if self.is_unfinished or not units:
            return self.is_unfinished
        required = set(self._disk.required_units())
        started = (unit.name for unit in units if unit.is_unit)
        states = self._services.states(ctx, READY_UNIT, *started)
        ready = states[0]
        surplus = OWN_UNITS & ready.requires - required
        if surplus or not required <= ready.requires:
            return True
        if not all(state.exists for state in states):
            return True
        # A template stands for future instances, but a loaded instance may be older than the
        # drop-in.
        gated = [*self._services.states(ctx, *self._gates), *self.gates.loaded(ctx)]
        gates = [state for state in gated if state.load_state == "loaded"]
        if not all(map(is_gated, gates)):
            return True
        return any(state.needs_reload for state in (*states, *gates))

    def _take(self, steps: Sequence[DiskStep], files: RecordedFiles) -> None:
        try:
            for step in steps:
                for change in step.changes:
                    self._logger.info(
                        "boot: %s", change, extra={"action": change.action, "path": change.subject}
                    )
                files.put(step.after, step.changes, step.before)
                if step.folder is not None:
                    self._files.remove_directory_if_empty(step.folder)
        finally:
            files.record_rest()

    @contextmanager
    def _restoring(self, ctx: Context) -> Iterator[None]:
        """Make systemd read the files that an undo restores inside this context."""
        with self._noted(ctx, changes_files=True):
            yield
            if self._host.is_live:
                try:
                    self._reload(ctx)
                except Exception as error:
                    raise UnfinishedUndoError(
                        "the files are restored, but systemd has not read them; "
                        f"run: systemctl daemon-reload: {error}"
                    ) from error

    @contextmanager
    def _noted(self, ctx: Context, *, changes_files: bool) -> Iterator[None]:
        """Leave a note for the next run until systemd has read all changes; clean up in the end.

        If this run is killed, the next one finds the note.
        """
        # The units whose drop-in directory may be empty after this run or a killed one.
        touched = {*self._gates}
        if self.has_traces or self._files.exists(UNFINISHED):
            touched |= {*self._disk.gates(), *DEFAULT_GATES}
        if changes_files and self._host.is_live:
            text = b"A run of hostrouting changes unit files. If none runs, start another one.\n"
            try:
                self._files.write(UNFINISHED, text, mode=0o644)
            except HostFileError as error:
                # /run may be full. The note is needed only if this run is killed.
                problem = f"{error}; no note is left for the next run"
                self._logger.warning("%s", problem)
                ctx.degrade(problem)
        try:
            yield
        except Exception:
            # On a full disk, the directory of a new generation may still be empty.
            with suppress(HostFileError):
                self._clean_up(touched)
            raise
        self._clean_up(touched)
        if self._host.is_live:
            self._files.remove(UNFINISHED)

    def finish(self, ctx: Context) -> None:
        """Clean up after an install that failed and was undone."""
        if not self._host.has_boot:
            return
        with self._noted(ctx, changes_files=False):
            pass

    def _clean_up(self, touched: Iterable[str]) -> None:
        """Remove the leftovers of killed runs: temporary files and empty directories."""
        runtime = (STATE_DIRECTORY, RUNTIME_DIRECTORY, "/run") if self._host.is_live else ()
        for folder in (*self._disk.folders(), *runtime):
            self._files.sweep(folder)
        for gate in sorted(touched):
            self._files.remove_directory_if_empty(drop_in_of(gate).rpartition("/")[0])
        for folder in (READY_LINKS, READY_WANTS, *generation_folders(self._files)):
            if not self._files.names(folder):
                self._files.remove_directory_if_empty(folder)
        if not self.is_installed:
            self._forget_boot()
            # `systemctl disable` also does this after the last link.
            for folder in (SCRIPT_DIRECTORY, *STARTING_LINKS):
                self._files.remove_directory_if_empty(folder)

    def _forget_boot(self) -> None:
        """Remove what gates and units have written about this boot, except the markers."""
        for name in self._files.names(STATE_DIRECTORY):
            if not name.startswith("route-overlap."):
                self._files.remove(f"{STATE_DIRECTORY}/{name}")
        self._files.remove_directory_if_empty(STATE_DIRECTORY)

    def _reload(self, ctx: Context) -> None:
        """Make systemd read all files, and stop or reset the units whose files were removed."""
        # Before the reload: without its file a service loses its settings for a stop, and systemd
        # would wait 90 s for a program that hangs.
        self._stop_removed(ctx, FREE_UNITS)
        self._services.daemon_reload(ctx)
        # An earlier script does not understand the answers of a newer one.
        retry = self._services.state(ctx, RETRY_UNIT)
        if retry.is_running and self._disk.has(unit_path(RETRY_UNIT)):
            self._stop_retry(ctx, retry)
            self._services.start(ctx, RETRY_UNIT)
        # Not before the reload, when a gate that restarts by itself would be held again.
        errors = self.gates.release_ungated(ctx)
        # As long as there is a gate, hostrouting-retry.service does this.
        if not self._disk.has(unit_path(RETRY_UNIT)):
            errors += self.gates.release_waiting(ctx)
        for error in errors:
            self._logger.warning("a held unit did not start; fix this and start it: %s", error)
        # All units of hostrouting, because a killed run may have removed others.
        self._stop_removed(ctx, OWN_UNITS)

    def _stop_retry(self, ctx: Context, retry: UnitState) -> None:
        """Stop hostrouting-retry.service, although a gate that starts may cancel the stop.

        If the stop was cancelled and the same process is still running, try again.
        """
        for attempts_left in (3, 2, 1, 0):
            try:
                self._services.stop(ctx, RETRY_UNIT)
            except UnitError:
                now = self._services.state(ctx, RETRY_UNIT)
                goes_on = now.is_running and now.main_pid == retry.main_pid
                if goes_on and attempts_left:
                    continue
                if goes_on:
                    raise
            return

    def _stop_removed(self, ctx: Context, names: Collection[str]) -> None:
        absent = [name for name in sorted(names) if not self._disk.has(unit_path(name))]
        removed = [name for name in absent if not self._disk.foreign([unit_path(name)])]
        for state in self._services.states(ctx, *removed):
            if state.active_state != "inactive":
                self._stop(ctx, state.name)

    def _stop(self, ctx: Context, name: str) -> None:
        for state in self.gates.loaded(ctx):
            if state.is_running and name in state.requires:
                raise UnitError(
                    f"cannot stop {name}, because {state.name} requires it and would also stop; "
                    f"see: systemctl cat {state.name}; remove that Requires=, and try again"
                )
        self._services.stop(ctx, name)


def _changes(steps: Iterable[DiskStep]) -> list[Change]:
    return [change for step in steps for change in step.changes]
