"""Exit statuses of the command, and the command lines that outputs suggest."""

from __future__ import annotations

import shlex
from typing import Final

#: Exit statuses.
FINE = 0
BAD = 1
USAGE = 2
FAILED = 3
DIFFERS = 4

#: Marks the journal entries of runs that may have changed the node; see `hostrouting.node.history`.
MESSAGE_ID: Final = "4d4566596fe6490da4e61f5e01268c80"
#: Shows these entries.
SHOW_HISTORY: Final = f"journalctl MESSAGE_ID={MESSAGE_ID}"
CHECK: Final = "hostrouting check"
#: Adds the missing routes to the installed config and applies it.
FIX: Final = f"{CHECK} --fix | hostrouting apply -"


class Painted(str):
    """Text with colours for a terminal: its control characters are ours and are kept."""

    __slots__ = ()


def printable(text: str, *, kept: str = "") -> str:
    r"""Return text with its control characters escaped, except those in `kept`.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text
    )


def quoted(*words: str) -> str:
    r"""Return words quoted for a shell, without control characters.

    >>> print(quoted("ip", "link", "set", "a\x1b[2J", "up"))
    ip link set $'a\x1b[2J' up
    """
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{_in_ansi_c(word)}'" for word in words
    )


def _in_ansi_c(word: str) -> str:
    return "".join(
        chr(octet) if 32 <= octet < 127 and octet not in b"\\'" else f"\\x{octet:02x}"
        for octet in word.encode(errors="surrogateescape")
    )


def command_line(command: str, config: str, *, root: str | None = None) -> str:
    """Return a `hostrouting` command line, quoted for a shell.

    >>> command_line("apply", "my config.json", root="/srv/image")
    "hostrouting apply --root=/srv/image 'my config.json'"
    >>> command_line("check", "--odd.json")
    'hostrouting check ./--odd.json'
    """
    options = [] if root is None else [f"--root={root}"]
    # A lone `-` means stdin.
    is_option = config.startswith("-") and config != "-"
    return quoted("hostrouting", command, *options, f"./{config}" if is_option else config)
