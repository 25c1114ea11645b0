"""The output of the command: answers on stdout, as text or JSON, and the log on stderr."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time
from contextlib import suppress
from operator import itemgetter
from select import select
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from hostrouting.base.commands import Painted, printable
from hostrouting.base.errors import HostFileError
from hostrouting.base.refused_files import why_refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Of syslog(3).
_PRIORITIES = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}
#: The outcomes of tasks that the error at the end repeats.
_REPEATED = ("failed", "cancelled")
#: The version of all JSON: it changes if a key is removed or gets another meaning.
_VERSION = 1
#: The most lines on stderr of a command that fails, in addition to two about its waits.
_MOST_LINES = 10
#: Red, yellow and green for the first words of verdicts and findings.
_COLOURS = {"wrong": 31, "error": 31, "waiting": 33, "warning": 33, "right": 32}
#: The beginnings of lines that people copy: the next command, and sections of a config.
_WHOLE = ("next: ", '  "')
#: Joins words that must stay on one line; no text of this program contains it.
_JOINT = "\N{NO-BREAK SPACE}"
#: Where a command begins within a line.
_COMMAND = re.compile(r"\b(run|run one of these|see): ")
#: The control characters of files that are shown, and of texts with several lines.
_KEPT = "\n\t"


def print_json(answer: Mapping[str, object]) -> None:
    """Write an answer as JSON to stdout, with the version of its form."""
    print_document({"version": _VERSION, **answer})


def print_document(document: Mapping[str, object]) -> None:
    """Write a document as JSON to stdout."""
    print_lines([json.dumps(document, indent=2)])


def json_line(document: Mapping[str, object]) -> str:
    """Return one of many answers as a line of JSON."""
    return json.dumps({"version": _VERSION, **document})


def has_colours() -> bool:
    """Return True if stdout is a terminal with colours, and the user wants them: no-color.org."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def width_of_stdout() -> int:
    """Return the columns of the terminal; a pipe and a file take lines as they are."""
    if not sys.stdout.isatty():
        return sys.maxsize
    wanted = os.environ.get("COLUMNS", "")
    columns = (
        int(wanted) if wanted.isdecimal() else os.get_terminal_size(sys.stdout.fileno()).columns
    )
    # A terminal without a size reports 0 columns; in less than 20 nothing can be read.
    return max(20, columns or 80)


def wrapped(texts: Iterable[str], *, width: int) -> Iterator[str]:
    """Yield the lines of texts, those of prose wrapped; a command stays whole, to be copied.

    >>> for line in wrapped(["error: a.service: is missing; run: hostrouting apply c"], width=24):
    ...     print(line)
    error: a.service: is
      missing;
      run: hostrouting apply c
    """
    for text in texts:
        if isinstance(text, Painted):
            yield text
            continue
        for line in text.split("\n"):
            if len(line) <= width or line.startswith(_WHOLE):
                yield line
            else:
                yield from _wrapped(line, width)


def _wrapped(line: str, width: int) -> Iterator[str]:
    """Yield the parts of a line; those after the first one are further to the right."""
    indent = " " * (len(line) - len(line.lstrip()))
    hanging = f"{indent}  "
    command = _COMMAND.search(line)
    prose = (line[: command.start()] if command else line).strip()
    if prose[1:2] == " ":
        # The sign of a change stays with its path.
        prose = prose.replace(" ", _JOINT, 1)
    parts = wrap(
        prose,
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (part.replace(_JOINT, " ") for part in parts)
    if command:
        yield hanging + line[command.start() :]


def painted(line: str) -> str:
    """Return a line of text whose first word is coloured on a terminal if it is a verdict."""
    word, colon, rest = line.partition(":")
    number = _COLOURS.get(word.partition(" ")[0])
    if not (number and colon and has_colours()):
        return line
    return Painted(f"\x1b[{number}m{word}\x1b[0m{colon}{printable(rest, kept=_KEPT)}")


def print_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout; a pipe that is closed early does not change the exit status.

    A terminal obeys the colours of `Painted` lines only.
    """
    try:
        sys.stdout.writelines(
            f"{line if isinstance(line, Painted) else printable(line, kept=_KEPT)}\n"
            for line in lines
        )
        sys.stdout.flush()
    except OSError as error:
        # The file that stdout leads to.
        target = os.path.realpath(f"/proc/self/fd/{sys.stdout.fileno()}")
        _discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            why = why_refused(error.errno, target)
            raise HostFileError(f"cannot write the answer to stdout: {why}") from error


def _discard(stream: TextIO) -> None:
    """Discard later output, and the interpreter's flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_streams() -> None:
    """Let a stderr that is full or closed change no exit status: the interpreter's flush would."""
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def prepare_streams() -> None:
    """Make sure that all three exist, and that stdout and stderr accept any text."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller closed them and wants only the exit status.
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # The name of a device is bytes and may not be valid text.
            stream.reconfigure(errors="backslashreplace")


def log_to_stderr(*, verbose: bool, talks: bool, is_brief: bool, as_json: bool = False) -> None:
    """Write the log to stderr: all if `verbose`, INFO too if the command `talks`, else warnings.

    A command that `is_brief` logs its waits and tracebacks at once, warnings in `end_log`, and
    nothing else.
    Unless the command talks, the files that it changes and the objects that it removes are left
    out, because the answer on stdout has them. If stderr is the journal, each line has its
    priority. A command that talks `as_json` writes it to stdout, too.
    """
    level = logging.WARNING
    if verbose:
        level = logging.DEBUG
    elif talks or is_brief:
        level = logging.INFO
    is_journal = _is_journal(sys.stderr)
    handler = (_JournalLines if is_journal else _Lines)(sys.stderr)
    handler.is_brief = is_brief
    if sys.stderr.isatty():
        # The rest of the line that shows the progress.
        handler.terminator = "\x1b[K\n"
    handler.addFilter(lambda record: talks or not {"action", "removed"} & vars(record).keys())
    # systemd writes a name before each line: "hostrouting" only if it started this process.
    name = "" if is_journal and os.getppid() == 1 else "hostrouting: "
    handlers = [handler, _JsonLines(logging.INFO)] if talks and as_json else [handler]
    logging.basicConfig(handlers=handlers, level=level, format=f"{name}%(message)s", force=True)


def end_log(*, failed: bool) -> None:
    """Write the warnings of a brief command; if it failed, the errors first, and not all."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Lines):
            handler.end(failed=failed)


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # no subscript on Python 3.10
    """A handler that writes each record, or, if it is brief, some at once and some at the end."""

    is_brief = False
    #: For the end of a brief command: the level of each line, negative, and the line.
    _kept: tuple[tuple[int, str], ...] = ()
    #: The first line of the last record.
    _last: str = ""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), kept=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        if not self.is_brief or "waits" in fields or record.exc_info:
            super().emit(record)
        # The verdict has the first step, and the error at the end the failures of tasks.
        elif record.levelno >= logging.WARNING and not (
            "advice" in fields or fields.get("outcome") in _REPEATED
        ):
            lines = self.format(record).split("\n")
            self._last = lines[0]
            self._kept += tuple((-record.levelno, line) for line in lines)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Go on without the log if stderr is full or closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def end(self, *, failed: bool) -> None:
        """See `end_log`."""
        lines = [line for _, line in self._kept]
        if failed and len(lines) > _MOST_LINES:
            lines = [line for _, line in sorted(self._kept, key=itemgetter(0))]
            if lines.index(self._last) >= _MOST_LINES - 1:
                # It says how the whole ended.
                lines.remove(self._last)
                lines.insert(0, self._last)
            more = len(lines) - (_MOST_LINES - 1)
            lines[-more:] = [f"and {more} more: hostrouting check"]
        # As with any log line, a closed stderr does not change the exit status.
        with suppress(OSError):
            self.stream.writelines(f"{line}\n" for line in lines)
        self._kept = ()


class _JournalLines(_Lines):
    """The same for the journal of systemd, with the priority before each line: sd-daemon(3)."""

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, 3)
        return f"<{priority}>{super().format(record)}".replace("\n", f"\n<{priority}>")


class _JsonLines(logging.Handler):
    """A handler that writes records to stdout as lines of JSON; a slow reader delays no repair."""

    _lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not select((), (sys.stdout,), (), 0)[1]:
            self._lost += 1
            return
        fields = vars(record)
        usual = "trouble" if record.levelno > logging.INFO else "note"
        subjects = [fields[name] for name in ("subject", "cidr", "route") if name in fields]
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "severity": record.levelname.lower(),
            "kind": fields.get("event") or usual,
            "subject": subjects[0] if subjects else None,
            "text": record.getMessage(),
        }
        # Of a report, and the step against what is stale.
        line |= {name: fields[name] for name in ("finding", "command") if name in fields}
        if self._lost:
            line["lost"] = self._lost
            self._lost = 0
        # Once stdout takes nothing, later lines are discarded.
        with suppress(HostFileError):
            print_lines([json_line(line)])


def _is_journal(stream: TextIO) -> bool:
    """Return True if the stream leads to the journal of systemd, and is not redirected."""
    with suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False
