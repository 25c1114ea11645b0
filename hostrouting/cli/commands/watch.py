"""`hostrouting watch`: the routing of an applied config kept right."""

from __future__ import annotations

from functools import partial

from hostrouting.cli.command import INSTALLED, Command
from hostrouting.cli.shared import run_optional
from hostrouting.node.watch import run

COMMAND = Command(
    run=partial(run_optional, run),
    summary="keep the routing of an applied config right, until SIGTERM or SIGINT",
    more="; with --json, each line of stdout is an object (docs/reference.md)",
    position=40,
    config=INSTALLED,
    changes=True,
    goes_on=True,
)
