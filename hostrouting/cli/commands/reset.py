"""`hostrouting reset`: remove everything that hostrouting installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.changing import run_task
from hostrouting.cli.command import ROOT, Command
from hostrouting.cli.shared import host_of
from hostrouting.config.sections import HostRoutingConfig
from hostrouting.node.configure import Reset

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Remove everything that hostrouting installed."""
    host = host_of(arguments)
    # An empty config removes everything.
    return run_task(arguments, Reset(HostRoutingConfig(), host=host), host)


COMMAND = Command(
    run=run,
    summary="remove everything that hostrouting installed",
    position=20,
    options=ROOT,
    changes=True,
    is_guessed=False,
)
