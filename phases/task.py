"""The protocols of a task.

A task needs a `name` and `do(ctx)`; it inherits from nothing. Its other methods are optional:
`plan` forecasts the changes of `do`, `undo` reverses them. A task that consists of tasks has them
as `subtasks`, so that the runner plans, skips and reports each. A run that skips a task which
`checks` the work of others (an attribute that is true) is degraded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from phases.context import Change, Context


@runtime_checkable
class Task(Protocol):
    """One unit of work.

    >>> class Greet:
    ...     name = "greet"
    ...     def do(self, ctx):
    ...         ctx.check()
    >>> isinstance(Greet(), Task), isinstance(Greet(), Undoable)
    (True, False)
    """

    @property
    def name(self) -> str:
        """The name in logs, errors, reports and `skip`."""

    def do(self, ctx: Context) -> object:
        """Do the work and return its result, if it has one; or raise.

        `do` is a plain function: the runner refuses an `async` function, a generator, and an error
        or a Future that is returned; the report of a run that failed fails the task, and so does an
        end of its context that it catches without raising it again. It is safe to call twice.
        A long `do` calls `ctx.check()` between steps, waits with `ctx.sleep()`, starts processes
        with `run_command(ctx, ...)` and calls `ctx.record()` after each change.
        """


@runtime_checkable
class Plannable(Protocol):
    """A task that can forecast its changes."""

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make now, in order; change nothing."""


@runtime_checkable
class Undoable(Protocol):
    """A task that can reverse its changes.

    `run(undo_on_failure=True)` calls `undo` only for a completed task that recorded no inverse. A
    task that records all its changes sets `records = True`: if it recorded none, it changed
    nothing.
    """

    def undo(self, ctx: Context) -> object:
        """Reverse the changes of `do`, by this process or an earlier one; without any, return."""


@runtime_checkable
class Group(Protocol):
    """A task that consists of tasks; paths leave out the name of an anonymous group."""

    @property
    def subtasks(self) -> Sequence[Task]:
        """The tasks, in their order."""

    @property
    def anonymous(self) -> bool:
        """True if the name was generated from those of the subtasks."""


def is_group(task: object) -> TypeGuard[Group]:
    """Return True for a task that consists of tasks; `isinstance` takes ten times as long."""
    return hasattr(task, "subtasks") and hasattr(task, "anonymous")
