"""The optional capabilities of a node: the sweep, the probes and the watch.

This file and `node/watch.py` alone import their rooms, and late: a node without one of them loads
none of its code. Functions here load what `configure.py` (the task), `boot_files.py` (the units),
`check.py` (the findings) and `cli/commands/` (the command) call; CONTRIBUTING.md has all steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.host import Host

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

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
    return [boot_unit(config, command_path(Host.given_or_live(host)))]


# --- commands


def sweep_command() -> Run:
    """Return the function of `hostrouting sweep`."""
    from hostrouting.azure.stale_cni.report import run_sweep as run

    return run
