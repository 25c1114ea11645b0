"""Repair the static routes at boot and before a gated unit starts: once, without waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.base.errors import HostFileError
from hostrouting.boot.installed_config import config_in_force
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.static_routes.converge import log_consequences, repair
from hostrouting.static_routes.plan import plan_routes
from hostrouting.static_routes.reconcile import read, reconcile
from hostrouting.static_routes.refusals import default_route_advice
from phases import Change, Context, Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host

_logger = logging.getLogger(__name__)
#: Enough to take a free lock even if the CPUs are overloaded: at a load of 15 it took 0.05 s.
_SECONDS_FOR_THE_LOCK = 0.5


class Outcome(NamedTuple):
    """The outcome of one repair."""

    changes: Sequence[Change]
    #: The reason for each route that is not in force.
    refusals: Sequence[str]
    #: True if a late lease, device, address or carrier may still come, so another repair may help.
    may_heal: bool
    #: The number of routes in the config.
    wanted: int


def repair_once(ctx: Context, config: HostRoutingConfig, host: Host) -> Outcome:
    """Install the routes of a config, as far as the node allows now.

    Raises `LockHeldError` at once if a run is in progress, because it may be undone.
    """
    made = Transaction(ctx)
    with host.lock.hold(ctx.child(timeout=_SECONDS_FOR_THE_LOCK)):
        # An apply may have finished while this process was starting.
        if config_in_force(host.files) != config:
            raise HostFileError("another config has just been applied")
        routes = config.static_routes.routes
        try:
            plan, may_heal = repair(made.ctx, plan_routes(config, host), host, _logger)
        except RouteRejectedError as error:
            # A removal was refused; the kernel might remove a route of another program instead.
            refusals = [*map(str, error.refusals), *error.left_behind]
            return Outcome(made.changes, refusals, may_heal=False, wanted=len(routes))
        after = read(host.routes, routes)
    log_consequences(plan.outcome, _logger)
    # What to do about a route that is incomplete because there is no default route.
    links = host.routes.links()
    steps = {
        family: f"; {default_route_advice(family, config.devs, links)}"
        for family in host.routes.families
    }
    # As they are in the config, without the values that were filled in.
    configured = {route.route_key: route for route in routes}
    refusals = []
    for key, (_, reason) in plan.waiting.items():
        step = "" if key in plan.wanted else steps[configured[key].family]
        refusals.append(f"{configured[key]}: {reason}{step}")
    desired = [route for key, route in plan.wanted.items() if key not in plan.waiting]
    # The kernel accepted the changes; check what it has now.
    lost = reconcile(desired, after, undecided=plan.waiting).changes
    refusals += [f"{change}: another program has changed it in the meantime" for change in lost]
    return Outcome(made.changes, refusals, may_heal or bool(lost), wanted=len(routes))
