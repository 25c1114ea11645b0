"""The live half of ConfigureStaticRoutes alone: nothing is installed or proven."""

import logging

from hostrouting import Host, HostRoutingConfig
from hostrouting.apply.run import locked
from hostrouting.apply.story import Story, Wanted
from hostrouting.boot.boot import Boot
from phases import Context


def change_routes(
    ctx: Context, config: HostRoutingConfig, host: Host, *, waits: bool = True
) -> None:
    """Make the routes of a config those of hostrouting; wait for what may heal."""
    logger = logging.getLogger("live")
    with locked(ctx, host, Boot(host, logger=logger), logger) as run:
        Story(Wanted(config, is_proven=False), run).settle(run.ctx, waits=waits)
