"""The output of the command: answers on stdout, as text or JSON, and the log on stderr."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import TYPE_CHECKING

from hostrouting.exceptions import HostFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phases import Change

__all__ = ["colourful", "log_to_stderr", "prepare_streams", "print_changes", "print_json", "say"]


def print_json(answer: object) -> None:
    """Write the answer to stdout as JSON."""
    import json

    say(json.dumps(answer, indent=2))


def say(text: str, *, end: str = "\n") -> None:
    """Write to stdout; a reader that closes the pipe early does not change the exit status."""
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        # Later output, and the interpreter's flush at its end, is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise HostFileError(f"cannot write the answer to stdout: {error.strerror}") from error


def prepare_streams() -> None:
    """Make sure that stdout and stderr exist and accept any text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller closed them and wants only the exit status.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open to our end
        elif isinstance(stream, io.TextIOWrapper):
            # The name of a device is bytes and may not be valid text.
            stream.reconfigure(errors="backslashreplace")


def print_changes(changes: Sequence[Change]) -> None:
    """Write a line for each change to stdout, coloured on a terminal."""
    if colourful():
        colours = {"+": 32, "-": 31, "~": 33}
        lines = [f"\x1b[{colours[change.action]}m{change}\x1b[0m\n" for change in changes]
    else:
        lines = [f"{change}\n" for change in changes]
    say("".join(lines), end="")


def colourful() -> bool:
    """Return True if stdout is a terminal, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def log_to_stderr(*, verbose: bool, talks: bool) -> None:
    """Write the log to stderr: from DEBUG on if `verbose`, from INFO on if the command `talks`, else warnings."""
    level = logging.DEBUG if verbose else logging.INFO if talks else logging.WARNING
    handler = _Lines(sys.stderr)
    logging.basicConfig(handlers=[handler], level=level, format="hostrouting: %(message)s", force=True)


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # no subscript on Python 3.10
    """A handler that writes one line for each record, and one updated line for progress records.

    A progress record has `progress`: (done, total). It is shown only on a terminal.
    """

    _is_open = False

    def emit(self, record: logging.LogRecord) -> None:
        progress = getattr(record, "progress", None)
        if progress is None:
            self._close()
            super().emit(record)
        elif self.stream.isatty():
            self.stream.write(f"\r{self.format(record)}")
            self._is_open = True
            if progress[0] >= progress[1]:
                self._close()
            self.flush()

    def _close(self) -> None:
        if self._is_open:
            self.stream.write("\n")
            self._is_open = False
