"""The parser of the command, made of the values in `commands/`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from hostrouting import __version__
from hostrouting.base.commands import USAGE, printable
from hostrouting.boot.layout import INTENT_PATH
from hostrouting.cli.command import seconds, switch
from hostrouting.cli.commands import all_commands, command_named
from hostrouting.config.wire import closest
from hostrouting.node.output import end_streams, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Of commands without these options: `shared.py` and `changing.py` read them.
_ABSENT: Final = {"root": None, "live": False, "dry_run": False}
#: In the order of the help, by the value of `changes`.
HEADINGS: Final = {False: "only read", True: "change the node"}


class _Formatter(argparse.HelpFormatter):
    """The help, with the commands in two groups."""

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse lacks these
            super().add_argument(action)
            return
        for changes, heading in HEADINGS.items():
            members = members_of(action.choices, changes=changes)
            shown = action._get_subactions()  # noqa: SLF001
            self.start_section(heading)
            self.add_arguments(each for each in shown if each.dest in members)
            self.end_section()


def members_of(
    parsers: Mapping[str, argparse.ArgumentParser], *, changes: bool
) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands that change the node, or of the others, by name."""
    return {
        name: parser
        for name, parser in parsers.items()
        if parser.get_default("chosen").changes == changes
    }


def parser(*, as_json: bool = False, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command; with `as_json` it reports usage errors as JSON.

    The next step in an error is that of the command among the `words`.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            message = printable(f"{message}{_step(message, words, commands.choices)}")
            if as_json:
                print_json({"ok": False, "error": message})
            try:
                # For some Pythons a stderr that takes nothing is an error.
                with suppress(OSError):
                    super().error(message)
                sys.exit(USAGE)
            finally:
                end_streams()

    # Without a width, argparse loads shutil to find out how wide the terminal is.
    formatter = partial(_Formatter, width=78)
    # They stand before the command or after it, where a default would hide the former.
    common = Parser(add_help=False, formatter_class=formatter, argument_default=argparse.SUPPRESS)
    common.add_argument("--json", **switch("the answer as JSON"))
    common.add_argument("-v", "--verbose", **switch("write more to stderr"))
    common.add_argument(
        "--timeout", type=seconds, metavar="S", help="the limit for the run, in seconds"
    )
    root = Parser(
        prog="hostrouting",
        formatter_class=formatter,
        allow_abbrev=False,
        parents=[common],
        description="Make a Kubernetes node's host routing right, and prove it.",
        epilog="Exit status: 0 fine; 1 the answer is bad; 2 usage or an invalid config; 3 it could "
        "not be done; 4 plan --exit-code, sweep --dry-run --exit-code: "
        "there is something to change.",
    )
    root.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    commands = root.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )

    # With its own command alone, the parser is made in a fifth of the instructions.
    own = command_named(words[0]) if words else None
    for name, command in (all_commands() if own is None else {words[0]: own}).items():
        added = commands.add_parser(
            name,
            help=command.summary,
            description=command.summary + command.more,
            formatter_class=formatter,
            allow_abbrev=False,
            parents=[common],
        )
        added.set_defaults(chosen=command, verdict="", **_ABSENT)
        if command.config is not None:
            text = (
                "a JSON file, or - for stdin: the hostRouting object, or a whole config that has it"
            )
            nargs = None
            if command.config:
                text += f"; without it: {command.config}"
                nargs = "?"
            added.add_argument("config", nargs=nargs, metavar="CONFIG", help=text)
            text = "accept a CONFIG that installs nothing, which means: remove everything"
            added.add_argument("--allow-empty", **switch(text))
        for option, keywords in command.options.items():
            added.add_argument(option, **keywords)
    return root


def _step(
    message: str, words: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
) -> str:
    """Return the next step after a usage error, as the end of its message."""
    chosen = next((commands[word] for word in words if word in commands), None)
    known = re.findall(r"(?<!\w)-[\w-]+", chosen.format_usage()) if chosen else []
    if message.endswith("required: CONFIG"):
        installed = os.path.exists(INTENT_PATH)  # noqa: PTH110 (slow)
        also = f"; the installed one is {INTENT_PATH}" if installed else ""
        return f"; give a JSON file, or - for stdin{also}"
    match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    option = re.search(r"unrecognized arguments: (?:.* )?--(\w[\w-]*)", message)
    if match:
        never = {name for name, command in all_commands().items() if not command.is_guessed}
        known = [name for name in re.findall(r"[\w-]+", match[2]) if name not in never]
        # Short words are soon similar: "repair" is to "explain".
        meant = closest(match[1], known, similarity=0.75)
    else:
        by_word = {name.lstrip("-"): name for name in known}
        meant = by_word.get((option and closest(option[1], by_word)) or "")
    if meant:
        return f"; did you mean {meant!r}?"
    if "--cidr" in known:
        return "; give --cidr once for each expected CIDR"
    return f"; for its words: {chosen.prog if chosen else 'hostrouting'} --help"
