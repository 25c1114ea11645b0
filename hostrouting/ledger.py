"""The changes of a run that is not committed yet, with their inverses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.boot import UnreadFilesError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from phases import Change, Context
    from phases.context import Account

#: The time of an undo or of the end of a commit, which begin when the time of their run may be over.
SECONDS_TO_UNDO: Final = 15.0


@attrs.define(eq=False)
class Ledger:
    """Keeps the changes of several tasks until they are committed, and then passes them on; or reverses them.

    >>> from phases import Change, Context, run, task
    >>> ledger = Ledger()
    >>> @task("hosts")
    ... def hosts(ctx):
    ...     ledger.under(ctx).record(Change("+", "/etc/hosts"))
    ...     ledger.commit()
    >>> print(*run(hosts).changes)
    + /etc/hosts
    """

    _entries: list[tuple[Account | None, Change, Callable[[Context], None] | None]] = attrs.field(factory=list)
    #: That of the task whose changes `record` keeps.
    _account: Account | None = None

    def under(self, ctx: Context) -> Context:
        """Return the context of a task whose changes are kept here."""
        return ctx.within(Ledger(self._entries, ctx.account), ctx.logger)

    def skips(self, name: str) -> bool:
        """See `phases.context.Account`."""
        return self._account is not None and self._account.skips(name)

    def record(self, change: Change, undo: Callable[[Context], None] | None) -> None:
        """See `phases.context.Account`."""
        self._entries.append((self._account, change, undo))

    def commit(self) -> None:
        """Pass the changes on to the reports of their tasks, where `run(undo_on_failure=True)` finds them."""
        for account, change, undo in self._entries:
            if account is not None:
                account.record(change, undo)
        self._entries.clear()

    def undo(self, ctx: Context, logger: logging.Logger, state: str) -> bool:
        """Reverse all changes, the newest first, though the time of `ctx` is over; return False if one stays.

        If there were any, a line tells the `state` after it. A second signal ends it.
        """
        own = ctx.shielded().child(timeout=SECONDS_TO_UNDO)
        is_whole, nothing_changed = True, not self._entries
        while self._entries:
            _, change, undo = self._entries[-1]
            try:
                if undo is not None:
                    # A systemd that hangs must not keep the routes from coming back.
                    undo(own.child((own.remaining() or 0) / 2))
            except Exception as error:  # noqa: BLE001 (an inverse may fail in any way, and the others are tried)
                told = error if isinstance(error, UnreadFilesError) else f"{change}, and what changed with it: {error}"
                logger.error("not undone: %s", told)  # noqa: TRY400
                is_whole = False
            except BaseException:
                logger.error("the undo was ended; %d changes stay, the newest is: %s", len(self._entries), change)  # noqa: TRY400
                raise
            while self._entries and self._entries[-1][2] == undo:
                self._entries.pop()
        if is_whole and not nothing_changed:
            # As important as the error: of many lines the command shows the errors.
            logger.error("undone: %s", state)
        return is_whole
