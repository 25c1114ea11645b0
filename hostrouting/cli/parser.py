"""The argument parser of the command, built from the values in `commands/`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hostrouting import __version__
from hostrouting.base.commands import USAGE, printable
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.cli.command import seconds, switch
from hostrouting.cli.commands import all_commands, command_named
from hostrouting.config.wire import closest
from hostrouting.node.output import end_streams, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.cli.command import Command

#: The defaults for commands without these options, which `shared.py` and `changing.py` read.
_ABSENT: Final = {"root": None, "live": False, "dry_run": False}
#: The headings of the help, in its order, by the value of `changes`.
HEADINGS: Final = {False: "only read", True: "change the node"}
_EXIT_STATUS: Final = (
    "Exit status: 0 success; 1 the check failed; 2 usage error or invalid config; 3 the command "
    "could not do its work; 4 something would change (plan --exit-code, sweep --dry-run "
    "--exit-code)."
)


class _Formatter(argparse.HelpFormatter):
    """The help, with the commands in two groups."""

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - there is no public name
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


class _Parser(argparse.ArgumentParser):
    """A parser whose usage errors name the next step, and are JSON if the answer would be."""

    def __init__(
        self,
        *,
        as_json: bool,
        words: Sequence[str],
        known: Mapping[str, argparse.ArgumentParser],
        **keywords: Any,
    ) -> None:
        """`words` are the user's, and `known` has the parsers of the commands by name."""
        # Without a width, argparse imports shutil to find the width of the terminal.
        super().__init__(formatter_class=partial(_Formatter, width=78), **keywords)
        self._as_json = as_json
        self._words = words
        self._known = known

    def error(self, message: str) -> NoReturn:
        """Print the error and the next step, and exit."""
        message = printable(f"{message}{_step(message, self._words, self._known)}")
        if self._as_json:
            print_json({"ok": False, "error": message})
        try:
            # Some versions of Python fail if stderr cannot be written.
            with suppress(OSError):
                super().error(message)
            sys.exit(USAGE)
        finally:
            end_streams()


def parser(*, as_json: bool = False, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command; with `as_json` it reports usage errors as JSON.

    The next step in an error depends on the command among the `words` of the user.
    """
    known: dict[str, argparse.ArgumentParser] = {}
    errors: dict[str, Any] = {"as_json": as_json, "words": words, "known": known}
    common = _Parser(**errors, add_help=False, argument_default=argparse.SUPPRESS)
    _add_common_options(common)
    root = _Parser(
        **errors,
        prog="hostrouting",
        allow_abbrev=False,
        parents=[common],
        description="Fix the host routing of a Kubernetes node, and verify it.",
        epilog=_EXIT_STATUS,
    )
    root.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    commands = root.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    # If the command is known, building its parser alone takes a fifth of the time.
    own = command_named(words[0]) if words else None
    for name, command in (all_commands() if own is None else {words[0]: own}).items():
        added = commands.add_parser(
            name,
            **errors,
            help=command.summary,
            description=command.summary + command.more,
            allow_abbrev=False,
            parents=[common],
        )
        _add_arguments(added, command)
        known[name] = added
    return root


def _add_common_options(common: argparse.ArgumentParser) -> None:
    """Add the options that may come before the command or after it.

    They have no defaults, because a default after the command would override a value before it.
    """
    common.add_argument("--json", **switch("print the answer as JSON"))
    common.add_argument("-v", "--verbose", **switch("write more to stderr"))
    common.add_argument("--timeout", type=seconds, metavar="S", help="stop after S seconds")


def _add_arguments(added: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments of a command to its parser."""
    added.set_defaults(chosen=command, verdict="", **_ABSENT)
    if command.config is not None:
        text = "a JSON file, or - for stdin: the hostRouting object, or a config that contains it"
        if command.config:
            text += f"; default: {command.config}"
        nargs = "?" if command.config else None
        added.add_argument("config", nargs=nargs, metavar="CONFIG", help=text)
        text = "accept a CONFIG that installs nothing, which removes everything"
        added.add_argument("--allow-empty", **switch(text))
    for option, keywords in command.options.items():
        added.add_argument(option, **keywords)


def _step(
    message: str, words: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
) -> str:
    """Return the next step after a usage error, as the end of its message."""
    chosen = next((commands[word] for word in words if word in commands), None)
    known = re.findall(r"(?<!\w)-[\w-]+", chosen.format_usage()) if chosen else []
    if message.endswith("required: CONFIG"):
        installed = os.path.exists(CONFIG_PATH)  # noqa: PTH110 (slow)
        also = f"; the installed one is {CONFIG_PATH}" if installed else ""
        return f"; give a JSON file, or - for stdin{also}"
    match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    option = re.search(r"unrecognized arguments: (?:.* )?--(\w[\w-]*)", message)
    if match:
        never = {name for name, command in all_commands().items() if not command.is_guessed}
        known = [name for name in re.findall(r"[\w-]+", match[2]) if name not in never]
        # Short words are easily similar: "repair" resembles "explain".
        meant = closest(match[1], known, similarity=0.75)
    else:
        by_word = {name.lstrip("-"): name for name in known}
        meant = by_word.get((option and closest(option[1], by_word)) or "")
    if meant:
        return f"; did you mean {meant!r}?"
    if "--cidr" in known:
        return "; give --cidr once for each expected CIDR"
    return f"; see: {chosen.prog if chosen else 'hostrouting'} --help"
