"""`hostrouting status`: the verdict on the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.commands import BAD, FAILED, FINE
from hostrouting.cli.command import Command
from hostrouting.cli.shared import context, host_of, print_answer
from hostrouting.exceptions import ConfigMistake, InvalidConfigError
from hostrouting.node.status import node_status

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Print the verdict on the node."""
    with context(arguments.timeout) as ctx:
        status = node_status(ctx, host_of(arguments))
    if status.absence:
        raise InvalidConfigError([ConfigMistake("", status.absence)])
    print_answer(arguments, status.to_mapping(), status.lines())
    if "error" in status.report.severities:
        return BAD
    return FAILED if status.report.unread else FINE


COMMAND = Command(
    run=run,
    summary="show in one sentence if this node is right, and the next step; needs no root",
    position=10,
    hints={
        **dict.fromkeys(
            ("show", "get", "routes"), "run: hostrouting status, or hostrouting explain ADDRESS"
        ),
        "list": "run: hostrouting status, or hostrouting render CONFIG",
    },
)
