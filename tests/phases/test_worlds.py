"""Pipelines, each with what its run, plan or undo shows: `worlds.txt` says how to read it.

`UPDATE_GOLDEN=1` writes the file again; each change of it is a change of what agents see.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
import gc
import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

import phases
from phases import Change, Context, Event, Report, TaskFailedError, hosting, task
from phases.context import wait
from phases.task import Group
from phases.testing import ManualClock

FILE = Path(__file__).with_name("worlds.txt")
MODULES = (
    asyncio,
    attrs,
    dataclasses,
    dt,
    enum,
    functools,
    gc,
    json,
    logging,
    phases,
    pickle,
)
VALUES = (Group, ManualClock, NamedTuple, Path, ThreadPoolExecutor, suppress, wait)
#: What the code of a block may name, next to the words of a World.
NAMES = {
    **vars(phases),
    **vars(hosting),
    "__name__": "worlds",
    "pytest": pytest,
    **{each.__name__: each for each in (*MODULES, *VALUES)},
}


class World:
    """The words of the blocks."""

    def __init__(self) -> None:
        #: Each call of a task, and of an inverse.
        self.journal: list[str] = []
        self.events: list[Event] = []
        self.clock = ManualClock(auto=True)

    def ok(self, name: str, answer: object = None, **kinds: Any) -> Any:
        """Return a task with a plan and an undo that completes with a result."""

        def noted(verb: str, answer: object) -> Callable[[Context], Any]:
            def call(ctx: Context) -> object:
                ctx.check()
                self.journal.append(f"{verb} {name}")
                return answer

            return call

        parts = {"plan": noted("plan", [Change("+", name)]), "undo": noted("undo", None)}
        return task(name, **(parts | kinds))(noted("do", answer))

    def fail(self, name: str, *errors: BaseException, times: int = 10**6, **kinds: Any) -> Any:
        """Return a task that raises the errors in turn and repeats the last one, up to `times`."""
        left = [*errors] or [OSError("x")]

        def do(ctx: Context) -> None:
            nonlocal times
            ctx.check()
            times -= 1
            if times >= 0:
                raise left.pop(0) if len(left) > 1 else left[0]

        return task(name, **kinds)(do)

    def nap(self, name: str, seconds: float = 60, *, catch: bool = False, undo: Any = None) -> Any:
        """Return a task that sleeps; with `catch` it catches the end of its context and returns."""
        caught = [Exception] if catch else []

        def do(ctx: Context) -> None:
            with suppress(*caught):
                ctx.sleep(seconds)

        return task(name, undo=undo)(do)

    def inverse(self, subject: str, kind: str) -> Any:
        """Return an inverse: `ok`, or one that is left, stuck, interrupted, late or absent (no)."""

        def reverse(ctx: Context) -> object:
            if kind == "late":
                ctx.sleep(60)
            ctx.check()
            if kind == "interrupted":
                raise KeyboardInterrupt
            if kind == "stuck":
                raise OSError(f"{subject} is stuck")
            left = ctx.remaining()
            self.journal.append(f"reverse {subject}" + (f" within {left:g} s" if left else ""))
            return kind != "left" and None

        return None if kind == "no" else reverse

    def rec(self, name: str, *changes: str, then: Any = None, **kinds: Any) -> Any:
        """Return a task that records changes, each `subject` or `subject:kind of inverse`.

        `then` is an error to raise, or is called.
        """

        def do(ctx: Context) -> None:
            for change in changes:
                subject, _, kind = change.partition(":")
                ctx.record(Change("+", subject), undo=self.inverse(subject, kind or "ok"))
            if isinstance(then, BaseException):
                raise then
            if then:
                then(ctx)

        return task(name, **kinds)(do)

    def stop(self, ctx: Context, *, check: bool = True) -> None:
        """Cancel the context of a task, and end with it."""
        ctx.cancel("maintenance")
        if check:
            ctx.check()

    def context(self, timeout: float | None = None) -> Context:
        """Return a context whose clock jumps to the end of each wait."""
        return Context(timeout=timeout, clock=self.clock)

    def said(self, *calls: Callable[[], object]) -> str:
        """Return what each call returns or raises, a line for each; equal ones are counted."""
        texts = []
        for call in calls:
            try:
                text = repr(call())
            except BaseException as error:  # noqa: BLE001 - it is shown
                text = f"{type(error).__name__}: {error}"
            texts.append(re.sub(r" at 0x\w+|<locals>\.", "", text))
        return "\n  ".join(["", *counted(texts)])

    def run(self, tree: Any, ctx: Context | None = None, **options: Any) -> object:
        return phases.run(tree, ctx or self.context(), observer=self.events.append, **options)


def counted(lines: list[str]) -> Iterator[str]:
    """Yield the lines; several in a row that are equal become one with their number."""
    for line, group in groupby(lines):
        times = len([*group])
        yield f"{line} (x{times})" if times > 1 else line


def shown(value: object, depth: int = 0) -> Iterator[str]:
    """Yield a report as a line for each step; any other value as it is."""
    if not isinstance(value, Report):
        yield from [] if value is None else [f"= {value}"]
        return
    yield "  " * depth + " ".join(parts_of(value))
    for child in value.children:
        yield from shown(child, depth + 1)
    if depth == 0:
        yield from ends_of(value)


def parts_of(value: Report) -> list[str]:
    """Return what a line shows of a step."""
    parts = [value._word, value.name]
    if value.attempts > 1:
        parts.append(f"x{value.attempts}")
    if value.start and value.start[17:19] != "00":
        parts.append(f"at {value.start[17:19]}")
    if value.duration:
        parts.append(f"for {value.duration:g}")
    if value.reasons:
        parts.append(f"({'; '.join(value.reasons)})")
    if value.result is not None:
        parts.append(f"= {value.result}")
    for change in value.to_mapping()["changes"]:
        mark = "~" if "undone" in change else ""
        parts.append(f"{change['action']}{change['subject']}{mark}")
    return parts


def ends_of(report: Report) -> Iterator[str]:
    """Yield the undo of a whole report if there was one, its error, and each of several causes."""
    if report.undo != "none":
        yield f"undo: {report.undo}"
    if report.error:
        yield f"error: {report.error}"
    if len(report.failures) > 1:
        for each in report.to_mapping()["failures"]:
            yield f"  {each['path']} {each['type']} {each['cause']!r}"


def answers(code: list[str], world: World) -> Iterator[str]:
    """Yield what the code shows: its last line is the call."""
    names = {**NAMES, "w": world, "J": world.journal}
    words = {name: getattr(world, name) for name in dir(world) if not name.startswith("_")}
    names |= words
    try:
        exec("\n".join(code[:-1]), names)  # noqa: S102 - the code of worlds.txt
        yield from shown(eval(code[-1], names))  # noqa: S307 - the same
    except BaseException as error:  # noqa: BLE001 - it is shown
        yield f"raised: {type(error).__name__}: {error}"
        if isinstance(error, TaskFailedError):
            yield from (f"  {each.path} {each.cause!r} {each.retryable}" for each in error.walk())
        yield from shown(getattr(error, "report", None))


def event_line(event: Event) -> str:
    """Return an event as a line."""
    wait = event.wait and f"{event.wait.reason} {event.wait.seconds}"
    return " ".join(
        ["event:", event.path, event.status]
        + [str(part) for part in (event.change, event.error, wait) if part]
    )


def log_line(record: logging.LogRecord, *, whole: bool) -> str | None:
    """Return a line of the log; None for one that is not shown."""
    text = re.sub(r" duration=\S+| at 0x\w+", "", record.getMessage())
    # The report has the others.
    is_news = record.levelno >= logging.WARNING and not re.match("(failed|cancelled) ", text)
    if not (whole or is_news):
        return None
    return f"log: {record.levelname} {text}" + (" (traceback)" if record.exc_info else "")


def outcome(block: str, caplog: pytest.LogCaptureFixture) -> str:
    """Return the block with what its code shows now."""
    world = World()
    head = [line for line in block.splitlines() if line[:2] in {"# ", "| ", "> "}]
    code = [line[2:] for line in head if not line.startswith("#")]
    lines = [*answers(code, world)]
    if world.journal:
        lines.append(f"calls: {', '.join(world.journal)}")
    if "# events" in head:
        lines += map(event_line, world.events)
    logged = [log_line(record, whole="# log" in head) for record in caplog.records]
    return "\n".join([*head, *lines, *counted([line for line in logged if line])])


def blocks() -> list[Any]:
    """Return the blocks of the file; the id of each is the line where it begins."""
    text = FILE.read_text(encoding="utf-8").removesuffix("\n")
    head, *found = text.split("\n\n")
    line = head.count("\n") + 3
    params = []
    for block in found:
        params.append(pytest.param(block, id=f"{FILE.name}:{line}"))
        line += block.count("\n") + 2
    return params


@pytest.mark.parametrize("block", blocks())
def test_a_world_is_as_the_file_shows(block: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pipeline shows what follows its code in the file; the first line says what it promises."""
    caplog.set_level(logging.DEBUG, "phases")
    now = outcome(block, caplog)
    if "UPDATE_GOLDEN" in os.environ:
        text = FILE.read_text(encoding="utf-8")
        FILE.write_text(text.replace(f"\n\n{block}\n", f"\n\n{now}\n"), encoding="utf-8")
        return
    assert now.splitlines() == block.splitlines()
