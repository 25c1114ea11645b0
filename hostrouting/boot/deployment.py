"""A deployment: the live changes and boot files of one run, committed or undone together."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.boot.intent import config_over, first_intent
from hostrouting.boot.layout import GATE_LOCK, WAIT_SECONDS, BootFile
from hostrouting.boot.recorded import RecordedFiles, UnfinishedUndoError
from hostrouting.exceptions import HostFileError
from phases import Context, TaskFailedError, Transaction

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from hostrouting.boot.boot import Boot
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Change, Work


#: The time of an undo, or of the end of a commit: the deadline of the run may have passed.
SECONDS_TO_UNDO: Final = 15.0


class Waiting(NamedTuple):
    """How long the live half of a task may wait in all, and the `with` block in which it waits."""

    seconds: float = WAIT_SECONDS
    block: Callable[[], AbstractContextManager[object]] = nullcontext


#: That of a task by itself.
WAITING: Final = Waiting()


@contextmanager
def deploying(ctx: Context, host: Host, boot: Boot, logger: logging.Logger) -> Iterator[Deployment]:
    """Hold the run lock around a deployment."""
    with host.lock.hold(ctx) as locked:
        earlier = first_intent(locked, host)
        deployment = Deployment(locked, host, boot, logger, earlier=earlier)
        try:
            yield deployment
        finally:
            deployment.open_gates()
            deployment.transaction.commit()


class Deployment:
    """The changes of one run under the run lock, by a single task or all tasks of `Configure`.

    Over an installed config the live half comes first, and everything is undone if any part fails,
    is interrupted or is proven worse. On a node without one the boot files come first and stay: if
    the routes fail, the machine must not start at the next boot either.

    As long as routes or files may be undone, gates wait: they would start a unit on a node that is
    wrong a second later.
    """

    def __init__(
        self,
        ctx: Context,
        host: Host,
        boot: Boot,
        logger: logging.Logger,
        *,
        earlier: bytes | None,
    ) -> None:
        """See `deploying`; `earlier` is the content of the intent before the outermost run."""
        self.transaction: Transaction = Transaction(ctx)
        self._host = host
        self._boot = boot
        self._logger = logger
        self._earlier = earlier
        self.is_installed: bool = boot.is_installed
        self.is_committed: bool = False
        self.failures: list[TaskFailedError] = []
        #: Has the lock for which gates wait, while they are held.
        self._gates = ExitStack()
        self._are_held = False
        #: True if boot files could not be changed by themselves, and their undo was tried.
        self.has_undone_files: bool = False

    def config_over(self, new: HostRoutingConfig) -> HostRoutingConfig | None:
        """Return the config in force when the outermost run began; None without a readable one."""
        return config_over(self._earlier, new)

    def open_gates(self) -> None:
        """Let gates check routing: nothing is changed, or all is committed or undone."""
        self._gates.close()

    def hold_gates(self) -> None:
        """Let gates wait until the end of `carry_out`; raise if they cannot be held."""
        # Without gates there is nothing to hold, and the lock is a file of theirs.
        if self._are_held or not self._boot.is_installed:
            return
        ctx = self.transaction.ctx
        # An earlier release had none. And to mend it later could exchange the file that is locked.
        lock = BootFile(GATE_LOCK, b"")
        RecordedFiles(ctx, self._host).write(lock.path, lock.content, mode=lock.mode)
        self._gates.enter_context(self._host.lock.hold_file(ctx, GATE_LOCK))
        self._are_held = True
        self._gates.callback(setattr, self, "_are_held", False)

    def attempt(self, *works: Work, ctx: Context | None = None) -> None:
        """Run `works` in turn, and keep the failures of their tasks."""
        for work in works:
            try:
                work(ctx or self.transaction.ctx)
            except TaskFailedError as error:
                self.failures.append(error)

    @contextmanager
    def undoing(self, state: Callable[[], str], *, always: bool = False) -> Iterator[None]:
        """Undo all that is not committed if the block fails; `state` is what that leaves.

        The failure of a task is kept, and anything else is raised.
        """
        try:
            yield
        except BaseException as error:
            self._undo(state(), always=always)
            if not isinstance(error, TaskFailedError):
                raise
            self.failures.append(error)

    def _undo(self, state: str, *, always: bool) -> None:
        """Roll back everything that is not committed, and log the `state` after it.

        Without `always` it is logged only if anything was rolled back.
        """
        results: list[object] = []
        try:
            for record, result in self.transaction.rollback(timeout=SECONDS_TO_UNDO):
                results.append(result)
                if isinstance(result, BaseException):
                    self._log_failed_undo(record.changes[-1], result)
        except BaseException:
            if changes := self.transaction.changes:
                self._name_left(changes)
            raise
        if any(isinstance(result, Exception) for result in results):
            return
        if results:
            partial = "only in part, since other programs have changed the rest"
            # As important as the error: of many lines the command shows the errors.
            self._logger.error("undone: %s", partial if False in results else state)
        elif always:
            self._logger.error("%s", state)
        if False not in results:
            with suppress(HostFileError):
                self._boot.finish()

    def _log_failed_undo(self, newest: Change, error: BaseException) -> None:
        text = f"{newest}, and the changes with it"
        if isinstance(error, UnfinishedUndoError):
            self._logger.error("not undone: %s", error)
        elif isinstance(error, Exception):
            self._logger.error("not undone: %s: %s", text, error)
        else:
            # That inverse may have done its work.
            line = "the undo was interrupted, and went on; what stays may be: %s"
            self._logger.error(line, text)

    def _name_left(self, changes: Sequence[Change]) -> None:
        """Log each change that an interrupted undo has left."""
        # The newest may be undone, in part or as a whole.
        *others, newest = changes
        text = "the undo was ended; up to %d changes stay, the newest may be: %s"
        self._logger.error(text, len(changes), newest)
        for change in reversed(others):
            self._logger.error("not undone: %s", change)
