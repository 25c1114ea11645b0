"""Mistakes in tasks: each is an error that names its task, which is never reported as done."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.tasks import RecordingTask

from phases import (
    CancelledError,
    Change,
    Context,
    Parallel,
    Serial,
    TaskFailedError,
    execute,
    plan,
    run,
    task,
    tolerate,
    undo,
    with_retry,
    with_timeout,
)


class _Task:
    """A task whose methods are functions without a signature, as in a program without a type
    checker.
    """

    do: Any

    def __init__(self, name: Any = "greet", **methods: Any) -> None:
        self.name = name
        for method, function in ({"do": lambda _: None} | methods).items():
            setattr(self, method, function)

    def __repr__(self) -> str:
        return "<greet>"


async def _async(_: object) -> None:
    raise AssertionError("it runs")


def _generator(_: object) -> Any:
    yield Change("+", "a")
    raise AssertionError("it runs")


async def _async_generator(_: object) -> Any:
    yield 1


class _AsyncCallable:
    async def __call__(self, _: object) -> None:
        raise AssertionError("it runs")


PLAIN = r"tasks are not awaited or iterated: write a plain function, which may use asyncio.run$"
ANSWERS = [
    (_async, f"<coroutine object _async at .*>, and {PLAIN}"),
    (partial(_async), f"<coroutine object _async at .*>, and {PLAIN}"),
    (_AsyncCallable(), f"<coroutine object _AsyncCallable.__call__ at .*>, and {PLAIN}"),
    (_generator, f"<generator object _generator at .*>, and {PLAIN}"),
    (_async_generator, f"<async_generator object _async_generator at .*>, and {PLAIN}"),
    (lambda _: OSError("no route"), r"OSError\('no route'\), and a task that fails raises it$"),
]
#: Whatever a program returns besides is its own, but for the False of an inverse.
IGNORED = [None, True, 0, 1, "done", ("+", "a"), OSError, object()]


@pytest.mark.parametrize(("do", "why"), ANSWERS)
def test_a_do_that_never_ran_is_a_failure(do: Callable[[object], object], why: str) -> None:
    """A `do` that never ran, or that returns its error, fails in execute, in run and in a group,
    and so does an `undo`.
    """
    message = rf"^greet: do\(ctx\) returned {why}"

    def hidden(ctx: object) -> object:
        return do(ctx)  # nothing shows before it is called

    with pytest.raises(TaskFailedError, match=message) as caught:
        execute(_Task(do=hidden))
    assert isinstance(caught.value.cause, TypeError)
    report = run(Serial(_Task(do=hidden)))
    assert report.status == "failed"
    assert report.children[0].status == "failed"
    with pytest.raises(TaskFailedError, match=message):
        report.raise_for_failure()
    with pytest.raises(TaskFailedError, match=rf"^greet: undo\(ctx\) returned {why}"):
        undo(_Task(undo=do))


@pytest.mark.parametrize("answer", IGNORED)
def test_any_other_answer_is_ignored(answer: object) -> None:
    """The value that a function returns is ignored by a task, an inverse and an undo."""
    journal: list[str] = []

    def inverse(_: object) -> object:
        journal.append("undone")
        return answer

    @task("greet", undo=inverse)
    def greet(ctx: Context) -> object:
        ctx.record(Change("+", "a"), undo=inverse)
        return answer

    execute(greet)
    undo(greet)

    @task("fail")
    def fail(_: Context) -> None:
        raise OSError("no route")

    report = run(Serial(greet, fail), undo_on_failure=True)
    statuses = {each.name: each.status for each in report.children}
    assert statuses == {"greet": "undone", "fail": "failed"}
    assert journal == ["undone", "undone"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda _: None, "None"),
        (lambda _: Change("+", "a"), r"Change\(.*\)"),
        (lambda _: [Change("+", "a"), "b"], r"\[Change\(.*\), 'b'\]"),
    ],
)
def test_a_plan_is_a_list_of_changes(answer: object, why: str) -> None:
    """A plan that is not a list of changes is an error; a run never calls `plan`."""
    message = rf"plan\(ctx\) returned {why}: a plan is a list of Change, \[\] if there is nothing to change$"
    with pytest.raises(TaskFailedError, match=rf"^greet: {message}"):
        plan(_Task(plan=answer))
    assert run(_Task(plan=answer)).status == "ok"


@pytest.mark.parametrize(("method", "why"), ANSWERS[:4])
def test_a_plan_that_never_ran_is_an_error(method: Callable[[object], object], why: str) -> None:
    """A coroutine or a generator in place of a plan is an error, and not an empty plan."""
    with pytest.raises(TaskFailedError, match=rf"^greet: plan\(ctx\) returned {why}"):
        plan(_Task(plan=method))


@pytest.mark.parametrize("function", [_async, _generator, _async_generator])
def test_a_function_that_is_not_plain_is_refused_when_the_task_is_made(function: Any) -> None:
    """An async function or a generator is refused by `@task` and the groups when the task is made,
    and by execute and run.
    """
    why = f"is an async function or a generator, and {PLAIN}"
    with pytest.raises(TypeError, match=rf"^do of task 'greet' {why}"):
        task("greet")(function)
    with pytest.raises(TypeError, match=rf"^undo of task 'greet' {why}"):
        task("greet", undo=function)
    with pytest.raises(TypeError, match=rf"^plan of task 'greet' {why}"):
        task("greet", plan=function)
    for use in *WRAPPERS, execute, run:
        with pytest.raises(TypeError, match=rf"^_Task.do {why}"):
            use(_Task(do=function))


def test_a_plain_function_may_run_asyncio() -> None:
    """A task may run a coroutine by asyncio.run, as the error advises, and may be a partial or a
    built-in function.
    """
    seen: list[str] = []

    async def greet() -> None:
        seen.append("hello")

    execute(task("greet")(lambda _: asyncio.run(greet())))
    hi = task("greet")(partial(lambda text, _: seen.append(text), "hi"))
    execute(hi)
    assert repr(hi) == "<task greet>"
    execute(Serial(task("greet")(print), RecordingTask("bye", seen)))
    assert seen == ["hello", "hi", "do bye"]


class _NameIsAMethod:
    def name(self) -> str:
        return "greet"

    def do(self, _: object) -> None:
        raise AssertionError("it runs")


def _function(_: object) -> None:
    raise AssertionError("it runs")


WRAPPERS: list[Callable[[Any], object]] = [
    Serial,
    Parallel,
    tolerate,
    lambda each: with_timeout(each, 5),
    lambda each: with_retry(each, attempts=2),
]


@pytest.mark.parametrize("use", [execute, run, plan, undo, *WRAPPERS])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (_NameIsAMethod(), " is not a task: a task has a name (a text, not empty) and do(ctx)"),
        (
            _Task(name=""),
            "<greet> is not a task: a task has a name (a text, not empty) and do(ctx)",
        ),
        (RecordingTask, "RecordingTask is a class, not a task: call it to make an instance"),
        (None, "None is not a task: a task has a name (a text, not empty) and do(ctx)"),
        (_function, ' is a function, not a task: write @task("name"), or task("name")(it)'),
        (
            _Task(do=None),
            "<greet> is not a task: a task has a name (a text, not empty) and do(ctx)",
        ),
    ],
)
def test_an_object_that_is_not_a_task_is_refused_by_name(
    use: Callable[[Any], object], given: object, message: str
) -> None:
    """An object that is not a task is refused wherever a task is taken, and the error names the
    mistake and the way out.
    """
    with pytest.raises(TypeError) as caught:
        use(given)
    assert message in str(caught.value)


def test_a_cancellation_without_a_reason_is_one() -> None:
    """A cancellation with None as its reason cancels the context, and its message shows the
    value.
    """
    ctx = Context()
    ctx.cancel(None)  # type: ignore[arg-type] # as in a program without a type checker
    assert ctx.cancelled
    with pytest.raises(CancelledError, match=r"^cancelled: None$"):
        ctx.check()


def test_an_error_without_a_printable_text() -> None:
    """An error whose text cannot be printed is reported by its type and its task, and the run goes
    on to undo.
    """

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    undone: list[str] = []

    def fail(_: Context) -> None:
        raise MuteError

    before = task("before", undo=lambda ctx: undone.append(str(ctx.cancelled)))(lambda _: None)
    report = run(Serial(before, task("mute")(fail), name="all"), undo_on_failure=True)
    assert str(report.error) == "all/mute: MuteError"
    assert undone == ["False"]
