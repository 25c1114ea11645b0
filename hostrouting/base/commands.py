"""The command: its exit statuses, its answers, and the command lines that outputs name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Exit statuses.
FINE, BAD, USAGE, FAILED, DIFFERS = 0, 1, 2, 3, 4

#: The journal's entries of all runs that may have changed a node: see `hostrouting.node.history`.
MESSAGE_ID: Final = "4d4566596fe6490da4e61f5e01268c80"
#: The command line that shows them.
SHOW_HISTORY: Final = f"journalctl MESSAGE_ID={MESSAGE_ID}"
CHECK: Final = "hostrouting check"
#: Complete the installed config with the routes that the node lacks, and apply it.
FIX: Final = f"{CHECK} --fix | hostrouting apply -"


class Answer(NamedTuple):
    """The answer of an optional command, as JSON and as text, and its exit status."""

    mapping: Mapping[str, object]
    lines: Iterable[str] = ()
    status: int = FINE
    error: BaseException | None = None


def command_line(command: str, config: str, *, root: str | None = None) -> str:
    """Return a command line of `hostrouting`, quoted for a shell.

    >>> command_line("apply", "my config.json", root="/srv/image")
    "hostrouting apply --root=/srv/image 'my config.json'"
    >>> command_line("check", "--odd.json")
    'hostrouting check ./--odd.json'
    """
    # Imported late: a node that is right needs no command.
    import shlex

    options = [] if root is None else [f"--root={root}"]
    # A lone `-` is stdin.
    is_option = config.startswith("-") and config != "-"
    return shlex.join(["hostrouting", command, *options, f"./{config}" if is_option else config])
