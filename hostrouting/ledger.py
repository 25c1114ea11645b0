"""The changes of a run that is not committed yet, with their inverses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import attrs

from hostrouting.boot import UnreadFilesError

if TYPE_CHECKING:
    import logging

    from phases import Context
    from phases.report import Record, Step

#: The time of an undo or of the end of a commit, which begin when the time of their run may be over.
SECONDS_TO_UNDO: Final = 15.0


@attrs.define(eq=False)
class Ledger:
    """Keeps the records of several tasks until they are committed, and then passes them on; or reverses them.

    >>> from phases import Change, Context, run, task
    >>> ledger = Ledger()
    >>> @task("hosts")
    ... def hosts(ctx):
    ...     ledger.under(ctx).record(Change("+", "/etc/hosts"))
    ...     ledger.commit()
    >>> print(*run(hosts).changes)
    + /etc/hosts
    """

    _records: list[Record] = attrs.field(factory=list)
    #: That of the task which began last; all steps of a run have the same records.
    _step: Step | None = None

    def under(self, ctx: Context) -> Context:
        """Return the context of a task that is being done, for changes that are kept here; its report has them, too."""
        self._step = cast("Step", ctx.account)
        return ctx.within(self._step._replace(records=self._records, keep=True), ctx.logger)

    def commit(self) -> None:
        """Pass the records on, so that `run(undo_on_failure=True)` finds them."""
        if self._step is not None and self._step.keep:
            self._step.records.extend(self._records)
        self._records.clear()

    def undo(self, ctx: Context, logger: logging.Logger, state: str) -> bool:
        """Reverse all changes, the newest first, though the time of `ctx` is over; return False if one stays.

        If there were any, a line tells the `state` after it. A second signal ends it.
        """
        own = ctx.shielded().child(timeout=SECONDS_TO_UNDO)
        is_whole, nothing_changed = True, not self._records
        while self._step is not None and self._records:
            record = self._records[-1]
            try:
                if record.undo is not None:
                    # A systemd that hangs must not keep the routes from coming back.
                    record.undo(own.child((own.remaining() or 0) / 2))
                self._step.undone(record)
            except Exception as error:  # noqa: BLE001 (an inverse may fail in any way, and the others are tried)
                what = f"{record.changes[-1]}, and what changed with it: {error}"
                logger.error("not undone: %s", error if isinstance(error, UnreadFilesError) else what)  # noqa: TRY400
                is_whole = False
            except BaseException:
                staying = [change for each in self._records for change in each.changes]
                logger.error("the undo was ended; %d changes stay, the newest is: %s", len(staying), staying[-1])  # noqa: TRY400
                raise
            self._records.pop()
        if is_whole and not nothing_changed:
            # As important as the error: of many lines the command shows the errors.
            logger.error("undone: %s", state)
        return is_whole
