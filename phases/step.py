"""Step: a task's place in a run, which writes the report while the tasks run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from threading import Lock
from typing import Any, NamedTuple

from phases.context import Change, Context, Wait, Work
from phases.exceptions import TaskFailedError
from phases.report import Event, Record, Report, Status
from phases.task import Task, is_group


class Step(NamedTuple):
    """A task's place in a run, which its context has.

    All steps of a run share the fields after `report`: above all the records, in the order of the
    changes.
    """

    report: Report
    lock: Lock
    #: Paths.
    skip: Collection[str] = ()
    observer: Callable[[Event], object] | None = None
    #: None for a run that undoes nothing: one that lasts for months must not grow.
    records: list[Record] | None = None

    def enter(self, task: Task) -> Step:
        """Return the step of a task that this one does now."""
        with self.lock:
            report = self.report._due(task)
        return self._replace(report=report)

    def begin(self, now: float) -> None:
        """Report that the task begins."""
        report = self.report
        report.start = time.strftime(f"%FT%T.{int(now % 1 * 1_000_000):06}Z", time.gmtime(now))
        report.status = "running"
        report.error = None
        report._begin()
        self.notify(report)

    def begin_again(self, error: TaskFailedError, pause: Wait) -> None:
        """Report that an attempt failed, and that the next one comes after the pause."""
        self.report._begin()
        self.notify(self.report, status="retrying", error=error, wait=pause)

    def end(self, status: Status, error: BaseException | None, duration: float) -> None:
        """Report that the task ended."""
        report = self.report
        task = report.task
        report.status = status
        report.error = error
        report.duration = duration
        undo = getattr(task, "undo", None)
        is_left_out = report.has_inverse or is_group(task) or (undo is None and report.children)
        if status == "ok" and self.records is not None and not is_left_out:
            with self.lock:
                if report.children or report.records:
                    # Its own inverse reverses what it has changed, and the tasks inside, too.
                    inside = set(report.walk())
                    others = [record for record in self.records if record.report not in inside]
                    self.records[:] = others
                self.records.append(Record(report, undo))
        self.notify(report)

    def record(self, change: Change, undo: Work | None) -> None:
        """Add a change, with its inverse."""
        with self.lock:
            newest = self.records[-1] if self.records else None
            if newest and newest.changes and newest.report is self.report and newest.undo == undo:
                newest.changes.append(change)
            else:
                record = Record(self.report, undo, change)
                self.report.records.append(record)
                if self.records is not None:
                    self.records.append(record)
        self.notify(self.report, change=change)

    def degrade(self, reason: str) -> None:
        """Add why the task is degraded."""
        # A task that lasts for months does not fill the memory.
        if reason not in self.report.reasons:
            self.report.reasons.append(reason)

    def idle(self, reason: str) -> None:
        """Report that the task has nothing to do, unless it has changed something."""
        if not self.report.records:
            self.report.is_idle = True
            self.degrade(reason)

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
            if result is not False and not isinstance(result, BaseException):
                self._mark_undone(record)
            elif record.changes or record.undo:
                # Of a task without both it is unknown whether it has changed anything.
                record.report.has_stayed = True
            # Not always the last one: a thread may have added a record meanwhile.
            self.records.remove(record)
            yield record, result
        if interrupt is not None:
            raise interrupt

    def _mark_undone(self, record: Record) -> None:
        # A task's own `undo`, which has no changes, reverses those of the tasks inside, too.
        reports = [record.report] if record.changes else record.report.walk()
        for report in reports:
            for each in [record] if record.changes else report.records:
                each.is_undone = True
            if report.status == "ok" and all(each.is_undone for each in report.records):
                self.settle(report, "undone")

    def settle(self, report: Report, status: Status) -> None:
        """Give a task its status after an undo, and the completed groups around it."""
        report.status = status
        self.notify(report)
        group = report.parent
        if group is None or not is_group(group.task):
            return
        if group.status == "ok" or (group.status, status) == ("undone", "failed"):
            self.settle(group, status)

    def notify(self, report: Report, **others: Any) -> None:
        """Call the observer with an event of a task; `others` replace parts of it."""
        if self.observer is not None:
            event = Event(report.path, report.status, error=report.error)._replace(**others)
            try:
                self.observer(event)
            except Exception:
                logging.getLogger("phases").exception(
                    "the observer of the run failed at %s", event.path
                )
