"""`hostrouting watch`: keep the routes of an applied config in force."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE
from hostrouting.cli.command import INSTALLED, Command
from hostrouting.cli.shared import config_of, host_of, print_answer
from hostrouting.node import watch

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Keep the routes of a config in force until a signal ends it."""
    watch.run(host_of(arguments), arguments, partial(config_of, arguments))
    print_answer(arguments, {"ok": True}, ())
    return FINE


COMMAND = Command(
    run=run,
    summary="keep the routes of an applied config in force until SIGTERM or SIGINT",
    more="; with --json, each line of stdout is an object (see docs/reference.md)",
    position=40,
    config=INSTALLED,
    changes=True,
    goes_on=True,
)
