"""Transaction: changes that are kept until they are committed, or rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from phases.compose import task
from phases.context import Change, Context
from phases.hosting import step_of, unrecorded, within
from phases.report import Record, Report
from phases.step import Step

#: Holds the changes of a transaction outside a run.
_OUTSIDE = task("transaction")(lambda _: None)


class Transaction:
    """The changes that are recorded in `ctx`: `commit` passes them on, `rollback` reverses them.

    Reports list the changes at once, and no longer after a rollback. `run(undo_on_failure=True)`
    reverses only those that were committed.

    >>> from phases import Change, Context
    >>> transaction = Transaction(Context())
    >>> transaction.ctx.record(Change("+", "/etc/hosts"), undo=lambda ctx: print("removed"))
    >>> for record, result in transaction.rollback(timeout=15):
    ...     print(*record.changes, result)
    removed
    + /etc/hosts None
    """

    def __init__(self, ctx: Context) -> None:
        run = step_of(ctx) or Step(Report(_OUTSIDE), Lock())
        self._of_run = run.records
        self._records = list[Record]()
        self._step = run._replace(records=self._records)
        #: The context for the work: for `execute`, or for `record`.
        self.ctx: Context = within(ctx, self._step)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that are neither committed nor reversed, in their order."""
        return tuple(change for record in self._records for change in record.changes)

    def commit(self) -> None:
        """Pass the changes on, so that `run(undo_on_failure=True)` finds them."""
        with self._step.lock:
            if self._of_run is not None:
                self._of_run.extend(self._records)
            self._records.clear()

    def rollback(self, *, timeout: float) -> Iterator[tuple[Record, object]]:
        """Reverse the changes, newest first, though `ctx` may be over; iterate to the end.

        Yield each record with the result or the error of its inverse; False if it has none. An
        inverse gets half of the time that is left, so that the next ones have time if it hangs.
        An interrupt ends one inverse, and is raised after the last; a second one, or one after
        `ctx` was cancelled, is raised at once, and `changes` has what stays.
        """
        own = unrecorded(self.ctx).shielded().child(timeout)

        def reverse(record: Record) -> object:
            return record.undo is not None and record.undo(own.child((own.remaining() or 0) / 2))

        return self._step.roll_back(reverse, self.ctx)
