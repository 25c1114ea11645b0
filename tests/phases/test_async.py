"""A pipeline in an event loop: an agent in asyncio that cannot end cleanly leaves a node half done."""

import asyncio
import contextvars
import threading

import pytest

from phases import (
    CancelledError,
    Change,
    Context,
    Event,
    Report,
    Task,
    UnknownTaskError,
    run_async,
    task,
)


def _waiting(begun: threading.Event, undo: threading.Event | None = None) -> Task:
    """Return a task that records a change and waits; its inverse waits for an event."""

    @task("wait")
    def wait(ctx: Context) -> None:
        ctx.record(Change("+", "a"), undo=lambda _: undo and undo.wait(60) and None)
        begun.set()
        ctx.sleep(3600)

    return wait


def test_the_loop_goes_on_and_gets_each_event_in_its_thread() -> None:
    """While a pipeline runs the loop serves others; the observer is called in the thread of the
    loop, and every event comes before the report. The task has the context variables of the caller.
    """
    variable = contextvars.ContextVar("variable", default="unset")
    events: list[tuple[Event, bool]] = []

    async def agent() -> Report:
        variable.set("node-1")
        loop = threading.get_ident()
        begun = threading.Event()
        work = task("work")(lambda _: (begun.wait(60), variable.get())[1])
        running = asyncio.ensure_future(
            run_async(work, observer=lambda e: events.append((e, threading.get_ident() == loop)))
        )
        await asyncio.sleep(0)
        begun.set()
        return await running

    report = asyncio.run(agent())
    assert report.result == "node-1"
    assert [(event.status, is_in_loop) for event, is_in_loop in events] == [
        ("running", True),
        ("ok", True),
    ]


def test_a_cancellation_waits_for_the_undo_also_if_it_comes_again() -> None:
    """A cancelled call cancels its run, and not the caller's context, and ends only once the undo
    has; a second cancellation changes nothing. The error has the report.
    """
    begun, may_end = threading.Event(), threading.Event()
    ctx = Context()

    async def awaited() -> Report:
        with pytest.raises(asyncio.CancelledError) as caught:
            await run_async(_waiting(begun, may_end), ctx, undo_on_failure=True)
        report: Report = caught.value.report  # type: ignore[attr-defined]  # of any type
        return report

    async def agent() -> Report:
        running = asyncio.ensure_future(awaited())
        await asyncio.to_thread(begun.wait)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0.01)
            assert not running.done()
        may_end.set()
        return await running

    report = asyncio.run(agent())
    assert (report.status, report.undo, str(report.error)) == (
        "cancelled",
        "complete",
        "cancelled: the asyncio task was cancelled",
    )
    assert not ctx.over


def test_a_context_that_ends_is_in_the_report() -> None:
    """The caller's context, which a signal handler cancels, ends the run, and its report comes."""
    begun = threading.Event()
    ctx = Context()

    async def agent() -> Report:
        running = asyncio.ensure_future(run_async(_waiting(begun), ctx))
        await asyncio.to_thread(begun.wait)
        ctx.cancel("SIGTERM")
        return await running

    error = asyncio.run(agent()).error
    assert isinstance(error, CancelledError)
    assert error.reason == "SIGTERM"


def test_mistakes_and_interrupts_are_raised() -> None:
    """What `run` raises this raises: a name that no task has, and an interrupt."""
    with pytest.raises(UnknownTaskError):
        asyncio.run(run_async(task("a")(print), skip=["b"]))

    @task("leave")
    def leave(_: Context) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asyncio.run(run_async(leave))
    with pytest.raises(TypeError, match="not a task"):
        asyncio.run(run_async(print))  # type: ignore[arg-type]  # the mistake
