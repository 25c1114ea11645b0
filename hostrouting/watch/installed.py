"""The config that `hostrouting watch` begins with, and what a watch keeps of one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hostrouting.base.errors import HostFileError, InvalidConfigError
from hostrouting.boot.installed_config import read_installed_config
from hostrouting.boot.reconciler import Trouble, in_one_line
from hostrouting.config.rules import write_duration
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    import logging

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

_SECONDS_BETWEEN_READS = 1.0


def wait_for_installed(
    ctx: Context, host: Host, logger: logging.Logger
) -> HostRoutingConfig | None:
    """Return the installed config as soon as it can be read; None if there is none.

    None, too, if the context ends before. For a service: one that ended because of a damaged file
    would be started again every few seconds. It is reported as ready, as after a first repair that
    failed, with the trouble as its state.
    """
    trouble = Trouble(logger, "the installed config cannot be read, so nothing is kept")
    while not ctx.over:
        before = str(trouble)
        try:
            config = read_installed_config(host.files)
        except (HostFileError, InvalidConfigError) as error:
            trouble.log(in_one_line(error))
        else:
            trouble.end()
            return config
        if str(trouble) != before:
            host.supervisor.notify(READY="1", STATUS=str(trouble))
        # A file sends no event.
        with suppress(*CONTEXT_OVER):
            ctx.sleep(_SECONDS_BETWEEN_READS)
    host.supervisor.notify(STOPPING="1")
    return None


def duties_of(config: HostRoutingConfig) -> str:
    """Return what a watch keeps of a config, in a line.

    >>> from hostrouting import HostRoutingConfig
    >>> duties_of(HostRoutingConfig()).partition("; ")[2]
    'checks everything every 60s and after network events'
    """
    parts = [
        f"static routes: {len(config.static_routes.routes)}",
        f"expected CIDRs: {len(config.route_overlap.cidrs)} ({config.route_overlap.mode})",
        *["the rules for IPv6 probes"] * config.probe_snat.enabled,
        *[f"stale objects of azure-vnet ({config.stale_cni.sweep})"] * config.stale_cni.enabled,
    ]
    interval = write_duration(config.watch.interval)
    return f"{', '.join(parts)}; checks everything every {interval} and after network events"
