"""The findings of `check` about the rules: missing or drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot import Boot
from hostrouting.findings import NodeFinding
from hostrouting.probe_snat.boot_files import DEPARTURE, boot_unit, is_installed
from hostrouting.probe_snat.detect import NotWanted, Obstacle, taken_before
from hostrouting.probe_snat.ruleset import FAMILY, TABLE, TABLE_NAME, effect_of
from hostrouting.probe_snat.task import drift, wanted_now

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

__all__ = ["check_probe_snat", "wants_rules"]

_APPLY: Final = "run: hostrouting apply CONFIG"


def check_probe_snat(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return the reasons why IPv6 probes miss the pods of a live node. Needs CAP_NET_ADMIN; changes nothing.

    It does not wait. If the cloud does not answer, an installed unit counts as the answer of an earlier run; without
    one the error is raised.
    """
    ctx.check()
    if not (host.is_live and config.probe_snat.enabled):
        return []
    outcome = wanted_now(ctx, config, host, otherwise=is_installed(host.files) or None)
    if isinstance(outcome, NotWanted):
        return []
    if isinstance(outcome, Obstacle):
        return [NodeFinding("probe-snat", TABLE, f"{outcome.reason}; {outcome.step}")]
    unit = boot_unit(outcome, required=config.probe_snat.required)
    found = [
        NodeFinding("probe-snat", change.subject, f"is not as this config wants it at the next boot; {_APPLY}")
        for change in Boot(host, gates=config.gates).plan_install(ctx, unit)
        if DEPARTURE.name in change.subject or change.subject in DEPARTURE.paths
    ]
    listing = host.nftables.table(ctx, FAMILY, TABLE_NAME)
    if listing is None or effect_of(listing) != outcome:
        reason = "is missing" if listing is None else f"has drifted: {drift(listing)}"
        found.insert(0, NodeFinding("probe-snat", TABLE, f"{reason}; {_APPLY}"))
    taken = taken_before(outcome, host)
    if taken:
        found.append(NodeFinding("probe-snat", outcome.dev, taken, "warning"))
    return found


def wants_rules(ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    """Return True if the rules belong on a live node now; needs no root. Raise if the cloud does not answer."""
    return not isinstance(wanted_now(ctx, config, host, otherwise=None), NotWanted)
