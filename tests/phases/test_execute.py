"""One task executed: its log, its path, its errors and its interrupts."""

import logging
from typing import Any

import pytest
from support.tasks import FailingTask, RecordingTask

from phases import (
    CancelledError,
    Context,
    Parallel,
    Serial,
    TaskFailedError,
    execute,
    task,
)
from phases.hosting import reason_of
from phases.testing import ManualClock


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def _extra(record: Any) -> tuple[str, str, float | None, str | None]:
    return record.path, record.status, record.duration, record.error


def test_failure_is_logged_on_one_line(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log line of a failure has the first line of the error, quoted, and `extra` has the whole
    error.
    """
    with pytest.raises(TaskFailedError):
        execute(
            Serial(FailingTask("routes", OSError("no\nroute")), name="bootstrap"),
            Context(clock=clock),
        )
    assert caplog.messages[2].endswith(" error='no ...'")
    assert _extra(caplog.records[2]) == ("bootstrap/routes", "failed", 0.0, "no\nroute")


def test_logger_holds_for_all_inside(caplog: pytest.LogCaptureFixture) -> None:
    """The logger that is given to the outermost task is that of the tasks inside."""
    inner = task("inner")(lambda _: None)

    @task("outer")
    def outer(ctx: Context) -> None:
        execute(inner, ctx)

    execute(Serial(Parallel(outer)), logger=logging.getLogger("agent"))
    assert {record.name for record in caplog.records} == {"agent"}


def test_task_that_executes_tasks() -> None:
    """A task that executes others while it runs, in its own or a new context, has its path once in
    their errors.
    """
    inner = Serial(FailingTask("c", OSError("x")), name="b")
    for outer in task("a")(lambda ctx: execute(inner, ctx)), task("a")(lambda _: execute(inner)):
        with pytest.raises(TaskFailedError, match=r"^a/b/c: x$"):
            execute(outer)


def test_task_gets_the_context_it_is_executed_with() -> None:
    """A task that cancels its context cancels that of its caller."""
    ctx = Context()
    journal: list[str] = []
    with pytest.raises(CancelledError, match=r"^cancelled: maintenance$"):
        execute(
            Serial(task("a")(lambda ctx: ctx.cancel("maintenance")), RecordingTask("b", journal)),
            ctx,
        )
    assert reason_of(ctx) == "maintenance"
    assert journal == []


def test_other_errors_of_a_cancelled_task_are_failures() -> None:
    """An error that a task raises after its context was cancelled is a failure."""

    def do(ctx: Context) -> None:
        ctx.cancel("stop")
        raise OSError("broken")

    with pytest.raises(TaskFailedError, match=r"^a: broken$"):
        execute(task("a")(do))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupts_cancel_and_pass(
    interrupt: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """KeyboardInterrupt and SystemExit cancel the context and are raised unchanged through any
    group.
    """
    ctx = Context()
    with pytest.raises(type(interrupt)) as caught:
        execute(Serial(Parallel(FailingTask("a", interrupt))), ctx)
    assert caught.value is interrupt
    assert ctx.cancelled
    assert {record.__dict__["status"] for record in caplog.records} == {"started", "cancelled"}
