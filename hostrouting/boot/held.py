"""Units that their gate has refused: which they are, how to have them started at once, and how to give them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import HELD_TEMPLATE, RETRY_UNIT

if TYPE_CHECKING:
    from hostrouting.host import ServiceManager
    from phases import Context

__all__ = ["LONGEST_ASK", "forget", "held_gates", "is_refused_now", "release"]

#: Looking at routing takes 30 s at most, and a refusal 3 s more; systemd kills what takes longer than TimeoutStartSec=.
LONGEST_ASK: Final = 33.0
#: When the marker became active, in microseconds of the clock that never steps.
_SINCE: Final = "ActiveEnterTimestampMonotonic"


def held_gates(ctx: Context, services: ServiceManager) -> list[str]:
    """The units that wait behind their gate now, sorted; one that asks just now is among them.

    One that restarts by itself may be missing for the moment in which it does.
    """
    prefix, suffix = HELD_TEMPLATE.split(".", 1)
    markers = services.running(ctx, HELD_TEMPLATE)
    return sorted(state.name.removeprefix(prefix).removesuffix(f".{suffix}") for state in markers)


def is_refused_now(ctx: Context, services: ServiceManager, gate: str) -> bool | None:
    """Whether a held unit was refused; None while it asks for the first time, False if it has passed meanwhile.

    Its marker is set before the question, for that may be killed: on a healthy node, too, each start has one for a
    moment.
    """
    state = services.state(ctx, gate)
    if state.is_running or state.sub_state in {"start", "start-post"}:
        return False
    if state.sub_state != "start-pre":
        return True
    since = services.settings(ctx, HELD_TEMPLATE.replace("@.", f"@{gate}."), _SINCE)[_SINCE]
    asks_first = since.isdigit() and ctx.clock.monotonic() - int(since) / 1e6 < LONGEST_ASK
    return None if asks_first else True


def release(ctx: Context, services: ServiceManager) -> list[str]:
    """Have hostrouting-retry.service look at once, and return what it will start if routing is right.

    Without this it would look within 10 s. It, and nothing else, starts what is held, since it knows what must stay
    down.
    """
    held = held_gates(ctx, services)
    if held:
        # Its pauses grow with time; after a start the first look follows in 2 s.
        services.stop(ctx, RETRY_UNIT)
        services.start(ctx, RETRY_UNIT)
    return held


def forget(ctx: Context, services: ServiceManager) -> list[str]:
    """Give up everything that is held, which then stays down until somebody starts it; return what that is."""
    held = held_gates(ctx, services)
    prefix, suffix = HELD_TEMPLATE.split(".", 1)
    for gate in held:
        services.stop(ctx, f"{prefix}{gate}.{suffix}")
    # Last, for the others would start it again.
    if services.state(ctx, RETRY_UNIT).active_state != "inactive":
        services.stop(ctx, RETRY_UNIT)
    return held
