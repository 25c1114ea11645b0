"""A task that catches the end of its context and returns has failed; one that ends late has not."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support.patience import at_once
from support.tasks import RecordingTask, statuses

from phases import (
    CancelledError,
    Change,
    Context,
    DeadlineExceededError,
    Parallel,
    PhaseError,
    Serial,
    Task,
    TaskFailedError,
    execute,
    plan,
    run,
    task,
    undo,
    with_retry,
    with_timeout,
)
from phases.context import wait
from phases.testing import ManualClock

CAUGHT = "the task caught this and returned: it must raise it again"


@task("nap")
def swallow(ctx: Context) -> None:
    """Sleep, and catch the end of it, as a careless task does."""
    with suppress(Exception):
        ctx.sleep(60)


def test_a_swallowed_deadline_fails_the_task() -> None:
    """A task that catches its deadline and returns fails with an error that names the task, the
    deadline and what its author must do; it can be tried again.
    """
    report = run(Serial(swallow, name="all"), at_once(5))
    assert statuses(report) == {"nap": "failed", "all": "failed"}
    assert str(report.error) == f"all/nap: {DeadlineExceededError(5)}; {CAUGHT}"
    assert isinstance(report.error, TaskFailedError)
    assert isinstance(report.error.cause, DeadlineExceededError)
    assert report.error.cause.timeout == 5
    assert report.error.retryable


@pytest.mark.parametrize(
    "limited",
    [
        with_timeout(swallow, 5),
        with_timeout(with_timeout(swallow, 5), 60),
        with_timeout(with_timeout(swallow, 60), 5),
        with_timeout(Serial(swallow, name="group"), 5),
    ],
)
def test_a_deadline_that_is_swallowed_inside_with_timeout(limited: Task) -> None:
    """A task that catches the deadline of its own with_timeout fails, and the task after it is not
    reached.
    """
    report = run(Serial(limited, RecordingTask("next", []), name="all"), at_once(600))
    assert report.status == "failed"
    assert report.children[1].status == "not-reached"
    assert isinstance(report.error, TaskFailedError)
    assert str(report.error.cause) == f"{DeadlineExceededError(5)}; {CAUGHT}"


def test_it_is_tried_again_and_undone_as_after_any_failure() -> None:
    """A task that catches its deadline is tried again by with_retry, and its records are reversed
    by undo_on_failure.
    """
    undone: list[str] = []
    patience = [60, 60, 1]

    @task("nap")
    def nap(ctx: Context) -> None:
        ctx.record(Change("+", "bed"), undo=lambda _: undone.append("bed"))
        with suppress(Exception):
            ctx.sleep(patience.pop(0))

    retried = with_retry(with_timeout(nap, 5), attempts=3)
    assert run(retried, at_once(600)).status == "ok"
    assert not patience
    assert not undone
    patience.append(60)
    assert run(with_timeout(nap, 5), at_once(600), undo_on_failure=True).changes == ()
    assert undone == ["bed"]


def test_work_that_ends_late_is_complete_and_stays() -> None:
    """A task that returns after its deadline without an interruption is neither failed nor undone,
    even if it looks at its context.
    """
    clock = ManualClock(auto=True)

    @task("commit", undo=lambda _: pytest.fail("it was undone"))
    def commit(ctx: Context) -> None:
        clock.advance(6)
        assert ctx.over
        assert ctx.remaining() == 0
        assert not wait(ctx, lambda: False, until=ctx.deadline)

    for late in commit, with_timeout(commit, 5), Parallel(commit), with_timeout(Serial(commit), 5):
        report = run(late, Context(clock=clock), timeout=5, undo_on_failure=True)
        assert report.ok
        assert not report.degraded


def test_a_narrower_end_is_the_business_of_the_task() -> None:
    """A task may limit a part of its work, catch the end of that part, and end late."""
    clock = ManualClock(auto=True)

    @task("look")
    def look(ctx: Context) -> None:
        with suppress(DeadlineExceededError):
            ctx.child(timeout=1).sleep(60)
        cancelled = ctx.child()
        cancelled.cancel("enough")
        with suppress(CancelledError):
            cancelled.check()
        with suppress(DeadlineExceededError):
            ctx.shielded().child(timeout=1).sleep(60)
        clock.advance(600)

    for narrow in look, with_timeout(look, 60), Serial(look):
        assert run(narrow, Context(timeout=600, clock=clock)).ok


def test_a_task_that_catches_what_a_task_inside_raised() -> None:
    """A task that catches the end of the run from a task inside fails; one that catches a failure
    of a task inside is ok and degraded.
    """

    def catching(inside: Task) -> Task:
        @task("outer")
        def outer(ctx: Context) -> None:
            with suppress(PhaseError):
                execute(inside, ctx)

        return outer

    honest = task("nap")(lambda ctx: ctx.sleep(60))
    report = run(catching(honest), at_once(5))
    assert statuses(report) == {"nap": "cancelled", "outer": "failed"}
    report = run(catching(swallow), at_once(5))
    assert statuses(report) == {"nap": "failed", "outer": "ok"}
    assert report.degraded
    report = run(catching(with_timeout(honest, 5)), at_once(60))
    assert statuses(report) == {"nap": "failed", "outer": "ok"}
    assert report.degraded


def test_a_thread_of_the_task_counts() -> None:
    """A task that catches the deadline from a thread of its own, as of a pool, fails."""

    @task("pool")
    def pool(ctx: Context) -> None:
        with ThreadPoolExecutor(1) as threads, suppress(DeadlineExceededError):
            threads.submit(ctx.sleep, 60).result()

    assert run(pool, at_once(5)).status == "failed"


def test_a_task_beside_it_is_not_blamed() -> None:
    """Of tasks in parallel only the one that caught the end of the context fails, even if another
    one ends late.
    """
    has_begun = threading.Event()
    is_over = threading.Event()

    @task("late")
    def late(_: Context) -> None:
        has_begun.set()
        is_over.wait()

    @task("stop")
    def stop(ctx: Context) -> None:
        has_begun.wait()
        run_context.cancel("maintenance")
        with suppress(CancelledError):
            ctx.check()
        is_over.set()

    run_context = Context()
    report = run(Parallel(stop, late, name="all"), run_context)
    assert statuses(report) == {"stop": "failed", "late": "ok", "all": "failed"}


def test_a_task_may_declare_that_the_end_is_its_normal_end() -> None:
    """A task that serves until its context ends may declare that end as normal by `expiring`, and
    is ok then; if it raises the end, it is cancelled.
    """

    @task("serve")
    def serve(ctx: Context) -> None:
        with suppress(CancelledError, DeadlineExceededError):
            ctx.expiring().child(timeout=3600).sleep(600)

    for limited in serve, with_timeout(serve, 60), Serial(serve):
        assert run(limited, at_once(5)).status == "ok"
    assert run(with_timeout(serve, 5), at_once(60)).status == "ok"
    raising = task("raise")(lambda ctx: ctx.expiring().sleep(60))
    assert run(raising, at_once(5)).status == "cancelled"

    @task("inside")
    def inside(ctx: Context) -> None:
        execute(swallow, ctx.expiring())

    assert statuses(run(inside, at_once(5))) == {"nap": "failed", "inside": "failed"}


def test_a_plan_that_swallows_the_end_has_failed() -> None:
    """A plan that catches its deadline fails, since it would claim that there is nothing to
    change.
    """

    def look(ctx: Context) -> list[Change]:
        with suppress(Exception):
            ctx.sleep(60)
        return []

    half = task("half", plan=look)(lambda _: None)
    with pytest.raises(TaskFailedError, match=f"^all/half: deadline exceeded: .*; {CAUGHT}$"):
        plan(Serial(half, name="all"), at_once(5))


def test_an_undo_that_swallows_the_end_has_failed() -> None:
    """An undo that catches its deadline fails, as it is unknown what it has left out."""
    half = task("half", undo=swallow.do)(lambda _: None)
    with pytest.raises(TaskFailedError, match=f"^half: deadline exceeded: .*; {CAUGHT}$"):
        undo(half, at_once(5))
