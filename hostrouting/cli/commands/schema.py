"""`hostrouting schema`: the JSON Schema of the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.base.commands import FINE
from hostrouting.cli.command import Command
from hostrouting.config.schema import config_schema
from hostrouting.node.output import print_document

if TYPE_CHECKING:
    from argparse import Namespace


def run(_arguments: Namespace) -> int:
    """Print the JSON Schema of the config."""
    print_document(config_schema())
    return FINE


COMMAND = Command(
    run=run,
    summary="print the JSON Schema of CONFIG, for editors and for programs that write one",
    position=70,
)
