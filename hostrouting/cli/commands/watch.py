"""`hostrouting watch`: the routing of an applied config kept right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.command import INSTALLED, Command
from hostrouting.cli.shared import run_optional
from hostrouting.node.watch import run as watch

if TYPE_CHECKING:
    from argparse import Namespace

_JSON = (
    "each line of stdout is an object: version, time (UTC), severity (info, warning, error), kind "
    "(keeps, repair, alarm, stale, trouble, over: the end of one of these three, note), subject "
    "(the route, CIDR, object or failure; null for several), text; an alarm has its finding, and "
    "what is stale a command; lost is the number of lines left out while the reader stood still; "
    "the last line has ok, and error if false"
)


def run(arguments: Namespace) -> int:
    """Keep the routing of a config right, until a signal ends it."""
    return run_optional(watch, arguments)


COMMAND = Command(
    run=run,
    summary="keep the routing of an applied config right, until SIGTERM or SIGINT",
    more=f"; with --json, {_JSON}",
    position=40,
    config=INSTALLED,
    changes=True,
    goes_on=True,
)
