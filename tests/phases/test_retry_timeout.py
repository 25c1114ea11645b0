"""Tasks with retries and with a time limit."""

import pytest
from support.tasks import FailingTask, RecordingTask

from phases import (
    CancelledError,
    Context,
    DeadlineExceededError,
    Event,
    Group,
    Parallel,
    Plannable,
    Serial,
    Task,
    TaskFailedError,
    Undoable,
    Wait,
    execute,
    run,
    task,
    with_retry,
    with_timeout,
)
from phases.context import notify, wait
from phases.hosting import leave
from phases.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that advances by itself, since these tests wait in one thread only."""
    return ManualClock(auto=True)


def test_backoff_doubles_up_to_its_maximum(clock: ManualClock) -> None:
    """The pauses between eight attempts are 1, 2, 4, 8, 16, 30, 30 seconds: 91 in all."""
    with pytest.raises(TaskFailedError):
        execute(with_retry(FailingTask("a", OSError()), attempts=8), Context(clock=clock))
    assert clock.monotonic() == 91


def test_a_longer_backoff_is_that_of_each_pause(clock: ManualClock) -> None:
    """A backoff longer than the maximum is that of each pause."""
    retried = with_retry(FailingTask("a", OSError()), attempts=3, backoff=60)
    with pytest.raises(TaskFailedError):
        execute(retried, Context(clock=clock))
    assert clock.monotonic() == 120


def test_a_failed_attempt_leaves_no_result(clock: ManualClock) -> None:
    """The result of a retried task is that of the last attempt, without results or degradations of
    failed ones.
    """
    errors = [OSError("busy")]

    @task("a")
    def fail_first(ctx: Context) -> None:
        if errors:
            leave(ctx, 41)
            ctx.degrade("busy")
            raise errors.pop()

    report = run(with_retry(fail_first, attempts=2), Context(clock=clock))
    assert not report.degraded
    assert report.result is None


def test_each_failure_of_a_group_must_be_of_the_given_errors(clock: ManualClock) -> None:
    """A group with one failure that is not in `retry_on` is not tried again, as a part of it would
    fail again.
    """

    def wrong_too(ctx: Context) -> None:
        wait(ctx, lambda: ctx.cancelled)
        raise ValueError("wrong")

    busy = FailingTask("a", OSError("busy"))
    group = Parallel(busy, task("b")(wrong_too))
    with pytest.raises(TaskFailedError, match=r"^a: busy; b: wrong$"):
        execute(with_retry(group, attempts=5, retry_on=(OSError,)), Context(clock=clock))
    assert busy.calls == 1


def test_cancelled_is_not_tried_again() -> None:
    """A cancelled task is not tried again."""
    ctx = Context()
    calls: list[int] = []

    def cancel(ctx: Context) -> None:
        calls.append(1)
        ctx.cancel("stop")
        ctx.check()

    with pytest.raises(CancelledError):
        execute(with_retry(task("a")(cancel), attempts=3), ctx)
    assert len(calls) == 1


def test_an_error_shows_if_a_retry_can_help(clock: ManualClock) -> None:
    """An error that is not retryable is not tried again; several failures are retryable if each is,
    and Python's errors are.
    """

    class AnsweredError(Exception):
        retryable = False

    def failed(*errors: Exception) -> TaskFailedError:
        return TaskFailedError.combine([TaskFailedError(["a"], error) for error in errors])

    refused = FailingTask("a", AnsweredError())
    with pytest.raises(TaskFailedError) as caught:
        execute(with_retry(refused, attempts=3), Context(clock=clock))
    assert refused.calls == 1
    assert not caught.value.retryable
    assert [failed(OSError()).retryable, failed(OSError(), AnsweredError()).retryable] == [
        True,
        False,
    ]
    assert failed(DeadlineExceededError(1)).under("all").retryable
    assert not failed(CancelledError("stop")).retryable


def test_an_observer_gets_each_attempt(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An observer receives an event for each failed attempt with its whole path and pause.

    The report counts the attempts, and has the time of the first one and of all.
    """
    flaky = with_retry(FailingTask("flaky", OSError("busy"), times=2), attempts=5)
    events: list[Event] = []
    report = run(Serial(flaky, name="all"), Context(clock=clock), observer=events.append)
    assert [(event.path, event.status, str(event.error)) for event in events] == [
        ("all", "running", "None"),
        ("all/flaky", "running", "None"),
        ("all/flaky", "retrying", "busy"),
        ("all/flaky", "retrying", "busy"),
        ("all/flaky", "ok", "None"),
        ("all", "ok", "None"),
    ]
    pauses = [event.wait for event in events if event.status == "retrying"]
    assert pauses == [Wait("the next attempt", 1), Wait("the next attempt", 2)]
    flaky_ = report.children[0].to_mapping()
    assert flaky_["attempts"] == 3
    assert flaky_["duration"] == 3.0
    assert flaky_["start"] == "2026-01-01T00:00:00.000000Z"
    assert "task=all/flaky error='busy'" in caplog.records[0].getMessage()


def test_wrapping_keeps_name_and_abilities() -> None:
    """A wrapped task has the name, the plan, the undo and the subtasks of the task inside, and none
    that it lacks.
    """
    plain = FailingTask("a", OSError())
    full = RecordingTask("b", [])
    group = Serial(RecordingTask("c", []))
    for wrapped in with_timeout(plain, 1), with_retry(plain, attempts=1):
        assert wrapped.name == "a"
        assert not isinstance(wrapped, (Plannable, Undoable, Group))
    for wrapped in with_timeout(full, 1), with_retry(full, attempts=1):
        assert isinstance(wrapped, Plannable)
        assert isinstance(wrapped, Undoable)
        assert not isinstance(wrapped, Group)
    wrapped = with_retry(with_timeout(group, 1), attempts=1)
    assert isinstance(wrapped, Group)
    assert wrapped.subtasks == group.subtasks
    assert wrapped.anonymous


def test_a_share_leaves_time_for_the_next_tasks(clock: ManualClock) -> None:
    """A task with a share of a half gets five of ten seconds, however long its own timeout."""
    given: list[float | None] = []
    half = with_timeout(task("a")(lambda ctx: given.append(ctx.remaining())), 60, share=0.5)
    execute(half, Context(timeout=10, clock=clock))
    assert given == [5.0]


# --- what ends attempts keeps their failures


def failing(*errors: Exception) -> Task:
    """Return a task that raises these in turn."""
    left = list(errors)

    @task("flaky")
    def flaky(_: Context) -> None:
        raise left.pop(0)

    return flaky


def test_a_timeout_keeps_the_failures_of_attempts() -> None:
    """The error of a retried task that times out has the deadline first, then each failure with its
    path.
    """
    retried = with_retry(failing(OSError("busy"), OSError("full")), attempts=9, backoff=2)
    ctx = Context(clock=ManualClock(auto=True))
    with pytest.raises(TaskFailedError) as caught:
        execute(Serial(with_timeout(retried, 3), name="node"), ctx)
    assert [(error.path, str(error.cause)) for error in caught.value.walk()] == [
        ("node/flaky", str(DeadlineExceededError(3))),
        ("node/flaky", "busy"),
        ("node/flaky", "full"),
    ]


def test_the_end_of_a_run_keeps_the_failures_of_attempts() -> None:
    """The report of a run that ends has the failures of the attempts until then."""
    retried = with_retry(failing(OSError("busy"), OSError("full")), attempts=9, backoff=2)
    report = run(Serial(retried, name="node"), Context(clock=ManualClock(auto=True)), timeout=3)
    assert report.status == "cancelled"
    assert [(each["path"], each["cause"]) for each in report.to_mapping()["failures"]] == [
        ("node", str(DeadlineExceededError(3))),
        ("node/flaky", "busy"),
        ("node/flaky", "full"),
    ]


def test_a_retry_of_a_retry_keeps_all_failures(clock: ManualClock) -> None:
    """An outer attempt whose time ends an inner retry has the failures of the inner attempts."""
    busy = FailingTask("a", OSError("busy"), times=99)
    inner = with_timeout(with_retry(busy, attempts=9), 2)
    report = run(with_retry(inner, attempts=2, backoff=0), Context(clock=clock))
    texts = [failure["cause"] for failure in report.to_mapping()["failures"]]
    assert texts.count("busy") == 4
    assert texts.count(str(DeadlineExceededError(2))) == 2


def test_the_end_of_a_group_keeps_the_failures_of_each_task() -> None:
    """The report of a parallel group whose run ends has the failures of each task's attempts with
    whole paths, whichever task ends first.
    """
    attempts: list[int] = []

    @task("a")
    def busy(ctx: Context) -> None:
        attempts.append(1)
        notify(ctx)
        raise OSError("busy")

    @task("b")
    def sleeper(ctx: Context) -> None:
        wait(ctx, lambda: bool(attempts))
        ctx.sleep(60)

    whole = Serial(Parallel(with_retry(busy, attempts=99), sleeper, name="both"), name="all")
    for _ in range(20):
        attempts.clear()
        report = run(whole, Context(clock=ManualClock(auto=True)), timeout=2)
        assert report.status == "cancelled"
        for step in report, report.find("both"), report.find("all/both/a"):
            failures = step.to_mapping()["failures"]
            assert {failure["path"] for failure in failures[1:]} == {"all/both/a"}
            assert len(failures) >= 2
        assert [each.status for each in report.walk()] == ["cancelled"] * 4
        assert "failed" not in str(report).partition("also")[0]
