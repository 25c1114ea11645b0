"""The gates as systemd reports them: unsuitable, open, held, or down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.errors import UnitError
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.layout import (
    DROP_IN_NAME,
    HELD_TEMPLATE,
    READY_UNIT,
    SCRIPT_DIRECTORY,
    WAITS_TEMPLATE,
    BootUnit,
    drop_in_of,
)
from hostrouting.config.sections import OWN_UNITS
from hostrouting.host.units import instance_of, seconds, template_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.host import FileStore, ServiceManager, UnitState
    from phases import Context

#: The beginning of a marker's name: hostrouting-held@<gate>.service.
HELD_PREFIX: Final = HELD_TEMPLATE.partition(".")[0]
#: How long the start of a gate may take: 16 s to wait for an apply, then 33 s for a refusal of 10 s
#: with a check of routing before and after it, each of which waits up to 10 s for the lock of the
#: answer. systemd kills a start that exceeds TimeoutStartSec=.
LONGEST_CHECK: Final = 50.0
#: The units that run a kubelet on the host itself, by the names that installers give them.
AGENTS: Final = (
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    # MicroK8s, since and before its release 1.21.
    "snap.microk8s.daemon-kubelite.service",
    "snap.microk8s.daemon-kubelet.service",
    # Canonical Kubernetes and Charmed Kubernetes.
    "snap.k8s.kubelet.service",
    "snap.kubelet.daemon.service",
)
#: A unit is crashing if systemd has restarted it this often and its process has just ended.
_CRASHES: Final = 3
_SECONDS_BETWEEN_CRASHES: Final = 15.0
_JOB = "Job"
#: When a unit was last started, or restarted by systemd.
_BEGAN = "InactiveExitTimestampMonotonic"
#: When the marker became active, in microseconds of the monotonic clock.
_SINCE = "ActiveEnterTimestampMonotonic"
#: When a unit was last up, and when its main process was last started.
_RAN = "ActiveExitTimestampMonotonic"
_PAYLOAD = "ExecMainStartTimestampMonotonic"
#: When that process ended; 0 while it is running.
_CRASHED = "ExecMainExitTimestampMonotonic"
#: The sockets and paths that start it; they fail if it is refused too often.
_TRIGGERS = "TriggeredBy"
#: How often systemd has restarted a unit since its last manual start.
_RESTARTS = "NRestarts"


def units_of(gates: Sequence[str]) -> list[str]:
    """Return the units whose state a check of these gates needs."""
    own = (name for name in sorted(OWN_UNITS) if "@" not in name)
    # Almost every unit is ordered before these targets.
    ends = ("multi-user.target", "shutdown.target")
    return [*dict.fromkeys((*gates, *AGENTS, *own, *ends))]


#: The results of a unit that its gate has refused, perhaps too often.
_REFUSED = frozenset({"exit-code", "start-limit-hit"})
#: While one of these files exists, every gate is open; the scripts test them as well.
_BREAK_GLASS = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: With this word on the kernel's command line, every gate is open as well.
_BREAK_GLASS_WORD = "hostrouting.disabled"
_HIDES = ("gate-root", "where the commands of its drop-in are not found")
_ACTS = ("gate-action", "which a refusal would trigger at every boot")
#: The units that shut down or leave the system, by all their names.
_ENDS = frozenset(
    {
        "rescue.target",
        "emergency.target",
        "shutdown.target",
        "ctrl-alt-del.target",
        "runlevel0.target",
        "runlevel1.target",
        "runlevel6.target",
        "reboot.target",
        "systemd-reboot.service",
        "poweroff.target",
        "systemd-poweroff.service",
        "halt.target",
        "systemd-halt.service",
        "kexec.target",
        "systemd-kexec.service",
        "exit.target",
        "systemd-exit.service",
        "soft-reboot.target",
        "systemd-soft-reboot.service",
    }
)
#: The settings that may make a unit unsuitable: the kind of finding, and why.
_UNSUITABLE = {
    "RootDirectory": _HIDES,
    "RootImage": _HIDES,
    "StartLimitAction": _ACTS,
    "FailureAction": _ACTS,
    "SuccessExitStatus": ("gate-success", "which makes a refusal count as success"),
    "TimeoutStartSec": (
        "gate-timeout",
        f"but a check of routing during an apply may take {LONGEST_CHECK:.0f} s; increase it",
    ),
    "OnFailure": _ACTS,
    "RefuseManualStart": (
        "gate-manual",
        "so nothing can start it once routing is healthy",
    ),
}
#: Rules that were added later. An installed config with such a gate stays valid and can be applied
#: again: these faults are only warnings then.
_LATER = frozenset({"OnFailure", "RefuseManualStart", "TimeoutStartSec"})
_JOB_TIMEOUTS = ("JobTimeoutSec", "JobRunningTimeoutSec")
#: How long a boot may wait for routing, together with a refusal, in seconds.
_LONGEST_JOB = 60.0
_YES = frozenset({"yes", "true", "on", "1"})
_CORRECT = "correct it, or remove it from hostRouting.gates"
#: The settings that show if a unit should be running.
_WANTED = ("WantedBy", "RequiredBy", "ConditionResult", "ConditionTimestampMonotonic")
#: The settings that show if a gate is faulty.
_OF_GATE = ("After", "ExecStartPre", "OnFailureJobMode", "OnFailureIsolate", _TRIGGERS)
#: What a service last said of itself (sd_notify).
STATUS_TEXT: Final = "StatusText"
#: All settings that a check of gates and a status read.
CHECKED_SETTINGS: Final = (
    "Before",
    STATUS_TEXT,
    _SINCE,
    _RAN,
    _BEGAN,
    _CRASHED,
    _RESTARTS,
    *_OF_GATE,
    *_UNSUITABLE,
    *_JOB_TIMEOUTS,
)
#: Every service waits for these, unless it has DefaultDependencies=no.
_ALWAYS_AWAITED = frozenset({"sysinit.target", "basic.target"})


@attrs.frozen(eq=False, repr=False)
class Gates:
    """The units that wait for healthy routing, and what systemd reports about them."""

    _services: ServiceManager
    names: Sequence[str] = ()

    def held(self, ctx: Context) -> list[str]:
        """Return the held units, sorted, including those whose gate is checking routing now.

        A unit that restarts by itself may be missing during its restart.
        """
        return self._marked(ctx, HELD_TEMPLATE)

    def loaded(self, ctx: Context) -> list[UnitState]:
        """Return the states of the loaded units with a gate."""
        return [state for gate in self.names for state in self._services.loaded(ctx, gate)]

    def is_refused_now(self, ctx: Context, gate: str) -> bool | None:
        """Return True for a refused unit, False for one that passed, None during its first check.

        The marker is set before the check, which may be killed. So even on a healthy node, each
        start has a marker for a moment.
        """
        state = self._services.state(ctx, gate)
        if state.is_running or state.sub_state in {"start", "start-post"}:
            return False
        if state.sub_state != "start-pre":
            return True
        since = self._services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)[_SINCE]
        is_recent = since.isdigit() and ctx.clock.monotonic() - int(since) / 1e6 < LONGEST_CHECK
        # A unit that systemd restarts always has a recent marker, but it was refused before.
        restarts = self._services.settings(ctx, gate, _RESTARTS)[_RESTARTS]
        return None if is_recent and restarts in {"", "0"} else True

    def held_since(self, ctx: Context, gate: str) -> float:
        """Return when a held unit was first refused, in seconds since the boot.

        The first refusal starts its marker, and later ones reload it. But a restart by systemd also
        restarts the marker: such a unit has been down since it last ran, or since the boot.
        """
        times = self._services.settings(ctx, gate, _RESTARTS, _RAN)
        if times[_RESTARTS] in {"", "0"}:
            marker = self._services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)
            return int(marker[_SINCE] or 0) / 1e6
        return int(times[_RAN] or 0) / 1e6

    # --- markers

    def mark(self, ctx: Context, units: Iterable[str]) -> None:
        """Mark units as held."""
        for unit in units:
            self._services.start(ctx, instance_of(HELD_TEMPLATE, unit))

    def mark_bound(self, ctx: Context) -> None:
        """Mark as held the units that a failed unit of hostrouting kept down before their gate ran.

        This happens if power is lost before upstream's links are removed: these links make units
        require those that the gate waits for.
        """
        for finding in self.down(ctx):
            state = self._services.state(ctx, finding.subject)
            is_bound = is_gated(state) and not OWN_UNITS.isdisjoint(state.requires)
            began = self._services.settings(ctx, state.name, _BEGAN)[_BEGAN] if is_bound else ""
            if is_bound and began in {"", "0"}:
                self.mark(ctx, [state.name])

    def unmarked(self, ctx: Context) -> list[str]:
        """Return the units that were refused although their marker could not be started.

        If its file is missing or it has failed, a marker does not show that a unit is held. A unit
        was refused if its main process has not run since the start began.
        """
        markers = self._services.loaded(ctx, HELD_TEMPLATE)
        has_template = self._services.state(ctx, HELD_TEMPLATE).load_state == "loaded"
        up = {marker.name for marker in markers if marker.is_running}
        failed = {marker.name for marker in markers if marker.active_state == "failed"}
        names = []
        for state in self.loaded(ctx):
            marker = instance_of(HELD_TEMPLATE, state.name)
            if marker in up or (has_template and marker not in failed):
                continue
            if is_gated(state) and state.active_state == "failed" and state.result in _REFUSED:
                times = self._services.settings(ctx, state.name, _PAYLOAD, _BEGAN)
                if int(times[_PAYLOAD] or 0) < int(times[_BEGAN] or 0):
                    names.append(state.name)
        return names

    def release_ungated(self, ctx: Context) -> list[UnitError]:
        """Start the held units that are no longer gates, unless they are masked.

        Return an error for each that systemd does not start, for example because it requires a
        masked unit.
        """
        errors = []
        for gate in self.held(ctx):
            state = self._services.state(ctx, gate)
            if not is_gated(state):
                # Stop the marker even if the unit is not down: a check that is running now will
                # pass.
                errors += self._release(ctx, state, HELD_TEMPLATE)
        return errors

    def release_waiting(self, ctx: Context) -> list[UnitError]:
        """Do the same for units that waited for gates, on a node that no longer has any gate."""
        errors = []
        for unit in self._marked(ctx, WAITS_TEMPLATE):
            errors += self._release(ctx, self._services.state(ctx, unit), WAITS_TEMPLATE)
        return errors

    def _release(self, ctx: Context, unit: UnitState, template: str) -> list[UnitError]:
        """Start a unit that is down, and stop its marker."""
        errors = []
        if unit.load_state == "loaded" and _is_down(unit):
            try:
                self._services.start(ctx, unit.name, wait=False)
            except UnitError as error:
                errors.append(error)
        self._services.stop(ctx, instance_of(template, unit.name))
        return errors

    def _marked(self, ctx: Context, template: str) -> list[str]:
        """Return the units for which an instance of the template is active, sorted."""
        prefix = template.partition(".")[0]
        marks = (each.name for each in self._services.loaded(ctx, template) if each.is_running)
        return sorted(name.removeprefix(prefix).removesuffix(".service") for name in marks)

    # --- faults

    def refuse(self, ctx: Context, units: Sequence[BootUnit], installed: Iterable[str]) -> None:
        """Raise UnitError for gates that would never open, or whose refusal would stop the node.

        A gate never opens if it is ordered before a unit that hostrouting waits for. `installed`
        are such units on the disk.
        """
        faults = filter(is_unsuitable, self.faults(ctx))
        problems = [f"{fault.subject} {fault.reason}" for fault in faults]
        if problems:
            raise UnitError("\n".join([*problems, _CORRECT]))
        after = [word for unit in units for word in unit.words("After")]
        awaited = {READY_UNIT, *(unit.name for unit in units), *installed, *after, *_ALWAYS_AWAITED}
        first = next((unit.name for unit in units if unit.is_unit), READY_UNIT)
        for gate in self.names:
            early = sorted(awaited & self._services.ordered_before(ctx, gate))
            if early:
                problems.append(
                    f"{gate} cannot be a gate: it is ordered before {', '.join(early)}, so it "
                    f"would wait for {first}, which waits for it"
                )
        if problems:
            step = "remove it from hostRouting.gates, or remove that Before="
            raise UnitError("\n".join([*problems, step]))

    def faults(self, ctx: Context) -> list[NodeFinding]:
        """Return the faults of the gates and of their running or held instances.

        A fault of an instance is listed only if its template does not have it. Does not need root.
        """
        faults = []
        # Without gates, systemd is not queried.
        held = self.held(ctx) if self.names else []
        for gate in self.names:
            of_gate = [*self._faults_of(ctx, gate)]
            faults += of_gate
            kinds = {fault.kind for fault in of_gate}
            running = (each.name for each in self._services.loaded(ctx, gate) if each.is_running)
            instances = {*running, *(unit for unit in held if template_of(unit) == gate)} - {gate}
            for instance in sorted(instances):
                of_instance = self._faults_of(ctx, instance)
                faults += [fault for fault in of_instance if fault.kind not in kinds]
        return faults

    def down(self, ctx: Context) -> Iterator[NodeFinding]:
        """Yield the gated units that are down and not held, although an active target wants them.

        Also yield those that keep failing by themselves although their gate lets them start. Does
        not need root.
        """
        services = self._services
        held = self.held(ctx) if self.names else []
        for state in self.loaded(ctx):
            is_known = state.load_state in {"loaded", "masked"}
            if is_known and self.is_crashing(ctx, state):
                reason = "keeps failing by itself; its gate lets it start"
                step = f"see: {quoted('journalctl', '-b', '-u', state.name)}"
                yield NodeFinding("gate-failed", state.name, reason, "warning", step)
                continue
            if not is_known or not _is_down(state) or state.name in held:
                continue
            settings = services.settings(ctx, state.name, *_WANTED)
            # Without this time, its conditions were never tested.
            is_tested = settings["ConditionTimestampMonotonic"] not in {"", "0"}
            is_skipped = is_tested and settings["ConditionResult"] == "no"
            wanting = f"{settings['WantedBy']} {settings['RequiredBy']}".split()
            active = [
                name
                for name in wanting
                if name.endswith(".target") and services.state(ctx, name).is_running
            ]
            if active and not is_skipped:
                kind, was, verb = "gate-down", "down", "start"
                if state.active_state == "failed":
                    kind, was = "gate-failed", f"failed ({state.result})"
                if state.load_state == "masked":
                    kind, was, verb = "gate-down", "masked", "unmask"
                elif state.result == "start-limit-hit":
                    # Otherwise systemd refuses to start it.
                    verb = "reset-failed"
                reason = f"is {was}, although {active[0]} wants it, and is not held"
                command = quoted("systemctl", verb, state.name)
                yield NodeFinding(kind, state.name, reason, "warning", command=command)

    def is_crashing(self, ctx: Context, state: UnitState) -> bool:
        """Return True for a unit whose main process keeps failing, until systemd gives up.

        It may be running at the moment, or in its gate.
        """
        times = self._services.settings(ctx, state.name, _RESTARTS, _CRASHED, _RAN)
        if int(times[_RESTARTS] or 0) < _CRASHES:
            return False
        # The process of a unit that keeps being refused ended long ago. For a unit that was never
        # up, only the time when its process ended is known, until its next start.
        ended = max(int(times[_CRASHED] or 0), int(times[_RAN] or 0)) / 1e6
        is_recent = ended > 0 and ctx.clock.monotonic() - ended < _SECONDS_BETWEEN_CRASHES
        return is_recent or state.result == "start-limit-hit"

    def _faults_of(self, ctx: Context, unit: str) -> Iterator[NodeFinding]:
        state = self._services.state(ctx, unit)
        if state.load_state == "masked":
            reason = "is masked, so it never starts"
            step = "remove it from hostRouting.gates"
            command = quoted("systemctl", "unmask", unit)
            yield NodeFinding("gate-masked", unit, reason, "note", step, command=command)
        if state.load_state != "loaded":
            return
        settings = self._services.settings(ctx, unit, *_OF_GATE, *_UNSUITABLE, *_JOB_TIMEOUTS)
        # Drop-ins cannot remove an After=, so this one shows that systemd has read the gate's
        # drop-in.
        if READY_UNIT in settings["After"].split() and HELD_PREFIX not in settings["ExecStartPre"]:
            reason = (
                "starts regardless of routing, because a later drop-in (as systemctl edit creates) "
                "empties ExecStartPre="
            )
            step = (
                f"see: systemctl cat {unit}; remove that line, or rename its file so that it sorts "
                f"before {DROP_IN_NAME}"
            )
            yield NodeFinding("gate-open", unit, reason, step=step)
        yield from self._failed_triggers(ctx, unit, settings)
        yield from _harmful_settings(unit, settings, is_gated=is_gated(state))
        yield from _short_job_timeouts(unit, settings)

    def _failed_triggers(
        self, ctx: Context, unit: str, settings: Mapping[str, str]
    ) -> Iterator[NodeFinding]:
        for name in settings[_TRIGGERS].split():
            trigger = self._services.state(ctx, name)
            if trigger.active_state == "failed":
                reason = f"has failed ({trigger.result}) and no longer starts {unit}"
                step = f"see: systemctl status {name}; start it again once routing is healthy"
                yield NodeFinding("failed-trigger", name, reason, "warning", step)


def _is_down(state: UnitState) -> bool:
    """Return True for a unit that is not running, starting or stopping."""
    return state.active_state in {"inactive", "failed"}


def is_starting(ctx: Context, services: ServiceManager, unit: str) -> bool:
    """Return True if a unit is running, starting, or has a job."""
    is_down = _is_down(services.state(ctx, unit))
    return not is_down or services.settings(ctx, unit, _JOB)[_JOB] not in {"", "0"}


def is_gated(state: UnitState) -> bool:
    """Return True if systemd has read hostrouting's drop-in for a unit."""
    # The path of an instance that is or was a gate itself differs from that of its template.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in state.drop_ins)


def break_glass_file(files: FileStore) -> str | None:
    """Return the path of the break-glass file that opens every gate, or None."""
    return next(filter(files.exists, _BREAK_GLASS), None)


def why_gates_are_open(files: FileStore) -> str | None:
    """Return why every gate is open, or None if the gates are not disabled."""
    if path := break_glass_file(files):
        return f"{path} exists"
    if _BREAK_GLASS_WORD.encode() in (files.read("/proc/cmdline") or b"").split():
        return f"{_BREAK_GLASS_WORD} is on the kernel's command line"
    return None


def agents(states: Iterable[UnitState]) -> list[UnitState]:
    """Return the units of AGENTS that are running or starting, or that a boot starts."""
    return [
        state
        for state in states
        if state.name in AGENTS and (state.is_enabled or not _is_down(state))
    ]


def ungated_agents(states: Iterable[UnitState], gates: Sequence[str]) -> Iterator[NodeFinding]:
    """Yield the agents that start regardless of routing, each with the line to put in the config.

    If `gates` is [], that is what the operator wants.
    """
    # A unit has the drop-ins of all its names.
    paths = {drop_in_of(gate) for gate in gates}
    ungated = [
        state.name
        for state in agents(states)
        if state.name not in gates and paths.isdisjoint(state.drop_ins)
    ]
    line = ", ".join(f'"{gate}"' for gate in (*gates, *ungated))
    for name in ungated if gates else ():
        reason = "starts regardless of routing, because it is not in hostRouting.gates"
        step = f'in hostRouting, write: "gates": [{line}]'
        yield NodeFinding("ungated-agent", name, reason, "warning", step)


def is_unsuitable(fault: NodeFinding) -> bool:
    """Return True for a fault that makes a unit unsuitable as a gate."""
    kinds = {kind for kind, _ in _UNSUITABLE.values()}
    return fault.severity == "error" and fault.kind in kinds


def _harmful_settings(
    unit: str, settings: Mapping[str, str], *, is_gated: bool
) -> Iterator[NodeFinding]:
    for name, (kind, why) in _UNSUITABLE.items():
        if not _does_harm(name, settings):
            continue
        fact = f"it has {name}={' '.join(settings[name].split())}, {why}"
        if is_gated and name in _LATER:
            yield NodeFinding(kind, unit, f"should not be a gate: {fact}", "warning", _CORRECT)
        else:
            yield NodeFinding(kind, unit, f"cannot be a gate: {fact}")


def _short_job_timeouts(unit: str, settings: Mapping[str, str]) -> Iterator[NodeFinding]:
    for name in _JOB_TIMEOUTS:
        # In unit files, 0 disables the timeout.
        if settings[name] and 0 < seconds(settings[name]) < _LONGEST_JOB:
            reason = (
                f"has {name}={settings[name]}, so systemd may cancel its start while it waits for "
                "routing"
            )
            step = f"increase it to {_LONGEST_JOB:.0f} s or more"
            yield NodeFinding("gate-job-timeout", unit, reason, "warning", step)
            return


def _does_harm(setting: str, settings: Mapping[str, str]) -> bool:
    value = settings[setting]
    if setting == "OnFailure":
        is_old_way = settings["OnFailureIsolate"] in _YES
        isolates = settings["OnFailureJobMode"] == "isolate" or is_old_way
        return bool(value) and (isolates or not _ENDS.isdisjoint(value.split()))
    if setting == "RefuseManualStart":
        return value in _YES
    if setting == "SuccessExitStatus":
        # It also applies to the commands of the drop-in, which exit with 1 or are killed by a
        # signal.
        return any(word == "1" or not word.isdigit() for word in value.split())
    if setting == "TimeoutStartSec":
        # In unit files, 0 disables the timeout.
        return bool(value) and 0 < seconds(value) < LONGEST_CHECK
    return value not in {"", "none"}
