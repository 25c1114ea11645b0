"""The optional capabilities of a node: the sweep, the probes and the watch.

This file and `node/watch.py` alone import their rooms, and late: a node without one of them loads
none of its code. A new capability has a section in `config/` and a room with its task, boot files,
findings and keeper. Add functions here that load these, and call them in `configure.py` (the task),
`boot_files.py` (the units), `check.py` (the findings); a keeper and a verb need no more than their
line in `node/watch.py` and `VERBS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.host import Host

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from hostrouting.azure.probe_snat import ConfigureProbeSNAT
    from hostrouting.azure.stale_cni import CleanStaleCNI
    from hostrouting.base.commands import Answer
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot import BootUnit
    from hostrouting.config import HostRoutingConfig
    from hostrouting.watch.unit import ConfigureWatch
    from phases import Context

    Run = Callable[[Host, Namespace, Callable[[], HostRoutingConfig]], Answer]

#: Repeated here, so that nodes without probes need not import their room.
PROBE_UNIT: Final = "probe-snat.service"

# --- tasks, which have the findings, too


def sweep_task() -> type[CleanStaleCNI]:
    """Return the task that removes stale objects of azure-vnet."""
    from hostrouting.azure.stale_cni import CleanStaleCNI

    return CleanStaleCNI


def probe_task() -> type[ConfigureProbeSNAT]:
    """Return the task of the rules for IPv6 probes."""
    from hostrouting.azure.probe_snat import ConfigureProbeSNAT

    return ConfigureProbeSNAT


def watch_task() -> type[ConfigureWatch]:
    """Return the task of the unit of the watch."""
    from hostrouting.watch.unit import ConfigureWatch

    return ConfigureWatch


def networkd_findings(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return the findings about systemd-networkd, which removes routes that it did not add."""
    from hostrouting.watch.networkd import networkd_findings as findings

    return findings(ctx, config, host)


# --- boot files


def probe_units(config: HostRoutingConfig, host: Host | None) -> list[BootUnit]:
    """Return the unit of the probes, if there is to be one."""
    if not config.probe_snat.enabled:
        return []
    from hostrouting.azure.probe_snat import boot_unit, rules_to_install

    return [boot_unit(rules_to_install(config, host=host), required=config.probe_snat.required)]


def watch_units(config: HostRoutingConfig, host: Host | None) -> list[BootUnit]:
    """Return the unit of the watch, if there is to be one."""
    if not config.watch.enabled:
        return []
    from hostrouting.watch.unit import boot_unit, command_path, has_duties

    if not has_duties(config):
        return []
    return [boot_unit(config, command_path(Host.given_or_live(host).files))]


# --- commands


class Verb(NamedTuple):
    """A command of a capability: its words, and the function that loads its code."""

    name: str
    text: str
    load: Callable[[], Run]
    description: str = ""
    #: Each with its help.
    switches: Sequence[tuple[str, str]] = ()


def _sweep() -> Run:
    from hostrouting.azure.stale_cni.command import run

    return run


def _watch() -> Run:
    from hostrouting.node.watch import run

    return run


_KEEP_RIGHT = "keep the routing of an applied config right, until SIGTERM or SIGINT"
_JSON_OF_A_WATCH = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind "
    "(keeps, repair, alarm, stale, trouble, over: the end of one of these three, note), subject "
    "(the route, CIDR, object or failure; "
    "null for several), text; lost is the number of lines left out while the reader "
    "stood still; the last line has ok, and error if false"
)
VERBS: Final = (
    Verb(
        "sweep",
        "remove the stale objects of azure-vnet; `reset` restores them",
        _sweep,
        switches=(
            ("--dry-run", "only show the objects that a sweep would remove"),
            ("--exit-code", "with --dry-run: exit with 4 if there is something to sweep"),
        ),
    ),
    Verb("watch", _KEEP_RIGHT, _watch, f"{_KEEP_RIGHT}; with --json, {_JSON_OF_A_WATCH}"),
)
