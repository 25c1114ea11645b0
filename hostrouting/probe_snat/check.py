"""What `check` says of the rules: missing or drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.findings import NodeFinding
from hostrouting.probe_snat.boot_files import is_installed
from hostrouting.probe_snat.detect import NotWanted, Obstacle
from hostrouting.probe_snat.ruleset import FAMILY, TABLE, TABLE_NAME, expected_listing
from hostrouting.probe_snat.task import drift, wanted_now

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

__all__ = ["check_probe_snat"]


def check_probe_snat(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """What keeps IPv6 probes from the pods of a live node; changes nothing, waits for nothing. Needs CAP_NET_ADMIN.

    A node whose cloud does not answer wants the rules if an earlier run found that it does.
    """
    ctx.check()
    if not (host.is_live and config.probe_snat.enabled):
        return []
    outcome = wanted_now(ctx, config, host, otherwise=is_installed(host.files))
    if isinstance(outcome, NotWanted):
        return []
    if isinstance(outcome, Obstacle):
        return [NodeFinding("probe-snat", TABLE, f"{outcome.reason}; {outcome.step}")]
    listing = host.nftables.table(ctx, FAMILY, TABLE_NAME)
    if listing == expected_listing(outcome):
        return []
    reason = "is missing" if listing is None else f"has drifted: {drift(listing)}"
    return [NodeFinding("probe-snat", TABLE, f"{reason}; run: hostrouting apply CONFIG")]
