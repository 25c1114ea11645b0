"""print_progress: an observer that shows on a terminal what a run does now."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from phases.report import Event

_BEGUN = ("running", "retrying", "waiting", "progress")


def print_progress(event: Event) -> None:
    """Show on a terminal what a run does now: one line on stderr, which the next event replaces.

    It names the task and how far it is, or what it waits for and until when. Where stderr is no
    terminal, it shows nothing: the log has the tasks.

    >>> from phases import run, task
    >>> copy = task("copy")(lambda ctx: ctx.progress("copying", 3, 10))
    >>> run(copy, observer=print_progress).ok
    True
    """
    if event.change is None:
        show_line(line_of(event) if event.status in _BEGUN else "")


def line_of(event: Event) -> str:
    """Return the line for a task that goes on.

    >>> from phases.context import Progress
    >>> line_of(Event("node/copy", "progress", progress=Progress("copying", 3, 10)))
    'node/copy: copying 3 of 10'
    """
    words = event.status if event.progress is None else str(event.progress)
    if event.wait is not None:
        words += f" for {event.wait.reason}"
        if event.wait.seconds is not None:
            end = time.localtime(time.time() + event.wait.seconds)
            words += f", until {time.strftime('%X', end)} at most"
    return f"{event.path}: {words}"


def show_line(text: str) -> None:
    """Replace the line at the end of a terminal on stderr; on anything else show nothing."""
    # A terminal that went away ends no run.
    with suppress(OSError):
        if sys.stderr.isatty():
            # A terminal without a size reports 0 columns.
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            shown = "".join(each if each.isprintable() else "?" for each in text)
            # A log line then begins at the first column.
            sys.stderr.write(f"\r\x1b[K{shown[: columns - 1]}\r")
            sys.stderr.flush()
