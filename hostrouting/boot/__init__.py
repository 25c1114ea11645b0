"""How a capability persists itself: its script and unit, and the gate that lets no machine start before it.

    Boot            install, start, remove and the plans of them, for one unit at a time
    BootUnit        a oneshot with all its files, rendered by the capability
    gates           what is wrong with a gate; held: what its gate has refused
    assets/         hostrouting-ready.service, the drop-in of every gate, and what brings back those that it refuses

    static-routes.service ───────┐ Before= and RequiredBy=
                                 ├──> hostrouting-ready.service <── ExecStartPre= of every gate, by a drop-in
    check-route-overlap.service ─┘

A gate that is refused leaves hostrouting-held@<gate>.service active, by which hostrouting-retry.service starts it once
routing is right. Stopping the gate stops that marker (PartOf=), so that what somebody stopped stays down.

Nobody else writes hostrouting-ready.service, its links, or a gate's drop-in.
"""

from __future__ import annotations

from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import (
    READY_UNIT,
    RUNTIME_DIRECTORY,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
)

__all__ = [
    "READY_UNIT",
    "RUNTIME_DIRECTORY",
    "SCRIPT_DIRECTORY",
    "UNIT_DIRECTORY",
    "Boot",
    "BootFile",
    "BootUnit",
]
