"""Configure: the tasks of a config in their order, one run at a time. Reset: the command that removes everything."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.boot import WAIT_SECONDS, Boot, Intent, NamedTask, RecordedFiles, UnreadFilesError, read_intent
from hostrouting.boot_files import boot_parts, watch_units
from hostrouting.config import HostRoutingConfig, require_config
from hostrouting.exceptions import HostFileError, InvalidConfigError, WorseRoutingError
from hostrouting.forecast import Forecast, Forecaster, dropped
from hostrouting.host import Host
from hostrouting.probe_snat import ConfigureProbeSNAT
from hostrouting.route_overlap import CheckRouteOverlap
from hostrouting.stale_cni import CleanStaleCNI
from hostrouting.static_routes import ConfigureStaticRoutes
from hostrouting.watch.unit import ConfigureWatch
from phases import (
    CancelledError,
    Change,
    DeadlineExceededError,
    TaskFailedError,
    Transaction,
    execute,
    plan,
    task,
    tolerate,
    with_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot import Part
    from phases import Context, Task

#: A sibling of the routing pair may take this long, and never more than half of the time that is left.
_SIBLING_SECONDS: Final = 60.0
#: The time of an undo or of the end of a commit, which begin when the time of their run may be over.
SECONDS_TO_UNDO: Final = 15.0
#: The change of a unit that its gate held before the run.
#: The kind of the change of a unit that was held.
RELEASED: Final = "released"
_WORSE: Final = "refused, since these addresses leave right without this config, and would not with it:"
_FORCE: Final = "correct the config, or use --force if this is meant"
#: The tasks that install a unit, each with the section of the config that it is made of.
_WITH_UNIT: Final = (
    (ConfigureStaticRoutes, "static_routes"),
    (CheckRouteOverlap, "route_overlap"),
    (ConfigureProbeSNAT, "probe_snat"),
    (ConfigureWatch, "watch"),
)


@attrs.define(eq=False)
class _Run:
    """All that one run knows: a task may run in two threads, and again."""

    ctx: Context
    transaction: Transaction
    #: Both halves together wait for DHCP as long as one of them would.
    until: float
    failures: list[TaskFailedError] = attrs.field(factory=list)
    #: The boot files that the run has changed.
    files: RecordedFiles | None = None
    #: False until the commit: the files of the earlier config stay, and an undo needs no space.
    removes: bool = True
    is_committed: bool = False

    @property
    def lacks_files(self) -> bool:
        """True if a boot file could not be changed."""
        return any(isinstance(cause, HostFileError) for failure in self.failures for cause in failure.failures)


class _Pipeline(NamedTask, ABC):
    """Tasks under one hold of the run lock; a failure does not stop the others, and one error at the end has all."""

    anonymous = False

    def __init__(self, config: HostRoutingConfig, host: Host | None, logger: logging.Logger | None) -> None:
        """Make the tasks of the pair, whose boot files are installed together: both scripts change at once."""
        self._config = config
        self._host = Host.given_or_live(host)
        self._logger = logger
        self._log = log = logger or logging.getLogger("hostrouting")
        self._routes = ConfigureStaticRoutes(config, host=self._host, logger=log)
        self._check = CheckRouteOverlap(config, host=self._host, logger=log)
        self._parts = tuple(zip((self._routes, self._check), boot_parts(config), strict=True))
        self._boot = Boot(self._host, gates=config.gates, logger=log)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        with self._host.lock.hold(ctx) as held:
            transaction = Transaction(held)
            run = _Run(transaction.ctx, transaction, held.clock.monotonic() + WAIT_SECONDS)
            before = self._boot.held(held)
            try:
                self._do_all(run)
            except (CancelledError, DeadlineExceededError):
                if run.is_committed:
                    self._log.warning("the config is changed, live and for the next boot; the rest was interrupted")
                if not run.failures:
                    raise
            finally:
                run.transaction.commit()
            still, released = self._boot.release(held, before, is_right=not run.failures)
            for unit in released:
                held.record(Change("~", unit, "was held, and starts within seconds", RELEASED))
            if still:
                told = ", ".join(still)
                self._log.warning("these are held until routing is right: %s", told, extra={"held": still})
        if run.failures:
            raise TaskFailedError.combine(run.failures)

    @abstractmethod
    def _do_all(self, run: _Run) -> None:
        """Attempt the tasks, under the lock."""

    def _attempt(self, subtask: Task, run: _Run) -> None:
        try:
            execute(subtask, run.ctx, logger=self._logger)
        except TaskFailedError as error:
            run.failures.append(error)

    def _undo(self, run: _Run, state: str) -> None:
        """Roll back what is not committed; if there was anything, log the `state` after it."""
        has_changed, has_failed, stays = bool(run.transaction.changes), False, False
        try:
            for record, result in run.transaction.rollback(timeout=SECONDS_TO_UNDO):
                stays |= result is False
                if isinstance(result, Exception):
                    has_failed = True
                    what = f"{record.changes[-1]}, and what changed with it: {result}"
                    # The error of files that systemd has not read says all of it: the files are back.
                    self._log.error("not undone: %s", result if isinstance(result, UnreadFilesError) else what)
        except BaseException:
            left = run.transaction.changes
            self._log.error("the undo was ended; %d changes stay, the newest is: %s", len(left), left[-1])
            raise
        if has_changed and not has_failed:
            # As important as the error: of many lines the command shows the errors.
            self._log.error("undone: %s", "only in part, since others have changed the rest" if stays else state)
        if not (has_failed or stays):
            with suppress(HostFileError):
                self._boot.finish()

    # --- the tasks of the pair, for one run, or for plans and names alone

    def _live_half(self, whole: ConfigureStaticRoutes | CheckRouteOverlap, run: _Run | None = None) -> Task:
        """Return a task of the pair without its boot files."""

        @task(whole.name, plan=whole.plan_act, records=True)
        def act(ctx: Context) -> None:
            if run is not None:
                whole.act(ctx, seconds=max(0.0, run.until - ctx.clock.monotonic()))

        return act

    def _files_task(self, run: _Run | None = None) -> Task:
        """Return a task for the scripts, units and gates of the pair, and for the intent of the whole config."""

        @task("install-boot-files", plan=lambda ctx: self._boot.plan_install(ctx, *self._present(ctx)), records=True)
        def install(ctx: Context) -> None:
            if run is not None:
                run.files = run.files or self._boot.recorded(ctx)
                self._boot.install(ctx, *self._present(ctx), removes=run.removes, files=run.files)

        return install

    def _present(self, ctx: Context) -> list[Part]:
        """Return the parts to install or remove; that of a skipped task stays as it is."""
        kept = frozenset(section for each, section in _WITH_UNIT if ctx.skips(each))
        parts = [part for each, part in self._parts if not ctx.skips(each)]
        return [*parts, Intent(config=self._config, kept=kept)]


class Configure(_Pipeline):
    """Configure a node, now and for every boot: routes, the proof, the gates, sweep, probes and the watch.

    >>> from hostrouting import HostRoutingConfig
    >>> from hostrouting.testing import FakeHost
    >>> for task in Configure(HostRoutingConfig(), host=FakeHost()).subtasks:
    ...     print(task.name)
    install-boot-files
    configure-static-routes
    check-route-overlap
    clean-stale-cni
    configure-probe-snat
    configure-watch

    It holds the run lock from the first task to the last: no other run changes routes before they are proven.

    It never makes a node worse: under STRICT a config by which an expected address that leaves right would leave wrong
    is refused before any change (`WorseRoutingError`), unless `force` says that this is meant; under WARN it is told.
    Over an installed config the routes come first, and until the proof after them the run is one transaction: if it
    fails, is interrupted or is proven worse, it is undone, and the earlier config is in force, live and for every boot.
    A node that is wrong and stays so is installed and held. On a node without hostrouting the boot files come first,
    and stay: a node that fails the check must not start its machine at the next boot either.

    A sibling (the sweep, the probes, the watch) that fails is a warning, unless its section is `required`; one error
    with all failures is raised at the end. A config that asks for nothing changes nothing, and is refused over an
    installed one; a whole agent config without `hostRouting` leaves that alone, and `{"hostRouting": {}}` removes it.
    """

    name = "configure"

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
        force: bool = False,
    ) -> None:
        super().__init__(require_config(config), host, logger)
        self._force = force
        sweep = CleanStaleCNI(config, host=self._host, logger=self._log)
        probes = ConfigureProbeSNAT(config, host=self._host, logger=self._log)
        self._siblings = (
            self._sibling(sweep, required=config.stale_cni.required),
            self._sibling(probes, required=config.probe_snat.required),
        )
        self._watch = self._sibling(ConfigureWatch(config, host=self._host, logger=self._log), required=False)
        self.subtasks: tuple[Task, ...] = (
            self._files_task(),
            self._live_half(self._routes),
            *self._last(self._live_half(self._check)),
        )
        if config.void:
            self.subtasks = tuple(map(self._idle, self.subtasks))

    def _idle(self, each: Task) -> Task:
        """Return a stand-in for a task of a config that asks for nothing; the first plan tells what `do` would do."""

        def plan_nothing(_ctx: Context) -> Sequence[Change]:
            if each.name == "install-boot-files":
                self._boot.changes_nothing(self._config)
            return ()

        return task(each.name, plan=plan_nothing, records=True)(lambda _: None)

    def do(self, ctx: Context) -> None:
        """Do all tasks, unless the config asks for nothing; raise one error with every failure in it."""
        if not self._boot.changes_nothing(self._config):
            super().do(ctx)

    def _last(self, check: Task) -> tuple[Task, ...]:
        """Return the tasks after the commit; stale objects may shadow routes, so a sweep comes before the check."""
        pair = (*self._siblings, check) if self._config.stale_cni.enabled else (check, *self._siblings)
        return (*pair, self._watch)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        return plan(self, ctx).changes

    def forecast(self, ctx: Context) -> Forecast:
        """Return the proof of the node as the plan would leave it; change nothing, and do not wait."""
        with ctx.interruptible():
            forecaster = self._forecaster(ctx)
            return Forecast() if forecaster is None else self._planned(ctx, forecaster)

    def undo(self, ctx: Context) -> None:
        """Do as `Reset`; a whole agent config without ours has nothing to undo."""
        if self._config.given is not None:
            Reset(self._config, host=self._host, logger=self._logger).do(ctx)

    def _do_all(self, run: _Run) -> None:
        self._boot.refuse_exposed(*watch_units(self._config, self._host))
        ctx, parts = run.ctx, self._present(run.ctx)
        # A gate that could never open, or a gateway that leads nowhere, is refused before anything is changed.
        self._boot.refuse_gates(ctx, *parts)
        self._routes.refuse_own_gateways()
        is_installed = self._boot.is_installed
        if is_installed:
            self._boot.refuse_unwritable(*parts)
            for warning in dropped(self._earlier(), self._config):
                self._log.warning("%s", warning)
        with ctx.interruptible():
            # A dump of all routes is only worth it where something is to be proven.
            forecaster = self._forecaster(ctx) if self._config.route_overlap.cidrs else None
            if forecaster is not None:
                forecaster.look()
                planned = self._planned(ctx, forecaster)
                self._refuse_worse(planned, "nothing was changed")
                for line in planned.worse:
                    self._log.warning("this leaves right without this config: %s", line)
        if not self._change(run, forecaster, is_installed=is_installed):
            return
        for each in self._last(self._live_half(self._check, run)):
            self._attempt(each, run)
        if run.failures and self._boot.is_installed:
            self._log.warning("this config is installed all the same; gated units start once this is fixed")

    def _change(self, run: _Run, forecaster: Forecaster | None, *, is_installed: bool) -> bool:
        """Change routes and boot files; return False if the installed config is in force again."""
        files, routes = self._files_task(run), self._live_half(self._routes, run)
        run.removes = not is_installed
        state = "the earlier config is in force, live and for the next boot"
        try:
            if is_installed:
                # A gate that starts meanwhile runs the earlier config's script, which puts its own routes back: after
                # the files are exchanged, the routes are compared again.
                for each in (routes, files, routes) if self._config.static_routes.routes else (files, routes):
                    execute(each, run.ctx, logger=self._logger)
            else:
                state = "no route of this config is in force"
                self._attempt(files, run)
                if run.lacks_files:
                    # Without the others, those that were written would hold nothing, or for ever.
                    self._undo(run, "nothing is installed for the next boot")
                run.transaction.commit()
                self._attempt(routes, run)
            run.ctx.check()
            if forecaster is not None and not run.failures:
                with run.ctx.interruptible():
                    self._refuse_worse(forecaster.now(), f"undone: {state}")
        except BaseException as error:
            self._undo(run, state)
            if not isinstance(error, TaskFailedError | WorseRoutingError):
                raise
            failed = error if isinstance(error, TaskFailedError) else TaskFailedError((self._check.name,), error)
            run.failures.append(failed)
            return not is_installed
        run.transaction.commit()
        run.is_committed = not run.failures
        if is_installed:
            run.removes = True
            if not self._boot.is_right(*self._present(run.ctx)):
                # An interrupt would leave files of both configs.
                self._attempt(files, attrs.evolve(run, ctx=run.ctx.shielded().child(SECONDS_TO_UNDO)))
        return True

    def _earlier(self) -> HostRoutingConfig:
        # One that is damaged is replaced.
        with suppress(InvalidConfigError):
            return read_intent(self._host.files) or self._config
        return self._config

    # --- the proofs

    def _forecaster(self, ctx: Context) -> Forecaster | None:
        """Return None for an image, and where the proof is left out."""
        is_asked = self._host.is_live and not ctx.skips(self._check)
        return Forecaster(ctx, self._config, self._host) if is_asked else None

    def _planned(self, ctx: Context, forecaster: Forecaster) -> Forecast:
        return forecaster.planned(*(([], []) if ctx.skips(self._routes) else self._routes.planned()))

    def _refuse_worse(self, found: Forecast, state: str) -> None:
        """Refuse what is worse under STRICT."""
        if found.is_refused(self._config) and not self._force:
            raise WorseRoutingError(found.report, "\n".join([_WORSE, *found.worse, f"{state}; {_FORCE}"]))

    def _sibling(self, optional: Task, *, required: bool) -> Task:
        bounded = with_timeout(optional, _SIBLING_SECONDS, share=0.5)
        return bounded if required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Do not tolerate the failure of an optional task if the config is wrong: then it can never work."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            raise failure


class Reset(_Pipeline):
    """Remove everything that hostrouting installed, by any config, and restore swept objects.

    Most tasks remove their part if the config does not ask for it; only the sweep needs an explicit undo, since a
    config without its section must not restore stale objects. If a boot file cannot be removed, nothing is changed, or
    what was is undone; any other failure does not stop the other tasks.
    """

    name = "reset"

    def __init__(
        self, config: HostRoutingConfig, *, host: Host | None = None, logger: logging.Logger | None = None
    ) -> None:
        super().__init__(HostRoutingConfig(gates=()), host, logger)
        self._sweep = CleanStaleCNI(require_config(config), host=self._host, logger=self._log)
        self.subtasks: tuple[Task, ...] = self._tasks()

    def _tasks(self, run: _Run | None = None) -> tuple[Task, ...]:
        nothing, sweep = self._config, self._sweep
        return (
            # The gate first: the units would add the routes again if a gated machine started meanwhile.
            self._files_task(run),
            ConfigureWatch(nothing, host=self._host, logger=self._log),
            self._live_half(self._routes, run),
            ConfigureProbeSNAT(nothing, host=self._host, logger=self._log),
            self._live_half(self._check, run),
            task("restore-stale-cni", plan=sweep.plan_undo)(sweep.undo),
        )

    def _do_all(self, run: _Run) -> None:
        self._boot.refuse_unwritable(*self._present(run.ctx))
        files, *others = self._tasks(run)
        self._attempt(files, run)
        if run.lacks_files:
            # The gates and the config stay, so the routes must, too.
            self._undo(run, "what was installed is in force, live and for the next boot")
            return
        for each in others:
            self._attempt(each, run)
        # The same failure of several tasks is reported once.
        causes = [str(failure.cause) for failure in run.failures]
        run.failures = [each for at, each in enumerate(run.failures) if causes.index(causes[at]) == at]
