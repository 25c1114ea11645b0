"""The live half of ConfigureStaticRoutes alone: nothing is installed or proven."""

import logging

from hostrouting import Host, HostRoutingConfig
from hostrouting.apply.carry_out import Apply
from hostrouting.apply.plan import NodePlan, Wanted
from hostrouting.apply.run import locked
from hostrouting.boot.boot import Boot
from phases import Context


def change_routes(
    ctx: Context, config: HostRoutingConfig, host: Host, *, waits: bool = True
) -> None:
    """Make the routes of a config those of hostrouting; wait for what may heal."""
    logger = logging.getLogger("live")
    with locked(ctx, host, Boot(host, logger=logger), logger) as run:
        Apply(run, Wanted(config, is_checked=False)).settle(NodePlan(), run.ctx, waits=waits)
