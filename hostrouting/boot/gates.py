"""The gates, as systemd sees them: which cannot wait for us, which do not wait yet, and which are open unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot.held import LONGEST_ASK, held_gates
from hostrouting.boot.layout import DROP_IN_NAME, READY_UNIT, SCRIPT_DIRECTORY
from hostrouting.exceptions import UnitError
from hostrouting.host.systemd.units import seconds, template_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.boot.layout import BootUnit
    from hostrouting.host import FileStore, ServiceManager
    from phases import Context

__all__ = [
    "BREAK_GLASS",
    "GateFault",
    "broken_glass",
    "gate_faults",
    "refuse_early_gates",
    "refuse_faulty_gates",
    "unread_gates",
]

#: While one of these files exists, every gate is open. Their names stand in the drop-in and in the retry's script, too.
BREAK_GLASS: Final = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: So is it while this word stands on the kernel's command line.
_BREAK_GLASS_WORD: Final = "hostrouting.disabled"
#: The settings by which a gate can be open unseen, shut for ever, or dangerous.
_ASKED: Final = (
    "After",
    "ExecStartPre",
    "FailureAction",
    "RootDirectory",
    "RootImage",
    "StartLimitAction",
    "TimeoutStartSec",
)
#: What every service waits for unless it says DefaultDependencies=no.
_ALWAYS_AWAITED: Final = frozenset({"sysinit.target", "basic.target"})


def refuse_early_gates(
    ctx: Context, services: ServiceManager, gates: Iterable[str], units: Sequence[BootUnit], installed: Iterable[str]
) -> None:
    """Raise UnitError for gates that start before something that our units wait for: both would wait for ever."""
    after = [word for unit in units for word in unit.words("Unit", "After")]
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
    """Return gates that systemd knows otherwise than the disk: without our drop-in, or as their files were before.

    It would go by the disk at the next boot, where a gate may be open.
    """
    # A template answers for instances to come; one that runs has been loaded, perhaps before the drop-in came.
    states = [state for gate in gates for state in (services.state(ctx, gate), *services.running(ctx, gate))]
    known = (state for state in states if state.load_state == "loaded")
    return [state.name for state in known if state.needs_reload or not _is_gated(state.drop_ins)]


def _is_gated(drop_ins: frozenset[str]) -> bool:
    # Of an instance that is, or was, a gate by itself the path is another than its template's.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in drop_ins)


def broken_glass(files: FileStore) -> str | None:
    """Return why every gate is open, or None if none is for such a reason."""
    for path in BREAK_GLASS:
        if files.exists(path):
            return f"{path} exists"
    words = (files.read("/proc/cmdline") or b"").split()
    return f"{_BREAK_GLASS_WORD} is on the command line of the kernel" if _BREAK_GLASS_WORD.encode() in words else None


class GateFault(NamedTuple):
    """What is wrong with a gate: its unit, which may be one instance of a template, the reason and the next step."""

    unit: str
    #: `open`, `masked`, `root`, `action` or `timeout`.
    kind: str
    reason: str
    #: Whether such a unit cannot be a gate at all.
    refused: bool

    def __str__(self) -> str:
        return f"{self.unit} {self.reason}"


def gate_faults(ctx: Context, services: ServiceManager, gates: Sequence[str]) -> list[GateFault]:
    """What is wrong with the gates and with their instances that run or are held; changes nothing, needs no root.

    An instance is named only for what its template is free of.
    """
    faults: list[GateFault] = []
    # Where there are no gates, systemd is not even asked.
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
    """Raise UnitError for gates that would never open, or take the node down when they are refused."""
    refused = [str(fault) for fault in gate_faults(ctx, services, gates) if fault.refused]
    if refused:
        raise UnitError("\n".join([*refused, "mend it, or take it out of hostRouting.gates"]))


def _faults(ctx: Context, services: ServiceManager, unit: str) -> Iterator[GateFault]:
    state = services.state(ctx, unit)
    if state.load_state == "masked":
        reason = (
            f"is masked, so that it never starts; run: systemctl unmask {unit}, or take it out of hostRouting.gates"
        )
        yield GateFault(unit, "masked", reason, refused=False)
    if state.load_state != "loaded":
        return
    found = services.settings(ctx, unit, *_ASKED)
    # What a drop-in says by After= no other can take back, so that it tells of ours.
    if READY_UNIT in found["After"].split() and READY_UNIT not in found["ExecStartPre"]:
        reason = (
            "starts whatever the routes are: a later drop-in (systemctl edit makes such) empties ExecStartPre=; see: "
            f"systemctl cat {unit}; remove that line, or rename its file so that it sorts before {DROP_IN_NAME}"
        )
        yield GateFault(unit, "open", reason, refused=False)
    for name in ("RootDirectory", "RootImage"):
        if found[name]:
            reason = f"cannot be a gate: it has {name}={found[name]}, where the commands of its drop-in are not found"
            yield GateFault(unit, "root", reason, refused=True)
    for name in ("StartLimitAction", "FailureAction"):
        if found[name] not in {"", "none"}:
            reason = f"cannot be a gate: it has {name}={found[name]}, which a refusal would bring about at every boot"
            yield GateFault(unit, "action", reason, refused=True)
    timeout = found["TimeoutStartSec"]
    # 0 is how unit files say that there is none.
    if timeout and 0 < seconds(timeout) < LONGEST_ASK:
        reason = (
            f"cannot be a gate: it has TimeoutStartSec={timeout}, and a look at routing may take {LONGEST_ASK:.0f} s; "
            "give it more"
        )
        yield GateFault(unit, "timeout", reason, refused=True)
