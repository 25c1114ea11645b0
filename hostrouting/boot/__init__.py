"""The boot half of a capability: its script, its unit, and the gates that wait for both.

    Boot            installs and removes units, and plans both
    BootUnit        a oneshot with all its files; a Departure is a unit to remove
    BootTemplate    the assets of a capability, from which it renders its BootUnit
    intent          the config in force, as a file
    generation      all scripts, the program and the intent, which are exchanged at once; a survey
                    of the disk
    program         the program that the scripts run where routing is not plain, as one zip file
    exchange        the steps by which a generation takes the place of another one
    steps           from the disk as it is to the disk as it should be
    gates           unsuitable, open, held and failed gates
    deployment      the live changes and boot files of one run, committed or undone together
    keeper          the part of a watch that a capability supplies
    task            the common parts of tasks
    assets/         hostrouting-ready.service, the drop-in of gates, the scripts that check routing
                    for gates and start them again, the functions that scripts share

    static-routes.service ───────┐ Before= and RequiredBy=
                                 ├──> hostrouting-ready.service, at boot
    check-route-overlap.service ─┘

    static-routes.sh ────────────┐                        ┌── ExecStartPre= of every gate
                                 ├──> hostrouting-ask.sh <┤
    check-route-overlap.sh ──────┘                        └── hostrouting-retry.service

A refused gate leaves hostrouting-held@<gate>.service active, and hostrouting-retry.service starts
the gate once routing is right. A stop of the gate stops that marker (PartOf=), so that a unit that
the user stopped stays down. hostrouting-waits@<unit>.service marks in the same way the units that
were about to start and require the gate: they start after it.

No other room writes hostrouting-ready.service, its links, or a gate's drop-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.late import on_first_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.boot.boot import RELOAD, Boot
    from hostrouting.boot.deployment import SECONDS_TO_UNDO, WAITING, Deployment, Waiting, deploying
    from hostrouting.boot.gates import held_gates, held_since, is_refused_now
    from hostrouting.boot.intent import (
        NOT_INSTALLED,
        Intent,
        Part,
        config_over,
        exits_evidence,
        exits_under,
        installed_checksum,
        installed_over,
        not_installed,
        read_intent,
        refuse_local_over,
        require_intent,
    )
    from hostrouting.boot.keeper import (
        WATCH_TASK,
        ConfigInForce,
        Keeper,
        SiblingKeeper,
        Trouble,
    )
    from hostrouting.boot.layout import (
        BOOT_FOLDERS,
        DROP_IN_NAME,
        FREE_UNITS,
        INTENT_PATH,
        RUNTIME_DIRECTORY,
        SCRIPT_DIRECTORY,
        UNIT_DIRECTORY,
        WAIT_SECONDS,
        WAITED,
        BootFile,
        BootTemplate,
        BootUnit,
        Departure,
        is_program,
        program_path,
        read_asset,
        units_in,
    )
    from hostrouting.boot.recorded import RecordedFiles
    from hostrouting.boot.task import NamedTask, NodeTask, PairTask, SectionTask

__all__ = [
    "BOOT_FOLDERS",
    "DROP_IN_NAME",
    "FREE_UNITS",
    "INTENT_PATH",
    "NOT_INSTALLED",
    "RELOAD",
    "RUNTIME_DIRECTORY",
    "SCRIPT_DIRECTORY",
    "SECONDS_TO_UNDO",
    "UNIT_DIRECTORY",
    "WAITED",
    "WAITING",
    "WAIT_SECONDS",
    "WATCH_TASK",
    "Boot",
    "BootFile",
    "BootTemplate",
    "BootUnit",
    "ConfigInForce",
    "Departure",
    "Deployment",
    "Intent",
    "Keeper",
    "NamedTask",
    "NodeTask",
    "PairTask",
    "Part",
    "RecordedFiles",
    "SectionTask",
    "SiblingKeeper",
    "Trouble",
    "Waiting",
    "config_over",
    "deploying",
    "exits_evidence",
    "exits_under",
    "held_gates",
    "held_since",
    "installed_checksum",
    "installed_over",
    "is_program",
    "is_refused_now",
    "not_installed",
    "program_path",
    "read_asset",
    "read_intent",
    "refuse_local_over",
    "require_intent",
    "units_in",
]

#: The names by their modules, which are imported late: the program of a boot needs few of them.
_HOMES = {
    "boot": ("Boot", "RELOAD"),
    "deployment": ("Deployment", "SECONDS_TO_UNDO", "WAITING", "Waiting", "deploying"),
    "gates": ("held_gates", "held_since", "is_refused_now"),
    "intent": (
        "Intent",
        "NOT_INSTALLED",
        "Part",
        "config_over",
        "exits_evidence",
        "exits_under",
        "installed_checksum",
        "installed_over",
        "not_installed",
        "read_intent",
        "refuse_local_over",
        "require_intent",
    ),
    "keeper": ("ConfigInForce", "Keeper", "SiblingKeeper", "Trouble", "WATCH_TASK"),
    "layout": (
        "BOOT_FOLDERS",
        "BootFile",
        "BootTemplate",
        "BootUnit",
        "DROP_IN_NAME",
        "Departure",
        "FREE_UNITS",
        "INTENT_PATH",
        "RUNTIME_DIRECTORY",
        "SCRIPT_DIRECTORY",
        "UNIT_DIRECTORY",
        "WAITED",
        "WAIT_SECONDS",
        "is_program",
        "program_path",
        "read_asset",
        "units_in",
    ),
    "recorded": ("RecordedFiles",),
    "task": ("NamedTask", "NodeTask", "PairTask", "SectionTask"),
}
__getattr__: Callable[[str], object] = on_first_use(__name__, _HOMES)
