"""The plan of a run: what it brings into force, and what that changes on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.apply.live import refuse_others
from hostrouting.host.reading import at_one_moment
from hostrouting.static_routes.entries import entries
from hostrouting.static_routes.forecast import Forecast, Forecaster
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.boot.intent import Part
    from hostrouting.boot.recorded import DiskStep
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Change, Context


def _no_parts(_forecast: Forecast) -> Sequence[Part]:
    return ()


class Wanted(NamedTuple):
    """What a run brings into force: all of a config, or the part of one task."""

    config: HostRoutingConfig
    #: Returns the boot files to install or remove, by a forecast.
    parts: Callable[[Forecast], Sequence[Part]] = _no_parts
    #: The config whose addresses count, too.
    earlier: HostRoutingConfig | None = None
    has_routes: bool = True
    #: False if its plan and its changes are not proven, though its config expects addresses.
    is_proven: bool = True
    #: True if what is worse degrades the run, and is not refused.
    force: bool = False

    def routes_on(self, node: Host) -> RoutePlan | None:
        """Return the plan of the routes by a reading of a node; None if they are left alone."""
        return plan_routes(self.config, node) if self.has_routes else None


@attrs.frozen(eq=False, repr=False)
class NodePlan:
    """What a run changes on a node, by one reading, and what that means."""

    #: The changes of routes, and what they stand on; None if the run leaves them alone.
    routes: RoutePlan | None = None
    #: The proof of the node with them.
    forecast: Forecast = attrs.field(factory=Forecast)
    #: Proves the node after them; None if it is not proven.
    forecaster: Forecaster | None = None
    #: The reading, and how many changes the run had made before it.
    node: Host | None = None
    changes_before: int = 0
    #: What the boot files are made of; the steps to them, and those that follow the commit.
    parts: Sequence[Part] = ()
    files: Sequence[DiskStep] = ()
    rest: Sequence[DiskStep] = ()

    @property
    def entries(self) -> list[Change]:
        """The changes of routes as entries of a report."""
        return entries(self.routes) if self.routes is not None else []


def decide(ctx: Context, wanted: Wanted, host: Host, *, is_shown: bool = True) -> NodePlan:
    """Read a node, and return the plan of its routes; change nothing, and do not wait.

    A plan that is carried out has the proof of the node as it is, too, and none where nothing is
    expected: a dump of all routes would be a waste.
    """
    # Nothing is proven in an image.
    if not host.is_live:
        return NodePlan()
    with interruptible(ctx):
        forecaster = None
        if wanted.is_proven:
            forecaster = Forecaster(ctx, wanted.config, host, earlier=wanted.earlier)
        node = at_one_moment(host) if forecaster is None else forecaster.node
        routes = wanted.routes_on(node)
        if not host.has_boot:
            refuse_others(host, routes)
        if forecaster is None or not (is_shown or forecaster.expects):
            return NodePlan(routes, node=node)
        if not is_shown:
            forecaster.look()
        return NodePlan(routes, forecaster.of(routes), forecaster, node)
