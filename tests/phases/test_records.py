"""Changes that tasks record: how a failed run undoes them, and what its observer and report get."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import FailingTask, RecordingTask

from phases import (
    Change,
    Context,
    Event,
    Parallel,
    Report,
    Serial,
    Task,
    TaskFailedError,
    Transaction,
    Work,
    execute,
    run,
    task,
    tolerate,
    with_retry,
    with_timeout,
)

A, B, C = (Change("+", name) for name in "abc")
FAIL = FailingTask("fail", OSError("x"))


def _recording(*changes: Change, undone: list[str] | None = None, fail: bool = False) -> Task:
    """Return a task that records changes, each with an inverse that notes it."""

    def inverse(change: Change) -> Callable[[Context], None]:
        return lambda _: None if undone is None else undone.append(change.subject)

    @task("make")
    def make(ctx: Context) -> None:
        for change in changes:
            ctx.record(change, undo=inverse(change))
        if fail:
            raise OSError("x")

    return make


def test_a_method_is_one_inverse() -> None:
    """A bound method that is recorded for consecutive changes is called once; a change of another
    task in between separates its calls.

    A change without an inverse stays.
    """
    undone: list[str] = []

    class Routes:
        name = "routes"

        def reverse(self, _: Context) -> None:
            undone.append("routes")

        def do(self, ctx: Context) -> None:
            ctx.record(A, undo=self.reverse)
            ctx.record(B, undo=self.reverse)
            execute(_recording(C, undone=undone), ctx)
            ctx.record(A, undo=self.reverse)
            ctx.record(C)

    report = run(Serial(Routes(), FAIL), undo_on_failure=True)
    assert undone == ["routes", "c", "routes"]
    assert report.children[0].status == "ok"
    assert report.children[0].changes == (C,)


def test_a_change_that_an_inverse_leaves_stays_in_the_report() -> None:
    """A change whose inverse returns False, as another program has altered the place, stays in the
    report, and its task is not undone.
    """

    @task("make")
    def make(ctx: Context) -> bool:
        ctx.record(A, undo=lambda _: None)
        ctx.record(B, undo=lambda _: False)
        return False

    report = run(Serial(make, FAIL), undo_on_failure=True)
    assert report.changes == (B,)
    assert report.undone == (A,)
    assert report.children[0].status == "ok"


def test_a_task_that_records_and_changed_nothing_is_not_undone() -> None:
    """A task that records its changes, and recorded none, is not undone by its `undo`, which would
    reverse an earlier run.
    """
    journal: list[str] = []

    class Routes(RecordingTask):
        records = True

    routes = Routes("routes", journal)
    function = task("routes", undo=routes.undo, records=True)(routes.do)
    for wrapped in routes, with_timeout(routes, 5), function, with_timeout(function, 5):
        report = run(Serial(wrapped, FAIL), undo_on_failure=True)
        assert report.children[0].status == "ok"
    assert journal == ["do routes"] * 4


def test_an_inverse_takes_the_place_of_the_method() -> None:
    """A task that recorded an inverse is not undone by its `undo` as well."""
    journal: list[str] = []

    class Routes(RecordingTask):
        def do(self, ctx: Context) -> None:
            ctx.record(A, undo=lambda _: journal.append("inverse"))

    run(Serial(Routes("routes", journal), FAIL), undo_on_failure=True)
    assert journal == ["inverse"]


def test_the_method_reverses_what_a_task_has_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """A recorded change without an inverse is undone by the `undo` of its task, and the log does
    not claim the contrary.
    """

    class Routes(RecordingTask):
        def do(self, ctx: Context) -> None:
            ctx.record(A)

    report = run(Serial(Routes("routes", []), FAIL), undo_on_failure=True)
    assert report.undone == (A,)
    assert "cannot undo task=routes" not in caplog.messages


def test_a_task_that_failed_is_not_undone() -> None:
    """A failed task whose change was undone keeps the status failed in the report."""
    report = run(_recording(A, fail=True), undo_on_failure=True)
    assert report.undone == (A,)
    assert report.status == "failed"


@pytest.mark.parametrize(
    ("inverse", "outcome"),
    [
        (lambda _: None, "complete"),
        (lambda _: False, "partial"),
        (Mock(side_effect=OSError), "partial"),
    ],
)
def test_an_undo_that_leaves_a_change_ends_the_retries(inverse: Work, outcome: str) -> None:
    """A task that has rolled back all its changes is tried again, and one that has left a change is
    not: the report says which, and its error is not retryable.
    """

    @task("routes")
    def change(ctx: Context) -> None:
        transaction = Transaction(ctx)
        transaction.ctx.record(A, undo=inverse)
        for _ in transaction.rollback(timeout=1):
            pass
        raise OSError("busy")

    report = run(with_retry(change, attempts=2, backoff=0))
    assert report.undo == report.to_mapping()["undo"] == outcome
    assert report.attempts == (2 if outcome == "complete" else 1)
    assert isinstance(report.error, TaskFailedError)
    assert report.error.retryable == (outcome == "complete")


@pytest.mark.parametrize(("inverse", "outcome"), [(None, "partial"), (lambda _: None, "complete")])
def test_what_a_run_could_not_undo(inverse: Work | None, outcome: str) -> None:
    """A run is undone in part if it recorded a change without an inverse; a task that recorded
    nothing does not count.
    """

    @task("routes")
    def change(ctx: Context) -> None:
        ctx.record(A, undo=inverse)
        raise OSError("busy")

    report = run(Serial(task("look")(lambda _: None), change), undo_on_failure=True)
    assert report.undo == outcome


def test_a_group_that_is_undone_in_part_has_failed() -> None:
    """A completed group with one task that is undone and one whose inverse failed has failed,
    whichever is first.
    """

    @task("stuck")
    def stuck(ctx: Context) -> None:
        ctx.record(A, undo=FAIL.do)

    for order in (_recording(B), stuck), (stuck, _recording(B)):
        whole = Serial(Serial(*order, name="inner"), FAIL, name="all")
        inner, _ = run(whole, undo_on_failure=True).children
        assert {report.name: report.status for report in inner.children} == {
            "make": "undone",
            "stuck": "failed",
        }
        assert inner.status == "failed"


def test_records_need_a_run() -> None:
    """A record outside of a run is dropped."""
    execute(_recording(A))
    Context().record(A)


def test_an_undo_goes_on_after_its_context_has_ended() -> None:
    """A run whose caller cancelled it is undone, and only once."""
    undone: list[str] = []
    ctx = Context()

    @task("stop")
    def stop(inside: Context) -> None:
        ctx.cancel("maintenance")
        inside.check()

    @task("slow")
    def slow(inside: Context) -> None:
        def inverse(late: Context) -> None:
            late.sleep(0.01)
            undone.append("a")

        inside.record(A, undo=inverse)

    report = run(Serial(slow, stop), ctx, undo_on_failure=True)
    assert report.status == "cancelled"
    assert undone == ["a"]


def test_a_run_does_not_cancel_its_caller() -> None:
    """An interrupt ends the run's own context, and not the given one."""
    ctx = Context()
    with pytest.raises(KeyboardInterrupt):
        run(FailingTask("a", KeyboardInterrupt()), ctx)
    ctx.check()


def test_an_observer_follows_the_run() -> None:
    """The observer gets an event for each beginning, record, end and undo, with the path of the
    task.
    """
    events: list[Event] = []
    inner = Serial(_recording(A), name="in")
    report = run(Serial(inner, FAIL, name="all"), undo_on_failure=True, observer=events.append)
    assert [(event.path, event.status, event.change) for event in events] == [
        ("all", "running", None),
        ("all/in", "running", None),
        ("all/in/make", "running", None),
        ("all/in/make", "running", A),
        ("all/in/make", "ok", None),
        ("all/in", "ok", None),
        ("all/fail", "running", None),
        ("all/fail", "failed", None),
        ("all", "failed", None),
        ("all/in/make", "undone", None),
        ("all/in", "undone", None),
    ]
    assert events[-3].error is report.error


def test_an_observer_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises an error does not end the run, and the log has the error."""

    def refuse(_: Event) -> None:
        raise OSError("closed")

    assert run(_recording(A), observer=refuse).ok
    assert caplog.records[0].getMessage() == "the observer of the run failed at make"


# --- the property


class _World:
    """Places with values; every write has a value that no other write has."""

    def __init__(self) -> None:
        self.values: defaultdict[int, str] = defaultdict(lambda: "before")
        self.strangers: dict[int, str] = {}
        self.lock = threading.Lock()
        self.numbers = count()

    def change(self, ctx: Context, place: int) -> None:
        """Write to a place, and record it, as one step."""
        with self.lock:
            before = self.values[place]
            after = f"ours {next(self.numbers)}"
            self.values[place] = after

            def undo(_: Context) -> None:
                with self.lock:
                    if self.values[place] == after:
                        self.values[place] = before

            ctx.record(Change("~", f"{place}", after), undo=undo)

    def intrude(self, place: int) -> None:
        """Write to a place as another program does."""
        with self.lock:
            self.values[place] = self.strangers[place] = f"another's {next(self.numbers)}"


class _Worker:
    """A task that changes places while another program changes some, and fails so many times at its
    end.
    """

    def __init__(self, world: _World, steps: list[tuple[bool, int]], failures: int) -> None:
        # A group refuses a name twice.
        self.name = f"worker {id(self)}"
        self._world = world
        self._steps = steps
        self._failures = failures

    def do(self, ctx: Context) -> None:
        for is_own, place in self._steps:
            ctx.check()
            if is_own:
                self._world.change(ctx, place)
            else:
                self._world.intrude(place)
        if self._failures:
            self._failures -= 1
            raise OSError("busy")


#: A pipeline before it has a world: a worker's steps and failures, or a group's wrapper and
#: members.
Shape = tuple[list[tuple[bool, int]], int] | tuple[str, list["Shape"]]

workers = st.tuples(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=4),
    st.sampled_from([0, 0, 0, 1, 2]),
)
pipelines: st.SearchStrategy[Shape] = st.recursive(
    workers,
    lambda inner: st.tuples(
        st.sampled_from(["serial", "parallel", "retry", "tolerate", "timeout"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=10,
)


def _build(shape: Shape, world: _World) -> Task:
    kind, inside = shape
    if isinstance(kind, list):
        assert isinstance(inside, int)
        return _Worker(world, kind, inside)
    assert isinstance(inside, list)
    members = [_build(each, world) for each in inside]
    name = f"group {next(world.numbers)}"
    group = (Parallel if kind == "parallel" else Serial)(*members, name=name)
    if kind == "retry":
        return with_retry(group, attempts=2, backoff=0)
    if kind == "tolerate":
        return tolerate(group)
    return with_timeout(group, 60) if kind == "timeout" else group


@given(pipelines, st.booleans())
def test_undo_of_a_run(shape: Shape, fails: bool) -> None:
    """Each place after an undone run is as before, or as another program has left it, and no report
    has a change.

    The last event of each task and group has the status of its report.
    """
    events: list[Event] = []
    world = _World()
    pipeline = Serial(_build(shape, world), *([FAIL] if fails else []))
    logging.getLogger("phases").setLevel(logging.CRITICAL)
    try:
        report = run(pipeline, undo_on_failure=True, observer=events.append)
    finally:
        logging.getLogger("phases").setLevel(logging.NOTSET)
    last = {event.path: event.status for event in events if event.change is None}
    assert last == {r.path: r.status for r in report.walk() if r.status != "not-reached"}
    recorded = [change for each in report.walk() for change in each.changes]
    if report.ok:
        own_values = [value for value in world.values.values() if value.startswith("ours")]
        assert set(own_values) <= {change.detail for change in recorded}
        return
    assert isinstance(report.error, TaskFailedError)
    assert dict(world.values) == {
        place: world.strangers.get(place, "before") for place in world.values
    }
    assert recorded == []


def test_a_task_that_is_done_again_has_its_own_report() -> None:
    """Two tasks of one name that are under way together keep their own reports when they are done
    again.
    """
    first, second = _recording(A), _recording(B)
    whole = Report(Serial(name="all"))
    reports = [whole.due(first), whole.due(second)]
    for report in reports:
        report.status = "ok"
        report.start = "2026-11-28T09:00:00Z"
    assert whole.due(second) is reports[1]
    assert whole.due(first) is reports[0]
