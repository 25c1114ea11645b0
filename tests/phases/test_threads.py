"""What threads see: waits, parallel groups, and two tasks of one name under way at once."""

import contextvars
import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from phases import (
    CancelledError,
    Change,
    Context,
    Parallel,
    Serial,
    execute,
    run,
    run_command,
    task,
    with_retry,
)
from phases.context import SystemClock, notify, wait
from phases.report import Report
from phases.testing import ManualClock

quick = task("a")(lambda _: None)


@task("a")
def fail(_: Context) -> None:
    raise OSError("x")


def test_a_sleep_lets_time_pass_and_ends_with_its_context(
    clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    """A sleep returns when its time has come, not earlier; a cancellation of a parent wakes it; a
    notify anywhere in the family makes a wait look again; a test without a sleeper fails.
    """
    ctx = Context(clock=clock)
    sleeping = threads.submit(ctx.sleep, 10)
    clock.wait_for_sleepers()
    clock.advance(9)
    assert not sleeping.done()
    clock.wait_for_sleepers()
    clock.advance(1)
    assert sleeping.result(timeout=60) is None
    seen: list[int] = []
    waiting = threads.submit(wait, ctx.child(), lambda: len(seen) == 2)
    for number in range(2):
        seen.append(number)
        notify(ctx.child())
    assert waiting.result(timeout=60) is True
    sleeping = threads.submit(ctx.child(timeout=100).sleep, 10)
    clock.wait_for_sleepers()
    ctx.cancel("enough")
    assert str(sleeping.exception(timeout=60)) == "cancelled: enough"
    assert clock.monotonic() == 10
    with pytest.raises(TimeoutError, match=r"^no thread sleeps after 0 s$"):
        clock.wait_for_sleepers(timeout=0)
    real = Context(timeout=3600)
    real.sleep(0.001)
    assert 3590 < (real.remaining() or 0) < 3600


def test_a_task_that_ignores_its_context_is_named_and_waited_for(
    clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    """A task that goes on after its group was cancelled is named in the log 5 s later."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    logger = logging.getLogger("stubborn")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    release = threading.Event()
    group = Parallel(fail, task("stubborn")(lambda _: release.wait(10)))
    running = threads.submit(execute, group, Context(clock=clock), logger=logger)
    clock.wait_for_sleepers()
    clock.advance(5)
    while "still waiting" not in (line := lines.get(timeout=60)):
        pass
    assert line == "still waiting for stubborn: cancelled 5 s ago"
    assert not running.done()
    release.set()
    assert str(running.exception(timeout=60)) == "a: x"


def test_a_clock_that_moves_by_itself_does_not_pass_the_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A group on such a clock ends by its failure, not by its deadline, and names no task."""

    def late(ctx: Context) -> None:
        ctx.sleep(5)
        run_command(ctx, ["sleep", "0.01"])
        raise OSError("x")

    group = Parallel(task("a")(lambda ctx: wait(ctx, lambda: ctx.cancelled)), task("b")(late))
    assert run(group, Context(timeout=60, clock=ManualClock(auto=True))).status == "failed"
    assert "still waiting" not in caplog.text


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group for which the system refuses a thread cancels the tasks that have begun, and fails."""
    start = threading.Thread.start

    def refuse_b(thread: threading.Thread) -> None:
        if thread.name == "b":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_b)
    sleeper = task("a")(lambda ctx: ctx.sleep(3600))
    report = run(Parallel(sleeper, task("b")(lambda _: None), name="both"))
    assert str(report.error) == "both: can't start new thread"
    assert [child.status for child in report.children] == ["cancelled", "not-reached"]


@pytest.mark.parametrize("third", [True, False])
def test_all_begin_though_one_has_failed(*, third: bool) -> None:
    """A task begins although another one has failed before, also while a third one runs."""
    looked = threading.Event()

    class Watched(SystemClock):
        """Notes when the group, after the thread of `a` has ended, waits again."""

        def wait(self, doorbell: threading.Lock, until: float | None) -> None:
            names = [thread.name for thread in threading.enumerate()]
            if threading.current_thread() is threading.main_thread() and "a" not in names:
                looked.set()
            super().wait(doorbell, until)

    logger = logging.getLogger("begin")
    logger.setLevel(logging.INFO)
    logger.filters = [lambda record: record.getMessage() != "started task=b" or looked.wait(10)]
    others = [task("c")(lambda ctx: ctx.sleep(3600))] * third
    report = run(
        Parallel(fail, task("b")(lambda _: None), *others), Context(clock=Watched()), logger=logger
    )
    assert [child.status for child in report.children] == ["failed", "ok", "cancelled"][: 2 + third]


def test_no_task_starts_after_the_callers_end_and_only_who_caught_it_fails() -> None:
    """A task of a group does not start after the caller's end. Of tasks that run, the one that
    caught the end has failed, and the one that ends late has not.
    """
    ctx = Context()
    has_begun, is_over = threading.Event(), threading.Event()

    def late(_: Context) -> None:
        has_begun.set()
        is_over.wait(10)

    def stop(inside: Context) -> None:
        has_begun.wait(10)
        ctx.cancel("maintenance")
        with suppress(CancelledError):
            inside.check()
        is_over.set()

    logger = logging.getLogger("after")
    logger.setLevel(logging.INFO)
    logger.filters = [lambda record: record.getMessage() != "started task=c" or is_over.wait(10)]
    group = Parallel(task("late")(late), task("stop")(stop), task("c")(lambda _: None))
    report = run(group, ctx, logger=logger)
    assert [each.status for each in report.children] == ["ok", "failed", "cancelled"]


def test_threads_have_the_context_variables_of_the_caller() -> None:
    """So those of log lines have their values in the threads."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("node-1")
    seen: list[str] = []
    execute(Parallel(task("a")(lambda _: seen.append(variable.get()))))
    assert seen == ["node-1"]


def test_the_end_of_a_group_keeps_the_failures_of_each_task() -> None:
    """A group that is cancelled names the failures of the attempts of a task, though another task
    of the group ended before that one.
    """
    attempts: list[int] = []
    begun: list[threading.Thread] = []
    whole = Context()

    def busy(ctx: Context) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("busy")
        notify(ctx)
        wait(ctx, lambda: bool(begun))
        begun[0].join(10)
        ctx.check()

    def stop(ctx: Context) -> None:
        begun.append(threading.current_thread())
        notify(ctx)
        wait(ctx, lambda: len(attempts) == 2)
        whole.cancel("stop")
        ctx.check()

    retried = with_retry(task("a")(busy), attempts=99, backoff=0)
    both = Parallel(retried, task("b")(stop), name="both")
    report = run(Serial(both, name="all"), whole)
    assert [each.status for each in report.walk()] == ["cancelled"] * 4
    for step in report, report.find("both"), report.find("all/both/a"):
        paths = [failure["path"] for failure in step.to_mapping()["failures"]]
        assert paths[1:] == ["all/both/a"]


def test_tasks_of_one_name_that_are_under_way_together_have_reports_of_their_own() -> None:
    """A task between two of one name stays in the report, and each keeps its own when it is done
    again.
    """
    has_begun, may_end = threading.Event(), threading.Event()

    @task("again")
    def slow(_: Context) -> None:
        has_begun.set()
        may_end.wait(10)

    def rounds(ctx: Context) -> None:
        thread = threading.Thread(target=execute, args=(slow, ctx))
        thread.start()
        has_begun.wait(10)
        execute(task("hosts")(lambda ctx: ctx.record(Change("+", "/etc/hosts"))), ctx)
        execute(task("again")(lambda _: None), ctx)
        may_end.set()
        thread.join()
        for _ in range(100):
            execute(task("again")(lambda _: None), ctx)

    report = run(task("all")(rounds))
    assert [child.name for child in report.children] == ["again", "hosts", "again"]
    assert report.changes == (Change("+", "/etc/hosts"),)
    whole, others = Report(task("all")(print)), [task("a")(lambda _: None) for _ in range(2)]
    reports = [whole._due(each) for each in others]
    for each in reports:
        each.status, each.start = "ok", "2026-11-28T09:00:00Z"
    assert [whole._due(each) for each in reversed(others)] == reports[::-1]
