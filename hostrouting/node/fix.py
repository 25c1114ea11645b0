"""Complete a config with the routes that its node lacks, and prove them: `check --fix`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import FIX
from hostrouting.node.configure import Configure
from hostrouting.route_overlap import check_now
from hostrouting.static_routes import ConfigureStaticRoutes

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context


def fixed(
    ctx: Context, config: HostRoutingConfig, host: Host, *, seconds: float | None = None
) -> HostRoutingConfig | str:
    """Return the config with the routes that make its proof right, or why none do.

    It is the same config if that suffices. A late default route is waited for, as by any check. The
    proof is that of a plan, so nothing is changed.
    """
    if not host.is_live:
        return f"an image has no routes to be repaired; on a node made of it, run: {FIX}"
    if not check_now(ctx, config, host, seconds=seconds).is_proven:
        accepted = ConfigureStaticRoutes(config, host=host).accepted()
        config = attrs.evolve(config, static_routes=accepted)
    reason = ""
    # Routes that repair one finding may bring another one to light, but hardly ever twice.
    for _ in range(4):
        report, _, undecided = Configure(config, host=host).forecast(ctx)
        if undecided:
            return undecided
        if report is None or report.ok:
            return config
        reason = f"no routes of a config make this node right; with those that help:\n{report}"
        if not report.suggested_routes:
            break
        config = attrs.evolve(config, static_routes=report.merged_routes)
    return reason
