"""The gates, as systemd sees them: which cannot wait for us, and which do not wait yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import DROP_IN_NAME, READY_UNIT, SCRIPT_DIRECTORY
from hostrouting.exceptions import UnitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.boot.layout import BootUnit
    from hostrouting.host import FileStore, ServiceManager
    from phases import Context

__all__ = ["break_glass", "refuse_early_gates", "unread_gates"]

#: While one of these files exists, every gate is open; the drop-in and the retry look for them, too.
BREAK_GLASS: Final = (f"{SCRIPT_DIRECTORY}/hostrouting.disabled", "/run/hostrouting.disabled")
#: The same as a word on the kernel's command line, for a machine whose /etc cannot be written.
BREAK_GLASS_WORD: Final = "hostrouting.disabled"
#: What every service waits for unless it says DefaultDependencies=no.
_ALWAYS_AWAITED: Final = frozenset({"sysinit.target", "basic.target"})


def break_glass(files: FileStore) -> str | None:
    """Why every gate is open, whatever the routes are; None if they hold."""
    for path in BREAK_GLASS:
        if files.exists(path):
            return f"{path} exists"
    if BREAK_GLASS_WORD in (files.read("/proc/cmdline") or b"").decode(errors="replace").split():
        return f"the kernel's command line has the word {BREAK_GLASS_WORD}"
    return None


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
    """Units that have a drop-in of ours on the disk, by which systemd does not go yet."""
    # A template answers for instances to come; one that runs has been loaded, perhaps before the drop-in came.
    states = [state for gate in gates for state in (services.state(ctx, gate), *services.running(ctx, gate))]
    return [state.name for state in states if state.load_state == "loaded" and not _is_gated(state.drop_ins)]


def _is_gated(drop_ins: frozenset[str]) -> bool:
    # Of an instance that is, or was, a gate by itself the path is another than its template's.
    return any(path.endswith(f"/{DROP_IN_NAME}") for path in drop_ins)
