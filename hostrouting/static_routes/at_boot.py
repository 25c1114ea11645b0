"""The repair of static routes at a boot and before a gated unit starts: once, without a wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.base.errors import HostFileError
from hostrouting.boot.intent import config_in_force
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.static_routes.converge import log_consequences, repair
from hostrouting.static_routes.plan import plan_routes
from hostrouting.static_routes.reconcile import read, reconcile
from hostrouting.static_routes.refusals import giver
from phases import Change, Context, Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host

_logger = logging.getLogger(__name__)
#: Enough for a lock that is free, also where each processor has a queue of processes: 0.05 s passed
#: at a load of 15 before this one ran on.
_SECONDS_FOR_THE_LOCK = 0.5


class Outcome(NamedTuple):
    """The outcome of one repair."""

    changes: Sequence[Change]
    #: The reason for each route that is not in force.
    refusals: Sequence[str]
    #: True if a lease, a device, an address or a carrier may be late, and another repair may help.
    may_heal: bool
    #: How many routes the config has.
    wanted: int


def repair_once(ctx: Context, config: HostRoutingConfig, host: Host) -> Outcome:
    """Make the routes of a config those of hostrouting, as far as the node allows now.

    Raises `LockHeldError` soon if a run is under way: what it has changed may be undone.
    """
    made = Transaction(ctx)
    with host.lock.hold(ctx.child(timeout=_SECONDS_FOR_THE_LOCK)):
        # An apply may have ended while this process began.
        if config_in_force(host.files) != config:
            raise HostFileError("another config was applied just now")
        routes = config.static_routes.routes
        try:
            plan, may_heal = repair(made.ctx, plan_routes(config, host), host, _logger)
        except RouteRejectedError as error:
            # A removal: the kernel might take the route of another program.
            refusals = [*map(str, error.refusals), *error.left_behind]
            return Outcome(made.changes, refusals, may_heal=False, wanted=len(routes))
        after = read(host.routes, routes)
    log_consequences(plan.outcome, _logger)
    # What to do for a route that no default route completes.
    links = host.routes.links()
    steps = {family: f"; {giver(family, config.devs, links)}" for family in host.routes.families}
    # As the config has them, not as they were completed.
    configured = {route.route_key: route for route in routes}
    refusals = []
    for key, (_, reason) in plan.waiting.items():
        step = "" if key in plan.wanted else steps[configured[key].family]
        refusals.append(f"{configured[key]}: {reason}{step}")
    desired = [route for key, route in plan.wanted.items() if key not in plan.waiting]
    # The kernel accepted all of it, and here is what it has.
    lost = reconcile(desired, after, undecided=plan.waiting).changes
    refusals += [f"{change}: another program has changed it meanwhile" for change in lost]
    return Outcome(made.changes, refusals, may_heal or bool(lost), wanted=len(routes))
