"""The machine -> a snapshot of all that the sweep decides by, but for what azure-vnet itself says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.stale_cni.sweep import Snapshot

if TYPE_CHECKING:
    from hostrouting.host import EbtablesReading, Host
    from phases import Context

__all__ = ["observe"]


def observe(ctx: Context, host: Host, *, bridge: str) -> tuple[Snapshot, EbtablesReading]:
    """One reading; of ebtables also what could not be seen, and the text for the backup."""
    # What may be stale first, and then who is alive: of a pod that comes in between nothing was seen.
    reading = host.ebtables.read(ctx)
    ipv4_routes = tuple(host.routes.routes())
    ipv6_routes = tuple(host.link_layer.routes())
    neighbours = tuple(host.link_layer.neighbours())
    ctx.check()
    snapshot = Snapshot(
        rules=reading.rules,
        neighbours=neighbours,
        ipv4_routes=ipv4_routes,
        ipv6_routes=ipv6_routes,
        devices=tuple(host.link_layer.devices()),
        stations=tuple(host.link_layer.stations(bridge)),
    )
    return snapshot, reading
