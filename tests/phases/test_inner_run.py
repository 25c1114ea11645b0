"""A run inside a task is a part of the run around it: its steps, changes and inverses."""

import threading
from concurrent.futures import Future
from functools import partial

import pytest
from support.patience import in_time
from support.tasks import FailingTask, RecordingTask, statuses

from phases import (
    Change,
    Context,
    DeadlineExceededError,
    Event,
    Parallel,
    PhaseError,
    Report,
    Serial,
    Task,
    TaskFailedError,
    Transaction,
    UnknownTaskError,
    execute,
    run,
    task,
    with_retry,
    with_timeout,
)

HOSTS = Change("+", "/etc/hosts")
FAIL = FailingTask("fail", OSError("x"))


def adding(undone: list[str] | None = None, name: str = "hosts") -> Task:
    """Return a task that records a change, whose inverse notes its name."""
    notes = [] if undone is None else undone
    return task(name)(lambda ctx: ctx.record(HOSTS, undo=lambda _: notes.append(name)))


def running(*inside: Task, **options: bool) -> Task:
    """Return a task that runs these in turn, and drops their reports."""

    @task("outer")
    def outer(ctx: Context) -> None:
        for each in inside:
            run(each, ctx, **options)  # type: ignore[arg-type]  # all are switches

    return outer


# --- its account


def test_its_steps_and_changes_are_in_the_report() -> None:
    """By paths below the task; the run inside returns the same report, and finds its steps by the
    paths that it has without the task.
    """
    inner: list[Report] = []

    @task("outer")
    def outer(ctx: Context) -> None:
        inner.append(run(Serial(adding(), name="inner"), ctx))

    report = run(Serial(outer, name="all"))
    assert [each.path for each in report.walk()] == [
        "all/outer/inner/hosts",
        "all/outer/inner",
        "all/outer",
        "all",
    ]
    assert report.changes == inner[0].changes == (HOSTS,)
    assert report.find("all/outer/inner") is inner[0]
    step = inner[0].find("inner/hosts")
    assert step is inner[0].find("all/outer/inner/hosts") is report.find("all/outer/inner/hosts")
    with pytest.raises(
        KeyError, match="no step is named 'host'; the steps are: all/outer/inner/hosts"
    ):
        inner[0].find("host")
    assert report.ok
    assert not report.degraded
    children = report.to_mapping()["children"][0]["children"]
    assert [child["path"] for child in children] == ["all/outer/inner"]


def test_its_changes_are_undone_with_the_run() -> None:
    """In the order of the whole run, the newest first; what a failed run inside has left, too."""
    undone: list[str] = []
    failing = Serial(adding(undone, "third"), FAIL)
    outer = running(adding(undone, "second"), failing)
    report = run(
        Serial(adding(undone, "first"), outer, adding(undone, "last"), FAIL), undo_on_failure=True
    )
    assert undone == ["last", "third", "second", "first"]
    assert report.changes == ()


@pytest.mark.parametrize("undoes", [True, False])
def test_an_undo_of_its_own(*, undoes: bool) -> None:
    """A run inside that fails reverses its own changes at once, and only these; one that is ok
    leaves its changes to the run around it.
    """
    undone: list[str] = []
    journal: list[list[str]] = []

    @task("outer")
    def outer(ctx: Context) -> None:
        execute(adding(undone, "own"), ctx)
        inner = run(Serial(adding(undone, "inner"), FAIL, name="in"), ctx, undo_on_failure=True)
        assert str(inner.error) == "in/fail: x"
        journal.append(undone.copy())
        assert run(adding(undone, "good"), ctx, undo_on_failure=True).ok

    report = run(Serial(outer, FAIL, name="all"), undo_on_failure=undoes)
    assert journal == [["inner"]]
    assert undone == (["inner", "good", "own"] if undoes else ["inner"])
    assert report.changes == (() if undoes else (HOSTS, HOSTS))


def test_an_inverse_that_fails_inside() -> None:
    """Its path begins once with the task."""

    def refuse(_: Context) -> None:
        raise OSError("stuck")

    inner = Serial(task("a")(lambda ctx: ctx.record(HOSTS, undo=refuse)), FAIL, name="in")
    outer = task("outer")(lambda ctx: run(inner, ctx, undo_on_failure=True))
    assert str(run(outer).error) == "outer/in/fail: x; outer/in/a: stuck"


def test_its_changes_join_a_transaction() -> None:
    """A rollback reverses them, and then no report has them."""
    undone: list[str] = []

    @task("outer")
    def outer(ctx: Context) -> None:
        transaction = Transaction(ctx)
        run(adding(undone), transaction.ctx)
        assert transaction.changes == (HOSTS,)
        assert len(list(transaction.rollback(timeout=15))) == 1

    assert run(outer).changes == ()
    assert undone == ["hosts"]


def test_observers_and_skip() -> None:
    """The observer of the run around it gets its events, too, with whole paths; names to skip add
    to those of the run around it, and an unknown one is refused before anything runs.
    """
    outside: list[Event] = []
    inside: list[Event] = []
    pair = Serial(RecordingTask("a", []), RecordingTask("b", []), RecordingTask("c", []), name="in")

    @task("outer")
    def outer(ctx: Context) -> None:
        run(pair, ctx, skip=["a"], observer=inside.append)
        with pytest.raises(UnknownTaskError, match="no task is named 'd'"):
            run(pair, ctx, skip=["d"])

    report = run(Serial(outer, task("b")(print)), skip=["b"], observer=outside.append)
    assert len(report.children[0].children) == 1
    assert statuses(report.children[0].children[0]) == {
        "in": "ok",
        "a": "skipped",
        "b": "skipped",
        "c": "ok",
    }
    assert [(event.path, event.status) for event in inside] == [
        ("outer/in", "running"),
        ("outer/in/c", "running"),
        ("outer/in/c", "ok"),
        ("outer/in", "ok"),
    ]
    assert set(inside) < set(outside)


def test_a_run_with_another_context_stands_alone() -> None:
    """As one without a context, and one in a thread that outlives the run."""
    kept: list[Context] = []

    @task("outer")
    def outer(ctx: Context) -> None:
        kept.append(ctx)
        assert run(adding()).path == "hosts"
        assert not run(FAIL, Context()).ok

    report = run(outer)
    late = run(adding(), kept[0])
    assert report.changes == ()
    assert not report.degraded
    assert report.children == []
    assert late.path == "hosts"
    assert late.changes == (HOSTS,)


def test_it_has_the_first_values_of_the_run_around_it() -> None:
    """Those of `Context.first`, also in a later attempt; a run that stands alone has its own."""
    seen: list[int] = []
    failures = [OSError("busy")]
    look = task("look")(lambda ctx: seen.append(ctx.first("state", len(seen))))

    @task("outer")
    def outer(ctx: Context) -> None:
        run(look, ctx)
        execute(look, ctx)
        run(look)
        if failures:
            raise failures.pop()

    assert run(with_retry(outer, attempts=2), in_time()).ok
    assert seen == [0, 0, 2, 0, 0, 5]


def test_runs_in_parallel_tasks() -> None:
    """Each belongs to its own task."""
    barrier = threading.Barrier(2, timeout=60)

    def outer(ctx: Context) -> None:
        barrier.wait()
        run(adding(), ctx)

    report = run(Parallel(*(task(name)(outer) for name in "ab"), name="all"))
    assert {each.path for each in report.walk() if each.changes and not each.children} == {
        "all/a/hosts",
        "all/b/hosts",
    }


# --- its failure


def test_a_failed_run_degrades_its_task() -> None:
    """Also if a later run is right, the report is dropped, or the task is in groups; a degraded run
    degrades it, too.
    """
    report = run(Serial(running(FAIL, adding()), name="all"))
    assert report.ok
    assert report.degraded
    assert report.children[0].degraded
    again = FailingTask("again", OSError("busy"), times=1)
    assert run(running(again, again)).degraded
    degraded = task("warn")(lambda ctx: ctx.degrade("ib0 has no carrier"))
    assert run(running(degraded)).reasons == ["its run of warn: degraded"]
    assert not run(running(adding())).degraded


def test_a_task_fails_by_the_report_that_it_returns() -> None:
    """With the error of the run, below its own path; returned through wrappers, too."""
    outer = task("outer")(partial(run, Serial(FAIL, name="in")))
    for each in outer, with_timeout(outer, 60), with_retry(outer, attempts=1):
        report = run(Serial(each, name="all"))
        assert report.status == "failed"
        assert str(report.error) == "all/outer/in/fail: x"
    with pytest.raises(TaskFailedError, match=r"^outer/in/fail: x$"):
        execute(outer)
    assert run(task("outer")(partial(run, adding()))).status == "ok"


def test_a_task_may_raise_the_error_of_its_run() -> None:
    """As `execute` would have."""
    outer = task("outer")(lambda ctx: run(FAIL, ctx).raise_for_failure())
    report = run(outer)
    assert report.status == "failed"
    assert str(report.error) == "outer/fail: x"


def test_the_report_of_a_step_that_was_not_reached() -> None:
    """It has no error, and fails the task that returns it all the same."""
    outer = task("outer")(lambda ctx: run(Serial(FAIL, adding()), ctx).children[1])
    report = run(outer)
    assert isinstance(report.error, TaskFailedError)
    assert type(report.error.cause) is PhaseError
    text = "outer: do(ctx) returned the report of outer/hosts: not-reached"
    assert str(report.error) == text


def test_a_report_that_is_returned_is_a_reason_to_try_again() -> None:
    """The attempt that is right counts: the task is not degraded by those before it."""
    flaky = FailingTask("flaky", OSError("busy"), times=2)
    retried = with_retry(task("outer")(partial(run, flaky)), attempts=3)
    report = run(Serial(retried, name="all"), in_time())
    assert report.status == "ok"
    assert not report.degraded
    assert report.children[0].attempts == 3
    assert flaky.calls == 3


def test_the_changes_of_all_attempts_are_reported() -> None:
    """What an attempt that failed has left is a change of the run."""
    undone: list[str] = []
    flaky = FailingTask("flaky", OSError("busy"), times=1)
    outer = task("outer")(lambda ctx: run(Serial(adding(undone), flaky, name="in"), ctx))
    report = run(with_retry(outer, attempts=2), in_time())
    assert report.changes == (HOSTS, HOSTS)
    assert not report.degraded


def test_a_deadline_of_its_own_is_a_failure_of_the_task() -> None:
    """That of the run around it ends both: a dropped report degrades the task, which may end."""
    nap = task("nap")(lambda ctx: ctx.sleep(60))
    report = run(task("outer")(lambda ctx: run(nap, ctx, timeout=5)), in_time(60))
    assert isinstance(report.error, TaskFailedError)
    assert isinstance(report.error.cause, DeadlineExceededError)
    assert statuses(report) == {"nap": "cancelled", "outer": "failed"}
    report = run(task("outer")(lambda ctx: run(nap, ctx)), in_time(5))
    assert statuses(report) == {"nap": "cancelled", "outer": "cancelled"}
    report = run(running(nap), in_time(5))
    assert statuses(report) == {"nap": "cancelled", "outer": "ok"}
    assert report.degraded


def test_an_interrupt_passes_and_its_changes_are_undone() -> None:
    """As from `execute`."""
    undone: list[str] = []
    inner = Serial(adding(undone), FailingTask("stop", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(running(inner), undo_on_failure=True)
    assert undone == ["hosts"]


def test_a_task_that_makes_runs_for_months_keeps_few_reports() -> None:
    """Of one name the latest report stays, and those with changes."""

    @task("outer")
    def outer(ctx: Context) -> None:
        for _ in range(100):
            run(task("look")(lambda _: None), ctx)
            run(FAIL, ctx)
        run(adding(), ctx)
        run(adding(), ctx)

    report = run(outer)
    assert [child.name for child in report.children] == ["look", "fail", "hosts", "hosts"]
    assert report.degraded


def test_a_report_stays_as_its_run_returned_it() -> None:
    """A later run, or step, of the same task has another report."""
    flaky = FailingTask("flaky", OSError("busy"), times=1)

    @task("outer")
    def outer(ctx: Context) -> None:
        first = run(flaky, ctx)
        second = run(flaky, ctx)
        execute(flaky, ctx)
        assert first.status == "failed"
        assert second.status == "ok"
        assert second.attempts == 1

    assert run(outer).ok


def test_a_degraded_report_that_is_returned_degrades_the_task() -> None:
    """Also that of a run that stands alone, and only of the last attempt."""
    degraded = task("warn")(lambda ctx: ctx.degrade("ib0 has no carrier"))
    report = run(Serial(task("outer")(lambda _: run(degraded)), name="all"))
    assert report.ok
    assert report.degraded
    assert report.children[0].degraded
    answers = [run(adding()), run(degraded), run(FAIL)]
    retried = with_retry(task("outer")(lambda _: answers.pop()), attempts=2)
    assert run(retried, in_time()).degraded
    assert not run(retried, in_time()).degraded


# --- in a thread that outlives the run around it


def test_a_run_that_a_thread_has_not_ended_goes_on_alone() -> None:
    """The task that began it is degraded; its report, changes and inverses are whole at its end,
    and later work in its contexts stands alone.
    """
    has_begun = threading.Event()
    may_end = threading.Event()
    undone: list[str] = []
    kept: list[Context] = []
    inner: list[Report] = []

    @task("slow")
    def slow(ctx: Context) -> None:
        kept.append(ctx)
        has_begun.set()
        may_end.wait(60)

    work = Serial(adding(undone, "early"), slow, adding(undone, "late"), FAIL, name="in")

    def run_inner(ctx: Context) -> None:
        inner.append(run(work, ctx, undo_on_failure=True))

    @task("outer")
    def outer(ctx: Context) -> None:
        threads.append(threading.Thread(target=run_inner, args=(ctx,)))
        threads[0].start()
        has_begun.wait(60)

    threads: list[threading.Thread] = []
    report = run(Serial(outer, name="all"), undo_on_failure=True)
    assert report.ok
    assert report.degraded
    assert len(report.changes) == 1
    may_end.set()
    threads[0].join(60)
    assert str(inner[0].error) == "in/fail: x"
    assert inner[0].status == "failed"
    assert undone == ["late", "early"]
    assert statuses(inner[0]) == {
        "early": "undone",
        "slow": "ok",
        "late": "undone",
        "fail": "failed",
        "in": "failed",
    }
    assert report.degraded
    assert run(adding(), kept[0]).path == "hosts"


# --- a returned Future


def test_a_future_that_holds_an_error_fails_the_task() -> None:
    """As if it were raised, and as a reason to try again; a cancelled one, too."""
    failed = Future[int]()
    cancelled = Future[int]()
    done = Future[int]()
    failed.set_exception(OSError("x"))
    cancelled.cancel()
    done.set_result(3)
    assert str(run(task("a")(lambda _: failed)).error) == "a: x"
    assert str(run(task("a")(lambda _: cancelled)).error) == "a: CancelledError"
    assert run(task("a")(lambda _: done)).ok
    answers = [done, failed, failed]
    retried = with_retry(task("a")(lambda _: answers.pop()), attempts=3)
    assert run(retried, in_time()).ok
    assert answers == []


def test_the_value_of_a_future_counts_as_if_it_were_returned() -> None:
    """The report of a run that failed in a thread, and an error that was not raised."""

    def returning(value: object) -> Task:
        future = Future[object]()
        future.set_result(value)
        return task("a")(lambda _: future)

    failed = returning(run(FAIL))
    assert str(run(failed).error) == "a/fail: x"
    assert str(run(with_retry(failed, attempts=2), in_time()).error) == "a/fail: x"
    text = "a: do(ctx) returned an OSError, and a task that fails raises it"
    assert str(run(returning(OSError("x"))).error) == text


def test_a_future_that_is_not_done_is_a_mistake() -> None:
    """Its work may fail after the task was reported."""
    report = run(task("a")(lambda _: Future()))
    text = "a: do(ctx) returned a Future that is not done: return its result(), which waits"
    assert str(report.error) == text
