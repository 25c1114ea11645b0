"""A run: its lock, the steps of its report, the gates that wait, and its commit or undo."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from hostrouting.base.errors import HostFileError, UnfinishedUndoError
from hostrouting.boot.installed_config import config_before_run, config_over
from hostrouting.boot.layout import GATE_LOCK, WAIT_SECONDS, BootFile
from hostrouting.boot.recorded import RecordedFiles
from phases import (
    CancelledError,
    Context,
    DeadlineExceededError,
    Task,
    TaskFailedError,
    Transaction,
    execute,
    task,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterator, Sequence

    from hostrouting.boot.boot import Boot
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Change

    _T = TypeVar("_T")


#: The steps of a run, by the names of their tasks.
FILES: Final = "install-boot-files"
ROUTES: Final = "configure-static-routes"
CHECK: Final = "check-route-overlap"
#: The step in which a run decides all changes.
DECIDE: Final = "plan-changes"
#: The time for an undo, or for the end of a commit: the deadline of the run may have passed.
SECONDS_TO_UNDO: Final = 15.0


@attrs.frozen(kw_only=True)
class Steps:
    """How a run appears in the report: each of its parts is a step."""

    #: The steps without which a run is degraded.
    checking: Collection[str] = ()
    #: The only step to do; None for all of them.
    alone: str | None = None
    logger: logging.Logger | None = None


@contextmanager
def locked(
    ctx: Context, host: Host, boot: Boot, logger: logging.Logger, steps: Steps | None = None
) -> Iterator[Run]:
    """Hold the run lock around a run; without `steps`, the run is a single task."""
    with host.lock.hold(ctx) as held:
        run = Run(held, host, boot, logger, steps)
        try:
            yield run
        finally:
            run.open_gates()
            run.commit()


class Run:
    """The changes of one run under the run lock, made by one task or by all of `Configure`.

    From the first change of routes, or of installed files, gates wait until the commit or the undo:
    otherwise they could start a unit on a node that is misrouted a second later. While the run
    waits for something, gates may check.
    """

    def __init__(
        self,
        ctx: Context,
        host: Host,
        boot: Boot,
        logger: logging.Logger,
        steps: Steps | None = None,
    ) -> None:
        """See `locked`."""
        self._steps = steps
        self._alone = steps.alone if steps else None
        self._transaction = Transaction(ctx)
        self.ctx: Context = self._transaction.ctx
        self.host = host
        self.boot = boot
        self.log = logger
        #: The installed config before the outermost run.
        self._earlier = config_before_run(ctx, host)
        #: True on a node without hostrouting.
        self.is_first: bool = not boot.is_installed
        #: True once the whole config is in force: after that, an interrupt undoes nothing.
        self.is_complete: bool = False
        self._kept = 0
        self.failures: list[TaskFailedError] = []
        #: Holds the lock that gates wait for, while they have to wait.
        self._gates: ExitStack | None = None
        #: The routes and the check together wait for DHCP as long as either alone.
        self._until = ctx.clock.monotonic() + WAIT_SECONDS

    def config_over(self, new: HostRoutingConfig) -> HostRoutingConfig | None:
        """Return the config in force when the outermost run began; None without a readable one."""
        return config_over(self._earlier, new)

    @property
    def changes(self) -> Sequence[Change]:
        """The changes that are neither committed nor undone."""
        return self._transaction.changes

    @property
    def seconds(self) -> float:
        """How long the run may still wait."""
        return max(0.0, self._until - self.ctx.clock.monotonic())

    @property
    def count(self) -> int:
        """The number of its changes, without those that were undone."""
        return self._kept + len(self.changes)

    def commit(self) -> None:
        """Keep all changes."""
        self._kept = self.count
        self._transaction.commit()

    def open_gates(self) -> None:
        """Let gates check: nothing was changed, or everything is committed or undone."""
        if self._gates is not None:
            self._gates.close()
            self._gates = None

    def hold_gates(self) -> None:
        """Make gates wait until `open_gates`; raise if their lock cannot be taken."""
        # On a node without hostrouting there are no gates, and no file to lock.
        if self._gates is not None or not self.boot.is_installed:
            return
        # If the file is missing, restore it first: replacing it later would drop the lock.
        lock = BootFile(GATE_LOCK, b"")
        RecordedFiles(self.ctx, self.host).write(lock.path, lock.content, mode=lock.mode)
        with ExitStack() as gates:
            gates.enter_context(self.host.lock.hold_file(self.ctx, GATE_LOCK))
            self._gates = gates.pop_all()

    def step(
        self, name: str, work: Callable[[Context], _T], *, ctx: Context | None = None
    ) -> _T | None:
        """Do work as a step of the report; return its result, or None if the step is left out.

        A step that is done again appears once. A run of a single task has no steps.
        """
        if self._alone is not None and name not in {self._alone, DECIDE}:
            return None
        ctx = ctx or self.ctx
        if self._steps is None:
            return work(ctx)
        if self._alone is not None:
            # The task itself is the step.
            return with_name((), work, ctx)
        results: list[_T] = []

        def do(ctx: Context) -> None:
            results.append(work(ctx))

        part = task(name, records=True, checks=name in self._steps.checking)(do)
        execute(part, ctx, logger=self._steps.logger)
        # The caller of the run may skip the step.
        return results[0] if results else None

    def skip(self, reason: str, ctx: Context) -> None:
        """Report a step as skipped; a run of one task is more than its step."""
        if self._steps is not None:
            ctx.skip(reason)

    def attempt(
        self,
        name: str,
        work: Callable[[Context], _T],
        *,
        ctx: Context | None = None,
        counts: bool = True,
    ) -> _T | None:
        """Do work as a step, and keep its failure if it counts; the report has it in any case."""
        try:
            return self.step(name, work, ctx=ctx)
        except TaskFailedError as error:
            self.failures += [error] if counts else []
            return None

    def attempt_others(self, tasks: Sequence[Task]) -> None:
        """Do the optional tasks, and keep their failures."""
        for each in tasks if self._alone is None else ():
            try:
                execute(each, self.ctx, logger=self._steps.logger if self._steps else None)
            except TaskFailedError as error:
                self.failures.append(error)

    def named(self, name: str, work: Callable[[Context], _T]) -> _T:
        """Do work that is not a step; in a run with steps, its failure names one."""
        return work(self.ctx) if self._steps is None else with_name((name,), work, self.ctx)

    @contextmanager
    def undoing(self, state: str, *, always: bool) -> Iterator[None]:
        """Undo what is not committed if the block fails; `state` describes the node after that.

        The failure of a task is kept; any other error is raised.
        """
        try:
            yield
        except BaseException as error:
            self.undo(state, always=always)
            if not isinstance(error, TaskFailedError):
                raise
            self.failures.append(error)

    def undo(self, state: str, *, always: bool) -> None:
        """Roll back everything that is not committed, and log the `state` of the node after it.

        Without `always`, it is logged only if anything was rolled back.
        """
        results: list[object] = []
        try:
            for record, result in self._transaction.rollback(timeout=SECONDS_TO_UNDO):
                results.append(result)
                if isinstance(result, BaseException):
                    self._log_failed_undo(record.changes[-1], result)
        except BaseException:
            if changes := self.changes:
                self._name_left(changes)
            raise
        if any(isinstance(result, Exception) for result in results):
            return
        if results:
            partial = "only in part; a warning names what is not as before, and why"
            # As important as the error itself: if there are many lines, the command shows errors.
            self.log.error("undone: %s", partial if False in results else state)
        elif always:
            self.log.error("%s", state)
        if False not in results:
            with suppress(HostFileError):
                self.boot.finish(self.ctx)

    def _log_failed_undo(self, newest: Change, error: BaseException) -> None:
        text = f"{newest}, and the changes with it"
        if isinstance(error, UnfinishedUndoError):
            self.log.error("not undone: %s", error)
        elif isinstance(error, Exception):
            self.log.error("not undone: %s: %s", text, error)
        else:
            # The interrupted step of the undo may have done its work.
            line = "the undo was interrupted, and went on; what stays may be: %s"
            self.log.error(line, text)

    def _name_left(self, changes: Sequence[Change]) -> None:
        """Log each change that an interrupted undo has left."""
        # The newest change may be undone, wholly or in part.
        *others, newest = changes
        text = "the undo was ended; up to %d changes stay, the newest may be: %s"
        self.log.error(text, len(changes), newest)
        for change in reversed(others):
            self.log.error("not undone: %s", change)


def with_name(path: tuple[str, ...], work: Callable[[Context], _T], ctx: Context) -> _T:
    """Do work that is not a task of the runner; its failure has a path, like that of a task."""
    try:
        return work(ctx)
    except (CancelledError, DeadlineExceededError, TaskFailedError):
        raise
    except Exception as error:
        raise TaskFailedError(path, error) from error
