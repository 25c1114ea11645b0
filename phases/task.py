"""What a task is, and what it may be able to do besides.

A task needs a `name` and `do(ctx)`; nothing has to be inherited. What else it can do shows in its
methods: `plan` says what `do` would change, `made` what it has changed, `undo` takes it back,
`tolerate` takes note of its failure, which then is none of the group's. A task made of tasks shows
them as `subtasks`, so that the runner can plan, skip and report each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from phases.context import Context
    from phases.exceptions import TaskFailedError

__all__ = ["Accountable", "Change", "Group", "Plannable", "Task", "Tolerant", "Undoable", "leaves", "names_in_path"]


@runtime_checkable
class Task(Protocol):
    """One thing that gets done.

    >>> class Greet:
    ...     name = "greet"
    ...     def do(self, ctx):
    ...         ctx.check()
    >>> isinstance(Greet(), Task), isinstance(Greet(), Undoable)
    (True, False)
    """

    @property
    def name(self) -> str:
        """Names the task in logs, errors, reports and `skip`."""

    def do(self, ctx: Context) -> None:
        """Bring about what the task stands for, or raise.

        A plain function that returns nothing: an `async` one, a generator, a returned error or
        status is refused. Doing it again is harmless. A task that takes its time calls `ctx.check()` between steps,
        waits by `ctx.sleep()` and starts processes by `run_command(ctx, ...)`.
        """


@runtime_checkable
class Plannable(Protocol):
    """A task that can say what it would change."""

    def plan(self, ctx: Context) -> Sequence[Change]:
        """What `do` would change now, in its order; changes nothing itself."""


@runtime_checkable
class Accountable(Protocol):
    """A task that keeps account of what it changes, where that may be another thing than it would have planned."""

    @property
    def made(self) -> Sequence[Change]:
        """What the last `do` has changed so far: also of one that failed, without what it took back."""


@runtime_checkable
class Undoable(Protocol):
    """A task that can be taken back."""

    def undo(self, ctx: Context) -> None:
        """Take back what `do` did, in this process or an earlier one; nothing to take back is fine."""


@runtime_checkable
class Tolerant(Protocol):
    """A task whose failure is a warning, as of one out of `phases.tolerate`."""

    def tolerate(self, error: TaskFailedError) -> None:
        """Take note of the error that a failed `do` would have raised from `execute`."""


@runtime_checkable
class Group(Protocol):
    """A task made of tasks; `anonymous` ones are plumbing that no path mentions."""

    @property
    def subtasks(self) -> Sequence[Task]:
        """The tasks, in their order."""

    @property
    def anonymous(self) -> bool:
        """Whether the name was only put together from those of the subtasks."""


class _Change(NamedTuple):
    action: Literal["+", "-", "~"]
    subject: str
    detail: str | None = None


class Change(_Change):
    """One line of a plan: `+` comes, `-` goes, `~` becomes different.

    >>> print(Change("~", "/etc/hosts", "2 lines"))
    ~ /etc/hosts (2 lines)
    >>> Change("*", "/etc/hosts")
    Traceback (most recent call last):
    ValueError: the action of a change is '+', '-' or '~', not '*'
    """

    __slots__ = ()

    def __new__(cls, action: Literal["+", "-", "~"], subject: str, detail: str | None = None) -> Change:
        """Refuse an action that nobody could read."""
        if action not in ("+", "-", "~"):
            raise ValueError(f"the action of a change is '+', '-' or '~', not {action!r}")
        return super().__new__(cls, action, subject, detail)

    def __str__(self) -> str:
        return f"{self.action} {self.subject}" + (f" ({self.detail})" if self.detail else "")

    def to_mapping(self) -> dict[str, str | None]:
        """The change for JSON.

        >>> Change("+", "/etc/hosts").to_mapping()
        {'action': '+', 'subject': '/etc/hosts', 'detail': None}
        """
        return self._asdict()


def names_in_path(task: Task) -> tuple[str, ...]:
    """What a task adds to the path of those inside it: its name, or nothing if it is anonymous plumbing."""
    return () if isinstance(task, Group) and task.anonymous else (task.name,)


def leaves(task: Task, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Task]]:
    """Every task that is no group, in order, with the names of its path."""
    if isinstance(task, Group):
        for subtask in task.subtasks:
            yield from leaves(subtask, (*names, *names_in_path(task)))
    else:
        yield (*names, task.name), task
