"""`hostrouting record`: print the node as a line of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE
from hostrouting.cli.command import Command
from hostrouting.cli.shared import context, host_of
from hostrouting.fleet import take_record
from hostrouting.node.output import print_lines

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Print the node as a line of JSON."""
    with context(arguments.timeout) as ctx:
        print_lines([take_record(ctx, host_of(arguments)).to_line().decode()])
    return FINE


COMMAND = Command(
    run=run,
    summary="print this node as one line of JSON, for --from; needs no root",
    position=40,
)
