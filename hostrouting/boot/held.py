"""Units that their gate has refused: which they are, how to have them started at once, and how to give them up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.layout import HELD_TEMPLATE, RETRY_UNIT

if TYPE_CHECKING:
    from hostrouting.host import ServiceManager
    from phases import Context

__all__ = ["forget", "held_gates", "release"]


def held_gates(ctx: Context, services: ServiceManager) -> list[str]:
    """The units that wait behind their gate now, sorted; one that asks just now is among them.

    One that restarts by itself may be missing for the moment in which it does.
    """
    prefix, suffix = HELD_TEMPLATE.split(".", 1)
    markers = services.running(ctx, HELD_TEMPLATE)
    return sorted(state.name.removeprefix(prefix).removesuffix(f".{suffix}") for state in markers)


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
