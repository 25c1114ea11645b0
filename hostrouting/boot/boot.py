"""Boot: brings a capability's unit and the gate onto the disk and into systemd, and takes them away again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.boot.gates import broken_glass, refuse_early_gates, refuse_faulty_gates, unread_gates
from hostrouting.boot.held import forget
from hostrouting.boot.layout import (
    GATE_UNITS,
    READY_UNIT,
    RUNTIME_DIRECTORY,
    SCRIPT_DIRECTORY,
    UNFINISHED,
    BootFile,
    BootUnit,
    drop_in_of,
    gate_drop_in,
    ready_unit,
    unit_path,
)
from hostrouting.boot.survey import Survey
from hostrouting.config import OWN_UNITS
from hostrouting.exceptions import UnitError
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import Host
    from phases import Context

__all__ = ["Boot"]

_logger = logging.getLogger(__name__)

_RELOAD = Change("~", "systemd", "it has not read all unit files: daemon-reload")


class Boot:
    """The boot side of one machine or image, with the units (`gates`) that wait until routing is right.

    Every method ends in the wanted state from wherever an earlier run was killed, and can itself be killed between any
    two steps: the order of the steps is such that no gate is ever held by a unit that cannot run, and a machine that
    loses its power on the way boots. In an image the same files and links are made, and nothing runs.
    """

    def __init__(self, host: Host, *, gates: Sequence[str], logger: logging.Logger | None = None) -> None:
        self._host = host
        self._gates = tuple(gates)
        self._logger = logger or _logger
        self._disk = Survey(host.files)

    def plan_install(self, ctx: Context, unit: BootUnit) -> list[Change]:
        """What `install` would change; changes nothing, needs no root.

        Wrong permission bits of a file that is right otherwise do not show here.
        """
        changes = self._changes_of_install(unit)
        self._refuse_early_gates(ctx, unit, changes)
        if not changes and self._must_reload(ctx, unit):
            return [_RELOAD]
        return changes

    def install(self, ctx: Context, unit: BootUnit) -> bool:
        """Bring the unit, hostrouting-ready.service and the gates onto the disk; True if that changed anything.

        What is right already is not touched. systemd reads it all once, if anything changed; nothing is started. What
        runs goes on undisturbed, also under a gate that is new.

        Raises UnitError, before anything is changed, for a gate that must be up before our units can run.
        """
        changes = self._changes_of_install(unit)
        self._refuse_early_gates(ctx, unit, changes)
        self._begin(changes)
        changed = self._write(ctx, unit) or bool(changes)
        for link in self._disk.foreign_links(unit):
            self._remove(link)
        for gate in self._departed():
            self._remove(drop_in_of(gate))
        if not self._host.is_live:
            return changed
        if changed or self._must_reload(ctx, unit):
            self._reload(ctx)
            changed = True
        # What upstream started stays `active (exited)`, and so would not run when it is started.
        if self._host.services.state(ctx, unit.name).sub_state == "exited" and not _remains(unit):
            self._stop(ctx, unit.name)
            changed = True
        self._host.files.remove(UNFINISHED)
        return changed

    def start(self, ctx: Context, name: str) -> None:
        """Run a oneshot to its end, or have systemd say that there is an image; a UnitError says where to read on."""
        self._host.services.start(ctx, name)

    def plan_remove(self, ctx: Context, name: str, paths: Sequence[str]) -> list[Change]:
        """What `remove` would take away; changes nothing, needs no root."""
        ctx.check()
        changes = self._changes_of_remove(name, paths)
        return changes or ([_RELOAD] if self._is_unfinished() else [])

    def remove(self, ctx: Context, name: str, paths: Sequence[str]) -> bool:
        """Take away the unit and its files; with the last unit of ours the gates, too; True if there was anything.

        No machine stops for it. Where there is nothing to take away, systemd is not even asked.
        """
        ctx.check()
        changes = self._changes_of_remove(name, paths)
        if not changes and not self._is_unfinished():
            return False
        last = self._is_last(name)
        self._begin(changes)
        # The gates open before that for which they wait goes.
        for gate in self._disk.gates() if last else self._departed():
            self._remove(drop_in_of(gate))
        for link in self._disk.foreign_links():
            self._remove(link)
        names = [name, READY_UNIT] if last else [name]
        self._host.services.disable(ctx, *(unit for unit in names if self._is_installed(unit)))
        for path in [*self._shared_paths(last), unit_path(name), *paths]:
            self._host.files.remove(path)
        if self._host.is_live:
            self._reload(ctx, name)
        if last:
            for folder in (SCRIPT_DIRECTORY, RUNTIME_DIRECTORY):
                self._host.files.remove_directory_if_empty(folder)
        if self._host.is_live:
            self._host.files.remove(UNFINISHED)
        return True

    def notices(self, ctx: Context) -> list[str]:
        """What an operator should know about the gates; nothing of it is an error. To be asked before `install`.

        Gates that name no unit, machines that run now behind a gate that is new, and an open break-glass.
        """
        said = []
        for gate in self._gates:
            if not self._host.services.state(ctx, gate).exists:
                said.append(
                    f"no unit file matches the gate {gate}, so nothing waits for routing there yet; "
                    "if it is not to be installed later, correct hostRouting.gates"
                )
            elif self._disk.differs(gate_drop_in(gate)):
                said += [
                    f"{state.name} runs already and goes on; the gate will first hold it at its next start"
                    for state in self._host.services.running(ctx, gate)
                ]
        reason = broken_glass(self._host.files)
        if reason:
            said.append(f"the gates are open, whatever the routes are, as long as {reason}")
        return said

    def _refuse_early_gates(self, ctx: Context, unit: BootUnit, changes: Sequence[Change]) -> None:
        ctx.check()
        # To follow the order of units costs several calls of systemctl for each gate: not where all is as it was.
        if changes:
            refuse_faulty_gates(ctx, self._host.services, self._gates)
            refuse_early_gates(ctx, self._host.services, self._gates, unit, self._disk.required_units())

    def _changes_of_install(self, unit: BootUnit) -> list[Change]:
        ready = ready_unit()
        files = [*unit.files, *ready.files, *map(gate_drop_in, self._gates)]
        gone = [*self._disk.foreign_links(unit), *map(drop_in_of, self._departed())]
        links = [link for one in (unit, ready) for link in self._disk.missing_links(one)]
        return [
            *(self._change(file) for file in files if self._disk.differs(file)),
            *(Change("+", link) for link in links),
            *(Change("-", path) for path in gone),
        ]

    def _change(self, file: BootFile) -> Change:
        return Change("~" if self._host.files.exists(file.path) else "+", file.path)

    def _changes_of_remove(self, name: str, paths: Sequence[str]) -> list[Change]:
        last = self._is_last(name)
        names = [name, READY_UNIT] if last else [name]
        gone = [
            *map(drop_in_of, self._disk.gates() if last else self._departed()),
            *self._disk.foreign_links(),
            *(link for unit in names for link in self._disk.links_to(unit)),
            *self._disk.existing([unit_path(name), *self._shared_paths(last), *paths]),
        ]
        return [Change("-", path) for path in dict.fromkeys(gone)]

    def _departed(self) -> list[str]:
        """The gates that left the config."""
        return [gate for gate in self._disk.gates() if gate not in self._gates]

    def _shared_paths(self, last: bool) -> list[str]:
        """What the last unit of ours takes along."""
        return [file.path for file in reversed(ready_unit().files)] if last else []

    def _is_last(self, name: str) -> bool:
        # A unit that somebody disabled is one all the same: its own task will enable it again, or take it away.
        installed = [unit for unit in OWN_UNITS - GATE_UNITS if self._host.files.exists(unit_path(unit))]
        return not {*self._disk.required_units(), *installed} - {name}

    def _is_installed(self, name: str) -> bool:
        return bool(self._disk.existing([unit_path(name)]) or self._disk.links_to(name))

    def _is_unfinished(self) -> bool:
        return self._host.is_live and self._host.files.exists(UNFINISHED)

    def _must_reload(self, ctx: Context, unit: BootUnit) -> bool:
        """Whether systemd works by something else than what is on the disk.

        Its own NeedDaemonReload notices neither new folders of drop-ins nor new links of a unit that it has loaded; and
        somebody may have prepared this very machine as an image.
        """
        if not self._host.is_live:
            return False
        services = self._host.services
        required = {*self._disk.required_units(), unit.name}
        ready = services.state(ctx, READY_UNIT)
        return (
            self._is_unfinished()
            or not required <= ready.requires
            or not OWN_UNITS.isdisjoint(ready.requires - required)
            or any(not state.exists or state.needs_reload for state in (ready, services.state(ctx, unit.name)))
            or bool(unread_gates(ctx, services, self._gates))
        )

    def _begin(self, changes: Sequence[Change]) -> None:
        """Note on the machine that systemd will have to read what changes, before anything does."""
        if changes and self._host.is_live:
            text = b"A run of hostrouting changes unit files. If none runs now, the next one will end what it began.\n"
            self._host.files.write(UNFINISHED, text, mode=0o644)
        for change in changes:
            self._logger.info("boot: %s", change, extra={"action": change.action, "path": change.subject})

    def _write(self, ctx: Context, unit: BootUnit) -> bool:
        """Write what differs. The gates come last: they wait for nothing that is not there yet."""
        ready = ready_unit()
        changed = [self._host.files.write(file.path, file.content, mode=file.mode) for file in unit.files + ready.files]
        if self._disk.missing_links(unit) or self._disk.missing_links(ready):
            self._host.services.enable(ctx, unit.name, READY_UNIT)
        for gate in self._gates:
            file = gate_drop_in(gate)
            changed.append(self._host.files.write(file.path, file.content, mode=file.mode))
        return any(changed)

    def _remove(self, path: str) -> None:
        """Take away a link or drop-in, and its folder if nothing else is in it."""
        self._host.files.remove(path)
        self._host.files.remove_directory_if_empty(path.rpartition("/")[0])

    def _reload(self, ctx: Context, *removed: str) -> None:
        """Have systemd read everything, and forget units whose files are gone: what failed, or what upstream left."""
        self._host.services.daemon_reload(ctx)
        if not self._host.files.exists(unit_path(READY_UNIT)):
            # Not before: until now the gates would ask, be refused and be held again.
            for gate in forget(ctx, self._host.services):
                self._logger.warning(
                    "%s was refused, and stays down unless it restarts by itself; run: systemctl start %s", gate, gate
                )
        # All that could be ours, for a run that was killed may have removed others.
        for name in sorted(OWN_UNITS.union(removed)):
            gone = not self._host.files.exists(unit_path(name))
            if gone and self._host.services.state(ctx, name).active_state != "inactive":
                self._stop(ctx, name)

    def _stop(self, ctx: Context, name: str) -> None:
        for gate in self._gates:
            for state in self._host.services.running(ctx, gate):
                if name in state.requires:
                    raise UnitError(
                        f"cannot stop {name}, because {state.name} requires it and would stop, too; see: "
                        f"systemctl cat {state.name}; remove that Requires=, and try again"
                    )
        self._host.services.stop(ctx, name)


def _remains(unit: BootUnit) -> bool:
    return unit.words("Service", "RemainAfterExit")[-1:] in (["yes"], ["true"])
