"""A command as a value, and the options that several commands share."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: As the `config` of a command.
INSTALLED: Final = "the installed config"


class Command(NamedTuple):
    """A command of `hostrouting`, defined in the file of `commands/` that has its name."""

    #: Returns the exit status.
    run: Callable[[argparse.Namespace], int]
    #: Its line in the help of all commands.
    summary: str
    #: The rest of its description in its own help.
    more: str = ""
    #: The help lists lower positions first, and commands of one position by name.
    position: int = 100
    #: What CONFIG defaults to; "" if it is required, None if the command takes none.
    config: str | None = None
    #: The keyword arguments of `add_argument` for each of its own options and arguments.
    options: Mapping[str, Mapping[str, Any]] = {}
    #: True if the error for a misspelt command may suggest it.
    is_guessed: bool = True
    #: True if it changes the node.
    changes: bool = False
    #: True if it runs until a signal; then its log is part of its answer.
    goes_on: bool = False

    @property
    def has_history(self) -> bool:
        """True if each run adds an entry to the journal, and logs little without -v."""
        return self.changes and not self.goes_on


def switch(text: str) -> dict[str, Any]:
    """Return the keyword arguments of an option without a value."""
    return {"action": "store_true", "help": text}


def seconds(text: str) -> float:
    """Parse the seconds of an option."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise argparse.ArgumentTypeError(f"a time must be more than 0 seconds, such as 60 (got {text})")


def folder(text: str) -> str:
    """Return the folder that an option names."""
    # An empty variable of a script would mean the working directory.
    if not text:
        raise argparse.ArgumentTypeError("the path of a folder must not be empty")
    return text


ROOT: Final[Mapping[str, Mapping[str, Any]]] = {
    "--root": {
        "type": folder,
        "metavar": "DIR",
        "help": "work on the image in DIR: files and units only, not the running kernel or systemd",
    }
}
WAIT: Final[Mapping[str, Any]] = {
    "type": seconds,
    "metavar": "S",
    "help": "wait until the node is healthy, at most S seconds, and log each change of state",
}
#: The commands that have it also check recorded nodes: see `recorded_nodes.py`.
RECORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--from": {
        "dest": "records",
        "nargs": "+",
        "metavar": "FILE",
        "help": "read recorded nodes instead of this one: files with one record per line, or - "
        "for stdin; put CONFIG before this option, or after --",
    },
}
