"""`hostrouting status`: the verdict on the node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import BAD, FAILED, FINE
from hostrouting.base.errors import ConfigMistake, InvalidConfigError
from hostrouting.cli.command import Command, seconds
from hostrouting.cli.shared import context, host_of, print_answer
from hostrouting.node.status import node_status
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from argparse import Namespace

    from hostrouting.host import Host
    from hostrouting.node.report import NodeReport

#: A year.
_ENDLESS: Final = 31_536_000.0
_SECONDS_BETWEEN_LOOKS: Final = 2.0
_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Print the verdict on the node."""
    host = host_of(arguments)
    with context(arguments.timeout) as ctx:
        status = node_status(ctx, host)
        if arguments.wait is not None:
            status = _wait(ctx, host, status, seconds=arguments.wait)
    if status.absence and not status.ok:
        raise InvalidConfigError([ConfigMistake("", status.absence)])
    print_answer(arguments, status.to_mapping(), status.lines())
    if "error" in status.severities:
        return BAD
    return FAILED if status.unread else FINE


def _wait(ctx: Context, host: Host, status: NodeReport, *, seconds: float) -> NodeReport:
    """Look again until the node is right, or the time has passed; log each new state."""
    # The end of the wait cuts no look short.
    waiting = ctx.child(seconds)
    logged = ""
    while not status.absence and status.verdict != "right":
        if status.sentence != logged:
            logged = status.sentence
            _logger.warning("waiting: %s", logged, extra={"waits": True})
        try:
            waiting.sleep(_SECONDS_BETWEEN_LOOKS)
        except DeadlineExceededError:
            break
        status = node_status(ctx, host)
    return status


COMMAND = Command(
    run=run,
    summary="show in one sentence if this node is right, and the next step; needs no root",
    position=10,
    options={
        "--wait": {
            "nargs": "?",
            "type": seconds,
            "const": _ENDLESS,
            "metavar": "S",
            "help": "until the node is right, for S seconds at most, and log each state until then",
        }
    },
    hints={
        **dict.fromkeys(
            ("show", "get", "routes"), "run: hostrouting status, or hostrouting explain ADDRESS"
        ),
        "list": "run: hostrouting status, or hostrouting render CONFIG",
    },
)
