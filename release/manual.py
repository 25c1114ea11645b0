"""The manual page hostrouting(1), and the completions of shells, made from the parser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import shtab

from hostrouting import __version__
from hostrouting.cli.parser import HEADINGS, members_of, parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

#: The files of a configured node.
FILES: Final = {
    "/etc/aks-flex-node": (
        "the scripts and the program of the boot, and hostrouting.json: the installed config; an "
        "edit of it is in force after an apply"
    ),
    "/etc/aks-flex-node/hostrouting.disabled": "break-glass: while it exists, gates are open",
    "/run/hostrouting.disabled": "the same, until the next boot",
    "/etc/systemd/system": "the units that run them, and a drop-in for each gate",
    "/run/hostrouting": (
        "markers and records of this boot: route-overlap.ok or route-overlap.detected, never both"
    ),
    "/run/aks-flex-node": "copies of the markers, for programs that read those of AKSFlexNode",
    "/var/lib/hostrouting": "backups of ebtables and neighbours, from before a sweep",
}
#: The section EXAMPLES.
_EXAMPLES: Final = {
    "hostrouting init --cidr 172.16.8.0/22 > routing.json": "Begin a config.",
    "hostrouting check routing.json": "Check the node as it is; --wait 60 retries for a minute.",
    "hostrouting plan routing.json": "Show what an apply would change, and check the result.",
    "hostrouting apply routing.json": "Correct the node now and for every boot.",
    "hostrouting check --fix | hostrouting apply -": "Add the routes that fix this node.",
    "hostrouting explain 172.16.8.9": "Show which route and device decide.",
    "hostrouting record > node.json": "Record this node, to check it elsewhere:",
    "hostrouting check --from node.json": "Check the recorded node.",
    "hostrouting reset": "Remove all that hostrouting has installed.",
}
#: Its page of first aid is that of the manual.
_OPERATORS: Final = Path(__file__).parents[1] / "docs/operators.md"
_COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/hostrouting",
    "fish": "usr/share/fish/vendor_completions.d/hostrouting.fish",
    "zsh": "usr/share/zsh/vendor-completions/_hostrouting",
}
#: The exit statuses that `hostrouting --help` leaves out.
_OTHER_STATUSES: Final = (
    " An internal error is 3, too; report its traceback. 130, 131, 143: ended by SIGINT, SIGQUIT "
    "or SIGTERM; watch by SIGINT or SIGTERM: 0."
)
#: The words for which a shell completes paths.
_PATHS: Final = {"config": shtab.FILE, "root": shtab.DIRECTORY, "out": shtab.FILE}


def completions() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of the completions for each shell."""
    command = parser()
    for action in _actions(command):
        if action.dest in _PATHS:
            action.complete = _PATHS[action.dest]  # type: ignore[attr-defined] # as shtab wants it
    for shell, path in _COMPLETIONS.items():
        yield path, shtab.complete(command, shell)


def page() -> str:
    """Return hostrouting(1) as troff."""
    command = parser()
    usages = [_usage(subcommand) for subcommand in commands(command).values()]
    lines = [
        f'.TH HOSTROUTING 1 "" "hostrouting {__version__}" "User commands"',
        ".SH NAME",
        rf"hostrouting \- {troff((command.description or '').rstrip('.'))}",
        ".SH SYNOPSIS",
        *(line for usage in usages for line in (usage, ".br")),
        r"\fBhostrouting \-\-version\fR",
        *_first_aid(),
        *(line for group in groups(command) for line in _group(*group)),
        ".SH EXIT STATUS",
        troff((command.epilog or "").removeprefix("Exit status: ") + _OTHER_STATUSES),
        ".SH EXAMPLES",
        *(
            line
            for words, text in _EXAMPLES.items()
            for line in (".TP", f"\\fB{troff(words)}\\fR", text)
        ),
        ".SH FILES",
        *(line for path, text in FILES.items() for line in (".TP", rf"\fI{path}\fR", troff(text))),
        ".SH SEE ALSO",
        r"\fBhostrouting.json\fR(5), \fBip-route\fR(8), \fBsystemd.unit\fR(5)",
    ]
    return "\n".join(lines) + "\n"


def _first_aid() -> Iterator[str]:
    """Yield the section FIRST AID: its text, and the answer and command of each symptom."""
    section = _OPERATORS.read_text(encoding="utf-8").partition("\n## First aid\n")[2]
    text, _, table = section.partition("\n\n| Symptom |")
    yield from (".SH FIRST AID", troff(text.strip().replace("`", "")))
    for row in table.partition("\n\n")[0].splitlines()[2:]:
        symptom, printed, command = re.split(r" (?<!\\\\)\| ", row.strip("| "))
        yield from (".TP", rf"\fB{troff(symptom)}\fR", troff(printed.strip("`")), ".br")
        yield rf"\fB{troff(command.strip('`').replace(chr(92), ''))}\fR"


def _group(heading: str, members: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield f".SH COMMANDS THAT {heading.upper()}"
    for name, command in members.items():
        yield from _section(name, command)


def _section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f".SS {name}", troff(command.description or ""))
    for action in command._actions:  # noqa: SLF001 - argparse lacks a public list
        if action.dest != "help":
            yield from (".TP", _option(action), troff(action.help or ""))


def plain_usage(command: argparse.ArgumentParser) -> str:
    """Return the usage of a command in one line."""
    return " ".join(command.format_usage().split()).removeprefix("usage: ").replace("[-h] ", "")


def _usage(command: argparse.ArgumentParser) -> str:
    _, name, rest = plain_usage(command).split(" ", 2)
    return rf"\fBhostrouting {name}\fR {troff(rest)}"


def _option(action: argparse.Action) -> str:
    value = str(action.metavar or "|".join(map(str, action.choices or ())))
    words = [rf"\fB{troff(word)}\fR" for word in action.option_strings]
    return " ".join(
        [", ".join(words), rf"\fI{troff(value)}\fR" if value and action.nargs != 0 else ""]
    ).strip()


def commands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name."""
    choices = (action.choices for action in command._actions)  # noqa: SLF001
    return next(parsers for parsers in choices if isinstance(parsers, dict))


def groups(
    command: argparse.ArgumentParser,
) -> Iterator[tuple[str, dict[str, argparse.ArgumentParser]]]:
    """Yield the heading and the commands of each group, as `hostrouting --help` does."""
    for changes, heading in HEADINGS.items():
        yield heading, members_of(commands(command), changes=changes)


def _actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for each_command in (command, *commands(command).values()):
        yield from each_command._actions  # noqa: SLF001


def troff(text: str) -> str:
    """Return text for troff: its own characters escaped, and a hyphen that can be copied as one."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    # A line that begins so would be a request.
    return rf"\&{escaped}" if escaped[:1] in ".'" else escaped
