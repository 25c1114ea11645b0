"""Complete a config with the routes that its node lacks, and prove them before anything is changed: `check --fix`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.findings import is_refused
from hostrouting.route_overlap.task import announced_fabric, check_now, prove_config
from hostrouting.static_routes import forecast, reconcile, resolve

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context


def fixed(
    ctx: Context, config: HostRoutingConfig, host: Host, *, seconds: float | None = None
) -> HostRoutingConfig | str:
    """Return the config with the routes that make its proof right once it is applied, or why none do.

    It is the same config if that needs no more. What is late is waited for, as by any check. The proof is that of a
    model of the node with the changes of an apply, so nothing is changed.
    """
    check_now(ctx.child(timeout=seconds), config, host)
    fabric = announced_fabric(ctx, config.route_overlap.fabric, host)
    routing = host.routes
    observed = routing.routes()
    model = Fib.of(routing.links(), observed, routing.rules())
    reason = ""
    # Routes that mend one finding may bring another one to light, but hardly ever twice.
    for _ in range(4):
        resolution = resolve(config.static_routes.routes, observed)
        outcome = reconcile(resolution.routes, observed)
        told = forecast(outcome, resolution.missing, model.links(), observed)
        lost = {str(route) for route, _ in resolution.missing}
        lost |= {str(change.after) for change in outcome.changes if change.after and not model.takes(change.after)}
        stuck = [change for change in told if is_refused(change.detail) or change.subject in lost]
        if stuck:
            return f"routes of the config cannot be added now: {'; '.join(map(str, stuck))}"
        try:
            report = prove_config(config, fabric, model.changed(outcome.changes) if outcome.changes else routing)
        except UnknownDecisionError as error:
            return f"the effect of a change cannot be foreseen: {error}"
        if report.ok:
            return config
        reason = f"no routes of a config make this node right; with those that help:\n{report}"
        if not report.suggested_routes:
            break
        config = attrs.evolve(config, static_routes=report.mended_routes)
    return reason
