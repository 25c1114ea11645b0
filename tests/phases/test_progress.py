"""What a terminal shows of a run: without it, a person at a slow apply cannot tell that it works."""

import os
import pty
import sys
import time
from pathlib import Path

import pytest

from phases import Context, Event, print_progress, run, task
from phases.hosting import report_wait
from phases.testing import ManualClock


@task("node")
def _work(ctx: Context) -> None:
    ctx.progress("copying", 3, 10)
    ctx.progress("copying", 4)
    ctx.progress("checking \x1b[31m")
    report_wait(ctx, "a lease", seconds=30)
    report_wait(ctx, "another run", seconds=None)


def _shown(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a terminal gets of a run."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert run(_work, Context(clock=ManualClock()), observer=print_progress).ok
        written = ""
        while written.count("\r\x1b[K") < 7:
            written += os.read(ours, 1000).decode()
    os.close(ours)
    return written


def test_a_terminal_shows_what_a_task_does_and_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line replaces the one before, with the task, how far it is, and until when it waits; the
    last is empty. Control characters of a text do not reach the terminal.
    """
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "localtime", time.gmtime)
    lines = _shown(monkeypatch).split("\r\x1b[K")
    assert [line.rstrip("\r") for line in lines] == [
        "",
        "node: running",
        "node: copying 3 of 10",
        "node: copying 4",
        "node: checking ?[31m",
        "node: waiting for a lease, until 00:00:30 at most",
        "node: waiting for another run",
        "",
    ]


def test_a_file_gets_no_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stderr that is no terminal gets nothing: the log has the tasks."""
    path = tmp_path / "log"
    with path.open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        # A file has none, and the line would fail for that reason.
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 25)))
        assert run(_work, observer=print_progress).ok
    assert path.read_text() == ""


def test_events_have_the_progress() -> None:
    """An observer gets each progress as a value, between the begin and the end of the task."""
    events: list[Event] = []
    run(_work, observer=events.append)
    assert [event.status for event in events if event.progress] == ["progress"] * 3
    first = events[1].progress
    assert first is not None
    assert (first.doing, first.done, first.total) == ("copying", 3, 10)


def test_progress_outside_a_run_is_dropped() -> None:
    """A function that says how far it is works without a run."""
    Context().progress("copying", 3, 10)
