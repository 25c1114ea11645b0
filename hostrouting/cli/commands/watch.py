"""`hostrouting watch`: the routing of an applied config kept right."""

from __future__ import annotations

from functools import partial

from hostrouting.cli.command import INSTALLED, Command
from hostrouting.cli.shared import run_optional
from hostrouting.node.watch import run

_JSON = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind "
    "(keeps, repair, alarm, stale, trouble, over: the end of one of these three, note), subject "
    "(the route, CIDR, object or failure; null for several), text; an alarm has its finding, and "
    "what is stale a command; lost is the number of lines left out while the reader stood still; "
    "the last line has ok, and error if false"
)

COMMAND = Command(
    run=partial(run_optional, run),
    summary="keep the routing of an applied config right, until SIGTERM or SIGINT",
    more=f"; with --json, {_JSON}",
    position=40,
    config=INSTALLED,
    changes=True,
    goes_on=True,
)
