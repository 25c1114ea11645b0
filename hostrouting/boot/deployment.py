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
    from hostrouting.boot.intent import Part
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
        self._parts: Sequence[Part] = ()
        #: True if the comparison before any change found the files right.
        self._are_right = False
        self._changes_routes = True
        self.is_installed: bool = boot.is_installed
        self.is_committed: bool = False
        self.failures: list[TaskFailedError] = []
        #: The routes and the check together wait for DHCP as long as either alone.
        self._until: float = ctx.clock.monotonic() + WAIT_SECONDS
        self._may_wait = True
        #: Has the lock for which gates wait, while they are held.
        self._gates = ExitStack()
        self._are_held = False
        self._files: RecordedFiles | None = None
        #: True if boot files could not be changed by themselves, and their undo was tried.
        self.has_undone_files: bool = False
        #: True once boot files are committed by themselves, before routes.
        self._has_committed_files = False
        #: False until the commit: the files of the earlier config stay, and an undo needs no space.
        self._removes = True

    def config_over(self, new: HostRoutingConfig) -> HostRoutingConfig | None:
        """Return the config in force when the outermost run began; None without a readable one."""
        return config_over(self._earlier, new)

    def prepare(self, *parts: Part, changes_routes: bool = True) -> None:
        """Compare the boot files with these parts, which `install` brings into force.

        Raise, before any change, if their files cannot be installed, or if a gate could never open.
        Where they are right, and the plan changes no routes, no gate waits.
        """
        self._changes_routes = changes_routes
        self._parts = parts
        # A try of the routes alone installs nothing.
        if not parts:
            return
        steps = self._boot.refuse_gates(self.transaction.ctx, *parts)
        if self._boot.is_installed:
            self._boot.refuse_unwritable(steps)
        self._are_right = not steps
        for found in self._boot.foreign(*parts):
            self._logger.warning("%s", found.text, extra={"kind": found.kind})

    @property
    def is_untouched(self) -> bool:
        """True if the node is as it was when the plan was made, as far as this run is concerned."""
        return not (self._has_committed_files or self.transaction.changes)

    def install(self, ctx: Context) -> None:
        """Install the boot files.

        They are compared again if any was wrong: another program may have changed it meanwhile.
        """
        is_right = self._are_right and self.is_untouched
        self._files = self._files or self._boot.recorded(ctx)
        self._boot.install(
            ctx, *self._parts, removes=self._removes, files=self._files, is_right=is_right
        )

    def live(self, act: Callable[[Context, Waiting], None]) -> Work:
        """Return the live half of a task of the pair, which waits as long as this one allows."""
        return lambda ctx: act(ctx, Waiting(self._seconds_to_wait, self._with_open_gates))

    @property
    def _seconds_to_wait(self) -> float:
        """The seconds for which a task may wait; none between the first change and the commit."""
        left = self._until - self.transaction.ctx.clock.monotonic()
        return max(0.0, left) if self._may_wait else 0.0

    @contextmanager
    def _with_open_gates(self) -> Iterator[None]:
        """Let gates check routing for a `with` block, in which a task waits and changes nothing."""
        is_held = self._are_held
        self._gates.close()
        yield
        if is_held:
            self._hold_gates()

    def _hold_gates(self) -> None:
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

    def carry_out(
        self, files: Work, *live: Work, prove: Callable[[str], None] | None = None
    ) -> bool:
        """Change boot files and routes, and commit; return False if the earlier config is restored.

        `prove` raises if the changes make the node worse. It receives the state in which the undo
        leaves the node.
        """
        ctx = self.transaction.ctx
        state = "the earlier config is in force, live and for the next boot"
        self._removes = not self.is_installed
        with self._gates:
            if not self.is_installed:
                state = self._install_first(files)
            try:
                if self.is_installed:
                    self._change_installed(files, *live)
                else:
                    self._hold_gates()
                    self.attempt(*live)
                ctx.check()
                # Routes of a first apply come though its files have failed.
                is_changed = bool(self.transaction.changes)
                if prove is not None and (is_changed or not self.failures):
                    prove(state)
            except BaseException as error:
                self._undo(state, always=self._has_committed_files)
                if not isinstance(error, TaskFailedError):
                    raise
                self.failures.append(error)
                return not self.is_installed
            finally:
                self._may_wait = True
            self.transaction.commit()
        self.is_committed = not self.failures
        self._removes = True
        if self._files is not None and self._files.has_rest:
            # An interrupt would leave files of both configs.
            self.attempt(files, ctx=ctx.shielded().child(SECONDS_TO_UNDO))
        return True

    def _install_first(self, files: Work) -> str:
        """Install the files on a node without any; return its state as long as routes may fail."""
        nothing = "nothing is installed for the next boot"
        # Only some of the files would hold no gate, or hold gates for ever.
        self.carry_out_files(files, undone=nothing)
        if self._has_committed_files:
            return "this config is installed for the next boot, and the routes are as before"
        if self.failures and not self.has_undone_files:
            self._logger.warning(nothing)
        return f"the routes are as before, and {nothing}"

    def _change_installed(self, files: Work, *live: Work) -> None:
        ctx = self.transaction.ctx
        # What is not changed needs no undo.
        if self._changes_routes or not self._are_right:
            self._hold_gates()
        for work in live:
            work(ctx)
        # From here on, each second is one in which gates wait.
        self._may_wait = False
        count = len(self.transaction.changes)
        files(ctx)
        # A gate that has just started may have run the earlier script, which restores the earlier
        # routes: after the files are exchanged, the routes are compared again.
        if len(self.transaction.changes) > count:
            # systemd had not read files that are right.
            self._hold_gates()
            for work in live:
                work(ctx)

    def carry_out_files(self, files: Work, *, undone: str) -> bool:
        """Change the boot files, and commit; return False if they are undone, to this state.

        They are if one of them could not be changed, or if the change was interrupted.
        """
        try:
            self.attempt(files)
        except BaseException:
            self._undo(undone, always=True)
            raise
        causes = [cause for failure in self.failures for cause in failure.failures]
        self.has_undone_files = any(isinstance(cause, HostFileError) for cause in causes)
        if self.has_undone_files:
            self._undo(undone, always=True)
        self._has_committed_files = bool(self.transaction.changes)
        self.transaction.commit()
        return not self.has_undone_files

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
