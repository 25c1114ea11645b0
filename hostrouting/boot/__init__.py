"""How a capability persists itself: its script and unit, and the gate that lets no machine start before it.

    Boot            install, remove, and the plans of them
    BootUnit        a oneshot with all its files, rendered by the capability; a Departure is one that goes
    generation      the scripts of all capabilities, which change at once
    steps           from the disk as it is to the disk as it should be; order: before or after the live machine
    gates           what is wrong with a gate; held: what its gate has refused
    with_shared     the functions that all boot scripts have, put into one
    assets/         hostrouting-ready.service, the gates' drop-in, what brings back those it refuses, those functions

    static-routes.service ───────┐ Before= and RequiredBy=
                                 ├──> hostrouting-ready.service <── ExecStartPre= of every gate, by a drop-in
    check-route-overlap.service ─┘

A gate that is refused leaves hostrouting-held@<gate>.service active, by which hostrouting-retry.service starts it once
routing is right. Stopping the gate stops that marker (PartOf=), so that a unit that was stopped stays down.

No other room writes hostrouting-ready.service, its links, or a gate's drop-in.
"""

from __future__ import annotations

from hostrouting.boot.boot import RELOAD, Boot
from hostrouting.boot.boot_script import with_shared
from hostrouting.boot.gates import gate_faults
from hostrouting.boot.held import held_gates, is_refused_now
from hostrouting.boot.layout import (
    BOOT_FOLDERS,
    READY_UNIT,
    RUNTIME_DIRECTORY,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    Departure,
)
from hostrouting.boot.order import install_around, is_refusal
from hostrouting.boot.recorded import RecordedFiles

__all__ = [
    "BOOT_FOLDERS",
    "READY_UNIT",
    "RELOAD",
    "RUNTIME_DIRECTORY",
    "SCRIPT_DIRECTORY",
    "UNIT_DIRECTORY",
    "Boot",
    "BootFile",
    "BootUnit",
    "Departure",
    "RecordedFiles",
    "gate_faults",
    "held_gates",
    "install_around",
    "is_refusal",
    "is_refused_now",
    "with_shared",
]
