"""`hostrouting status`: show whether the node is healthy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import BAD, FAILED, FINE
from hostrouting.base.errors import ConfigMistake, InvalidConfigError
from hostrouting.cli.command import WAIT, Command
from hostrouting.cli.shared import awaited, context, host_of, print_answer
from hostrouting.node.status import node_status

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.node.status_report import StatusReport

#: A year.
_ENDLESS: Final = 31_536_000.0


def run(arguments: Namespace) -> int:
    """Print the verdict on the node."""
    host = host_of(arguments)
    with context(arguments.timeout) as ctx:
        status = awaited(ctx, arguments.wait, partial(node_status, ctx, host), _state)
    if status.absence and not status.ok:
        raise InvalidConfigError([ConfigMistake("", status.absence)])
    print_answer(arguments, status.to_mapping(), status.lines())
    if "error" in status.check.severities:
        return BAD
    return FAILED if status.check.unread else FINE


def _state(status: StatusReport) -> str:
    return "" if status.absence or status.check.verdict == "right" else status.sentence


COMMAND = Command(
    run=run,
    summary="show in one sentence whether this node is healthy, and the next step; needs no root",
    position=10,
    options={"--wait": {**WAIT, "nargs": "?", "const": _ENDLESS}},
)
