"""Report: what a run did, task by task; and the observer that writes it while the tasks run."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from phases.context import Observer, logger_of
from phases.exceptions import describe
from phases.mistakes import require_changes
from phases.task import Accountable, Group, Plannable, names_in_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from phases.context import Context
    from phases.task import Change, Task

__all__ = ["Report", "RunObserver"]


class Report:
    """What became of a task, and of the tasks inside it (`children`).

    `status` is `ok`, `failed`, `cancelled`, `undone`, or `skipped`: left out, or never reached.
    A group is `ok` although a subtask that it tolerates `failed`, see `phases.tolerate`.
    `start` is UTC in ISO 8601, `duration` seconds; both None for what did not run. `error` is what
    the task raised. `changes` are those that an accountable task has made, or those that a plannable
    one foresaw when it began; if it could not foresee them, the log says so and the task is no worse for it.

    >>> from phases import run, task
    >>> report = run(task("greet")(lambda ctx: None))
    >>> report.name, report.status, report.ok
    ('greet', 'ok', True)
    """

    __slots__ = ("changes", "children", "duration", "error", "name", "names", "start", "status", "task")

    def __init__(self, task: Task, names: tuple[str, ...] = ()) -> None:
        self.task = task
        #: The path that the task stands in, without its own name.
        self.names = names
        self.name = task.name
        self.status = "skipped"
        self.start: str | None = None
        self.duration: float | None = None
        self.error: BaseException | None = None
        self.changes: tuple[Change, ...] = ()
        inside = (*names, *names_in_path(task))
        self.children = [Report(subtask, inside) for subtask in task.subtasks] if isinstance(task, Group) else []

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self.status}>"

    def walk(self) -> Iterator[Report]:
        """All inside this report, innermost first, and then itself."""
        for child in self.children:
            yield from child.walk()
        yield self

    @property
    def ok(self) -> bool:
        """Whether the task did what it should, or was to be left out."""
        return self.status in {"ok", "skipped"}

    def raise_for_failure(self) -> None:
        """Raise `error` if there is one, as `execute` would have."""
        if self.error is not None:
            raise self.error

    def to_mapping(self) -> dict[str, Any]:
        """The tree for JSON."""
        return {
            "name": self.name,
            "status": self.status,
            "start": self.start,
            "duration": self.duration,
            "error": None if self.error is None else describe(self.error),
            "changes": [change.to_mapping() for change in self.changes],
            "children": [child.to_mapping() for child in self.children],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """The tree as JSON text."""
        import json  # 5 ms, for those who ask for it

        return json.dumps(self.to_mapping(), indent=indent)


class RunObserver(Observer):
    """Writes the report of a whole run."""

    def __init__(self, task: Task, *, skip: Iterable[str]) -> None:
        self.report = Report(task)
        #: Names of the tasks to leave out.
        self.skip = frozenset(skip)
        #: What ended well, oldest first.
        self.completed: list[Report] = []
        self._opening = threading.Lock()

    def enter(self, task: Task) -> Observer:
        """See `Observer`."""
        return self.open(task, [self.report], ())

    def open(self, task: Task, reports: list[Report], names: tuple[str, ...]) -> Observer:
        """An observer that writes the report of `task`, which is found among `reports` or added to them."""
        with self._opening:
            report = self._find(task, reports) or self._add(task, reports, names)
            report.status = "skipped" if self.skips(task) else "running"
        return _TaskObserver(self, report)

    def skips(self, task: Task) -> bool:
        """See `Observer`."""
        return task.name in self.skip

    def complete(self, report: Report) -> None:
        """Remember what ended well; what is done again has ended when it did so last."""
        with self._opening:
            self.completed = [*(each for each in self.completed if each is not report), report]

    def _find(self, task: Task, reports: list[Report]) -> Report | None:
        """The report that is due for this task: one not begun, or the oldest if it is tried again."""
        same = [report for report in reports if report.task is task and report.status != "running"]
        return min(same, key=lambda report: report.start or "", default=None)

    def _add(self, task: Task, reports: list[Report], names: tuple[str, ...]) -> Report:
        """A report for a task that another one composed while it ran.

        A loop that makes a task of the same name each time round keeps the latest report only.
        """
        for old in [report for report in reports if report.name == task.name and report.status != "running"]:
            reports.remove(old)
            forgotten = list(old.walk())
            self.completed = [report for report in self.completed if report not in forgotten]
        reports.append(Report(task, names))
        return reports[-1]


class _TaskObserver(Observer):
    """Writes the report of one task."""

    def __init__(self, run: RunObserver, report: Report) -> None:
        self._run = run
        self._report = report

    def enter(self, task: Task) -> Observer:
        within = self._report
        return self._run.open(task, within.children, (*within.names, *names_in_path(within.task)))

    def skips(self, task: Task) -> bool:
        return self._run.skips(task)

    def begin(self, ctx: Context) -> None:
        report = self._report
        now = ctx.clock.time()
        report.start = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1_000_000):06}Z"
        report.error = None
        if isinstance(report.task, Plannable) and not isinstance(report.task, Group | Accountable):
            try:
                report.changes = require_changes(report.task.plan(ctx))
            except Exception as error:  # noqa: BLE001 - foreseeing is a courtesy; `do` will meet what is really wrong
                ctx.check()
                logger_of(ctx).warning("cannot foresee the changes of %s: %s", report.name, describe(error))

    def end(self, status: str, error: BaseException | None, duration: float) -> None:
        report = self._report
        report.status, report.error, report.duration = status, error, duration
        if isinstance(report.task, Accountable):
            report.changes = tuple(report.task.made)
        if status == "ok":
            self._run.complete(report)
