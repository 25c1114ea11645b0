"""A command as a value, and the words that several commands have."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: As the `config` of a command.
INSTALLED: Final = "the installed config"


class Command(NamedTuple):
    """A command of `hostrouting`, made in its file of `commands/`, which has its name."""

    #: Returns the exit status.
    run: Callable[[argparse.Namespace], int]
    #: Its line in the help of all commands.
    summary: str
    #: The rest of its description in its own help.
    more: str = ""
    #: The help lists lower positions first, and commands of one position by name.
    position: int = 100
    #: What CONFIG is if it is left out; "" if it must not be, None without a CONFIG.
    config: str | None = None
    #: The keywords of `add_argument` for each word of its own.
    options: Mapping[str, Mapping[str, Any]] = {}
    #: True if the error of a misspelled command may propose it.
    is_guessed: bool = True
    #: True if it changes the node.
    changes: bool = False
    #: True if it runs until a signal: its log is a part of its answer.
    goes_on: bool = False

    @property
    def has_history(self) -> bool:
        """True if each run leaves an entry in the journal, and logs little without -v."""
        return self.changes and not self.goes_on


def switch(text: str) -> dict[str, Any]:
    """Return the keywords of an option without a value."""
    return {"action": "store_true", "help": text}


def seconds(text: str) -> float:
    """Return the seconds that an option gives."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise argparse.ArgumentTypeError(f"a time must be more than 0 seconds, such as 60 (got {text})")


def folder(text: str) -> str:
    """Return the path of a folder that an option names."""
    # An empty variable of a script would stand for the working directory.
    if not text:
        raise argparse.ArgumentTypeError("the path of a folder must not be empty")
    return text


ROOT: Final[Mapping[str, Mapping[str, Any]]] = {
    "--root": {
        "type": folder,
        "metavar": "DIR",
        "help": "an image: files and units below DIR, nothing live",
    }
}
WAIT: Final[Mapping[str, Any]] = {
    "type": seconds,
    "metavar": "S",
    "help": "until the node is right, for S seconds at most, and log each state until then",
}
#: The commands that have them also prove recorded nodes: `prove_records` in `recorded_nodes.py`.
RECORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--from": {
        "dest": "records",
        "nargs": "+",
        "metavar": "FILE",
        "help": "of recorded nodes instead, in files with a line for each, or - for stdin; CONFIG "
        "comes before this option, or after --",
    },
}
