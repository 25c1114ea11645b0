"""A deployment: the live changes and the boot files of one run, which are committed or undone together."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from hostrouting.boot.boot import UnreadFilesError
from hostrouting.boot.layout import WAIT_SECONDS
from hostrouting.exceptions import HostFileError
from phases import TaskFailedError, Transaction

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from hostrouting.boot.boot import Boot
    from hostrouting.boot.intent import Part
    from hostrouting.boot.recorded import RecordedFiles
    from phases import Context

    _Work: TypeAlias = Callable[[Context], object]

#: The time of an undo or of the end of a commit, which begin when the time of their run may be over.
SECONDS_TO_UNDO: Final = 15.0


@attrs.define(eq=False)
class Deployment:
    """The changes of one run under the run lock: those of a task by itself, or of all tasks of `Configure`.

    Over an installed config the live half comes first, and all is undone if any of it fails, is interrupted or is
    proven worse. On a node without one the boot files come first and stay: if the routes fail, the machine must not
    start at the next boot either.
    """

    _transaction: Transaction
    _boot: Boot
    parts: Sequence[Part]
    _logger: logging.Logger
    failures: list[TaskFailedError] = attrs.field(factory=list, init=False)
    is_committed: bool = attrs.field(default=False, init=False)
    is_installed: bool = attrs.field(init=False)
    #: Both halves together wait for DHCP as long as one of them would.
    until: float = attrs.field(init=False)
    _files: RecordedFiles | None = attrs.field(default=None, init=False)
    #: False until the commit: the files of the earlier config stay, and an undo needs no space.
    _removes: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.is_installed = self._boot.is_installed
        self.until = self.ctx.clock.monotonic() + WAIT_SECONDS

    @property
    def ctx(self) -> Context:
        """The context for all changes."""
        return self._transaction.ctx

    def refuse(self) -> None:
        """Raise if the files cannot be installed, or a gate could never open; nothing is changed."""
        self._boot.refuse_gates(self.ctx, *self.parts)
        if self.is_installed:
            self._boot.refuse_unwritable(*self.parts)

    def install(self, ctx: Context) -> None:
        """Install the boot files."""
        self._files = self._files or self._boot.recorded(ctx)
        self._boot.install(ctx, *self.parts, removes=self._removes, files=self._files)

    def attempt(self, work: _Work, ctx: Context | None = None) -> None:
        """Do a part of the work; the failure of a subtask does not stop the others."""
        try:
            work(ctx or self.ctx)
        except TaskFailedError as error:
            self.failures.append(error)

    def carry_out(self, files: _Work, *live: _Work, prove: Callable[[str], None] | None = None) -> bool:
        """Change boot files and routes, and commit; return False if the installed config is in force again.

        `prove` raises if the node is worse off then. It receives the state in which the undo leaves the node.
        """
        state = "the earlier config is in force, live and for the next boot"
        self._removes = not self.is_installed
        try:
            if self.is_installed:
                # A gate that starts meanwhile runs the earlier config's script, which puts its own routes back: after
                # the files are exchanged, the routes are compared again.
                for work in (*live, files, *live):
                    work(self.ctx)
            else:
                state = "no route of this config is in force"
                self.attempt(files)
                # Without the others, those that were written would hold nothing, or for ever.
                self.undo_partial("nothing is installed for the next boot")
                for work in live:
                    self.attempt(work)
            self.ctx.check()
            if prove is not None and not self.failures:
                prove(state)
        except BaseException as error:
            self._undo(state)
            if not isinstance(error, TaskFailedError):
                raise
            self.failures.append(error)
            return not self.is_installed
        self.commit()
        self.is_committed = not self.failures
        self._removes = True
        if self.is_installed and not self._boot.is_right(*self.parts):
            # An interrupt would leave files of both configs.
            self.attempt(files, self.ctx.shielded().child(SECONDS_TO_UNDO))
        return True

    def undo_partial(self, state: str) -> bool:
        """Undo the files if one of them could not be changed, and return True; otherwise commit them."""
        is_partial = any(isinstance(cause, HostFileError) for each in self.failures for cause in each.failures)
        if is_partial:
            self._undo(state)
        self.commit()
        return is_partial

    def commit(self) -> None:
        """Pass the changes on, so that the undo of a run finds them."""
        self._transaction.commit()

    def _undo(self, state: str) -> None:
        """Roll back all that is not committed; if there was anything, a line tells the `state` after it."""
        results: list[object] = []
        try:
            for record, result in self._transaction.rollback(timeout=SECONDS_TO_UNDO):
                results.append(result)
                if isinstance(result, Exception):
                    what = f"{record.changes[-1]}, and what changed with it: {result}"
                    self._logger.error("not undone: %s", result if isinstance(result, UnreadFilesError) else what)
        except BaseException:
            changes = self._transaction.changes
            self._logger.error("the undo was ended; %d changes stay, the newest is: %s", len(changes), changes[-1])  # noqa: TRY400
            raise
        if any(isinstance(result, Exception) for result in results):
            return
        stays = any(result is False for result in results)
        if results:
            # As important as the error: of many lines the command shows the errors.
            self._logger.error("undone: %s", "only in part, since others have changed the rest" if stays else state)
        if not stays:
            with suppress(HostFileError):
                self._boot.finish()
