"""Transaction: changes that are kept until they are committed, or rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phases.compose import Serial
from phases.report import Report, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phases.context import Change, Context
    from phases.report import Record


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
        self._run = ctx.account if isinstance(ctx.account, Step) else Step.first(Report(Serial()))
        self._step = self._run._replace(records=[], keep=True)
        #: The context for the work: for `execute`, or for `record`.
        self.ctx: Context = ctx.within(self._step)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that are neither committed nor reversed, in their order."""
        return tuple(change for record in self._step.records for change in record.changes)

    def commit(self) -> None:
        """Pass the changes on, so that `run(undo_on_failure=True)` finds them."""
        with self._step.lock:
            if self._run.keep:
                self._run.records.extend(self._step.records)
            self._step.records.clear()

    def rollback(self, *, timeout: float) -> Iterator[tuple[Record, object]]:
        """Reverse the changes, newest first, though `ctx` may be over; iterate to the end.

        Yield each record with what its inverse returned or raised; False if it has none. An inverse
        gets half of the time that is left, so that one that hangs leaves time for the others.
        """
        own = self.ctx.within(None).shielded().child(timeout)
        records = self._step.records
        while records:
            record = records[-1]
            result: object = False
            try:
                if record.undo is not None:
                    result = record.undo(own.child((own.remaining() or 0) / 2))
                    self._step.undone(record)
            except Exception as error:  # noqa: BLE001 - however one fails, the others are tried
                result = error
            records.pop()
            yield record, result
