"""Plans and undos of groups whose tasks fail, and of contexts that end."""

import logging

import pytest
from support.tasks import FailingTask, RecordingTask

from phases import (
    CancelledError,
    Context,
    DeadlineExceededError,
    Serial,
    Task,
    TaskFailedError,
    plan,
    task,
    undo,
)
from phases.testing import ManualClock


def test_plan_ends_with_its_context() -> None:
    """A plan in a cancelled context raises CancelledError."""
    ctx = Context()
    ctx.cancel("stop")
    with pytest.raises(CancelledError):
        plan(Serial(RecordingTask("a", [])), ctx)


def test_undo_goes_on_past_failures(caplog: pytest.LogCaptureFixture) -> None:
    """An undo of a group reverses all tasks that it can, and raises one error with all failures at
    the end.
    """

    def stuck(name: str) -> Task:
        return task(name, undo=FailingTask(name, OSError(f"{name} is stuck")).do)(lambda _: None)

    journal: list[str] = []
    group = Serial(
        RecordingTask("a", journal),
        stuck("b"),
        Serial(RecordingTask("c", journal), stuck("d"), name="inner"),
        name="all",
    )
    with caplog.at_level(logging.INFO), pytest.raises(TaskFailedError) as caught:
        undo(group)
    assert journal == ["undo c", "undo a"]
    assert str(caught.value) == "all/inner/d: d is stuck; all/b: b is stuck"
    assert [str(failure) for failure in caught.value.failures] == ["d is stuck", "b is stuck"]
    assert caplog.records[0].getMessage() == "undo started task=all"
    assert caplog.records[-1].getMessage().startswith("undo failed task=all duration=")


def test_undo_ends_with_its_context() -> None:
    """An undo stops when its context ends, and raises the failures until then."""
    clock = ManualClock(auto=True)

    def late(ctx: Context) -> None:
        ctx.sleep(60)

    last = task("last", undo=FailingTask("last", OSError("stuck")).do)(lambda _: None)
    slow = task("slow", undo=late)(lambda _: None)
    with pytest.raises(DeadlineExceededError):
        undo(Serial(slow), Context(timeout=5, clock=clock))
    with pytest.raises(TaskFailedError, match=r"^last: stuck$"):
        undo(Serial(slow, last), Context(timeout=5, clock=clock))
