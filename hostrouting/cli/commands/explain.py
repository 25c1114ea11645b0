"""`hostrouting explain`: show which routes decide."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE, USAGE
from hostrouting.base.errors import HostFileError, InvalidConfigError
from hostrouting.boot.installed_config import require_installed_config
from hostrouting.cli.command import Command
from hostrouting.cli.shared import host_of, print_answer, refuse
from hostrouting.node.output import has_colours, width_of_stdout
from hostrouting.route_overlap.explain import explain_routing

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Print the routes that decide where the addresses leave."""
    host = host_of(arguments)
    overlap = None
    with suppress(HostFileError, InvalidConfigError):
        overlap = require_installed_config(host).route_overlap
    try:
        explanations = explain_routing(host, arguments.targets, overlap=overlap)
    except ValueError as error:
        return refuse(arguments, error, USAGE)
    width = width_of_stdout()
    texts = (explanation.lines(width=width, picture=has_colours()) for explanation in explanations)
    answer = {
        "verdict": "; ".join(explanation.verdict for explanation in explanations),
        "explanations": [explanation.to_mapping() for explanation in explanations],
    }
    print_answer(arguments, answer, chain.from_iterable(texts))
    return FINE


COMMAND = Command(
    run=run,
    summary="show which route and device each address uses, and why",
    position=50,
    options={
        "targets": {
            "nargs": "+",
            "metavar": "ADDRESS|CIDR",
            "help": "one or more, IPv4 or IPv6",
        }
    },
)
