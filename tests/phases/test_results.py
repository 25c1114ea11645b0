"""The results, errors and interrupts of tasks in the JSON, the tree and the log of each run."""

import enum
import json
import logging
import os
import re
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import attrs
import pytest
from support.golden import assert_golden

from phases import (
    CancelledError,
    Change,
    CommandFailedError,
    Context,
    PhaseError,
    Report,
    Serial,
    Task,
    execute,
    run,
    task,
    with_retry,
)
from phases.testing import ManualClock


@attrs.frozen
class Lease:
    address: str
    until: date


@dataclass
class Disk:
    path: Path
    sizes: tuple[int, ...]


class Port(NamedTuple):
    number: int
    open: bool


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Proof:
    def to_mapping(self) -> dict[str, object]:
        return {"ok": True, "ports": (Port(80, True),)}


class Broken:
    def __repr__(self) -> str:
        return "<broken>"

    def to_mapping(self) -> object:
        raise KeyError("lost")


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("mute")


CIRCLE: list[object] = [1]
CIRCLE.append(CIRCLE)

#: A value, and the part of the mapping that shows it.
RESULTS: list[tuple[object, dict[str, object]]] = [
    (None, {"result": None}),
    (42, {"result": 42}),
    (True, {"result": True}),
    (1.5, {"result": 1.5}),
    (float("nan"), {"result": "nan", "repr": True}),
    ([float("inf")], {"result": ["inf"], "repr": True}),
    ("text", {"result": "text"}),
    ([1, "two", None], {"result": [1, "two", None]}),
    ((1, (2,)), {"result": [1, [2]]}),
    ({"a": {"b": 1}}, {"result": {"a": {"b": 1}}}),
    ({1: "one", Color.RED: 2}, {"result": {"1": "one", "red": 2}}),
    (
        Lease("10.0.0.4", date(2026, 11, 28)),
        {"result": {"address": "10.0.0.4", "until": "2026-11-28"}},
    ),
    (Disk(Path("/dev/sda"), (1, 2)), {"result": {"path": "/dev/sda", "sizes": [1, 2]}}),
    (Port(80, True), {"result": {"number": 80, "open": True}}),
    (Level.HIGH, {"result": 3}),
    (PurePosixPath("/etc"), {"result": "/etc"}),
    (datetime(2026, 1, 2, tzinfo=timezone.utc), {"result": "2026-01-02T00:00:00+00:00"}),
    (Proof(), {"result": {"ok": True, "ports": [{"number": 80, "open": True}]}}),
    (Broken(), {"result": "<broken>", "repr": True}),
    (Mute(), {"result": "<Mute>", "repr": True}),
    ({"raw": b"\x00"}, {"result": {"raw": "b'\\x00'"}, "repr": True}),
    (CIRCLE, {"result": [1, "[1, [...]]"], "repr": True}),
    (Proof, {"result": repr(Proof), "repr": True}),
    (deque([1]), {"result": "deque([1])", "repr": True}),
    (10**5000, {"result": "<int>", "repr": True}),
]


@pytest.mark.parametrize(("value", "shown"), RESULTS, ids=lambda each: type(each).__name__)
def test_the_value_that_do_returns_is_the_result(value: object, shown: dict[str, object]) -> None:
    """The report of a task has the value that `do` returns, and its mapping always fits JSON."""
    report = run(task("a")(lambda _: value))
    assert report.result is value
    mapping = report.to_mapping()
    assert {name: mapping[name] for name in ("result", "repr") if name in mapping} == shown
    assert json.loads(json.dumps(mapping, allow_nan=False))["status"] == "ok"


def test_a_returned_report_of_a_failed_run_fails_the_task() -> None:
    """A task that returns the report of a failed run fails; the report of a completed run is its
    result.
    """
    good = run(task("inner")(lambda _: 1))
    bad = run(task("inner")(lambda _: 1 / 0))
    assert run(task("a")(lambda _: good)).to_mapping()["result"]["result"] == 1
    report = run(task("a")(lambda _: bad))
    assert str(report.error) == "a/inner: division by zero"


def test_a_run_inside_a_task_is_refused() -> None:
    """A run with the context of a running task is refused, and the error advises execute."""
    report = run(task("outer")(lambda ctx: run(task("inner")(print), ctx)))
    assert str(report.error) == (
        "outer: ctx is that of the running task 'outer', and run begins another run: write "
        "execute(task, ctx), which is a part of this one"
    )


def _returning(value: object) -> Task:
    @task("join")
    def join(_: Context) -> object:
        return value

    return join


def _raising(error: BaseException) -> Task:
    @task("join")
    def join(_: Context) -> None:
        raise error

    return join


class RefusedError(Exception):
    retryable = False


def _looking_up(_: Context) -> object:
    tokens: dict[str, str] = {}
    return tokens["token"]


def _parsing(_: Context) -> object:
    return json.loads("{")


#: What fails, as the result table has what completes: two are of code, with a line of their own.
ERRORS: list[Task] = [
    task("join")(_looking_up),
    task("join")(_parsing),
    *map(
        _raising,
        [
            TypeError("no"),
            ValueError("no"),
            AssertionError(),
            RuntimeError("a\nb"),
            OSError("busy"),
            FileNotFoundError(2, "gone", "/x"),
            RefusedError("the token has expired"),
            PhaseError("on purpose"),
            CommandFailedError(["ip"], 1),
            CancelledError("of its own"),
        ],
    ),
]


def _stopping(number: signal.Signals) -> Task:
    @task("join")
    def join(ctx: Context) -> None:
        os.kill(os.getpid(), number)
        ctx.sleep(3600)

    return join


def _whole(work: Task, caplog: pytest.LogCaptureFixture) -> str:
    """Return the tree, the JSON and the log of a run, without the lines of this file."""
    caplog.clear()
    whole = Serial(with_retry(work, attempts=2), task("last")(lambda _: None), name="agent")
    clock = ManualClock(auto=True)
    report = run(whole, Context(clock=clock), handle_signals=True)
    lines = [
        f"{record.levelname} {record.message}{' with traceback' if record.exc_info else ''}"
        for record in caplog.records
    ]
    mapping = json.dumps(report.to_mapping())
    text = "\n".join([str(report), mapping, *lines])
    text = re.sub(r":\d+ in ", ":LINE in ", text)
    return re.sub(r"<class '[\w.]*Proof'>", "<class 'Proof'>", text)


def test_each_result_error_and_signal_is_shown_whole(caplog: pytest.LogCaptureFixture) -> None:
    """The tree, the JSON and the log of each result, error and signal are as in the golden file."""
    caplog.set_level(logging.INFO, "phases")
    works = [_returning(value) for value, _ in RESULTS]
    works += [*ERRORS, *map(_stopping, [signal.SIGINT, signal.SIGTERM])]
    shown = "\n\n".join(_whole(work, caplog) for work in works) + "\n"
    assert_golden(Path(__file__).with_name("results.txt"), shown)


def test_a_bug_is_tried_again_if_it_is_named() -> None:
    """An error of `retry_on` is tried again, unless it is not retryable itself."""
    clock = ManualClock(auto=True)
    for error, attempts in (KeyError("a"), 3), (RefusedError("no"), 1):
        again = with_retry(_raising(error), attempts=3, retry_on=(KeyError, RefusedError))
        assert run(again, Context(clock=clock)).attempts == attempts


def _mounting(do: Callable[[Context], object], **others: Any) -> Report:
    whole = Serial(task("mount", **others)(do), name="agent")
    return run(whole, undo_on_failure=True, logger=logging.getLogger("agent"))


def _fail(_: Context) -> None:
    raise OSError("busy")


def _record_and_fail(ctx: Context) -> None:
    ctx.record(Change("+", "/mnt"), undo=lambda _: None)
    raise OSError("busy")


def _end_midway(ctx: Context) -> None:
    ctx.cancel("maintenance")
    ctx.check()


def test_what_an_undo_leaves_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A task that fails midway without a recorded inverse is left as it is, even if it has an
    `undo`, and the log and the report name it.
    """
    word = "not undone: mount failed midway, and recorded no inverse"
    for others in {}, {"undo": print}:
        report = _mounting(_fail, **others)
        assert report.children[0].reasons == [word]
        assert word in str(report)
        assert [record.message[: len(word)] for record in caplog.records].count(word) == 1
        caplog.clear()
    assert _mounting(_fail, records=True).children[0].reasons == []
    assert _mounting(_record_and_fail).children[0].reasons == []
    ended = run(task("mount")(_end_midway), undo_on_failure=True)
    assert ended.reasons == ["not undone: mount cancelled midway, and recorded no inverse"]
    # Of a task that runs another one, that one is named.
    inner = task("inner")(_fail)
    outer = run(task("outer")(lambda ctx: execute(inner, ctx)), undo_on_failure=True)
    assert [each.task.name for each in outer.walk() if each.reasons] == ["inner"]


def test_a_task_that_never_began_is_not_left_midway() -> None:
    """A task that is cancelled before it begins is not reported as left midway."""
    ctx = Context()
    ctx.cancel("maintenance")
    report = run(task("mount")(_fail), ctx, undo_on_failure=True)
    assert report.status == "cancelled"
    assert report.reasons == []
