"""`hostrouting init`: print a first config for this node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE, USAGE
from hostrouting.cli.command import Command
from hostrouting.cli.shared import context, host_of, refuse
from hostrouting.node.first_config import first_config
from hostrouting.node.output import print_document
from hostrouting.node.units import with_read_units

if TYPE_CHECKING:
    from argparse import Namespace

_logger = logging.getLogger("hostrouting")


def run(arguments: Namespace) -> int:
    """Print a first config for this node, and to stderr where its values come from."""
    try:
        with context(arguments.timeout) as ctx:
            host = with_read_units(ctx, host_of(arguments), ())
            document, lines = first_config(ctx, host, arguments.cidr)
    except ValueError as error:
        return refuse(arguments, f"{error}; give --cidr once for each expected CIDR", USAGE)
    print_document(document)
    for line in lines:
        _logger.warning("%s", line)
    return FINE


COMMAND = Command(
    run=run,
    summary="print a first CONFIG for this node, in WARN mode",
    position=70,
    options={
        "--cidr": {
            "action": "append",
            "default": [],
            "metavar": "CIDR",
            "help": "an expected CIDR; repeat for several",
        }
    },
)
