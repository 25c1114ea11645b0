"""A run: its report, the tasks that it leaves out, and how a failed one is undone."""

import logging
import subprocess
import sys
import textwrap
import threading

import pytest
from support.tasks import FailingTask, RecordingTask, statuses

from phases import (
    Change,
    CommandFailedError,
    Context,
    Event,
    Serial,
    Task,
    TaskFailedError,
    UnknownTaskError,
    Wait,
    cancel_on_signals,
    execute,
    run,
    task,
    tolerate,
    with_retry,
    with_timeout,
)
from phases.hosting import leave, report_wait, skips
from phases.testing import ManualClock


def _entry(
    name: str, status: str, start: str | None, duration: float | None, **more: object
) -> dict[str, object]:
    fields = {"path": name, "status": status, "start": start, "duration": duration, "error": None}
    fields |= {
        "name": name.rsplit("/", maxsplit=1)[-1],
        "degraded": False,
        "attempts": int(start is not None),
    }
    return {
        **fields,
        "reasons": [],
        "failures": [],
        "result": None,
        "changes": [],
        "children": [],
        **more,
    }


def test_report_of_a_run() -> None:
    """The report of a run is the tree of its tasks with status, start, duration and recorded
    changes of each.
    """
    clock = ManualClock(auto=True)

    @task("nap", plan=lambda _: [Change("+", "nothing", "a forecast is never reported")])
    def nap(ctx: Context) -> None:
        ctx.sleep(1)
        ctx.record(Change("+", "rest", "1 s"))

    report = run(
        Serial(nap, FailingTask("fail", OSError("x")), RecordingTask("never", []), name="all"),
        ctx=Context(clock=clock),
    )
    begin, end = (f"2026-01-01T00:00:0{second}.000000Z" for second in (0, 1))
    nap_, fail, never = report.children
    rest = [{"action": "+", "subject": "rest", "detail": "1 s", "kind": ""}]
    assert nap_.to_mapping() == _entry("all/nap", "ok", begin, 1.0, changes=rest)
    failures = [
        {"path": "all/fail", "type": "OSError", "retryable": True, "cause": "x", "where": None}
    ]
    assert fail.to_mapping() == _entry(
        "all/fail", "failed", end, 0.0, error="all/fail: x", failures=failures
    )
    assert never.to_mapping() == _entry("all/never", "not-reached", None, None)
    children = [each.to_mapping() for each in report.children]
    assert report.to_mapping() == _entry(
        "all",
        "failed",
        begin,
        1.0,
        error="all/fail: x",
        failures=failures,
        children=children,
    )
    assert not report.ok
    with pytest.raises(TaskFailedError, match=r"^all/fail: x$"):
        report.raise_for_failure()


def test_degraded() -> None:
    """A run is ok and degraded if an optional task failed, at any depth, or a proof was skipped; a
    failed run is only failed.
    """
    optional = tolerate(FailingTask("probes", OSError("x")))
    degraded = run(Serial(Serial(optional, name="inner"), RecordingTask("a", []), name="all"))
    assert degraded.ok
    assert degraded.degraded
    assert degraded.to_mapping()["degraded"] is True
    failed = run(Serial(optional, FailingTask("a", OSError("x")), name="all"))
    assert not failed.ok
    assert not failed.degraded
    assert not run(Serial(RecordingTask("a", []), name="all"), skip=["a"]).degraded
    proof = task("a", proves=True)(print)
    assert run(proof, skip=["a"]).degraded
    assert run(Serial(Serial(proof, name="inner"), name="all"), skip=["inner"]).degraded

    def leave_two(ctx: Context) -> None:
        ctx.degrade("ib0 has no carrier")
        ctx.degrade("ib1 has no carrier")
        ctx.degrade("ib0 has no carrier")

    report = run(task("a")(leave_two))
    assert report.degraded
    assert report.to_mapping()["reasons"] == ["ib0 has no carrier", "ib1 has no carrier"]


def test_a_change_that_a_thread_records_during_the_undo_is_undone() -> None:
    """A change that is recorded during the undo, as by a thread that outlives its task, is undone,
    and each inverse is called once.
    """
    journal: list[str] = []

    @task("a")
    def fail(ctx: Context) -> None:
        def reverse(_: Context) -> None:
            journal.append("early")
            if journal == ["early"]:
                ctx.record(Change("+", "late"), undo=lambda _: journal.append("late"))

        ctx.record(Change("+", "early"), undo=reverse)
        raise OSError("x")

    assert run(fail, undo_on_failure=True).changes == ()
    assert journal == ["early", "late"]


def test_a_result_is_found_by_the_path_of_its_step() -> None:
    """The value that a task returns is found by the path of its step and by its type; an unknown or
    ambiguous path is an error with the paths that exist.
    """
    answers = iter([1, 2])

    @task("prove")
    def prove(_: Context) -> int | None:
        return next(answers, None)

    pipeline = Serial(prove, name="all")
    reports = [run(pipeline) for _ in range(3)]
    assert [r.find("all/prove").result for r in reports] == [1, 2, None]
    assert [r.result_of(int) for r in reports] == [1, 2, None]
    assert reports[0].find("prove") is reports[0].children[0]
    with pytest.raises(KeyError, match="0 steps are named 'rove' of these: all/prove, all"):
        reports[0].find("rove")
    twice = run(Serial(prove, Serial(prove, name="inner"), name="all"))
    assert twice.find("all/prove") is twice.children[0]
    with pytest.raises(
        KeyError, match="2 steps are named 'prove' of these: all/prove, all/inner/prove"
    ):
        twice.find("prove")
    # A whole path goes before the same words at the end of another one.
    nested = run(Serial(Serial(Serial(prove, name="all"), name="inner"), prove, name="all"))
    assert nested.find("all/prove") is nested.children[1]


def test_a_report_is_neither_true_nor_false() -> None:
    """A report in an `if` is an error that names what to test, as `if run(...)` would start a
    machine after any failure.
    """
    with pytest.raises(TypeError, match=r"test \.ok, \.degraded, or whether it `is None`"):
        bool(run(FailingTask("a", OSError("x"))))


def test_skip_leaves_tasks_out() -> None:
    """Skipped tasks are not done, not even inside with_retry and with_timeout; a skipped group
    skips its tasks.
    """
    journal: list[str] = []
    a, b, c = (RecordingTask(name, journal) for name in "abc")
    wrapped = with_retry(with_timeout(Serial(b, name="inner"), 5), attempts=2)
    report = run(Serial(a, wrapped, c, name="all"), skip=["a", "inner"])
    assert [entry for entry in journal if entry.startswith("do")] == ["do c"]
    assert statuses(report) == {
        "all": "ok",
        "a": "skipped",
        "inner": "skipped",
        "b": "skipped",
        "c": "ok",
    }


def test_a_group_has_the_tasks_that_will_be_skipped() -> None:
    """A group can query which of its tasks will be skipped, without a change of any report; outside
    of a run all are done.
    """
    seen: list[dict[str, bool]] = []

    class Observing(Serial):
        def do(self, ctx: Context) -> None:
            seen.append(
                {each.name: skips(ctx.child(timeout=5), each.name) for each in self.subtasks}
            )
            super().do(ctx)

    tasks = RecordingTask("a", []), with_timeout(RecordingTask("b", []), 5)
    report = run(Serial(Observing(*tasks, name="inner"), name="outer"), skip=["b"])
    assert statuses(report) == {"a": "ok", "b": "skipped", "inner": "ok", "outer": "ok"}
    assert [child.name for child in report.children[0].children] == ["a", "b"]
    execute(Observing(*tasks, name="inner"))
    assert seen == [{"a": False, "b": True}, {"a": False, "b": False}]


def tree() -> tuple[Serial, list[str]]:
    """Return two groups with a task of the same name in each, and a third task; and what is done."""
    done: list[str] = []
    certs = Serial(RecordingTask("ca", done), RecordingTask("leaf", done), name="certs")
    keys = Serial(RecordingTask("ca", done), name="keys")
    return Serial(certs, keys, RecordingTask("kubelet", done), name="node"), done


@pytest.mark.parametrize(
    ("option", "words", "expected"),
    [
        ("skip", ["certs/ca"], "leaf ca kubelet"),
        ("skip", ["node/certs/ca", "leaf"], "ca kubelet"),
        ("skip", ["ca"], "leaf kubelet"),
        ("only", ["certs/ca"], "ca"),
        ("only", ["certs"], "ca leaf"),
        ("only", ["kubelet", "keys"], "ca kubelet"),
        ("only", ["node"], "ca leaf ca kubelet"),
    ],
)
def test_paths_select_tasks(option: str, words: list[str], expected: str) -> None:
    """A name selects all tasks of that name, and a path or its end selects one task; `only`
    includes all that is inside.
    """
    whole, done = tree()
    report = run(whole, **{option: words})  # type: ignore[arg-type]
    assert report.ok
    assert done == [f"do {name}" for name in expected.split()]


def test_skip_takes_away_from_only() -> None:
    """A run with `only` and `skip` leaves out those of `only` that `skip` names."""
    whole, done = tree()
    assert run(whole, only=["certs"], skip=["leaf"]).ok
    assert done == ["do ca"]


@pytest.mark.parametrize("word", ["certs/c", "s/ca", "", "certs/"])
def test_a_part_of_a_name_is_unknown(word: str) -> None:
    """A path that ends within a name is unknown, as paths are compared name by name."""
    whole, done = tree()
    with pytest.raises(UnknownTaskError):
        run(whole, only=[word])
    assert done == []


def test_a_task_that_cannot_be_undone_stays_ok(caplog: pytest.LogCaptureFixture) -> None:
    """A completed task without an undo stays ok when its run is undone, and is named in the log."""
    caplog.set_level(logging.WARNING)
    report = run(
        Serial(task("a")(lambda _: None), FailingTask("b", OSError("x"))), undo_on_failure=True
    )
    assert statuses(report)["a"] == "ok"
    assert "cannot undo task=a" in caplog.messages


class _Composite:
    """A task that executes others while it runs."""

    name = "composite"

    def __init__(self, *inside: Task) -> None:
        self.inside = inside

    def do(self, ctx: Context) -> None:
        """Execute them."""
        for each in self.inside:
            execute(each, ctx)


def test_the_own_work_of_a_group_stands_in_the_report_where_it_began() -> None:
    """A named step that a group executes beside its tasks is in the report in the order of its
    beginning.
    """

    class Group(Serial):
        def do(self, ctx: Context) -> None:
            for step in (RecordingTask("before", []), *self.subtasks, RecordingTask("after", [])):
                execute(step, ctx)

    report = run(Group(RecordingTask("a", []), RecordingTask("b", [])), skip=["a"])
    assert [each.name for each in report.children] == ["before", "a", "b", "after"]


def test_a_task_that_undoes_itself_undoes_its_inside() -> None:
    """A task with an undo of its own is undone as a whole, and the tasks inside are not undone a
    second time.
    """
    journal: list[str] = []

    class Whole(_Composite):
        def undo(self, _: Context) -> None:
            journal.append("undo whole")

    report = run(
        Serial(Whole(RecordingTask("a", journal)), FailingTask("b", OSError("x"))),
        undo_on_failure=True,
    )
    assert journal[-2:] == ["do a", "undo whole"]
    assert {"composite": "undone", "a": "undone"}.items() <= statuses(report).items()


def test_a_loop_of_tasks_keeps_the_latest_report() -> None:
    """A task that executes tasks in a loop keeps the latest report and reason of each name, so that
    months of work do not fill the memory.
    """

    class Loop(_Composite):
        def do(self, ctx: Context) -> None:
            for number in range(100):
                degraded = task("reconcile")(lambda ctx: ctx.degrade("busy"))
                execute(RecordingTask("reconcile", []) if number == 99 else degraded, ctx)

    [child] = run(Loop()).children
    assert child.reasons == []


def test_a_task_between_two_of_one_name_keeps_its_report() -> None:
    """The report of a task stays in place between two of one name, of which the first was still
    running in a thread.
    """
    has_begun = threading.Event()
    may_end = threading.Event()

    @task("reconcile")
    def slow(_: Context) -> None:
        has_begun.set()
        may_end.wait()

    @task("all")
    def rounds(ctx: Context) -> None:
        thread = threading.Thread(target=execute, args=(slow, ctx))
        thread.start()
        has_begun.wait()
        hosts = task("hosts")(lambda ctx: ctx.record(Change("+", "/etc/hosts")))
        execute(hosts, ctx)
        execute(RecordingTask("reconcile", []), ctx)
        may_end.set()
        thread.join()
        for _ in range(100):
            execute(RecordingTask("reconcile", []), ctx)

    report = run(rounds)
    assert [child.name for child in report.children] == ["reconcile", "hosts", "reconcile"]
    assert report.changes == (Change("+", "/etc/hosts"),)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupts_undo_and_pass(interrupt: BaseException) -> None:
    """A run that is interrupted undoes the completed tasks and raises the interrupt again."""
    journal: list[str] = []
    with pytest.raises(type(interrupt)):
        run(Serial(RecordingTask("a", journal), FailingTask("b", interrupt)), undo_on_failure=True)
    assert journal[-1] == "undo a"


def _program(code: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a new process, since signals go to whole processes."""
    start = "import os, signal, sys\nfrom phases import *\nfrom phases.hosting import interruptible, reason_of\n"
    # If the tests run in the background of a shell, processes inherit an ignored SIGINT.
    start += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    argv = [sys.executable, "-c", start + textwrap.dedent(code)]
    # Not in the folder of the sources, which would hide what is installed.
    return subprocess.run(argv, cwd="/", check=False, capture_output=True, text=True, timeout=60)


def test_a_context_that_signals_cancel_is_made_in_the_with() -> None:
    """`with cancel_on_signals(Context()) as ctx` binds the context, in the main thread and in
    others.
    """
    ctx = Context()
    seen = []

    def enter() -> None:
        with cancel_on_signals(ctx) as same:
            seen.append(same)

    enter()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [ctx, ctx]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_cancel(name: str) -> None:
    """SIGINT and SIGTERM wake the task and end the run; the earlier handlers are restored
    afterwards.
    """
    program = _program(f"""
        def do(ctx):
            os.kill(os.getpid(), signal.{name})
            ctx.sleep(3600)
        before = signal.getsignal(signal.{name})
        report = run(Parallel(task("a")(do), name="all"), handle_signals=True)
        assert signal.getsignal(signal.{name}) is before
        run(task("quick")(lambda ctx: None), handle_signals=True)
        assert signal.getsignal(signal.{name}) is before
        print(report.status, report.error)
        """)
    assert program.returncode == 0
    assert program.stdout == f"cancelled cancelled: {name}\n"


def test_second_signal_has_its_default_effect() -> None:
    """A second SIGINT raises KeyboardInterrupt, even in a task that ignores its context."""
    program = _program("""
        def do(ctx):
            os.kill(os.getpid(), signal.SIGINT)
            print(reason_of(ctx))
            os.kill(os.getpid(), signal.SIGINT)
        try:
            run(task("a")(do), handle_signals=True)
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
        """)
    assert program.stdout == "SIGINT\nKeyboardInterrupt\n"


def test_a_second_signal_has_a_handler() -> None:
    """The first of several signals cancels, even one that ends a process by default; the second
    calls the given handler.

    Afterwards the earlier handlers are restored.
    """
    program = _program("""
        numbers = signal.SIGQUIT, signal.SIGTERM
        before = [signal.getsignal(each) for each in numbers]
        second = signal.default_int_handler
        try:
            with cancel_on_signals(Context(), signals=numbers, second=second) as ctx:
                os.kill(os.getpid(), signal.SIGTERM)
                print(reason_of(ctx))
                os.kill(os.getpid(), signal.SIGQUIT)
        except KeyboardInterrupt:
            print("KeyboardInterrupt", before == [signal.getsignal(each) for each in numbers])
        """)
    assert program.stdout == "SIGTERM\nKeyboardInterrupt True\n"


def test_interrupt_while_a_parallel_waits() -> None:
    """Ctrl-C without handle_signals cancels the threads, waits for them, undoes, and raises
    KeyboardInterrupt.
    """
    program = _program("""
        def do(ctx):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                ctx.sleep(3600)
            finally:
                print(reason_of(ctx))
        journal = []
        try:
            a = task("a", undo=lambda ctx: journal.append("undo a"))(lambda ctx: None)
            run(Serial(a, Parallel(task("b")(do))), undo_on_failure=True)
        except KeyboardInterrupt:
            print(journal[-1])
        """)
    assert program.stdout == "KeyboardInterrupt\nundo a\n"


def test_a_signal_that_another_thread_caught() -> None:
    """A signal that the kernel gives to another thread cancels the run, although the waiting main
    thread is not woken by it.
    """
    program = _program("""
        import threading, time
        code = Context().clock.wait.__code__
        last_line = max(line for _, _, line in code.co_lines() if line)
        main = threading.get_ident()
        def do(ctx):
            # The main thread is inside of `acquire`: it has given up the interpreter at that line.
            while not ((frame := sys._current_frames()[main]).f_code is code and frame.f_lineno == last_line):
                time.sleep(0.001)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            ctx.sleep(3600)
        print(run(Parallel(task("a")(do)), handle_signals=True).error)
        """)
    assert program.stdout == "cancelled: SIGTERM\n"


def test_a_signal_ends_an_interruptible_block() -> None:
    """A signal ends an interruptible block in the middle of its work, but not that of a shielded
    context or of another thread.
    """
    program = _program("""
        import threading
        with cancel_on_signals(Context()) as ctx:
            def elsewhere():
                with interruptible(ctx):
                    inside.set()
                    done.wait()
                print("thread: ended by itself")
            inside, done = threading.Event(), threading.Event()
            thread = threading.Thread(target=elsewhere)
            thread.start()
            inside.wait()
            child = ctx.child(timeout=3600)
            try:
                with interruptible(child):
                    with interruptible(ctx.shielded()):
                        print("shielded: begun")
                    os.kill(os.getpid(), signal.SIGTERM)
                    while True:
                        pass
            except CancelledError as error:
                print(error)
            done.set()
            thread.join()
            try:
                with interruptible(ctx):
                    print("begun although it is over")
            except CancelledError as error:
                print(error)
        with cancel_on_signals(Context()) as ctx:
            with interruptible(ctx.shielded()):
                os.kill(os.getpid(), signal.SIGTERM)
            print("shielded: ended by itself")
        """)
    assert program.stderr == ""
    assert program.stdout.splitlines() == [
        "shielded: begun",
        "cancelled: SIGTERM",
        "thread: ended by itself",
        "cancelled: SIGTERM",
        "shielded: ended by itself",
    ]


def test_a_signal_at_the_beginning_of_an_interruptible_block() -> None:
    """A signal between the check and the work of an interruptible block ends the block before the
    work.
    """
    program = _program("""
        class Signalled(Context):
            def check(self):
                super().check()
                os.kill(os.getpid(), signal.SIGTERM)
        with cancel_on_signals(Signalled()) as ctx:
            try:
                with interruptible(ctx):
                    print("begun")
            except CancelledError as error:
                print(error)
        """)
    assert program.stdout == "cancelled: SIGTERM\n"


def test_a_signal_for_a_child_ends_no_block_of_its_parent() -> None:
    """A signal that cancels a child context does not end an interruptible block of its parent."""
    program = _program("""
        parent = Context()
        with interruptible(parent), cancel_on_signals(parent.child()) as child:
            os.kill(os.getpid(), signal.SIGTERM)
            print(reason_of(child), reason_of(parent))
        """)
    assert program.stdout == "SIGTERM None\n"
    assert program.stderr == ""


def test_a_mapping_has_results_and_changes_that_were_undone() -> None:
    """The mapping of a report has the result of each step, and marks the changes that were
    undone.
    """

    class Answer:
        def to_mapping(self) -> dict[str, int]:
            return {"answer": 42}

    @task("a")
    def a(ctx: Context) -> Answer:
        ctx.record(Change("+", "/etc/hosts"), undo=lambda _: None)
        return Answer()

    report = run(Serial(a, FailingTask("b", OSError("x")), name="all"), undo_on_failure=True)
    step = report.find("all/a").to_mapping()
    assert step["status"] == "undone"
    assert step["result"] == {"answer": 42}
    assert step["changes"] == [
        {"action": "+", "subject": "/etc/hosts", "detail": None, "kind": "", "undone": True}
    ]


def test_the_last_result_of_a_type_is_found() -> None:
    """The last result of a type is found at any depth, in the order of the tasks, even if its task
    failed.
    """

    @task("late")
    def late(ctx: Context) -> None:
        leave(ctx, "second")
        raise OSError("busy")

    first = task("early")(lambda _: "first")
    without_return = task("number")(lambda ctx: leave(ctx, 3))
    report = run(Serial(first, without_return, Serial(late, name="inner"), name="all"))
    assert report.result_of(str) == "second"
    assert report.children[0].result_of(str) == "first"
    assert report.result_of(int) == 3
    assert report.result_of(float) is None


def test_an_observer_receives_waits() -> None:
    """An observer receives what a task waits for and for how long, at most for the time of its
    context.
    """

    @task("lease")
    def lease(ctx: Context) -> None:
        report_wait(ctx, "a DHCP lease", seconds=30)
        report_wait(ctx.child(timeout=5), "an address", seconds=30)
        report_wait(ctx, "another run", seconds=None)

    events: list[Event] = []
    clock = ManualClock(auto=True)
    run(lease, Context(clock=clock), timeout=20, observer=events.append)
    assert [each.wait for each in events if each.status == "waiting"] == [
        Wait("a DHCP lease", 20),
        Wait("an address", 5),
        Wait("another run", 20),
    ]
    without_end = [Wait("a DHCP lease", 30), Wait("an address", 5), Wait("another run", None)]
    events.clear()
    run(lease, Context(clock=clock), observer=events.append)
    assert [each.wait for each in events if each.wait] == without_end
    assert {each.path for each in events} == {"lease"}


def test_a_printed_report_has_failures_that_no_step_has() -> None:
    """A printed report has the failures that a group raises beside those of its tasks, even under
    the name of a task.
    """

    class Configure(Serial):
        def do(self, ctx: Context) -> None:
            try:
                super().do(ctx)
            except TaskFailedError as error:
                read = TaskFailedError(("check",), OSError("no buffer space\nsee dmesg"))
                raise TaskFailedError.combine([error, read]) from error

    check = FailingTask("check", OSError("overlap"))
    report = run(Configure(check, name="configure"), Context(clock=ManualClock(auto=True)))
    assert (
        str(report)
        == """\
failed       configure  0.000 s
failed         check  0.000 s  overlap
also failed  configure/check  no buffer space; see dmesg"""
    )


def test_a_printed_failure_has_two_lines_of_its_text() -> None:
    """A printed failure has the first two lines of its text, as the first may be a heading."""
    refused = OSError(
        "2 route changes were refused:\n  + 10.0.0.0/8: no device\n  + 10.9.0.0/16: x"
    )
    report = run(FailingTask("routes", refused), Context(clock=ManualClock(auto=True)))
    assert str(report) == (
        "failed       routes  0.000 s  2 route changes were refused: + 10.0.0.0/8: no device ..."
    )


def test_only_distinguishes_a_path_from_a_name() -> None:
    """A path in `only` selects the task of that path, and not one of the same name elsewhere."""
    done: list[str] = []
    outer = task("ca")(lambda _: done.append("ca"))
    inner = task("ca")(lambda _: done.append("certs/ca"))
    report = run(Serial(outer, Serial(inner, name="certs")), only=["certs/ca"])
    assert done == ["certs/ca"]
    assert [each.status for each in report.walk()] == ["skipped", "ok", "ok", "ok"]


def test_a_mapping_has_each_error_of_a_group() -> None:
    """The mapping of a report has each error of an exception group, with its own `retryable`."""

    class Group(Exception):  # noqa: N818 - as of Python 3.11
        exceptions = (
            OSError("busy"),
            CommandFailedError(["ip"], 1),
            UnknownTaskError(["a"], ["b"]),
        )

    report = run(FailingTask("all", Group()))
    mapping = report.to_mapping()
    names = [each["type"] for each in mapping["failures"]]
    assert [type(each).__name__ for each in report.failures] == names
    assert [(each["type"], each["retryable"]) for each in mapping["failures"]] == [
        ("OSError", True),
        ("CommandFailedError", True),
        ("UnknownTaskError", False),
    ]
