"""Parallel tasks: one failure, the end of the caller's context, or an interrupt ends them all, and
is reported.
"""

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.tasks import FailingTask

from phases import (
    CancelledError,
    Context,
    Parallel,
    Serial,
    TaskFailedError,
    execute,
    run,
    run_command,
    task,
)
from phases.context import SystemClock, wait
from phases.hosting import reason_of
from phases.testing import ManualClock


def test_a_clock_that_moves_by_itself_does_not_pass_the_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A parallel group on a clock that advances by itself ends by the failure of its task, and not
    by its deadline, and the log does not name a task that is about to end.
    """

    def fail(ctx: Context) -> None:
        ctx.sleep(5)
        run_command(ctx, ["sleep", "0.01"])
        raise OSError("x")

    group = Parallel(task("a")(lambda ctx: wait(ctx, lambda: ctx.cancelled)), task("b")(fail))
    ctx = Context(timeout=60, clock=ManualClock(auto=True))
    assert run(group, ctx).status == "failed"
    assert "still waiting" not in caplog.text


def test_a_task_that_ignores_its_context_is_named_and_waited_for(
    clock: ManualClock, threads: ThreadPoolExecutor
) -> None:
    """A task that goes on after its group was cancelled is named in the log after the grace period,
    and the group waits for it.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    logger = logging.getLogger("test_parallel")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.put(record.getMessage())  # type: ignore[method-assign]  # a test's handler
    logger.addHandler(handler)
    release = threading.Event()

    group = Parallel(
        task("stubborn")(lambda _: release.wait(10)),
        FailingTask("fail", OSError("x")),
    )
    running = threads.submit(execute, group, Context(clock=clock), logger=logger)
    clock.wait_for_sleepers()
    clock.advance(5)
    while "still waiting" not in (line := lines.get(timeout=60)):
        pass
    assert line == "still waiting for stubborn: cancelled 5 s ago"
    assert not running.done()
    release.set()
    assert str(running.exception(timeout=60)) == "fail: x"


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group for which the system refuses a thread cancels the tasks that have begun, and
    fails.
    """
    start = threading.Thread.start
    began: list[str] = []

    def refuse_b(thread: threading.Thread) -> None:
        if thread.name == "b":
            raise RuntimeError("can't start new thread")
        start(thread)

    def do(ctx: Context) -> None:
        began.append("a")
        ctx.sleep(3600)

    monkeypatch.setattr(threading.Thread, "start", refuse_b)
    report = run(Parallel(task("a")(do), task("b")(lambda _: None), name="both"))
    assert str(report.error) == "both: can't start new thread"
    assert [child.status for child in report.children] == ["cancelled", "not-reached"]
    assert began in ([], ["a"])


def _after(name: str) -> Callable[[logging.LogRecord], bool]:
    """A filter for a logger: the line that `b` starts comes after the thread of that name has
    ended.
    """

    def wait(record: logging.LogRecord) -> bool:
        if record.getMessage() == "started task=b":
            for thread in threading.enumerate():
                if thread.name == name:
                    thread.join(10)
        return True

    return wait


def test_all_begin_though_one_has_failed_before() -> None:
    """A task that fails at once does not prevent others from starting; they are cancelled with the
    reason, and are not failures. The caller's context goes on.
    """
    logger = logging.getLogger("test_all_begin")
    logger.setLevel(logging.INFO)
    # This does not depend on timing: when b gets to its first line, the thread of a is gone.
    logger.addFilter(_after("a"))
    began: list[str] = []
    reasons: list[str | None] = []

    def do(ctx: Context) -> None:
        began.append("b")
        wait(ctx, lambda: ctx.cancelled)
        reasons.append(reason_of(ctx))

    ctx = Context()
    with pytest.raises(TaskFailedError, match=r"^a: x$") as caught:
        execute(Parallel(FailingTask("a", OSError("x")), task("b")(do)), ctx, logger=logger)
    assert began == ["b"]
    assert reasons == ["a failed"]
    assert len(caught.value.failures) == 1
    assert not ctx.cancelled


def test_all_begin_though_one_has_failed_and_another_runs() -> None:
    """A task that begins after another one has failed, while a third one runs, is still started."""
    looked = threading.Event()

    class Watched(SystemClock):
        """Notes when the group, after the thread of `a` has ended, waits again."""

        def wait(self, doorbell: threading.Lock, until: float | None) -> None:
            names = [thread.name for thread in threading.enumerate()]
            if threading.current_thread() is threading.main_thread() and "a" not in names:
                looked.set()
            super().wait(doorbell, until)

    def hold(record: logging.LogRecord) -> bool:
        return record.getMessage() != "started task=b" or looked.wait(10)

    logger = logging.getLogger("test_another_runs")
    logger.setLevel(logging.INFO)
    logger.addFilter(hold)
    began: list[str] = []
    group = Parallel(
        FailingTask("a", OSError("x")),
        task("b")(lambda _: began.append("b")),
        task("c")(lambda ctx: ctx.sleep(3600)),
    )
    report = run(group, Context(clock=Watched()), logger=logger)
    assert [child.status for child in report.children] == ["failed", "ok", "cancelled"]
    assert began == ["b"]


def test_a_skipped_task_is_not_waited_for() -> None:
    """A failure cancels all siblings, even if one of the group is skipped and so never begins."""
    group = Parallel(
        FailingTask("a", OSError("x")),
        task("b")(lambda ctx: ctx.sleep(3600)),
        task("c")(lambda _: None),
    )
    report = run(group, skip=["c"])
    assert [child.status for child in report.children] == ["failed", "cancelled", "skipped"]


def test_no_task_starts_after_the_callers_end() -> None:
    """A task of a group does not start after the caller's context has ended."""
    logger = logging.getLogger("test_callers_end")
    logger.setLevel(logging.INFO)
    logger.addFilter(_after("a"))
    began: list[str] = []
    ctx = Context()
    group = Parallel(
        task("a")(lambda _: ctx.cancel("stop")), task("b")(lambda _: began.append("b"))
    )
    with pytest.raises(CancelledError, match=r"^cancelled: stop$"):
        execute(group, ctx, logger=logger)
    assert began == []


def test_context_variables_reach_the_threads() -> None:
    """Context variables of the caller, such as those of log lines, have their values in the
    threads.
    """
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("node-1")
    seen: list[str] = []
    execute(Parallel(task("a")(lambda _: seen.append(variable.get()))))
    assert seen == ["node-1"]


@pytest.mark.parametrize("group", [Serial, Parallel])
def test_a_name_twice_in_a_group_is_a_mistake(group: type[Serial | Parallel]) -> None:
    """A group with two tasks of one name is refused with the name, as paths and `skip` could not
    distinguish them.
    """
    first, second = (task("a")(lambda _: None) for _ in range(2))
    with pytest.raises(ValueError, match="a group has two tasks named 'a': rename one"):
        group(first, second)
    group(Serial(first), Serial(second), Serial(), Serial())


def test_an_interrupt_in_a_subtask_weighs_more_than_a_failure() -> None:
    """A SystemExit in one thread is raised unchanged, although another task has failed before
    it.
    """

    def leave(ctx: Context) -> None:
        wait(ctx, lambda: ctx.cancelled)
        raise SystemExit(7)

    with pytest.raises(SystemExit) as raised:
        Parallel(FailingTask("fails", OSError("disk full")), task("leaves")(leave)).do(Context())
    assert raised.value.code == 7


def test_waiting_for_sleepers_has_an_end(clock: ManualClock) -> None:
    """A test in which no thread sleeps fails instead of hanging."""
    with pytest.raises(TimeoutError, match=r"^no thread sleeps after 0 s$"):
        clock.wait_for_sleepers(timeout=0)
