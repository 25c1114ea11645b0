"""systemd in memory: a `ServiceManager` over the unit files of a fake machine."""

from __future__ import annotations

from itertools import count

import attrs

from hostrouting.base.errors import UnitError
from hostrouting.host.ports import ServiceManager
from hostrouting.host.systemd.systemctl import NOBODYS_INSTANCE, journal_advice, unit_error
from hostrouting.host.systemd.unit_files import UnitFiles
from hostrouting.host.units import (
    UnitState,
    instance_of,
    settings,
    template_of,
)
from hostrouting.testing.faults import Faulty
from hostrouting.testing.memory_files import MemoryTree
from phases import CommandFailedError, Context


@attrs.define
class _Unit:
    """A unit in the manager's memory: its files, text by path, and its links when read."""

    texts: dict[str, str]
    requires: frozenset[str]
    #: The active state, the sub-state and the result.
    outcome: tuple[str, str, str] = ("inactive", "dead", "success")
    main_pid: int = 0


class MemoryServices(Faulty, ports=[ServiceManager]):
    r"""The units below the usual folders of `tree`: a small model of systemd.

    By default, `fail_at` reports that the bus does not answer.

    A start needs a unit file, and also starts the units in `Requires=` and in `.requires/` links; a
    stop also stops what requires the unit. A oneshot runs to its end, any other service stays. A
    unit in `failing` fails, and so does one that runs `/bin/false`. Once it runs or has failed, a
    unit stays in memory as it was read, until `daemon_reload`. Not modelled: wants, order,
    conditions, timeouts, restarts, specifiers, aliases. With `is_live=False` it is the manager of
    an image.

    >>> from hostrouting.testing import FakeHost
    >>> from phases import Context
    >>> host = FakeHost()
    >>> unit = b"[Service]\nExecStart=/bin/true\n"
    >>> host.files.write("/etc/systemd/system/a.service", unit, mode=0o644)
    True
    >>> services: MemoryServices = host.services
    >>> services.failing.add("a.service")
    >>> services.start(Context(), "a.service")
    >>> services.state(Context(), "a.service").active_state
    'failed'
    """

    def __init__(self, tree: MemoryTree, *, is_live: bool = True) -> None:
        super().__init__(UnitError("Failed to connect to bus: Connection refused"))
        #: Names of units that fail at their start.
        self.failing: set[str] = set()
        #: Names of units that ran, in order.
        self.started: list[str] = []
        self._unit_files = UnitFiles(tree)
        self._is_live = is_live
        self._memory: dict[str, _Unit] = {}
        self._pids = count(1000)

    def daemon_reload(self, ctx: Context) -> None:
        """See `ServiceManager.daemon_reload`."""
        for name, unit in self._memory.items():
            unit.texts, unit.requires = self._read(name)

    def start(self, ctx: Context, unit: str, *, wait: bool = True) -> None:
        """See `ServiceManager.start`."""
        if not self._is_live:
            return
        try:
            self._start(unit)
        except UnitError as error:
            # Without waiting, systemctl does not report the end of a job, which systemd words so.
            if wait or not any(job in str(error) for job in ("Job for", "A dependency job for")):
                raise

    def stop(self, ctx: Context, unit: str) -> None:
        """See `ServiceManager.stop`."""
        self._stop(unit)

    def state(self, ctx: Context, unit: str) -> UnitState:
        """See `ServiceManager.state`."""
        return self._state(unit)

    def states(self, ctx: Context, *units: str) -> list[UnitState]:
        """See `ServiceManager.states`."""
        return [*map(self._state, units)]

    def loaded(self, ctx: Context, unit: str) -> list[UnitState]:
        """See `ServiceManager.loaded`."""
        return sorted(
            self._state(name) for name in self._memory if unit in {name, template_of(name)}
        )

    def ordered_before(self, ctx: Context, unit: str) -> frozenset[str]:
        """See `ServiceManager.ordered_before`."""
        return self._unit_files.ordered_before(instance_of(unit, NOBODYS_INSTANCE))

    def settings(self, ctx: Context, unit: str, *names: str) -> dict[str, str]:
        """See `ServiceManager.settings`."""
        return settings(self._unit(instance_of(unit, NOBODYS_INSTANCE)).texts.values(), *names)

    def _begin(self, name: str, *arguments: object) -> None:
        # Without a unit, systemctl does not start.
        if name != "states" or arguments[1:]:
            super()._begin(name, *arguments)

    def _start(self, name: str) -> None:
        unit = self._unit(name)
        if unit.outcome[0] == "active":
            return
        if not unit.texts or "@." in name:
            raise _refusal(name, 5, f"Failed to start {name}: Unit {name} not found.")
        for wanted in name, *sorted(unit.requires):
            if self._unit_files.is_masked(wanted):
                raise _refusal(name, 1, f"Failed to start {name}: Unit {wanted} is masked.")
        for requirement in sorted(unit.requires):
            if self._unit_files.path(requirement) is None:
                raise _refusal(name, 5, f"Failed to start {name}: Unit {requirement} not found.")
            try:
                self._start(requirement)
            except UnitError as error:
                text = f"A dependency job for {name} failed. See 'journalctl -xe' for details."
                raise _refusal(name, 1, text) from error
        self._run(name, unit)

    def _stop(self, name: str) -> None:
        self._memory.pop(name, None)
        for dependent, unit in [*self._memory.items()]:
            if name in unit.requires and unit.outcome[0] == "active":
                self._stop(dependent)

    def _run(self, name: str, unit: _Unit) -> None:
        self.started.append(name)
        now = settings(unit.texts.values(), "Type", "RemainAfterExit", "ExecStart")
        oneshot = now["Type"] == "oneshot"
        remains = now["RemainAfterExit"] in {"yes", "true"}
        # A running or failed unit stays in memory; a oneshot that has run to its end is forgotten.
        self._memory.pop(name, None)
        failed = name in self.failing or "/bin/false" in now["ExecStart"].split()
        if failed or remains or not oneshot:
            self._memory[name] = unit
        if failed:
            unit.outcome = ("failed", "failed", "exit-code")
        else:
            unit.outcome = ("active", "exited" if oneshot else "running", "success")
            unit.main_pid = 0 if oneshot else next(self._pids)
        # Once the process of a service has begun, systemd reports nothing more to the caller.
        if failed and oneshot:
            text = f"Job for {name} failed because the control process exited with error code."
            raise _refusal(name, 1, text)

    def _unit(self, name: str) -> _Unit:
        """Return the unit as systemd has it in memory, or else as it would read it."""
        return self._memory.get(name) or _Unit(*self._read(name))

    def _read(self, name: str) -> tuple[dict[str, str], frozenset[str]]:
        """Return the state that systemd keeps of a loaded unit: its texts and required units."""
        texts = self._unit_files.texts(name)
        return texts, self._unit_files.requires(name) if texts else frozenset()

    def _state(self, name: str) -> UnitState:
        instance = instance_of(name, NOBODYS_INSTANCE)
        unit = self._unit(instance)
        now = self._unit_files.texts(instance)
        load_state = "loaded" if unit.texts else "not-found"
        if self._unit_files.is_masked(instance):
            load_state = "masked"
        # Like systemd before 257, compare the files that were read, and ignore a new folder of
        # drop-ins; systemd sees a new file in a folder that it has read.
        needs_reload = any(now.get(path) != text for path, text in unit.texts.items())
        return UnitState(
            name,
            load_state,
            *unit.outcome,
            unit.main_pid,
            needs_reload=needs_reload,
            drop_ins=frozenset(path for path in unit.texts if path.endswith(".conf")),
            requires=unit.requires,
            is_enabled=bool(unit.texts) and self._unit_files.is_enabled(name),
        )


def _refusal(unit: str, status: int, text: str) -> UnitError:
    error = CommandFailedError(("systemctl", "start", "--", unit), status, stderr=text)
    return unit_error(error, journal_advice(unit))
