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
#: A refusal takes 10 s, with a check of routing before and after it, and each waits up to 10 s for
#: the lock of the answer: 33 s, after a wait of 16 s for an apply. systemd kills a start that
#: exceeds TimeoutStartSec=.
LONGEST_CHECK: Final = 50.0
#: The units that run a kubelet on the host itself, by the names that their installers give them.
AGENTS: Final = (
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    # MicroK8s, and before its release 1.21.
    "snap.microk8s.daemon-kubelite.service",
    "snap.microk8s.daemon-kubelet.service",
    # Canonical Kubernetes, and Charmed Kubernetes.
    "snap.k8s.kubelet.service",
    "snap.kubelet.daemon.service",
)
#: A unit fails by itself if systemd has restarted it so often, and its payload has just ended.
_CRASHES: Final = 3
_SECONDS_BETWEEN_CRASHES: Final = 15.0
_JOB = "Job"
#: When a unit was started last, or restarted by systemd.
_BEGAN = "InactiveExitTimestampMonotonic"
#: The time when the marker became active, in microseconds of the monotonic clock.
_SINCE = "ActiveEnterTimestampMonotonic"
#: When a unit was up last, and when the process of its payload was started last.
_RAN = "ActiveExitTimestampMonotonic"
_PAYLOAD = "ExecMainStartTimestampMonotonic"
#: When that process ended; 0 while it runs.
_CRASHED = "ExecMainExitTimestampMonotonic"
#: The sockets and paths that start it: they fail if it is refused too often.
_TRIGGERS = "TriggeredBy"
#: How often systemd has restarted a unit since its last manual start.
_RESTARTS = "NRestarts"


def units_of(gates: Sequence[str]) -> list[str]:
    """Return the units that a look at a node with these gates reads."""
    own = (name for name in sorted(OWN_UNITS) if "@" not in name)
    # Almost every unit is ordered before these targets.
    ends = ("multi-user.target", "shutdown.target")
    return [*dict.fromkeys((*gates, *AGENTS, *own, *ends))]


#: The results of a unit that its gate has refused, perhaps too often.
_REFUSED = frozenset({"exit-code", "start-limit-hit"})
#: While one of these files exists, every gate is open; the drop-in and the retry test them, too.
_BREAK_GLASS = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: With this word on the kernel's command line, every gate is open as well.
_BREAK_GLASS_WORD = "hostrouting.disabled"
_HIDES = ("gate-root", "where the commands of its drop-in are not found")
_ACTS = ("gate-action", "which a refusal would cause at every boot")
#: The units that end or leave the system, as a unit may name them.
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
#: The settings that may make a unit unsuitable, in the order of the findings: the kind, and why.
_UNSUITABLE = {
    "RootDirectory": _HIDES,
    "RootImage": _HIDES,
    "StartLimitAction": _ACTS,
    "FailureAction": _ACTS,
    "SuccessExitStatus": ("gate-success", "with which a refusal is a success"),
    "TimeoutStartSec": (
        "gate-timeout",
        f"and a check of routing beside an apply may take {LONGEST_CHECK:.0f} s; increase it",
    ),
    "OnFailure": _ACTS,
    "RefuseManualStart": (
        "gate-manual",
        "so that nothing can start it once routing is right",
    ),
}
#: Rules that came later. An installed config with such a gate stays in force and can be applied:
#: the faults are warnings.
_LATER = frozenset({"OnFailure", "RefuseManualStart", "TimeoutStartSec"})
_JOB_TIMEOUTS = ("JobTimeoutSec", "JobRunningTimeoutSec")
#: Seconds of a boot's wait for routing, and of a refusal.
_LONGEST_JOB = 60.0
_YES = frozenset({"yes", "true", "on", "1"})
_CORRECT = "correct it, or take it out of hostRouting.gates"
#: The settings that show if a unit should be up.
_WANTED = ("WantedBy", "RequiredBy", "ConditionResult", "ConditionTimestampMonotonic")
#: The settings of a gate that show if it is faulty.
_OF_GATE = ("After", "ExecStartPre", "OnFailureJobMode", "OnFailureIsolate", _TRIGGERS)
#: All settings that a look reads.
CHECKED_SETTINGS: Final = (
    "Before",
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
    """The units that wait for right routing, and what systemd reports of them."""

    _services: ServiceManager
    names: Sequence[str] = ()

    def held(self, ctx: Context) -> list[str]:
        """Return the held units, sorted, with those whose gate checks routing just now.

        A unit that restarts by itself may be missing for the moment of its restart.
        """
        return self._marked(ctx, HELD_TEMPLATE)

    def loaded(self, ctx: Context) -> list[UnitState]:
        """Return the states of the loaded units with a gate."""
        return [state for gate in self.names for state in self._services.loaded(ctx, gate)]

    def is_refused_now(self, ctx: Context, gate: str) -> bool | None:
        """Return True for a refused unit, False for one that has passed, None in its first check.

        The marker is set before the check, which may be killed: on a healthy node, too, each start
        has one for a moment.
        """
        state = self._services.state(ctx, gate)
        if state.is_running or state.sub_state in {"start", "start-post"}:
            return False
        if state.sub_state != "start-pre":
            return True
        since = self._services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)[_SINCE]
        is_recent = since.isdigit() and ctx.clock.monotonic() - int(since) / 1e6 < LONGEST_CHECK
        # A unit that systemd restarts always has a recent marker: it was refused before, and its
        # gate pauses.
        restarts = self._services.settings(ctx, gate, _RESTARTS)[_RESTARTS]
        return None if is_recent and restarts in {"", "0"} else True

    def held_since(self, ctx: Context, gate: str) -> float:
        """Return when a held unit was refused first, in seconds since the boot.

        Its marker is started by the first refusal, and reloaded by later ones. But a restart by
        systemd restarts the marker, too: such a unit has been down since it ran last, or else since
        the boot.
        """
        times = self._services.settings(ctx, gate, _RESTARTS, _RAN)
        if times[_RESTARTS] in {"", "0"}:
            marker = self._services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)
            return int(marker[_SINCE] or 0) / 1e6
        return int(times[_RAN] or 0) / 1e6

    # --- marks

    def mark(self, ctx: Context, units: Iterable[str]) -> None:
        """Mark units as held."""
        for unit in units:
            self._services.start(ctx, instance_of(HELD_TEMPLATE, unit))

    def mark_bound(self, ctx: Context) -> None:
        """Mark as held the units that a failed unit of hostrouting kept down before their gate ran.

        A loss of power before upstream's links are removed leaves such units: by these links they
        require the units that the gate waits for.
        """
        for finding in self.down(ctx):
            state = self._services.state(ctx, finding.subject)
            is_bound = is_gated(state) and not OWN_UNITS.isdisjoint(state.requires)
            began = self._services.settings(ctx, state.name, _BEGAN)[_BEGAN] if is_bound else ""
            if is_bound and began in {"", "0"}:
                self.mark(ctx, [state.name])

    def unmarked(self, ctx: Context) -> list[str]:
        """Return the units that were refused while their marker could not be started.

        Without its file, or with a failure, a marker does not show that a unit is held. Of a unit
        that was refused the payload has not run since the start began.
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

        Return an error for each that systemd does not start, such as one that requires a masked
        unit.
        """
        errors = []
        for gate in self.held(ctx):
            state = self._services.state(ctx, gate)
            if not is_gated(state):
                # Its mark ends even if it is not down: a check that runs just now will pass.
                errors += self._release(ctx, state, HELD_TEMPLATE)
        return errors

    def release_waiting(self, ctx: Context) -> list[UnitError]:
        """Do the same with the units that waited for gates, on a node that has no gate any more."""
        errors = []
        for unit in self._marked(ctx, WAITS_TEMPLATE):
            errors += self._release(ctx, self._services.state(ctx, unit), WAITS_TEMPLATE)
        return errors

    def _release(self, ctx: Context, unit: UnitState, template: str) -> list[UnitError]:
        """Start a unit that is down, and end its mark."""
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

        A gate that is ordered before a unit that hostrouting waits for never opens. `installed` are
        such units on the disk.
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
                    f"{gate} cannot be a gate: it is ordered before {', '.join(early)}, so that "
                    f"{first} waits for it, and it would wait for {first}"
                )
        if problems:
            step = "take it out of hostRouting.gates, or remove that Before="
            raise UnitError("\n".join([*problems, step]))

    def faults(self, ctx: Context) -> list[NodeFinding]:
        """Return the faults of the gates and of their running or held instances; needs no root.

        A fault of an instance is listed only if its template is free of it.
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
        """Yield the units with a gate that are down and not held, but wanted by an active target.

        So is one that fails by itself again and again, though its gate lets it start. It needs no
        root.
        """
        services = self._services
        held = self.held(ctx) if self.names else []
        for state in self.loaded(ctx):
            is_known = state.load_state in {"loaded", "masked"}
            if is_known and self.is_crashing(ctx, state):
                reason = "fails by itself, again and again: its gate lets it start"
                step = f"see: {quoted('journalctl', '-b', '-u', state.name)}"
                yield NodeFinding("gate-failed", state.name, reason, "warning", step)
                continue
            if not is_known or not _is_down(state) or state.name in held:
                continue
            settings = services.settings(ctx, state.name, *_WANTED)
            # Without the time, its conditions were never tested.
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
                    # systemd refuses a start before that.
                    verb = "reset-failed"
                reason = f"is {was}, although {active[0]} wants it, and is not held"
                command = quoted("systemctl", verb, state.name)
                yield NodeFinding(kind, state.name, reason, "warning", command=command)

    def is_crashing(self, ctx: Context, state: UnitState) -> bool:
        """Return True for a unit whose payload fails again and again, until systemd gives up.

        It may be up just now, or in its gate.
        """
        times = self._services.settings(ctx, state.name, _RESTARTS, _CRASHED, _RAN)
        if int(times[_RESTARTS] or 0) < _CRASHES:
            return False
        # The payload of a unit that is refused again and again has ended long ago. A unit that was
        # never up has the time when its process ended, until its next start.
        ended = max(int(times[_CRASHED] or 0), int(times[_RAN] or 0)) / 1e6
        is_recent = ended > 0 and ctx.clock.monotonic() - ended < _SECONDS_BETWEEN_CRASHES
        return is_recent or state.result == "start-limit-hit"

    def _faults_of(self, ctx: Context, unit: str) -> Iterator[NodeFinding]:
        state = self._services.state(ctx, unit)
        if state.load_state == "masked":
            reason = "is masked, so that it never starts"
            step = "take it out of hostRouting.gates"
            command = quoted("systemctl", "unmask", unit)
            yield NodeFinding("gate-masked", unit, reason, "note", step, command=command)
        if state.load_state != "loaded":
            return
        settings = self._services.settings(ctx, unit, *_OF_GATE, *_UNSUITABLE, *_JOB_TIMEOUTS)
        # Drop-ins cannot remove an After=, so this one shows that systemd has read the gate's.
        if READY_UNIT in settings["After"].split() and HELD_PREFIX not in settings["ExecStartPre"]:
            reason = (
                "starts whatever the routes are: a later drop-in (systemctl edit makes such) "
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
                reason = f"has failed ({trigger.result}), and does not start {unit} any more"
                step = f"see: systemctl status {name}; start it again once routing is right"
                yield NodeFinding("failed-trigger", name, reason, "warning", step)


def _is_down(state: UnitState) -> bool:
    """Return True for a unit that neither runs nor starts or stops."""
    return state.active_state in {"inactive", "failed"}


def is_starting(ctx: Context, services: ServiceManager, unit: str) -> bool:
    """Return True if a unit is up, starts, or has a job."""
    is_down = _is_down(services.state(ctx, unit))
    return not is_down or services.settings(ctx, unit, _JOB)[_JOB] not in {"", "0"}


def is_gated(state: UnitState) -> bool:
    """Return True if systemd has read the drop-in of hostrouting for a unit."""
    # If an instance is or was a gate itself, its path differs from its template's.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in state.drop_ins)


def break_glass_file(files: FileStore) -> str | None:
    """Return the path of the file that opens every gate, or None."""
    return next(filter(files.exists, _BREAK_GLASS), None)


def why_gates_are_open(files: FileStore) -> str | None:
    """Return the reason why every gate is open, or None."""
    if path := break_glass_file(files):
        return f"{path} exists"
    if _BREAK_GLASS_WORD.encode() in (files.read("/proc/cmdline") or b"").split():
        return f"{_BREAK_GLASS_WORD} is on the command line of the kernel"
    return None


def agents(states: Iterable[UnitState]) -> list[UnitState]:
    """Return the units of AGENTS that are up or starting, or that a boot starts."""
    return [
        state
        for state in states
        if state.name in AGENTS and (state.is_enabled or not _is_down(state))
    ]


def ungated_agents(states: Iterable[UnitState], gates: Sequence[str]) -> Iterator[NodeFinding]:
    """Yield the agents that start whatever the routes are, each with the line of a right config.

    An operator who gives [] for the gates wants that.
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
        reason = "starts whatever the routes are, because it is none of hostRouting.gates"
        step = f'write in hostRouting: "gates": [{line}]'
        yield NodeFinding("ungated-agent", name, reason, "warning", step)


def is_unsuitable(fault: NodeFinding) -> bool:
    """Return True for a fault with which a unit cannot be a gate."""
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
                f"has {name}={settings[name]}, so that systemd may give up its start as it waits "
                "for routing"
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
        # It applies to the commands of the drop-in, too: they end with 1, or by a signal.
        return any(word == "1" or not word.isdigit() for word in value.split())
    if setting == "TimeoutStartSec":
        # In unit files, 0 disables the timeout.
        return bool(value) and 0 < seconds(value) < LONGEST_CHECK
    return value not in {"", "none"}
