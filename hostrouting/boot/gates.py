"""The gates as systemd sees them: those that cannot wait, those that are open, and those that are held."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import (
    DROP_IN_NAME,
    HELD_TEMPLATE,
    READY_UNIT,
    RETRY_UNIT,
    SCRIPT_DIRECTORY,
    WAKE,
)
from hostrouting.config import OWN_UNITS
from hostrouting.exceptions import HostFileError, UnitError
from hostrouting.host.units import instance_of, seconds, template_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.boot.layout import BootUnit
    from hostrouting.host import FileStore, Host, ServiceManager, UnitState
    from phases import Context

#: The beginning of a marker's name: hostrouting-held@<gate>.service.
HELD_PREFIX: Final = HELD_TEMPLATE.partition(".")[0]
#: A refusal takes 10 s, with a look before and after it, and each waits up to 10 s for the lock;
#: systemd kills a start that exceeds TimeoutStartSec=.
LONGEST_ASK: Final = 33.0
_JOB: Final = "Job"
#: The time of its first start in this boot.
_BEGAN: Final = "InactiveExitTimestampMonotonic"
#: The time when the marker became active, in microseconds of the monotonic clock.
_SINCE: Final = "ActiveEnterTimestampMonotonic"
#: How often systemd has restarted a unit since somebody started it.
RESTARTS: Final = "NRestarts"


def held_gates(ctx: Context, services: ServiceManager) -> list[str]:
    """Return the held units, sorted; a unit that asks just now is among them.

    A unit that restarts by itself may be missing for the moment of its restart.
    """
    markers = (state.name for state in services.loaded(ctx, HELD_TEMPLATE) if state.is_running)
    return sorted(name.removeprefix(HELD_PREFIX).removesuffix(".service") for name in markers)


def is_refused_now(ctx: Context, services: ServiceManager, gate: str) -> bool | None:
    """Return True if a held unit was refused, False if it has passed since, None while it asks for the first time.

    Its marker is set before the question, which may be killed: on a healthy node, too, each start
    has one for a moment.
    """
    state = services.state(ctx, gate)
    if state.is_running or state.sub_state in {"start", "start-post"}:
        return False
    if state.sub_state != "start-pre":
        return True
    since = services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)[_SINCE]
    is_recent = since.isdigit() and ctx.clock.monotonic() - int(since) / 1e6 < LONGEST_ASK
    # Of a unit that systemd restarts the marker is always recent: it was refused before, and its
    # gate pauses.
    return (
        None
        if is_recent and services.settings(ctx, gate, RESTARTS)[RESTARTS] in {"", "0"}
        else True
    )


def release(ctx: Context, host: Host) -> list[str]:
    """Wake hostrouting-retry.service; return the units that it will start if routing is right.

    Without this call it would look within 10 s. Only this service starts held units, because it
    knows those that must stay down, and the dependents of those that were held before.
    """
    held = held_gates(ctx, host.services)
    if held:
        with suppress(HostFileError):
            host.files.write(WAKE, b"", mode=0o644)
        # It runs already, unless it has just been killed.
        host.services.start(ctx, RETRY_UNIT)
    return held


def mark_bound(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> None:
    """Mark as held the units that a failed unit of hostrouting has kept down: their gate never asked.

    A loss of power before upstream's links are removed leaves such units: these links require what
    the gate waits for.
    """
    for found in gates_down(ctx, services, gates):
        state = services.state(ctx, found.subject)
        is_bound = is_gated(state) and not OWN_UNITS.isdisjoint(state.requires)
        if is_bound and services.settings(ctx, state.name, _BEGAN)[_BEGAN] in {"", "0"}:
            services.start(ctx, instance_of(HELD_TEMPLATE, state.name))


def release_ungated(ctx: Context, services: ServiceManager) -> None:
    """Start the held units that are no gates any more. Masked ones stay down."""
    for gate in held_gates(ctx, services):
        state = services.state(ctx, gate)
        if is_gated(state):
            continue
        if state.load_state == "loaded" and state.active_state in {"inactive", "failed"}:
            _start(ctx, services, gate)
        # If it asks just now, it will pass.
        services.stop(ctx, instance_of(HELD_TEMPLATE, gate))


def _start(ctx: Context, services: ServiceManager, unit: str) -> None:
    try:
        services.start(ctx, unit, wait=False)
    except UnitError:
        # It may have reached its limit of starts, which a stop resets.
        services.stop(ctx, unit)
        services.start(ctx, unit, wait=False)


def is_starting(ctx: Context, services: ServiceManager, unit: str) -> bool:
    """Return True if a unit is up, or on its way."""
    is_down = services.state(ctx, unit).active_state in {"inactive", "failed"}
    return not is_down or services.settings(ctx, unit, _JOB)[_JOB] not in {"", "0"}


def is_gated(state: UnitState) -> bool:
    """Return True if systemd has read the drop-in of hostrouting for a unit."""
    # If an instance is or was a gate itself, its path differs from its template's.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in state.drop_ins)


#: While one of these files exists, every gate is open. The drop-in and the retry script name them,
#: too.
_BREAK_GLASS: Final = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: With this word on the kernel's command line, every gate is open as well.
_BREAK_GLASS_WORD: Final = "hostrouting.disabled"
_HIDES: Final = ("gate-root", "where the commands of its drop-in are not found")
_ACTS: Final = ("gate-action", "which a refusal would cause at every boot")
#: The settings with which a unit may be no gate at all, in their order of telling: the kind of the
#: fault, and why.
_UNSUITABLE: Final = {
    "RootDirectory": _HIDES,
    "RootImage": _HIDES,
    "StartLimitAction": _ACTS,
    "FailureAction": _ACTS,
    "SuccessExitStatus": ("gate-success", "with which a refusal is a success"),
    "TimeoutStartSec": (
        "gate-timeout",
        f"and a look at routing may take {LONGEST_ASK:.0f} s; give it more",
    ),
}
#: What says if a unit is to be up.
_WANTED: Final = ("WantedBy", "RequiredBy", "ConditionResult", "ConditionTimestampMonotonic")
#: Every service waits for these, unless it says DefaultDependencies=no.
_ALWAYS_AWAITED: Final = frozenset({"sysinit.target", "basic.target"})


def refuse_early_gates(
    ctx: Context,
    services: ServiceManager,
    gates: Iterable[str],
    units: Sequence[BootUnit],
    installed: Iterable[str],
) -> None:
    """Raise UnitError for gates that start before a unit that hostrouting waits for: both would wait for ever."""
    after = [word for unit in units for word in unit.words("After")]
    awaited = {READY_UNIT, *(unit.name for unit in units), *installed, *after, *_ALWAYS_AWAITED}
    ours = units[0].name
    problems = []
    for gate in gates:
        early = sorted(awaited & services.ordered_before(ctx, gate))
        if early:
            problems.append(
                f"{gate} cannot be a gate: it is ordered before {', '.join(early)}, so that {ours} waits for it, "
                f"and it would wait for {ours}"
            )
    if problems:
        problems.append("take it out of hostRouting.gates, or remove that Before=")
        raise UnitError("\n".join(problems))


def unread_gates(ctx: Context, services: ServiceManager, gates: Iterable[str]) -> list[str]:
    """Return gates that systemd has read differently from the disk: without the drop-in, or with older files.

    At the next boot systemd reads the disk, and such a gate may be open then.
    """
    # A template answers for future instances; one in systemd's memory may have been loaded before
    # the drop-in came.
    states = [
        state
        for gate in gates
        for state in (services.state(ctx, gate), *services.loaded(ctx, gate))
    ]
    known = (state for state in states if state.load_state == "loaded")
    return [state.name for state in known if state.needs_reload or not is_gated(state)]


def broken_glass(files: FileStore) -> str | None:
    """Return the reason why every gate is open, or None."""
    for path in _BREAK_GLASS:
        if files.exists(path):
            return f"{path} exists"
    words = (files.read("/proc/cmdline") or b"").split()
    return (
        f"{_BREAK_GLASS_WORD} is on the command line of the kernel"
        if _BREAK_GLASS_WORD.encode() in words
        else None
    )


def gate_faults(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> list[NodeFinding]:
    """Return the faults of the gates and of their running or held instances; changes nothing, needs no root.

    A fault of an instance is listed only if its template is free of it.
    """
    faults: list[NodeFinding] = []
    # Without gates, systemd is not asked.
    held = held_gates(ctx, services) if gates else []
    for gate in gates:
        found = list(_faults(ctx, services, gate))
        running = (state.name for state in services.loaded(ctx, gate) if state.is_running)
        instances = {*running, *(unit for unit in held if template_of(unit) == gate)} - {gate}
        known = {fault.kind for fault in found}
        found += [
            fault
            for instance in sorted(instances)
            for fault in _faults(ctx, services, instance)
            if fault.kind not in known
        ]
        faults += found
    return faults


def gates_down(
    ctx: Context, services: ServiceManager, gates: Sequence[str]
) -> Iterator[NodeFinding]:
    """Yield the units with a gate that are down, although an active target wants them; held ones have a finding."""
    held = held_gates(ctx, services) if gates else []
    for state in (state for gate in gates for state in services.loaded(ctx, gate)):
        if (
            state.active_state not in {"inactive", "failed"}
            or state.load_state != "loaded"
            or state.name in held
        ):
            continue
        found = services.settings(ctx, state.name, *_WANTED)
        # Without the time, its conditions were never tried.
        is_skipped = found["ConditionResult"] == "no" and found[
            "ConditionTimestampMonotonic"
        ] not in {"", "0"}
        targets = [
            name
            for name in f"{found['WantedBy']} {found['RequiredBy']}".split()
            if name.endswith(".target")
        ]
        active = [target for target in targets if services.state(ctx, target).is_running]
        if active and not is_skipped:
            was = f"failed ({state.result})" if state.active_state == "failed" else "down"
            reason = f"is {was}, although {active[0]} wants it, and is not held"
            yield NodeFinding(
                "gate-down", state.name, reason, "warning", f"see: systemctl status {state.name}"
            )


def refuse_faulty_gates(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> None:
    """Raise UnitError for gates that would never open, or whose refusal takes the node down."""
    faults = filter(is_unsuitable, gate_faults(ctx, services, gates))
    refused = [f"{fault.subject} {fault.reason}" for fault in faults]
    if refused:
        raise UnitError("\n".join([*refused, "mend it, or take it out of hostRouting.gates"]))


def is_unsuitable(fault: NodeFinding) -> bool:
    """Return True for a fault with which a unit cannot be a gate at all."""
    return any(fault.kind == kind for kind, _ in _UNSUITABLE.values())


def _faults(ctx: Context, services: ServiceManager, unit: str) -> Iterator[NodeFinding]:
    state = services.state(ctx, unit)
    if state.load_state == "masked":
        step = f"run: systemctl unmask {unit}, or take it out of hostRouting.gates"
        yield NodeFinding("gate-masked", unit, "is masked, so that it never starts", "note", step)
    if state.load_state != "loaded":
        return
    found = services.settings(ctx, unit, "After", "ExecStartPre", *_UNSUITABLE)
    # No other drop-in can remove an After=, so this setting shows that systemd has read ours.
    if READY_UNIT in found["After"].split() and HELD_PREFIX not in found["ExecStartPre"]:
        reason = "starts whatever the routes are: a later drop-in (systemctl edit makes such) empties ExecStartPre="
        step = f"see: systemctl cat {unit}; remove that line, or rename its file so that it sorts before {DROP_IN_NAME}"
        yield NodeFinding("gate-open", unit, reason, step=step)
    for name, (kind, why) in _UNSUITABLE.items():
        if _does_harm(name, found[name]):
            yield NodeFinding(kind, unit, f"cannot be a gate: it has {name}={found[name]}, {why}")


def _does_harm(setting: str, value: str) -> bool:
    if setting == "SuccessExitStatus":
        # systemd judges the commands of the drop-in by it, too: they end with 1, or by a signal
        # that kills them.
        return any(word == "1" or not word.isdigit() for word in value.split())
    if setting == "TimeoutStartSec":
        # 0 is the unit files' word for no timeout.
        return bool(value) and 0 < seconds(value) < LONGEST_ASK
    return value not in {"", "none"}
