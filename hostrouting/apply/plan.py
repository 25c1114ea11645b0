"""The plan of a run: what it wants, and what it changes on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.apply.live import refuse_others
from hostrouting.host.cached_routing import with_cached_routing
from hostrouting.static_routes.entries import entries
from hostrouting.static_routes.forecast import Forecast, Forecaster
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.boot.installed_config import BootPart
    from hostrouting.boot.recorded import DiskStep
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Change, Context


def _no_parts(_forecast: Forecast) -> Sequence[BootPart]:
    return ()


class Wanted(NamedTuple):
    """What a run wants: all of a config, or the part of one task."""

    config: HostRoutingConfig
    #: Returns the boot files to install or remove, given the forecast.
    parts: Callable[[Forecast], Sequence[BootPart]] = _no_parts
    #: The config in force, whose addresses must not get worse either.
    earlier: HostRoutingConfig | None = None
    has_routes: bool = True
    #: False if nothing is checked although the config expects addresses.
    is_checked: bool = True
    #: True if changes that make an address worse degrade the run instead of being refused.
    force: bool = False

    def routes_on(self, node: Host) -> RoutePlan | None:
        """Return the plan of the routes for a snapshot of a node; None if they are left alone."""
        return plan_routes(self.config, node) if self.has_routes else None


@attrs.frozen(eq=False, repr=False)
class NodePlan:
    """What a run changes on a node, given one snapshot, and the consequences."""

    #: The changes of routes; None if the run leaves routes alone.
    routes: RoutePlan | None = None
    #: The check of the node as it will be.
    forecast: Forecast = attrs.field(factory=Forecast)
    #: Checks the node after the changes; None if nothing is checked.
    forecaster: Forecaster | None = None
    #: The snapshot, and the number of changes that the run had made before it.
    node: Host | None = None
    changes_before: int = 0
    #: The content of the boot files, the steps to install them, and the steps after the commit.
    parts: Sequence[BootPart] = ()
    files: Sequence[DiskStep] = ()
    rest: Sequence[DiskStep] = ()

    @property
    def entries(self) -> list[Change]:
        """The changes of routes as entries of a report."""
        return entries(self.routes) if self.routes is not None else []


def decide(ctx: Context, wanted: Wanted, host: Host, *, is_shown: bool = True) -> NodePlan:
    """Read a node, and return the plan of its routes; change nothing, and do not wait.

    A plan to be carried out includes a check of the node as it is, unless nothing is expected:
    then a dump of all routes would be wasted.
    """
    # An image has no routes to check.
    if not host.is_live:
        return NodePlan()
    with interruptible(ctx):
        forecaster = None
        if wanted.is_checked:
            forecaster = Forecaster(ctx, wanted.config, host, earlier=wanted.earlier)
        node = with_cached_routing(host) if forecaster is None else forecaster.node
        routes = wanted.routes_on(node)
        if not host.has_boot:
            refuse_others(host, routes)
        if forecaster is None or not (is_shown or forecaster.expects):
            return NodePlan(routes, node=node)
        if not is_shown:
            forecaster.look()
        return NodePlan(routes, forecaster.of(routes), forecaster, node)
