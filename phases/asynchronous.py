"""run_async: a pipeline in a thread of its own, for programs with an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from logging import Logger

from phases.context import Context
from phases.report import Event, Report
from phases.runner import context_for, run
from phases.task import Task


async def run_async(
    task: Task,
    ctx: Context | None = None,
    *,
    timeout: float | None = None,
    skip: Iterable[str] = (),
    only: Iterable[str] = (),
    undo_on_failure: bool = False,
    logger: Logger | None = None,
    observer: Callable[[Event], object] | None = None,
) -> Report:
    """Run a pipeline as `run` does, in a thread of its own, while the event loop goes on.

    If the asyncio task that awaits this is cancelled, the run is cancelled. Once its undo has ended
    and its locks are released, also after further cancellations, asyncio.CancelledError is raised,
    which has the report in its attribute `report`: catch it right there, because Python 3.10 makes
    another error for whoever awaits that task. The observer is called in the thread of the
    event loop. For SIGTERM write `loop.add_signal_handler(signal.SIGTERM, ctx.cancel, "SIGTERM")`.

    >>> import asyncio
    >>> from phases import task
    >>> asyncio.run(run_async(task("greet")(lambda ctx: "hello"))).result
    'hello'
    """
    # Imported here because it takes 50 ms, and programs without an event loop do not need it.
    import asyncio

    loop = asyncio.get_running_loop()
    # One that is cancelled with this call, and not that of the caller.
    own = context_for(task, ctx).child()
    ended: asyncio.Future[Report] = loop.create_future()

    def call_in_loop(function: Callable[..., object], value: object) -> None:
        # A second Ctrl-C closes the loop before the run has ended.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, value)

    def work() -> None:
        try:
            report = run(
                task,
                own,
                timeout=timeout,
                skip=skip,
                only=only,
                undo_on_failure=undo_on_failure,
                logger=logger,
                observer=observer and partial(call_in_loop, observer),
            )
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            call_in_loop(ended.set_exception, error)
        else:
            call_in_loop(ended.set_result, report)

    thread = partial(copy_context().run, work)
    threading.Thread(target=thread, name=f"run {task.name}", daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            own.cancel("the asyncio task was cancelled")
            cancelled = cancelled or error
    report = ended.result()
    if cancelled is not None:
        # The caller has no other way to it.
        cancelled.report = report  # type: ignore[attr-defined]  # of any type
        raise cancelled
    return report
