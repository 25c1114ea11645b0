"""Random pipelines against an oracle: what is done, reported, planned, and undone next to another
program that writes to the same places.
"""

import logging
import threading
from collections import Counter, defaultdict
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phases import (
    Change,
    Context,
    Event,
    Parallel,
    Report,
    Serial,
    TaskFailedError,
    plan,
    run,
    tolerate,
    undo,
    with_retry,
    with_timeout,
)
from phases.task import Group

#: A worker's steps (its own, or another program's) with its failures, or a wrapper and members.
Shape = tuple[Any, Any]
workers = st.tuples(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=4),
    st.sampled_from([0, 0, 0, 1, 2]),
)
kinds = st.sampled_from(["serial", "serial", "parallel", "retry", "tolerate", "timeout"])
shapes = st.recursive(
    workers, lambda inner: st.tuples(kinds, st.lists(inner, min_size=1, max_size=4)), max_leaves=12
)


class World:
    """Places with values: every write has a value that no other write has."""

    def __init__(self) -> None:
        self.values: defaultdict[int, str] = defaultdict(lambda: "before")
        self.strangers: dict[int, str] = {}
        self.lock = threading.Lock()
        self.numbers = count()
        self.done: list[str] = []
        self.workers: dict[str, Worker] = {}

    def write(self, ctx: Context, place: int, *, is_own: bool) -> None:
        with self.lock:
            before, after = self.values[place], f"{is_own} {next(self.numbers)}"
            self.values[place] = after
            if not is_own:
                self.strangers[place] = after
                return

            def reverse(_: Context) -> None:
                with self.lock:
                    if self.values[place] == after:
                        self.values[place] = before

            ctx.record(Change("~", f"{place}", after), undo=reverse)


class Worker:
    """A task that fails so many times at its end."""

    def __init__(self, world: World, steps: Any, failures: int) -> None:
        self.name = f"t{next(world.numbers)}"
        self.world, self.steps, self.failures = world, steps, failures
        self.is_recording: bool = any(is_own for is_own, _ in steps)
        world.workers[self.name] = self

    def do(self, ctx: Context) -> None:
        for is_own, place in self.steps:
            ctx.check()
            self.world.write(ctx, place, is_own=is_own)
        if self.failures:
            self.failures -= 1
            raise OSError(f"e{self.name}")
        self.world.done.append(self.name)

    def plan(self, _: Context) -> list[Change]:
        return [Change("+", self.name)]

    def undo(self, _: Context) -> None:
        self.world.done.append(f"undo {self.name}")


def build(shape: Shape, world: World) -> Any:
    kind, inside = shape
    if not isinstance(kind, str):
        return Worker(world, kind, inside)
    members = [build(each, world) for each in inside]
    group = (Parallel if kind == "parallel" else Serial)(*members, name=f"g{next(world.numbers)}")
    wrap = {
        "retry": lambda: with_retry(group, attempts=2, backoff=0),
        "tolerate": lambda: tolerate(group),
        "timeout": lambda: with_timeout(group, 60),
    }
    return wrap.get(kind, lambda: group)()


def outcome(shape: Shape) -> bool:
    """The oracle: whether a pipeline without a Parallel that fails completes."""
    kind, inside = shape
    if not isinstance(kind, str):
        return bool(not inside)
    return kind == "tolerate" or all(map(outcome, inside))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "phases")


@given(shapes, st.booleans())
def test_a_run_is_reported_and_undone_as_it_was(shape: Shape, undoes: bool) -> None:
    """A completed run has done all; one that failed names only true causes. Each place after an
    undone run is as before, or as another program has left it, and no report has a change.
    """
    world, events = World(), list[Event]()
    report = run(Serial(build(shape, world)), undo_on_failure=undoes, observer=events.append)
    assert_told_as_reported(events, report)
    done = Counter(name for name in world.done if not name.startswith("undo "))
    for each in report.walk():
        if each.name in world.workers and each.status in {"ok", "undone"}:
            assert done[each.name] > 0
    if "retry" not in str(shape):
        assert report.ok == outcome(shape)
        assert max(done.values(), default=1) == 1
    if not undoes:
        assert_in_order(report)
    recorded = [change.detail for change in report.changes]
    if report.ok:
        assert report.error is None
        if "tolerate" not in str(shape) and "retry" not in str(shape):
            assert sorted(done) == sorted(world.workers)
        assert {value for value in world.values.values() if value[0] == "T"} <= {*recorded}
        return
    assert isinstance(report.error, TaskFailedError)
    assert report.failures[0] is report.error.__cause__
    assert {str(cause) for cause in report.failures} <= {f"e{name}" for name in world.workers}
    if undoes:
        assert recorded == []
        assert_undone(shape, report, world)


def assert_told_as_reported(events: list[Event], report: Report) -> None:
    """Assert that the last event of each task has the status that the report has."""
    last = {event.path: event.status for event in events if event.change is None}
    begun = [each for each in report.walk() if each.status != "not-reached"]
    assert last == {each.path: each.status for each in begun}


def assert_in_order(report: Report) -> None:
    """Assert that in each Serial the tasks that were not reached come last."""
    for each in report.walk():
        if isinstance(each.task, Serial):
            inside = [child.status for child in each.children]
            assert inside == sorted(inside, key=lambda status: status == "not-reached")


def assert_undone(shape: Shape, report: Report, world: World) -> None:
    """Assert that each place is as another program has left it, or as it was, and that `undo` was
    called for each completed task that recorded nothing, newest first.
    """
    for place, value in world.values.items():
        assert value == world.strangers.get(place, "before")
    undone = [name.removeprefix("undo ") for name in world.done if name.startswith("undo ")]
    silent = {name for name, worker in world.workers.items() if not worker.is_recording}
    reported = [each.name for each in report.walk() if each.status == "undone"]
    assert sorted(undone) == sorted(name for name in reported if name in silent)
    if not any(word in str(shape) for word in ("parallel", "retry")):
        assert undone == [name for name in reversed(world.done) if name in silent]


@given(shapes)
def test_plan_and_undo_see_each_task_once_in_opposite_orders(shape: Shape) -> None:
    """The plan names every task once, in order; an undo takes the opposite order."""
    world = World()
    tree = Serial(build(shape, world))
    names = [each.name for each in Report(tree).walk() if not isinstance(each.task, Group)]
    assert [change.subject for change in plan(tree).changes] == names
    undo(tree)
    assert world.done == [f"undo {name}" for name in reversed(names)]
