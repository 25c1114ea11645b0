"""Interrupts while changes are undone: no inverse is lost, and the report is returned with the
interrupt.
"""

import logging
import re
from collections.abc import Callable

import pytest
from support.tasks import FailingTask, RecordingTask

from phases import (
    Change,
    Context,
    Report,
    Serial,
    Task,
    TaskFailedError,
    Transaction,
    run,
    task,
)
from phases.hosting import cancel_by_signal

FIRST, SECOND, THIRD, FOURTH = (Change("+", name) for name in ("a", "b", "c", "d"))
FAIL = FailingTask("fail", OSError("x"))


def recording(name: str, change: Change, inverse: Callable[[Context], object]) -> Task:
    """Return a task that records one change."""
    return task(name)(lambda ctx: ctx.record(change, undo=inverse))


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def report_of(work: Task) -> Report:
    """Return the report of a run that raises KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt) as caught:
        run(work, undo_on_failure=True)
    report = caught.value.report  # type: ignore[attr-defined]  # an interrupt has no report in its type
    assert isinstance(report, Report)
    return report


def test_an_interrupt_loses_no_inverse() -> None:
    """An interrupt of an undo ends one inverse; all further ones are called before it is raised
    with the report.
    """
    undone: list[str] = []

    def inverse(ctx: Context) -> None:
        ctx.check()
        undone.append("one")

    report = report_of(
        Serial(
            recording("one", FIRST, inverse),
            recording("two", SECOND, interrupted),
            RecordingTask("three", undone),
            FAIL,
            name="all",
        )
    )
    assert undone[-2:] == ["undo three", "one"]
    assert [step.status for step in report.children] == ["undone", "failed", "undone", "failed"]
    assert report.changes == (SECOND,)
    assert str(report.error) == "all/fail: x; all/two: KeyboardInterrupt"


def test_a_second_interrupt_names_each_inverse_that_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second interrupt ends the undo at once; the log has a line for each task that is left, and
    the report an error.
    """
    undone: list[str] = []

    def inverse(_: Context) -> None:
        undone.append("one")

    @task("one")
    def one(ctx: Context) -> None:
        for change in SECOND, FIRST:
            ctx.record(change, undo=inverse)

    report = report_of(
        Serial(
            one,
            RecordingTask("two", undone),
            recording("three", THIRD, interrupted),
            recording("four", FOURTH, interrupted),
            FAIL,
            name="all",
        )
    )
    assert undone == ["do two"]
    assert report.changes == (SECOND, FIRST, THIRD, FOURTH)
    assert [step.status for step in report.children] == ["failed"] * 5
    assert str(report.error) == (
        "all/fail: x; all/four: KeyboardInterrupt; all/three: KeyboardInterrupt; "
        "all/two: KeyboardInterrupt; all/one: KeyboardInterrupt"
    )
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    lines = [re.sub(r"duration=\S+", "duration=T", each) for each in errors]
    assert lines[-3:] == [
        f"not undone task=all/{name} duration=T status=failed error='KeyboardInterrupt'"
        for name in ("three", "two", "one")
    ]


@pytest.mark.parametrize("first", ["an interrupt", "a signal"])
def test_an_interrupt_after_another_ends_the_undo(first: str) -> None:
    """An interrupt of an undo that an interrupt or a signal began is the second one, and ends the
    undo.
    """
    undone: list[str] = []

    @task("stop")
    def stop(ctx: Context) -> None:
        if first == "an interrupt":
            raise KeyboardInterrupt
        cancel_by_signal(ctx, "SIGTERM")
        ctx.check()

    report = report_of(
        Serial(
            recording("one", FIRST, lambda _: undone.append("one")),
            recording("two", SECOND, interrupted),
            stop,
        )
    )
    assert undone == []
    assert report.changes == (FIRST, SECOND)


def test_a_rollback_goes_on_after_an_interrupt() -> None:
    """A rollback yields an interrupt as the result of its inverse, and raises it once all inverses
    were called.
    """
    transaction = Transaction(Context())
    transaction.ctx.record(FIRST, undo=lambda ctx: ctx.check())
    transaction.ctx.record(SECOND, undo=interrupted)
    seen = []

    def roll_back() -> None:
        for record, result in transaction.rollback(timeout=15):
            seen.append((record.changes, type(result).__name__))

    with pytest.raises(KeyboardInterrupt):
        roll_back()
    assert seen == [([SECOND], "KeyboardInterrupt"), ([FIRST], "NoneType")]
    assert transaction.changes == ()


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_second_interrupt_ends_a_rollback(*, is_cancelled: bool) -> None:
    """A second interrupt, or one after a cancellation, ends a rollback; the changes that stay are
    in the transaction.
    """
    ctx = Context()
    transaction = Transaction(ctx)
    for change in FIRST, SECOND, THIRD:
        transaction.ctx.record(change, undo=lambda _: interrupted())
    if is_cancelled:
        ctx.cancel("SIGTERM")
    with pytest.raises(KeyboardInterrupt):
        list(transaction.rollback(timeout=15))
    assert transaction.changes == ((FIRST, SECOND, THIRD) if is_cancelled else (FIRST, SECOND))


def test_a_task_error_is_still_a_failure() -> None:
    """An inverse that fails after an interrupt is in the report with the other failures."""
    stuck = FailingTask("stuck", OSError("stuck"))
    report = report_of(
        Serial(recording("one", FIRST, stuck.do), recording("two", SECOND, interrupted), FAIL)
    )
    assert isinstance(report.error, TaskFailedError)
    assert [str(each) for each in report.error.failures] == ["x", "", "stuck"]
