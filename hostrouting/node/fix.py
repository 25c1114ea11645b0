"""Add the routes that a node needs to its config, and check the result: `check --fix`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.base.commands import FIX
from hostrouting.static_routes.entries import accepted, checked_now
from hostrouting.static_routes.forecast import Forecaster
from hostrouting.static_routes.plan import plan_routes
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context


_LOST = "the check would pass, but {}"


def fixed(
    ctx: Context,
    config: HostRoutingConfig,
    host: Host,
    *,
    now: OverlapReport | None = None,
) -> HostRoutingConfig | str:
    """Return the config with the routes that make its check pass, or why there are none.

    The node's own addresses and blackholes may stay if everything else is fixed. A config that
    needs no change is returned as it is. A route that names its device or gateway stays, as long as
    the device exists and is up, and the gateway is on the link. No address is moved from a gateway
    that answers to one that does not. The check is that of a plan, so nothing is changed. `now` is
    the check of the node, if there is a recent one.
    """
    if not host.is_live:
        return f"an image has no routes to be repaired; on a node made of it, run: {FIX}"
    now = checked_now(ctx, config, host) if now is None else now
    if not now.is_correct:
        config = attrs.evolve(config, static_routes=accepted(plan_routes(config, host)))
    return _fixed(ctx, config, host, now)


def _fixed(
    ctx: Context, config: HostRoutingConfig, host: Host, now: OverlapReport
) -> HostRoutingConfig | str:
    """Return the config with the routes that help, or why there are none."""
    report = None
    reason = "no routes in a config fix this node"
    # Routes that repair one finding may bring another one to light, but hardly ever twice.
    for _ in range(4):
        with interruptible(ctx):
            forecaster = Forecaster(ctx, config, host, now=now)
            report, _, undecided, lost = forecaster.of(plan_routes(config, forecaster.node))
        if undecided:
            return undecided
        if report is None or report.ok or _fixes_the_rest(now, report):
            return _LOST.format("; ".join(map(str, lost))) if lost else config
        if not report.suggested_routes:
            break
        reason = "no routes in a config fix this node; with the routes that help"
        config = attrs.evolve(config, static_routes=report.merged_routes)
    return f"{reason}:\n{report}"


def _fixes_the_rest(now: OverlapReport, report: OverlapReport) -> bool:
    """Return True if only findings are left that no route should fix."""
    if report.refusals or not all(finding.stays for _, finding in report.findings):
        return False
    left = {finding for _, finding in report.findings}
    return left < {finding for _, finding in now.findings}


def replaced(before: HostRoutingConfig, after: HostRoutingConfig) -> Iterator[str]:
    """Yield a sentence for each route of a config that the fixed one does not have."""
    new = {route.route_key: route for route in after.static_routes.routes}
    for route in before.static_routes.routes:
        successor = new.get(route.route_key)
        if successor is None:
            yield f"staticRoutes: '{route}' is left out: the kernel refuses it as it is"
        elif successor != route:
            yield f"staticRoutes: '{route}' is replaced by '{successor}'"
