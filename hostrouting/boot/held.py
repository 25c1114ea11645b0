"""Units that their gate has refused: their names, how to start them at once, and how to give them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.layout import HELD_TEMPLATE, RETRY_UNIT
from hostrouting.host.units import instance_of

if TYPE_CHECKING:
    from hostrouting.host import ServiceManager
    from phases import Context

__all__ = ["LONGEST_ASK", "forget", "held_gates", "is_refused_now", "release"]

#: A check takes at most 30 s, and a refusal 3 s more; systemd kills a start that exceeds TimeoutStartSec=.
LONGEST_ASK: Final = 33.0
#: The time when the marker became active, in microseconds of the monotonic clock.
_SINCE: Final = "ActiveEnterTimestampMonotonic"


def held_gates(ctx: Context, services: ServiceManager) -> list[str]:
    """Return the held units, sorted; a unit that asks just now is among them.

    A unit that restarts by itself may be missing for the moment of its restart.
    """
    prefix, suffix = HELD_TEMPLATE.split(".", 1)
    markers = services.running(ctx, HELD_TEMPLATE)
    return sorted(state.name.removeprefix(prefix).removesuffix(f".{suffix}") for state in markers)


def is_refused_now(ctx: Context, services: ServiceManager, gate: str) -> bool | None:
    """Return True if a held unit was refused, False if it has passed since, None while it asks for the first time.

    Its marker is set before the question, which may be killed: on a healthy node, too, each start has one for a moment.
    """
    state = services.state(ctx, gate)
    if state.is_running or state.sub_state in {"start", "start-post"}:
        return False
    if state.sub_state != "start-pre":
        return True
    since = services.settings(ctx, instance_of(HELD_TEMPLATE, gate), _SINCE)[_SINCE]
    asks_first = since.isdigit() and ctx.clock.monotonic() - int(since) / 1e6 < LONGEST_ASK
    return None if asks_first else True


def release(ctx: Context, services: ServiceManager) -> list[str]:
    """Make hostrouting-retry.service check at once; return the units that it will start if routing is right.

    Without this call it would check within 10 s. Only this service starts held units, because it knows those that must
    stay down.
    """
    held = held_gates(ctx, services)
    if held:
        # Its pauses grow with time; after a start of the service the first check follows in 2 s.
        services.stop(ctx, RETRY_UNIT)
        services.start(ctx, RETRY_UNIT)
    return held


def forget(ctx: Context, services: ServiceManager) -> list[str]:
    """Give up all held units, which then stay down until they are started by hand; return their names."""
    held = held_gates(ctx, services)
    for gate in held:
        services.stop(ctx, instance_of(HELD_TEMPLATE, gate))
    # The retry unit last, because it starts the others.
    if services.state(ctx, RETRY_UNIT).active_state != "inactive":
        services.stop(ctx, RETRY_UNIT)
    return held
