"""systemd: the running manager through `systemctl`, or the unit files of an image."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.errors import NoSystemdError, UnitError
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.unit_files import UnitFiles
from hostrouting.host.units import UnitState, instance_of, reach, settings
from phases import CommandFailedError, Context, run_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "Result", "MainPID", "NeedDaemonReload"),
    *("DropInPaths", "Requires", "UnitFileState"),
)
#: systemctl does not show templates, so an unused instance is queried, which systemd loads for
#: that.
NOBODYS_INSTANCE: Final = "hostrouting-asks"


@attrs.frozen(eq=False, repr=False)
class Systemctl:
    """The systemd that runs this machine.

    `command` is how to call systemctl, possibly through another program (`nsenter ... systemctl`).
    It implements `ServiceManager`.
    """

    command: Sequence[str] = ("systemctl",)

    def daemon_reload(self, ctx: Context) -> None:
        """See `ServiceManager.daemon_reload`."""
        self._run(ctx, "daemon-reload")

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:
        """See `ServiceManager.start`."""
        if not wait:
            # systemd takes the job of a unit at its limit, and refuses the start later. A stop
            # would reset the limit, too, but also stop what requires the unit. A unit that is not
            # loaded has no limit.
            with suppress(UnitError):
                self._run(ctx, "reset-failed", "--", unit)
        options = () if wait else ("--no-block",)
        self._run(ctx, "start", *options, "--", unit, advice=journal_advice(unit))

    def stop(self, ctx: Context, unit: str) -> None:
        """See `ServiceManager.stop`."""
        try:
            self._run(ctx, "stop", "--", unit, advice=journal_advice(unit))
        except UnitError:
            if self.state(ctx, unit).exists:
                raise
        # A failed unit is not running, so stop leaves it failed, and in the manager's memory, even
        # without a file.
        if self.state(ctx, unit).active_state == "failed":
            self._run(ctx, "reset-failed", "--", unit)

    def state(self, ctx: Context, unit: str) -> UnitState:
        """See `ServiceManager.state`."""
        [state] = self.states(ctx, unit)
        return state

    def states(self, ctx: Context, *units: str) -> list[UnitState]:
        """See `ServiceManager.states`."""
        if not units:
            ctx.check()
            return []
        queried = [instance_of(unit, NOBODYS_INSTANCE) for unit in units]
        shown = self._show(ctx, _PROPERTIES, queried)
        with _readable(*queried):
            return [
                _unit_state(properties)._replace(name=unit)
                for unit, properties in zip(units, shown, strict=True)
            ]

    def loaded(self, ctx: Context, unit: str) -> list[UnitState]:
        """See `ServiceManager.loaded`."""
        # A pattern finds the units that systemd has loaded. A backslash, as in `foo\x2dbar@`, is
        # literal and escapes nothing.
        pattern = instance_of(unit, "*")
        shown = self._show(ctx, _PROPERTIES, [pattern])
        with _readable(pattern):
            return sorted(map(_unit_state, shown))

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """See `ServiceManager.ordered_before`."""

        def waiting(ring: frozenset[str]) -> set[str]:
            shown = self._show(ctx, ["Before"], sorted(ring))
            with _readable(*sorted(ring)):
                return {
                    name for properties in shown for name in _names(properties.get("Before", ""))
                }

        return reach(instance_of(unit, NOBODYS_INSTANCE), waiting)

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """See `ServiceManager.settings`."""
        queried = [instance_of(unit, NOBODYS_INSTANCE)]
        shown, *_ = self._show(ctx, [*map(_shown_as, names)], queried)
        return {name: shown.get(_shown_as(name), "") for name in names}

    def _show(
        self, ctx: Context, properties: Sequence[str], units: Sequence[str]
    ) -> list[dict[str, str]]:
        """Return the output of `systemctl show`: a block for each unit, then those of patterns.

        A property with several lines has them in its value.
        """
        wanted = ",".join(("Id", *properties))
        shown = self._run(ctx, "show", "--all", f"--property={wanted}", "--", *units)
        blocks = []
        for block in filter(str.strip, shown.split("\n\n")):
            unit: dict[str, str] = {}
            for line in block.splitlines():
                key, _, value = line.partition("=")
                unit[key] = f"{unit[key]}\n{value}" if key in unit else value
            blocks.append(unit)
        with _readable(*units):
            if len(blocks) < sum("*" not in unit for unit in units):
                raise LookupError(f"it is about {len(blocks)} of {len(units)} units")
        return blocks

    def _run(self, ctx: Context, *arguments: str, advice: str = "") -> str:
        try:
            result = run_command(ctx, [*self.command, *arguments])
        except CommandFailedError as error:
            raise unit_error(error, advice) from error
        # It has done nothing, and ends with 0.
        if "ignoring command" in result.stderr:
            raise NoSystemdError(
                "systemctl does nothing here, in a chroot or under SYSTEMD_OFFLINE, and the routes "
                "are those of the machine around it"
            )
        return result.stdout


@attrs.frozen(eq=False, repr=False)
class CachedUnits(Systemctl):
    """The states of units, read once, for a command that changes none; others are queried."""

    _properties: frozenset[str] = frozenset()
    _shown: Mapping[str, list[dict[str, str]]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls,
        ctx: Context,
        services: Systemctl,
        units: Sequence[str],
        settings: Sequence[str],
        *,
        marks: str,
    ) -> CachedUnits:
        """Read units with one call, and all loaded instances of those that are templates.

        The instances of the template `marks` are read before: a unit whose start sets such a mark
        for a moment has begun to start, or has started, in what is read of the unit itself.
        """
        properties = [*_PROPERTIES, *map(_shown_as, settings)]
        marked = instance_of(marks, "*")
        marking = services._show(ctx, properties, [marked])  # noqa: SLF001 - its own class
        names = [instance_of(unit, NOBODYS_INSTANCE) for unit in units]
        patterns = [instance_of(unit, "*") for unit in units if "@." in unit]
        blocks = services._show(ctx, properties, [*names, *patterns])  # noqa: SLF001 - its own class
        loaded = blocks[len(names) :]
        shown = {unit: [block] for unit, block in zip(names, blocks, strict=False)}
        shown |= {block["Id"]: [block] for block in (*marking, *loaded)} | {marked: marking}
        for pattern in patterns:
            start, _, end = pattern.partition("*")
            shown[pattern] = [
                block
                for block in loaded
                if block["Id"].startswith(start) and block["Id"].endswith(end)
            ]
        return cls(services.command, frozenset(properties), shown)

    def _show(
        self, ctx: Context, properties: Sequence[str], units: Sequence[str]
    ) -> list[dict[str, str]]:
        is_read = self._properties.issuperset(properties) and self._shown.keys() >= {*units}
        if not is_read:
            return super()._show(ctx, properties, units)
        ctx.check()
        return [block for unit in units for block in self._shown[unit]]


@attrs.frozen(eq=False, repr=False)
class OfflineUnits:
    """The units of an image, derived from their files; nothing is ever started.

    It implements `ServiceManager`.
    """

    root: str

    @property
    def _unit_files(self) -> UnitFiles:
        return UnitFiles(RootedFiles(self.root))

    def daemon_reload(self, ctx: Context) -> None:
        """See `ServiceManager.daemon_reload`."""
        ctx.check()

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:  # noqa: ARG002 - nothing starts
        """See `ServiceManager.start`."""
        ctx.check()

    def stop(self, ctx: Context, unit: str) -> None:  # noqa: ARG002 - nothing runs
        """See `ServiceManager.stop`."""
        ctx.check()

    def state(self, ctx: Context, unit: str) -> UnitState:
        """See `ServiceManager.state`."""
        [state] = self.states(ctx, unit)
        return state

    def states(self, ctx: Context, *units: str) -> list[UnitState]:
        """See `ServiceManager.states`."""
        ctx.check()
        files = self._unit_files
        return [
            UnitState(
                unit,
                "masked" if files.is_masked(unit) else "loaded",
                # systemd will read them at the next boot, so no reload is needed.
                drop_ins=frozenset([*files.texts(unit)][1:]),
                requires=files.requires(unit),
                is_enabled=files.is_enabled(unit),
            )
            if files.path(unit)
            else UnitState(unit)
            for unit in units
        ]

    def loaded(self, ctx: Context, unit: str) -> list[UnitState]:  # noqa: ARG002 - a parameter of the port
        """See `ServiceManager.loaded`."""
        ctx.check()
        return []

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """See `ServiceManager.ordered_before`."""
        ctx.check()
        return self._unit_files.ordered_before(unit)

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """See `ServiceManager.settings`."""
        ctx.check()
        return settings(self._unit_files.texts(unit).values(), *names)


def unit_error(error: CommandFailedError, advice: str) -> UnitError:
    """Return a UnitError with systemctl's command, status and message, and the next step."""
    why = ""
    # Only systemctl's message gives the reason, not its exit status.
    if "has not been booted with systemd" in error.stderr:
        why = "this machine was not booted with systemd"
    elif isinstance(error.__cause__, FileNotFoundError):
        why = "there is no systemctl on PATH, as in a container"
    if why:
        return NoSystemdError(why)
    steps = (
        (advice, "" if os.geteuid() == 0 else "are you root?") if error.status is not None else ()
    )
    return UnitError("\n".join(filter(None, [str(error), *steps])))


@contextmanager
def _readable(*units: str) -> Iterator[None]:
    """Return a UnitError for properties of systemctl that cannot be parsed."""
    try:
        yield
    except (LookupError, ValueError) as error:
        command = quoted("systemctl", "show", "--", *units)
        raise UnitError(
            f"cannot read the output of `{command}`: {error!r}; "
            "check the state of systemd: systemctl status"
        ) from error


def journal_advice(unit: str) -> str:
    """Return the command that shows why a unit failed."""
    return f"see: journalctl -b -u {unit}"


def _shown_as(setting: str) -> str:
    """Return the property that shows a setting; for durations it has another name."""
    return f"{setting.removesuffix('Sec')}USec" if setting.endswith("Sec") else setting


def _unit_state(properties: dict[str, str]) -> UnitState:
    return UnitState(
        name=properties["Id"],
        load_state=properties["LoadState"],
        active_state=properties["ActiveState"],
        sub_state=properties["SubState"],
        # Units without processes (targets, slices) have neither a result nor a main process.
        result=properties.get("Result", "success"),
        main_pid=int(properties.get("MainPID", "0")),
        needs_reload=properties["NeedDaemonReload"] == "yes",
        drop_ins=frozenset(_names(properties["DropInPaths"])),
        requires=frozenset(_names(properties["Requires"])),
        is_enabled=properties["UnitFileState"] in {"enabled", "enabled-runtime"},
    )


def _names(shown: str) -> list[str]:
    """Return the names or paths in a list; systemctl quotes those with a backslash."""
    return shlex.split(shown) if '"' in shown else shown.split()
