"""`hostrouting reset`: everything of hostrouting removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.changing import run_task
from hostrouting.cli.command import ROOT, Command
from hostrouting.cli.shared import config_of, host_of
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.node.configure import Reset

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Remove everything that hostrouting installed."""
    # Reset removes everything, of any config; CONFIG only names the folder of a sweep's records.
    config = HostRoutingConfig() if arguments.config is None else config_of(arguments)
    host = host_of(arguments)
    return run_task(arguments, Reset(config, host=host), host)


COMMAND = Command(
    run=run,
    summary="remove everything that hostrouting installed, and restore swept objects",
    position=20,
    config="any config; only the records of a sweep with a backupDir need one",
    options=ROOT,
    changes=True,
    is_guessed=False,
)
