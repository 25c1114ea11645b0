"""The gates as systemd sees them: those that cannot wait, those that do not wait yet, and those that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.held import LONGEST_ASK, held_gates
from hostrouting.boot.layout import DROP_IN_NAME, READY_UNIT, SCRIPT_DIRECTORY
from hostrouting.exceptions import UnitError
from hostrouting.findings import NodeFinding
from hostrouting.host.units import seconds, template_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.boot.layout import BootUnit
    from hostrouting.host import FileStore, ServiceManager
    from phases import Context

__all__ = [
    "broken_glass",
    "gate_faults",
    "is_unsuitable",
    "refuse_early_gates",
    "refuse_faulty_gates",
    "unread_gates",
]

#: While one of these files exists, every gate is open. The drop-in and the retry script name them, too.
_BREAK_GLASS: Final = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: With this word on the kernel's command line, every gate is open as well.
_BREAK_GLASS_WORD: Final = "hostrouting.disabled"
#: The settings that can leave a gate open, shut it for ever, or make it dangerous.
_ASKED: Final = (
    "After",
    "ExecStartPre",
    "FailureAction",
    "RootDirectory",
    "RootImage",
    "StartLimitAction",
    "TimeoutStartSec",
)
#: The kinds of faults with which a unit cannot be a gate at all.
_UNSUITABLE: Final = frozenset({"gate-root", "gate-action", "gate-timeout"})
#: Every service waits for these, unless it says DefaultDependencies=no.
_ALWAYS_AWAITED: Final = frozenset({"sysinit.target", "basic.target"})


def refuse_early_gates(
    ctx: Context, services: ServiceManager, gates: Iterable[str], units: Sequence[BootUnit], installed: Iterable[str]
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
    # A template answers for future instances; a running one may have been loaded before the drop-in came.
    states = [state for gate in gates for state in (services.state(ctx, gate), *services.running(ctx, gate))]
    known = (state for state in states if state.load_state == "loaded")
    return [state.name for state in known if state.needs_reload or not _is_gated(state.drop_ins)]


def _is_gated(drop_ins: frozenset[str]) -> bool:
    # If an instance is or was a gate itself, its path differs from its template's.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in drop_ins)


def broken_glass(files: FileStore) -> str | None:
    """Return the reason why every gate is open, or None."""
    for path in _BREAK_GLASS:
        if files.exists(path):
            return f"{path} exists"
    words = (files.read("/proc/cmdline") or b"").split()
    return f"{_BREAK_GLASS_WORD} is on the command line of the kernel" if _BREAK_GLASS_WORD.encode() in words else None


def gate_faults(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> list[NodeFinding]:
    """Return the faults of the gates and of their running or held instances; changes nothing, needs no root.

    A fault of an instance is listed only if its template is free of it.
    """
    faults: list[NodeFinding] = []
    # Without gates, systemd is not asked.
    held = held_gates(ctx, services) if gates else []
    for gate in gates:
        found = list(_faults(ctx, services, gate))
        running = (state.name for state in services.running(ctx, gate))
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


def refuse_faulty_gates(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> None:
    """Raise UnitError for gates that would never open, or whose refusal takes the node down."""
    faults = filter(is_unsuitable, gate_faults(ctx, services, gates))
    refused = [f"{fault.subject} {fault.reason}" for fault in faults]
    if refused:
        raise UnitError("\n".join([*refused, "mend it, or take it out of hostRouting.gates"]))


def is_unsuitable(fault: NodeFinding) -> bool:
    """Return True for a fault with which a unit cannot be a gate at all."""
    return fault.kind in _UNSUITABLE


def _faults(ctx: Context, services: ServiceManager, unit: str) -> Iterator[NodeFinding]:
    state = services.state(ctx, unit)
    if state.load_state == "masked":
        reason = (
            f"is masked, so that it never starts; run: systemctl unmask {unit}, or take it out of hostRouting.gates"
        )
        yield NodeFinding("gate-masked", unit, reason, "note")
    if state.load_state != "loaded":
        return
    found = services.settings(ctx, unit, *_ASKED)
    # No other drop-in can remove an After=, so this setting shows that systemd has read ours.
    if READY_UNIT in found["After"].split() and READY_UNIT not in found["ExecStartPre"]:
        reason = (
            "starts whatever the routes are: a later drop-in (systemctl edit makes such) empties ExecStartPre=; see: "
            f"systemctl cat {unit}; remove that line, or rename its file so that it sorts before {DROP_IN_NAME}"
        )
        yield NodeFinding("gate-open", unit, reason)
    for name in ("RootDirectory", "RootImage"):
        if found[name]:
            reason = f"cannot be a gate: it has {name}={found[name]}, where the commands of its drop-in are not found"
            yield NodeFinding("gate-root", unit, reason)
    for name in ("StartLimitAction", "FailureAction"):
        if found[name] not in {"", "none"}:
            reason = f"cannot be a gate: it has {name}={found[name]}, which a refusal would cause at every boot"
            yield NodeFinding("gate-action", unit, reason)
    timeout = found["TimeoutStartSec"]
    # 0 is the unit files' word for no timeout.
    if timeout and 0 < seconds(timeout) < LONGEST_ASK:
        reason = (
            f"cannot be a gate: it has TimeoutStartSec={timeout}, and a look at routing may take {LONGEST_ASK:.0f} s; "
            "give it more"
        )
        yield NodeFinding("gate-timeout", unit, reason)
