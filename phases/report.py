"""Report: the result of a run, task by task; and the account that writes it while the tasks run."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from phases.exceptions import TaskFailedError, describe, leaves
from phases.mistakes import NoTruth
from phases.task import Group, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from threading import Lock

    from phases.context import Change, Context, Wait, Work

_T = TypeVar("_T")
#: The status of a task in a report; while it runs, `due` and `running`.
Status: TypeAlias = Literal[
    "ok", "failed", "cancelled", "undone", "skipped", "not-reached", "due", "running"
]


def names_in_path(task: Task) -> tuple[str, ...]:
    """Return the names that a task adds to its subtasks' paths: its own, or none if anonymous."""
    return () if isinstance(task, Group) and task.anonymous else (task.name,)


class Event(NamedTuple):
    """A step of a run, for an observer: `status` is that of the task, `change` a new record.

    If the task waits from now on, the status is `waiting`, and `wait` has the reason and the
    longest time. Between two attempts it is `retrying`, `error` is that of the attempt, and `wait`
    has the pause.
    """

    path: str
    status: Status | Literal["retrying", "waiting"]
    change: Change | None = None
    error: BaseException | None = None
    wait: Wait | None = None


class Report(NoTruth):
    """The result of a task and of its subtasks (`children`).

    `status` is `ok`, `failed`, `cancelled`, `undone`, `skipped` (left out on purpose) or
    `not-reached`. A group is `ok` although a subtask that it tolerates `failed`, see
    `phases.tolerate`.
    `start` is UTC in ISO 8601, `duration` is in seconds; both are None for a task that did not run.
    `attempts` is the number of its attempts, `error` the error that it raised, `result` the value
    that it gave to `Context.result`, `reasons` what it gave to `Context.degrade`.

    >>> from phases import run, task
    >>> report = run(task("greet")(lambda ctx: None))
    >>> report.name, report.status, report.ok
    ('greet', 'ok', True)
    """

    _tested = ".ok, .degraded"

    def __init__(self, task: Task, names: tuple[str, ...] = ()) -> None:
        self.task = task
        #: The path of the task, without its name.
        self.names = names
        self.name: str = task.name
        self.status: Status = "not-reached"
        self.start: str | None = None
        self.duration: float | None = None
        self.attempts = 0
        self.error: BaseException | None = None
        #: The failures of attempts before an end of the context, with the task's name first.
        self.earlier: tuple[TaskFailedError, ...] = ()
        self.result: Any = None
        #: Why the task itself is degraded, see `Context.degrade`.
        self.reasons: list[str] = []
        #: True for a run that a task made: that task is degraded if the run was not a clean one.
        self.is_inner_run: bool = False
        #: True once the run has returned: nothing is added.
        self.is_over: bool = False
        #: For the runner; see `changes`.
        self.records: list[Record] = []
        #: The changes that were reversed.
        self.undone: list[Change] = []
        subtasks = task.subtasks if isinstance(task, Group) else ()
        self.children: list[Report] = [Report(subtask, self.names_inside) for subtask in subtasks]

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self.word}>"

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
        return "\n".join([*_lines(self), *self._lines_of_more()])

    def _lines_of_more(self) -> Iterator[str]:
        """Yield a line for each failure that no step has, such as that of a check between steps."""
        shown = {
            id(leaf)
            for report in self.walk()
            if (cause := report._own_cause)  # noqa: SLF001 - of the same class
            for leaf in leaves(cause)
        }
        for path, cause in self._failures():
            if id(cause) not in shown:
                yield f"{'also failed':<12} {path}  {_in_short(cause)}"

    @property
    def word(self) -> str:
        """The status, or `degraded`."""
        return "degraded" if self.degraded else self.status

    @property
    def line(self) -> str:
        """The name and seconds of the task, and why it failed."""
        parts = [self.name]
        if self.duration is not None:
            parts.append(f"{self.duration:.3f} s")
        parts.append(self._reason)
        return "  ".join(filter(None, parts))

    @property
    def _reason(self) -> str:
        """Why the task itself failed or is degraded; a task inside has a line of its own."""
        cause = self._own_cause
        failure = "" if cause is None else _in_short(cause)
        return "; ".join(filter(None, [failure, *self.reasons]))

    @property
    def _own_cause(self) -> BaseException | None:
        """The error of the task itself; None for that of a task inside."""
        cause = self.error
        if isinstance(cause, TaskFailedError):
            return cause.cause if cause.names == (self.name,) else None
        return cause

    def find(self, path: str) -> Report:
        """Return the report of the one step with this name, or with this path or end of a path.

        >>> from phases import Serial, run, task
        >>> answer = task("answer")(lambda ctx: ctx.result(42))
        >>> report = run(Serial(answer, name="demo"))
        >>> report.find("demo/answer").result, report.find("answer").result
        (42, 42)
        """
        reports = list(self.walk())
        whole = {path, "/".join((*self.names, path))}
        found = [report for report in reports if report.path in whole]
        found = found or [report for report in reports if report.is_named(path)]
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(
                f"several steps are named {path!r}: {', '.join(each.path for each in found)}"
            )
        raise KeyError(
            f"no step is named {path!r}; the steps are: {', '.join(each.path for each in reports)}"
        )

    @property
    def path(self) -> str:
        """The names of the groups and of the task, as `bootstrap/configure-static-routes`."""
        return "/".join((*self.names, self.name))

    def is_named(self, word: str) -> bool:
        """Return True if this is the name of the task, or the end of its path.

        >>> from phases import Serial, run, task
        >>> report = run(Serial(task("ca")(lambda ctx: None), name="certs")).children[0]
        >>> report.is_named("ca"), report.is_named("certs/ca"), report.is_named("s/ca")
        (True, True, False)
        """
        return f"/{self.path}".endswith(f"/{word}") and word != ""

    @property
    def names_inside(self) -> tuple[str, ...]:
        """The path of the tasks inside, without their names."""
        return (*self.names, *names_in_path(self.task))

    def walk(self) -> Iterator[Report]:
        """Yield every report inside this one, innermost first, and then itself."""
        for child in self.children:
            yield from child.walk()
        yield self

    @property
    def ok(self) -> bool:
        """True if the task completed or was left out."""
        return self.status in {"ok", "skipped"}

    @property
    def is_under_way(self) -> bool:
        """True from the moment in which the task is due until it ends."""
        return self.status in {"due", "running"}

    @property
    def degraded(self) -> bool:
        """True if the task is `ok`, but has `reasons`, or a task inside is degraded or not `ok`.

        A task that `proves` and was skipped is degraded, and so is a task that made a run which is
        degraded or not `ok`.
        """
        # Of a run inside, the task's `reasons` count: a task that is tried again makes its runs
        # again.
        inside = (child for child in self.children if not child.is_inner_run)
        is_lacking = bool(self.reasons) or any(not child.ok or child.degraded for child in inside)
        return self.ok and is_lacking

    @property
    def failures(self) -> tuple[BaseException, ...]:
        """Every cause, at any depth of groups, and of attempts before an end of the context."""
        return tuple(cause for _, cause in self._failures())

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the task and of all tasks inside, in all attempts, unless undone."""
        return tuple(
            change
            for report in self.walk()
            for record in report.records
            for change in record.changes
        )

    def close(self) -> None:
        """Add nothing from now on, apart from a run inside that a thread has not ended yet.

        That goes on with an account of its own, and the task that began it is degraded.
        """
        self.is_over = True
        for child in self.children:
            if child.is_inner_run and child.is_under_way:
                self.add_reason(f"its run of {child.name} goes on")
            else:
                child.close()

    def add_reason(self, reason: str) -> None:
        """Add why the task is degraded."""
        # A task that makes the same run for months does not fill the memory.
        if reason not in self.reasons:
            self.reasons.append(reason)

    def result_of(self, kind: type[_T]) -> _T | None:
        """Return the last result of this type, of the task or of one inside; None without one.

        >>> from phases import Serial, run, task
        >>> answer = task("answer")(lambda ctx: ctx.result(42))
        >>> report = run(Serial(answer, name="demo"))
        >>> report.result_of(int), report.result_of(str)
        (42, None)
        """
        last = None
        for report in self.walk():
            if isinstance(report.result, kind):
                last = report.result
        return last

    def is_replaced_by(self, later: Report) -> bool:
        """Return True for an earlier run of this name, unless it goes on or has changes."""
        if not self.is_inner_run or self.is_under_way:
            return False
        return self.name == later.name and not self.changes

    def raise_for_failure(self) -> None:
        """Raise `error` if there is one, as `execute` would have."""
        if self.error is not None:
            raise self.error

    def to_mapping(self) -> dict[str, Any]:
        """Return the tree for `json.dumps`.

        `result` is that of the task, by its `to_mapping`; None if it has none. A change that was
        reversed has `undone`.
        """
        own = [change.to_mapping() for record in self.records for change in record.changes]
        undone = [{**change.to_mapping(), "undone": True} for change in self.undone]
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
            "result": _result_to_mapping(self.result),
            "changes": [*own, *undone],
            "children": [child.to_mapping() for child in self.children],
        }

    def _failures(self) -> Iterator[tuple[str, BaseException]]:
        """Yield each failure with its whole path."""
        if isinstance(self.error, TaskFailedError):
            failures = [self.error]
        elif self.error is None:
            return
        else:
            yield self.path, self.error
            failures = [*self.earlier]
        for failure in failures:
            for error in failure.walk():
                path = "/".join((*self.names, *error.names))
                yield from ((path, leaf) for leaf in leaves(error.cause))


def whole_path(path: str) -> str:
    """Return a path in which no name can be mistaken for it: in an anonymous group they are equal.

    >>> whole_path("ca")
    '/ca'
    """
    return f"/{path}"


def _lines(report: Report, indent: str = "") -> Iterator[str]:
    yield f"{report.word:<12} {indent}{report.line}"
    for child in report.children:
        yield from _lines(child, f"{indent}  ")


def _in_short(cause: BaseException) -> str:
    """Return the first line of an error's text, and the second one: the first may be a heading."""
    first, *more = describe(cause).splitlines()
    if not more:
        return first
    parted = first if first.endswith(":") else f"{first};"
    return f"{parted} {more[0].strip()}" + (" ..." if more[1:] else "")


def _result_to_mapping(result: object) -> Any:
    to_mapping = getattr(result, "to_mapping", None)
    # A class has one, too, and no value.
    if isinstance(result, type) or not callable(to_mapping):
        return None
    return to_mapping()


def _failure_to_mapping(path: str, cause: BaseException) -> dict[str, Any]:
    return {
        "path": path,
        "type": type(cause).__name__,
        "retryable": getattr(cause, "retryable", True),
        "cause": describe(cause),
    }


class Record(NamedTuple):
    """Consecutive changes of a task with one inverse; or, without changes, a task's own `undo`."""

    report: Report
    undo: Work | None
    changes: list[Change]


class Step(NamedTuple):
    """A task's place in a run, and the account that its context has, see `phases.context.Account`.

    All steps of a run share the fields after `report`: above all the records, in the order of the
    changes.
    """

    report: Report
    lock: Lock
    #: Names, and paths as of `whole_path`.
    skip: Collection[str] = ()
    observers: Sequence[Callable[[Event], object]] = ()
    #: None for a run that undoes nothing: one that lasts for months must not grow.
    records: list[Record] | None = None

    def enter(self, task: Task) -> Step:
        """Return the step of a task that this one does now."""
        if self.report.is_over:
            # In a thread that outlives the run.
            alone = Report(task, self.report.names_inside)
            return self._replace(report=alone, observers=(), records=None)
        with self.lock:
            children = self.report.children
            # The report of a run inside stays as that run returned it.
            free = [child for child in children if not (child.is_inner_run or child.is_under_way)]
            # A step that has not begun, or the oldest if the task is tried again.
            of_task = (child for child in free if child.task is task)
            report = min(of_task, key=lambda child: child.start or "", default=None)
            if report is None:
                report = Report(task, self.report.names_inside)
                # If a group makes a task of the same name in each round, only the latest report
                # stays.
                older = [child for child in free if child.name == task.name]
                place = children.index(older[0]) if older else len(children)
                children.insert(place, report)
                children[:] = [child for child in children if child not in older]
            report.status = "due"
            report.duration = None
        return self._replace(report=report)

    def enter_run(self, inner: Step) -> Step:
        """Return the step of a run that this task makes now, as a part of its own run."""
        report = inner.report
        children = self.report.children
        report.is_inner_run = True
        report.status = "due"
        with self.lock:
            # A task that makes runs for months does not fill the memory.
            children[:] = [child for child in children if not child.is_replaced_by(report)]
            children.append(report)
        return inner._replace(
            lock=self.lock,
            skip=(*self.skip, *inner.skip),
            observers=(*self.observers, *inner.observers),
            records=self.records if inner.records is None else inner.records,
        )

    def leave_run(self, inner: Step) -> None:
        """Take over the records of a run inside, which has ended."""
        report = inner.report
        with self.lock:
            if self.records is not None and inner.records is not self.records:
                self.records.extend(inner.records or ())
            if self.report.is_over:
                report.close()
        self.count_run(report)

    def count_run(self, report: Report) -> None:
        """Degrade the task by a run that it made, unless that is a clean one."""
        if report.degraded or not report.ok:
            self.report.add_reason(f"its run of {report.name}: {report.word}")

    def close(self) -> None:
        """End the account: the run has returned."""
        with self.lock:
            self.report.close()

    def begin(self, now: float) -> None:
        """Report that the task begins."""
        report = self.report
        report.start = time.strftime(f"%FT%T.{int(now % 1 * 1_000_000):06}Z", time.gmtime(now))
        report.status = "running"
        report.error = None
        report.earlier = ()
        report.attempts += 1
        report.result = None
        report.reasons = []
        self.notify(report)

    def end(self, status: Status, error: BaseException | None, duration: float) -> None:
        """Report that the task ended."""
        report = self.report
        if report.is_over:
            return
        task = report.task
        report.status = status
        report.error = error
        # The groups around it give the same error longer paths.
        report.earlier = getattr(error, "earlier", ())
        report.duration = duration
        undo = getattr(task, "undo", None)
        has_recorded = getattr(task, "records", False) or any(r.undo for r in report.records)
        is_left_out = has_recorded or isinstance(task, Group) or (undo is None and report.children)
        if status == "ok" and self.records is not None and not is_left_out:
            # Its own inverse reverses the tasks inside, too, and earlier attempts.
            inside = set(report.walk())
            with self.lock:
                others = [record for record in self.records if record.report not in inside]
                self.records[:] = [*others, Record(report, undo, [])]
        self.notify(report)

    @property
    def is_skipped(self) -> bool:
        """True if the run leaves out the task of this step."""
        return self.report.name in self.skip or whole_path(self.report.path) in self.skip

    def skips(self, name: str) -> bool:
        """See `Account`."""
        path = whole_path("/".join((*self.report.names_inside, name)))
        return name in self.skip or path in self.skip

    def result(self, value: object) -> None:
        """See `Account`."""
        if not self.report.is_over:
            self.report.result = value

    def degrade(self, reason: str) -> None:
        """See `Account`."""
        if not self.report.is_over:
            self.report.add_reason(reason)

    def wait(self, wait: Wait) -> None:
        """See `Account`."""
        if not self.report.is_over:
            self.notify(self.report, status="waiting", wait=wait)

    def record(self, change: Change, undo: Work | None) -> None:
        """See `Account`."""
        if self.report.is_over:
            return
        with self.lock:
            newest = self.records[-1] if self.records else None
            if newest and newest.changes and newest.report is self.report and newest.undo == undo:
                newest.changes.append(change)
            else:
                record = Record(self.report, undo, [change])
                self.report.records.append(record)
                if self.records is not None:
                    self.records.append(record)
        self.notify(self.report, change=change)

    def roll_back(
        self, undo: Callable[[Record], object], ctx: Context
    ) -> Iterator[tuple[Record, object]]:
        """Call `undo` for each record, newest first; yield it with the result or the error.

        `undo` returns False if the change stays; it stays in the report, too. An interrupt is the
        result of one record, and is raised after the last. A second one, or one after `ctx` was
        cancelled, is raised at once: `records` has what is left, the interrupted one included.
        """
        interrupt: BaseException | None = None
        while self.records:
            record = self.records[-1]
            try:
                result = undo(record)
            except Exception as error:  # noqa: BLE001 - after any failure the next one is tried
                result = error
            except BaseException as error:
                if interrupt is not None or ctx.cancelled:
                    raise
                result = interrupt = error
            else:
                # The undo of a task reverses everything inside.
                reports = [record.report] if record.changes else record.report.walk()
                for report in reports if result is not False else ():
                    report.undone += [
                        change
                        for each in report.records
                        if each is record or not record.changes
                        for change in each.changes
                    ]
                    kept = [r for r in report.records if record.changes and r is not record]
                    report.records = kept
                    if report.status == "ok" and not kept:
                        report.status = "undone"
                        self.notify(report)
            # Not always the last one: a thread may have added a record meanwhile.
            self.records.remove(record)
            yield record, result
        if interrupt is not None:
            raise interrupt

    def notify(self, report: Report, **others: Any) -> None:
        """Call the observers with an event of a task; `others` replace parts of it."""
        for observer in self.observers:
            event = Event(report.path, report.status, error=report.error)._replace(**others)
            try:
                observer(event)
            except Exception:
                logging.getLogger("phases").exception(
                    "the observer of the run failed at %s", event.path
                )
