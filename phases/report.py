"""Report: the result of a run, task by task. Event: a step of it, for an observer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from phases.context import Change, Progress, Wait, Work
from phases.exceptions import as_failure, describe, leaves, may_pass, place_of
from phases.mistakes import NoTruth, wrong_argument
from phases.plain import as_result
from phases.task import Task, is_group

_T = TypeVar("_T")
#: The status of a task in a report; while it runs, `due` and `running`.
Status: TypeAlias = Literal[
    "ok", "failed", "cancelled", "undone", "skipped", "not-reached", "due", "running"
]


def names_in_path(task: Task) -> tuple[str, ...]:
    """Return the names that a task adds to its subtasks' paths: its own, or none if anonymous."""
    return () if is_group(task) and task.anonymous else (task.name,)


class Event(NamedTuple):
    """A step of a run, for an observer: `status` is that of the task, `change` a new record.

    If the task waits from now on, the status is `waiting`, and `wait` has the reason and the
    longest time. Between two attempts it is `retrying`, `error` is that of the attempt, and `wait`
    has the pause. If the task says how far it is, the status is `progress`, see `Context.progress`.
    """

    path: str
    status: Status | Literal["retrying", "waiting", "progress"]
    change: Change | None = None
    error: BaseException | None = None
    wait: Wait | None = None
    progress: Progress | None = None


class Record:
    """Consecutive changes of a task with one inverse; or, without changes, a task's own `undo`."""

    def __init__(self, report: Report, undo: Work | None, *changes: Change) -> None:
        self.report = report
        self.undo = undo
        self.changes: list[Change] = [*changes]
        #: True once the inverse has reversed them.
        self.is_undone: bool = False

    def to_mappings(self) -> list[dict[str, Any]]:
        """Return the changes for JSON."""
        more = {"undone": True} if self.is_undone else {}
        return [{**change.to_mapping(), **more} for change in self.changes]


class Report(NoTruth):
    """The result of a task and of its subtasks (`children`).

    `status` is `ok`, `failed`, `cancelled`, `undone`, `skipped` (left out, or nothing to do) or
    `not-reached`. A group is `ok` although a subtask that it tolerates `failed`, see
    `phases.tolerate`.
    `start` is UTC in ISO 8601, `duration` is in seconds; both are None for a task that did not run.
    `attempts` is the number of its attempts, `error` the error that it raised, `result` the value
    that its `do` returned, `reasons` what it gave to `Context.degrade` or `Context.skip`.

    >>> from phases import run, task
    >>> report = run(task("greet")(lambda ctx: None))
    >>> report.name, report.status, report.ok
    ('greet', 'ok', True)
    """

    _tested = ".ok, .degraded"

    def __init__(self, task: Task, parent: Report | None = None) -> None:
        self.task = task
        #: The report of the task around this one.
        self.parent = parent
        #: The path of the task, without its name.
        self.names: tuple[str, ...] = () if parent is None else parent.names_inside
        self.name: str = task.name
        #: The names of the groups and of the task, as `bootstrap/configure-static-routes`.
        self.path: str = "/".join((*self.names, self.name))
        #: The path of the tasks inside, without their names.
        self.names_inside: tuple[str, ...] = (*self.names, *names_in_path(task))
        self.status: Status = "not-reached"
        self.start: str | None = None
        self.duration: float | None = None
        self.attempts: int = 0
        self.error: BaseException | None = None
        self.result: Any = None
        #: Why the task itself is degraded or skipped, see `Context.degrade` and `Context.skip`.
        self.reasons: list[str] = []
        #: True once the task has said that it has nothing to do, see `Context.skip`.
        self.is_idle: bool = False
        #: For the runner; see `changes`, and `undo`.
        self.records: list[Record] = []
        #: True once an undo has left a change of the task.
        self.has_stayed: bool = False
        subtasks = task.subtasks if is_group(task) else ()
        self.children: list[Report] = [Report(subtask, self) for subtask in subtasks]
        #: The same by name: a group may have thousands.
        self._named: dict[str, list[Report]] = {}
        for child in self.children:
            self._named.setdefault(child.name, []).append(child)

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self._word}>"

    def __str__(self) -> str:
        """Return the tree of steps, a line for each: status, name, seconds, and why it failed.

        >>> from phases import Serial, run, task
        >>> @task("routes")
        ... def routes(ctx):
        ...     raise OSError("no such device")
        >>> print(run(Serial(routes, task("probes")(lambda ctx: None), name="node")))
        ... # doctest: +ELLIPSIS
        failed       node  0.0... s
        failed         routes  0.0... s  no such device
        not-reached    probes
        """
        lines = [*self._lines()]
        own = [report._own() for report in self.walk()]  # noqa: SLF001 - of the same class
        shown = {*map(id, chain.from_iterable(own))}
        for path, cause in self._failures():
            # No step has that of a check between steps, for example.
            if id(cause) not in shown:
                lines.append(f"{'also failed':<12} {path}  {_in_short(cause)}")
        return "\n".join(lines)

    @property
    def _word(self) -> str:
        """The status, or `degraded`."""
        return "degraded" if self.degraded else self.status

    def _lines(self, indent: str = "") -> Iterator[str]:
        """Yield a line for the task and each one inside: its status, seconds, and why it failed."""
        time = "" if self.duration is None else f"{self.duration:.3f} s"
        reasons = dict.fromkeys([*map(_in_short, self._own()), *self.reasons])
        reason = "; ".join(reasons)
        yield f"{self._word:<12} {indent}" + "  ".join(filter(None, [self.name, time, reason]))
        for child in self.children:
            yield from child._lines(f"{indent}  ")  # noqa: SLF001 - of the same class

    def _own(self) -> list[BaseException]:
        """Return the errors of the task itself, in all attempts."""
        return [cause for path, cause in self._failures() if path == self.path]

    def _begin(self) -> None:
        """Count an attempt, and forget what the one before it has left."""
        self.attempts += 1
        self.result = None
        self.reasons = []
        self.is_idle = False

    def find(self, path: str) -> Report:
        """Return the report of the one step with this name, or with this path or end of a path.

        >>> from phases import Serial, run, task
        >>> answer = task("answer")(lambda ctx: 42)
        >>> report = run(Serial(answer, name="demo"))
        >>> report.find("demo/answer").result, report.find("answer").result
        (42, 42)
        """
        found = [report for report in self.walk() if is_named(report, path)]
        whole = [report for report in found if report.path in {path, "/".join((*self.names, path))}]
        if len(whole or found) != 1:
            steps = ", ".join(report.path for report in found or self.walk())
            raise KeyError(f"{len(found)} steps are named {path!r} of these: {steps}")
        return (whole or found)[0]

    def walk(self) -> Iterator[Report]:
        """Yield every report inside this one, innermost first, and then itself."""
        for child in self.children:
            yield from child.walk()
        yield self

    @property
    def ok(self) -> bool:
        """True if the task completed, had nothing to do, or was left out."""
        return self.status in {"ok", "skipped"}

    @property
    def has_inverse(self) -> bool:
        """True if the task recorded an inverse, or declares that it records all its changes."""
        return getattr(self.task, "records", False) or any(each.undo for each in self.records)

    @property
    def degraded(self) -> bool:
        """True if the task is `ok`, but has `reasons`, or a task inside is degraded or not `ok`.

        A task that `checks` and was skipped is degraded.
        """
        is_lacking = any(not child.ok or child.degraded for child in self.children)
        return self.ok and (is_lacking or (bool(self.reasons) and not self.is_idle))

    @property
    def failures(self) -> tuple[BaseException, ...]:
        """Every cause, at any depth of groups, and of attempts before an end of the context."""
        return tuple(cause for _, cause in self._failures())

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the task and of all tasks inside, in all attempts, unless undone."""
        return self._changes(are_undone=False)

    @property
    def undone(self) -> tuple[Change, ...]:
        """Those changes that were undone."""
        return self._changes(are_undone=True)

    @property
    def undo(self) -> Literal["none", "complete", "partial"]:
        """What became of the undo of the task and of all tasks inside; `none` if there was none.

        After a `partial` one a change is left that only a person can judge.

        >>> from phases import Change, run, task
        >>> @task("hosts")
        ... def edit(ctx):
        ...     ctx.record(Change("~", "/etc/hosts"), undo=lambda _: False)
        ...     raise OSError("busy")
        >>> report = run(edit, undo_on_failure=True)
        >>> report.undo, report.error.retryable
        ('partial', False)
        """
        reports = [*self.walk()]
        if any(report.has_stayed for report in reports):
            return "partial"
        return "complete" if self.undone else "none"

    def _changes(self, *, are_undone: bool) -> tuple[Change, ...]:
        records = (record for report in self.walk() for record in report.records)
        wanted = (record.changes for record in records if record.is_undone == are_undone)
        return tuple(chain.from_iterable(wanted))

    def _add(self, task: Task) -> Report:
        """Add the report of a task inside that begins now, before those that have not begun."""
        position = len(self.children)
        while position and self.children[position - 1].status == "not-reached":
            position -= 1
        child = Report(task, self)
        self.children.insert(position, child)
        self._named.setdefault(task.name, []).append(child)
        return child

    def _due(self, task: Task) -> Report:
        """Return the report of a task inside that begins soon.

        A task of the same name has the same report, unless both are under way: a loop that makes
        its tasks in each round does not fill the memory.
        """
        named = self._named.get(task.name, ())
        free = [child for child in named if child.status not in {"due", "running"}]
        # One that has not begun, or the oldest if the task is tried again.
        order = [(child.task is not task, child.start or "") for child in free]
        report = free[order.index(min(order))] if free else self._add(task)
        report.task = task
        report.status = "due"
        report.duration = None
        return report

    def result_of(self, kind: type[_T]) -> _T | None:
        """Return the last result of this type, of the task or of one inside; None without one.

        >>> from phases import Serial, run, task
        >>> answer = task("answer")(lambda ctx: 42)
        >>> report = run(Serial(answer, name="demo"))
        >>> report.result_of(int), report.result_of(str)
        (42, None)
        """
        if not isinstance(kind, type):
            raise wrong_argument("kind", kind, "a class", kind)
        results = [each.result for each in self.walk() if isinstance(each.result, kind)]
        return results[-1] if results else None

    def raise_for_failure(self) -> None:
        """Raise `error` if there is one, as `execute` would have."""
        if self.error is not None:
            raise self.error

    def to_mapping(self) -> dict[str, Any]:
        """Return the tree for `json.dumps`.

        `result` is the value that the task returned: attrs classes, dataclasses and NamedTuples as
        mappings, enums, paths and dates by their usual form. With `repr`, a text stands for a part
        that JSON cannot hold. A change that was reversed has `undone`.
        """
        undo = self.undo
        return {
            "name": self.name,
            "path": self.path,
            "status": self.status,
            "degraded": self.degraded,
            "reasons": list(self.reasons),
            "attempts": self.attempts,
            "start": self.start,
            "duration": self.duration,
            "error": None if self.error is None else describe(self.error),
            "failures": [_failure_to_mapping(*failure) for failure in self._failures()],
            **as_result(self.result),
            **({} if undo == "none" else {"undo": undo}),
            "changes": [*chain.from_iterable(record.to_mappings() for record in self.records)],
            "children": [child.to_mapping() for child in self.children],
        }

    def _failures(self) -> Iterator[tuple[str, BaseException]]:
        """Yield each failure with its path."""
        if self.error is not None:
            failure = as_failure(self.error, *self.names, self.name)
            for error in failure.walk():
                yield from ((error.path, leaf) for leaf in leaves(error.cause))


def is_named(report: Report, word: str) -> bool:
    """Return True if this is the name of a task, or the end of its path.

    >>> from phases import Serial, run, task
    >>> report = run(Serial(task("ca")(lambda ctx: None), name="certs")).children[0]
    >>> is_named(report, "ca"), is_named(report, "certs/ca"), is_named(report, "s/ca")
    (True, True, False)
    """
    return f"/{report.path}".endswith(f"/{word}") and word != ""


def _in_short(cause: BaseException) -> str:
    """Return the first line of an error's text, and the second one: the first may be a heading."""
    first, *more = describe(cause).splitlines()
    if more:
        parted = first if first.endswith(":") else f"{first};"
        first = f"{parted} {more[0].strip()}" + (" ..." if more[1:] else "")
    place = place_of(cause)
    return first if place is None else f"{first} ({place})"


def _failure_to_mapping(path: str, cause: BaseException) -> dict[str, Any]:
    return {
        "path": path,
        "type": type(cause).__name__,
        "retryable": may_pass(cause),
        "cause": describe(cause),
        "where": place_of(cause),
    }
