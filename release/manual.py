"""The manual page of the command, and the completions of shells, made from its parser.

    python release/manual.py FOLDER

writes them below FOLDER.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import shtab

from hostrouting import __version__
from hostrouting.cli import parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_FILES: Final = {
    "/etc/aks-flex-node": "the scripts of the boot, and hostrouting.json: the config in force",
    "/etc/systemd/system": "the units that run them, and a drop-in for each gate",
    "/run/aks-flex-node": "markers and records of this boot",
}
_COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/hostrouting",
    "fish": "usr/share/fish/vendor_completions.d/hostrouting.fish",
    "zsh": "usr/share/zsh/vendor-completions/_hostrouting",
}
#: The words for which a shell completes paths.
_PATHS: Final = {"config": shtab.FILE, "root": shtab.DIRECTORY, "out": shtab.FILE}


def write(folder: Path) -> None:
    """Write the manual page and the completions below a folder."""
    # No time in it: the same sources are the same bytes.
    _write(folder / "usr/share/man/man8/hostrouting.8.gz", gzip.compress(page().encode(), mtime=0))
    command = parser()
    for action in _actions(command):
        if action.dest in _PATHS:
            action.complete = _PATHS[action.dest]  # type: ignore[attr-defined] # as shtab wants it
    for shell, path in _COMPLETIONS.items():
        _write(folder / path, shtab.complete(command, shell).encode())


def page() -> str:
    """Return the manual page as troff."""
    command = parser()
    usages = [_usage(each) for each in _commands(command).values()]
    lines = [
        f'.TH HOSTROUTING 8 "" "hostrouting {__version__}" "System administration"',
        ".SH NAME",
        rf"hostrouting \- {_text((command.description or '').rstrip('.'))}",
        ".SH SYNOPSIS",
        *(line for usage in usages for line in (usage, ".br")),
        r"\fBhostrouting \-\-version\fR",
        ".SH COMMANDS",
        *(line for name, each in _commands(command).items() for line in _section(name, each)),
        ".SH EXIT STATUS",
        _text((command.epilog or "").removeprefix("Exit status: ")),
        ".SH FILES",
        *(line for path, text in _FILES.items() for line in (".TP", rf"\fI{path}\fR", _text(text))),
        ".SH SEE ALSO",
        r"\fBip-route\fR(8), \fBsystemd.unit\fR(5)",
    ]
    return "\n".join(lines) + "\n"


def _section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f".SS {name}", _text(command.description or ""))
    for action in command._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.dest != "help":
            yield from (".TP", _option(action), _text(action.help or ""))


def _usage(command: argparse.ArgumentParser) -> str:
    name, _, rest = " ".join(command.format_usage().split()).removeprefix("usage: hostrouting ").partition(" ")
    return rf"\fBhostrouting {name}\fR {_text(rest)}"


def _option(action: argparse.Action) -> str:
    value = str(action.metavar or "|".join(map(str, action.choices or ())))
    words = [rf"\fB{_text(word)}\fR" for word in action.option_strings]
    return " ".join([", ".join(words), rf"\fI{_text(value)}\fR" if value and action.nargs != 0 else ""]).strip()


def _commands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [commands] = [action.choices for action in command._actions if isinstance(action.choices, dict)]  # noqa: SLF001
    return commands


def _actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for each in (command, *_commands(command).values()):
        yield from each._actions  # noqa: SLF001


def _text(text: str) -> str:
    """Return text for troff: its own characters escaped, and a hyphen that can be copied as one."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    # A line that begins so would be a request.
    return rf"\&{escaped}" if escaped[:1] in ".'" else escaped


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
