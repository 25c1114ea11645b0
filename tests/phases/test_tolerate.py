"""Tasks whose failure is tolerated."""

import logging
from collections.abc import Callable

import pytest
from support.patience import at_once
from support.tasks import FailingTask, RecordingTask, statuses

from phases import (
    CancelledError,
    Change,
    Context,
    Group,
    Parallel,
    Plannable,
    Serial,
    Task,
    TaskFailedError,
    Undoable,
    execute,
    plan,
    run,
    task,
    tolerate,
    undo,
    with_retry,
    with_timeout,
)
from phases.testing import ManualClock


def _probes() -> FailingTask:
    return FailingTask("probes", OSError("no IPv6"))


@pytest.mark.parametrize("group", [Serial, Parallel])
def test_a_tolerated_failure_is_a_warning(
    group: type[Serial], caplog: pytest.LogCaptureFixture
) -> None:
    """A group with a tolerated failure goes on and is ok; the report has the task as failed, and
    the log has a warning.
    """
    journal: list[str] = []
    report = run(
        group(tolerate(_probes()), RecordingTask("routes", journal), name="all"),
        ctx=Context(clock=ManualClock()),
    )
    assert [entry for entry in journal if entry.startswith("do")] == ["do routes"]
    assert statuses(report) == {
        "probes": "failed",
        "routes": "ok",
        "all": "ok",
    }
    assert report.ok
    assert str(report.children[0].error) == "all/probes: no IPv6"
    report.raise_for_failure()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "failed, and is optional task=all/probes duration=0.000s status=failed error='no IPv6'",
        )
    ]


def test_on_failure_gets_the_error() -> None:
    """`on_failure` receives the error that execute would have raised, with its cause, and is not
    called after a success.
    """
    failures: list[TaskFailedError] = []
    probes = _probes()
    execute(tolerate(Serial(probes, name="inner"), on_failure=failures.append))
    execute(tolerate(RecordingTask("fine", []), on_failure=failures.append))
    assert [(error.path, error.failures) for error in failures] == [
        ("inner/probes", (probes.error,))
    ]


@pytest.mark.parametrize("group", [Serial, Parallel])
def test_a_failure_that_on_failure_cannot_handle_fails_the_task(
    group: type[Serial], caplog: pytest.LogCaptureFixture
) -> None:
    """A tolerated task whose `on_failure` raises an error fails with both errors, in the report and
    in the log.
    """
    full = OSError("disk full")
    probes = _probes()

    def note(_: TaskFailedError) -> None:
        raise full

    report = run(
        group(tolerate(probes, on_failure=note), name="all"), ctx=Context(clock=ManualClock())
    )
    assert statuses(report) == {
        "probes": "failed",
        "all": "failed",
    }
    assert isinstance(report.error, TaskFailedError)
    assert str(report.error) == "all/probes: no IPv6; all/probes: disk full"
    assert report.error.failures == (probes.error, full)
    assert caplog.records[0].levelno == logging.ERROR
    assert (
        caplog.records[0].getMessage()
        == "failed task=all/probes duration=0.000s status=failed error='all/probes: no IPv6; all/probes: disk full'"
    )
    # A run of nothing else returns its report, too.
    assert str(run(tolerate(probes, on_failure=note)).error) == "probes: no IPv6; probes: disk full"


def test_on_failure_may_raise_the_error_that_it_got() -> None:
    """A tolerated task whose `on_failure` raises its argument fails as if it were not tolerated."""

    def refuse(error: TaskFailedError) -> None:
        raise error

    with pytest.raises(TaskFailedError, match=r"^all/probes: no IPv6$") as caught:
        execute(Serial(tolerate(_probes(), on_failure=refuse), name="all"))
    assert len(caught.value.failures) == 1


def test_the_end_of_the_context_is_not_tolerated() -> None:
    """A cancellation, an interrupt or the end of the caller's deadline is raised by a tolerated
    task.
    """
    ctx = Context()
    ctx.cancel("stop")
    with pytest.raises(CancelledError):
        execute(tolerate(RecordingTask("a", [])), ctx)
    with pytest.raises(KeyboardInterrupt):
        execute(tolerate(FailingTask("a", KeyboardInterrupt())))
    report = run(
        tolerate(task("nap")(lambda ctx: ctx.sleep(60))),
        timeout=5,
        ctx=at_once(),
    )
    assert report.status == "cancelled"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda each: tolerate(with_timeout(each, 5)),
        lambda each: with_timeout(tolerate(each), 5),
        lambda each: tolerate(with_retry(each, attempts=2)),
        lambda each: with_retry(tolerate(each), attempts=2),
    ],
)
def test_wrappers_come_in_any_order(wrap: Callable[[Task], Task]) -> None:
    """A tolerated task with a deadline or with retries is tolerated in either order of the
    wrappers.
    """
    nap = task("nap")(lambda ctx: ctx.sleep(60))
    execute(wrap(nap), at_once())
    probes = _probes()
    execute(wrap(probes), at_once())
    assert probes.calls in {1, 2}


def test_all_else_passes_through() -> None:
    """The plan, the undo and the subtasks of a tolerated task are those of the task, and their
    failures are raised.
    """
    journal: list[str] = []
    whole = tolerate(Serial(RecordingTask("a", journal), name="inner"))
    assert isinstance(whole, Group)
    assert plan(whole).changes == (Change("+", "a"),)
    undo(whole)
    assert journal == ["plan a", "undo a"]
    assert not isinstance(tolerate(_probes()), Plannable | Undoable | Group)

    with pytest.raises(TaskFailedError, match=r"^b: no IPv6$"):
        undo(tolerate(task("b", undo=_probes().do)(lambda _: None)))


def test_a_tolerated_failure_has_not_completed() -> None:
    """A tolerated task that failed is not undone by its `undo`; a group that tolerated it is
    undone, not failed.
    """
    journal: list[str] = []

    class Half(RecordingTask):
        def do(self, ctx: Context) -> None:
            super().do(ctx)
            raise OSError("no IPv6")

    inner = Serial(RecordingTask("a", journal), tolerate(Half("half", journal)), name="inner")
    report = run(Serial(inner, FailingTask("last", OSError("x")), name="all"), undo_on_failure=True)
    assert [entry for entry in journal if entry.startswith("undo")] == ["undo a"]
    assert statuses(report) == {
        "a": "undone",
        "half": "failed",
        "inner": "undone",
        "last": "failed",
        "all": "failed",
    }
