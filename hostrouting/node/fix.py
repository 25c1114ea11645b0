"""Complete a config with the routes that its node lacks, and prove them: `check --fix`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import FIX
from hostrouting.static_routes.entries import accepted, proven_now
from hostrouting.static_routes.forecast import Forecaster
from hostrouting.static_routes.plan import plan_routes
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context


_LOST = "the proof would be right, but {}"


def fixed(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    now: OverlapReport | None = None,
) -> HostRoutingConfig | str:
    """Return the config with the routes that make its proof right, or why none do.

    The node's own addresses and blackholes may stay, if the rest is mended. It is the same config
    if that suffices. A route that names its device or gateway stays, as long
    as these are there, up and on the link. No address is led from a gateway that answers to one
    that does not. The proof is that of a plan, so nothing is changed. `now` is the proof of the
    node, if that was made a moment ago.
    """
    if not host.is_live:
        return f"an image has no routes to be repaired; on a node made of it, run: {FIX}"
    now = proven_now(ctx, config, host) if now is None else now
    if not now.is_proven:
        config = attrs.evolve(config, static_routes=accepted(plan_routes(config, host)))
    return _completed(ctx, config, host, now)


def _completed(
    ctx: Context, config: HostRoutingConfig, host: Host, now: OverlapReport
) -> HostRoutingConfig | str:
    """Return the config with the routes that help, one proof after the other, or why none do."""
    report = None
    reason = "no routes of a config make this node right"
    # Routes that repair one finding may bring another one to light, but hardly ever twice.
    for _ in range(4):
        with interruptible(ctx):
            forecaster = Forecaster(ctx, config, host, now=now)
            report, _, undecided, lost = forecaster.of(plan_routes(config, forecaster.node))
        if undecided:
            return undecided
        if report is None or report.ok or _mends_the_rest(now, report):
            return _LOST.format("; ".join(map(str, lost))) if lost else config
        if not report.suggested_routes:
            break
        reason = "no routes of a config make this node right; with those that help"
        config = attrs.evolve(config, static_routes=report.merged_routes)
    return f"{reason}:\n{report}"


def _mends_the_rest(now: OverlapReport, report: OverlapReport) -> bool:
    """Return True if the findings that are left are those that no route should mend."""
    if report.refusals or not all(finding.stays for _, finding in report.findings):
        return False
    left = {finding for _, finding in report.findings}
    return left < {finding for _, finding in now.findings}


def replaced(before: HostRoutingConfig, after: HostRoutingConfig) -> Iterator[str]:
    """Yield a sentence for each route of a config that the completed one does without."""
    new = {route.route_key: route for route in after.static_routes.routes}
    for route in before.static_routes.routes:
        successor = new.get(route.route_key)
        if successor is None:
            yield f"staticRoutes: '{route}' is left out: the kernel refuses it as it is"
        elif successor != route:
            yield f"staticRoutes: '{route}' is replaced by '{successor}'"
