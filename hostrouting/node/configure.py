"""Configure: the tasks of a config in their order, one run at a time. Reset removes everything."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.boot.boot import Boot
from hostrouting.boot.deployment import SECONDS_TO_UNDO, Deployment, deploying
from hostrouting.boot.intent import Intent, Part, exits_under, installed_over, refuse_local_over
from hostrouting.boot.layout import FREE_UNITS, INTENT_PATH
from hostrouting.boot.task import NamedTask, NodeTask
from hostrouting.config import HostRoutingConfig, OverlapMode, require_config
from hostrouting.exceptions import (
    ConfigMistake,
    HostRoutingError,
    InvalidConfigError,
)
from hostrouting.host import Host
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.capabilities import CAPABILITIES, SIBLINGS, sibling_units
from hostrouting.route_overlap.task import CheckRouteOverlap, log_dropped
from hostrouting.static_routes.forecast import Forecast, Forecaster, Plan, ProvenRun
from hostrouting.static_routes.task import ConfigureStaticRoutes
from phases import (
    CancelledError,
    Change,
    Context,
    DeadlineExceededError,
    Task,
    TaskFailedError,
    execute,
    plan,
    task,
    tolerate,
    with_timeout,
)
from phases.hosting import interruptible, leave, skips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.boot.capability import Capability
    from hostrouting.boot.deployment import Waiting
    from hostrouting.config import StaticRoutesConfig
    from hostrouting.net.exits import Exits
    from hostrouting.node.report import NodeReport
    from hostrouting.route_overlap.report import OverlapReport
    from hostrouting.static_routes.plan import RoutePlan
    from phases import Work

    _T = TypeVar("_T", bound=NodeTask)

#: A sibling of the routing pair may take this long, and never more than half of the time that is
#: left.
_SIBLING_SECONDS = 60.0
#: For the look at the node after all tasks, when the deadline may have passed.
_SECONDS_TO_LOOK = 10.0
#: The keys that a live try needs.
_LIVE: Final = {"staticRoutes", "routeOverlap", "after"}
#: The kind of the change of a unit that its gate held before the run.
RELEASED: Final = "released"


class _Run:
    """One run of a pipeline, under the run lock."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._thread = get_ident()
        #: What it changes; None if the plans of its tasks are not proven.
        self.plan: Plan | None = None
        #: The proofs with which it was committed; None if the node may be another one now.
        self.proofs: ProvenRun | None = None
        #: The proof that its report has; None if it has none.
        self.overlap: OverlapReport | None = None

    @property
    def is_here(self) -> bool:
        """True in its own thread: another one runs a task of the pipeline by itself."""
        return self._thread == get_ident()

    @property
    def route_plan(self) -> RoutePlan | None:
        """The planned changes of routes; None if they are unknown, or may be outdated."""
        if self.plan is None or not self.deployment.is_untouched:
            return None
        return self.plan.routes

    @property
    def changes_routes(self) -> bool:
        """False if the plan has nothing to change."""
        return self.route_plan is None or not self.route_plan.is_empty


class _Pipeline(NamedTask, ABC):
    """Tasks under one hold of the run lock: all are attempted, and one error has all failures."""

    anonymous = False
    subtasks: tuple[Task, ...]
    #: What is so once a run is committed.
    _committed = "the config is changed"
    #: The present run; None between two.
    _current: _Run | None = None

    def __init__(
        self, config: HostRoutingConfig, host: Host | None, logger: logging.Logger | None
    ) -> None:
        """Make the tasks of the pair, whose boot files are installed together."""
        self._config = require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger
        self._log = logger or logging.getLogger("hostrouting")
        self._routes = self._make(ConfigureStaticRoutes)
        self._check = self._make(CheckRouteOverlap)
        self._boot = Boot(self._host, gates=config.gates, logger=self._log)
        #: The plans of `planning`, by thread.
        self._foreseen: dict[int, Plan] = {}
        # The scripts, units and gates of the pair, and the intent.
        self._files = task(
            "install-boot-files",
            plan=lambda ctx: self._boot.plan_install(ctx, *self._parts(ctx, self._planned_here)),
            records=True,
            # Without it no gate is held.
            proves=config.route_overlap.mode is OverlapMode.STRICT,
        )(self._install)

    def _make(self, kind: type[_T]) -> _T:
        return kind(self._config, host=self._host, logger=self._log)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        self._carry_out(ctx)

    def _carry_out(self, ctx: Context, alone: Task | None = None) -> _Run:
        """Do all tasks, or one alone, under the run lock, and start the units that were held."""
        with deploying(ctx, self._host, self._boot, self._log) as deployment:
            ctx = deployment.transaction.ctx
            held = self._boot.held(ctx)
            # One thread at a time has the lock, also of those that run the same task.
            run = self._current = _Run(deployment)
            try:
                if alone is None:
                    works = [partial(execute, work, logger=self._logger) for work in self.subtasks]
                else:
                    works = [partial(_do_only, alone, work) for work in self.subtasks]
                self._do_all(*works)
            except BaseException as error:
                if deployment.is_committed:
                    self._log.warning("%s; the rest was interrupted", self._committed)
                is_end = isinstance(error, (CancelledError, DeadlineExceededError))
                if not (is_end and deployment.failures):
                    raise
            finally:
                self._current = None
            self._release(ctx, deployment, held)
        if deployment.failures:
            raise TaskFailedError.combine(deployment.failures)
        return run

    def _release(self, ctx: Context, deployment: Deployment, held: Sequence[str]) -> None:
        """Start the units that were held if routing is right, and report what happened to them."""
        if deployment.failures:
            # The deadline may have passed, and would hide the causes.
            ctx = ctx.shielded().child(SECONDS_TO_UNDO)
        is_right = not deployment.failures
        try:
            still, released = self._boot.release(ctx, held, is_right=is_right)
        except BaseException:
            if deployment.is_committed and is_right:
                step = "see which units are held: hostrouting status"
                self._log.warning("%s all the same; %s", self._committed, step)
            raise
        for unit in released:
            ctx.record(Change("~", unit, "was held, and starts within seconds", RELEASED))
        if still:
            message = "these are held until routing is right: %s"
            self._log.warning(message, ", ".join(still), extra={"held": still})

    @abstractmethod
    def _do_all(self, files: Work, *others: Work) -> None:
        """Attempt the tasks, under the lock."""

    # --- the tasks of the pair, for one run, or for plans and names alone

    def _live_routes(self) -> Task:
        """Return the task of the routes without its boot files."""
        whole = self._routes

        def plan(ctx: Context) -> Sequence[Change]:
            planned = self._planned_here
            if planned is None or planned.routes is None:
                return whole.plan_act(ctx)
            whole.refuse_own_gateways()
            return [each.entry for each in planned.routes.entries]

        @task(whole.name, plan=plan, records=True)
        def act(ctx: Context) -> None:
            self._do_part(
                ctx, act, lambda run: run.deployment.live(partial(whole.act, plan=run.route_plan))
            )

        return act

    def _live_check(self, plan: Callable[[Context], Sequence[Change]] | None = None) -> Task:
        """Return the task of the proof without its boot files."""
        whole = self._check

        def prove(ctx: Context, waiting: Waiting) -> None:
            run = self._run
            look = None if run.proofs is None else run.proofs.look
            run.overlap = whole.act(ctx, waiting, look, self._accepted)
            if look is not None and run.overlap is not look.report:
                # It was proven again after a wait.
                run.proofs = None

        @task(whole.name, plan=plan or whole.plan_act, records=True, proves=whole.proves)
        def act(ctx: Context) -> None:
            self._do_part(ctx, act, lambda run: run.deployment.live(prove))

        return act

    def _accepted(self) -> StaticRoutesConfig:
        """Return the routes without those that the kernel refuses: an apply must accept them."""
        return self._routes.plan_routes().accepted

    def _install(self, ctx: Context) -> None:
        self._do_part(ctx, self._files, lambda run: run.deployment.install)

    def _do_part(self, ctx: Context, own: Task, part: Callable[[_Run], Work]) -> None:
        """Do the part of a task in the present run, or in a run of this task alone."""
        run = self._run_here
        if run is None:
            self._carry_out(ctx, own)
        else:
            part(run)(ctx)

    @property
    def _run_here(self) -> _Run | None:
        """The present run, if it is of this thread; None for a task that is done by itself."""
        run = self._current
        return run if run is not None and run.is_here else None

    @property
    def _run(self) -> _Run:
        run = self._run_here
        if run is None:
            raise RuntimeError(f"no run of {self.name} is under way in this thread")
        return run

    @property
    def _planned_here(self) -> Plan | None:
        """The plan of the `planning` that this thread is in; None outside of one."""
        return self._foreseen.get(get_ident())

    def _pins(self, ctx: Context, planned: Plan | None) -> Exits | None:
        """Return the exits that a run pins by its plan; None leaves those that are installed."""
        ctx.check()
        del planned  # nothing is proven
        return None

    def _parts(self, ctx: Context, planned: Plan | None) -> list[Part]:
        """Return the parts to install or remove; that of a skipped task stays as it is.

        Without a plan one is made if it matters.
        """
        # An image may boot on another node.
        pins = self._pins(ctx, planned) if self._host.is_live else {}
        is_named = bool(self._config.route_overlap.expected_devs)
        exits = exits_under(self._config, self._host.files) if pins is None or is_named else pins
        parts = boot_parts(self._config, (*exits.items(),))
        pair = zip((self._routes, self._check), parts, strict=True)
        kept = frozenset(
            capability.section
            for capability in CAPABILITIES
            if capability.in_config(self._config).part_names() and skips(ctx, capability)
        )
        return [
            *(part for live, part in pair if not skips(ctx, live)),
            Intent(config=self._config, kept=kept, exits=pins),
        ]


class Configure(_Pipeline):
    """Configure a node, now and for every boot: routes, proof, gates, sweep, probes and watch.

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

    It holds the run lock from the first task to the last: no other run changes routes before they
    are proven.

    It never makes a node worse: under STRICT a config by which an expected address that leaves
    right would leave wrong is refused before any change (`WorseRoutingError`), unless `force` is
    set; under WARN it is logged. Over an installed config the routes come first, and
    until the proof after them the run is one transaction: if it fails, is interrupted or is proven
    worse, it is undone, and the earlier config is in force, live and for every boot. A node that is
    wrong and stays so is installed and held. On a node without hostrouting the boot files come
    first, and stay: a node that fails the check must not start its machine at the next boot either.

    A sibling (the sweep, the probes, the watch) that fails is a warning, unless its section is
    `required`; one error with all failures is raised at the end. Each of `subtasks` may be executed
    by itself: it does its part of the whole, with a plan, the lock and a proof of its own. An empty
    config changes nothing, and is refused over an installed one; a whole agent config without
    `hostRouting` leaves that alone, and `{"hostRouting": {}}` removes it.
    """

    name = "configure"
    #: The report of the last run that has completed: the part of `check_node` that decides if the
    #: aim is reached.
    applied: NodeReport | None = None

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
        force: bool = False,
    ) -> None:
        super().__init__(config, host, logger)
        self._force = force
        self.subtasks = self._arranged()
        if config.void:
            self.subtasks = tuple(self._idle(subtask.name) for subtask in self.subtasks)

    def _arranged(self) -> tuple[Task, ...]:
        routes = self._live_routes()
        check = self._live_check(self._plan_check)
        before: list[Task] = []
        after: list[Task] = []
        for sibling in SIBLINGS:
            siblings = before if self._precedes_proof(sibling) else after
            siblings.append(self._sibling(sibling))
        return self._files, routes, *before, check, *after

    def _precedes_proof(self, sibling: Capability) -> bool:
        return sibling.precedes_proof and sibling.in_config(self._config).asks

    def _plan_check(self, ctx: Context) -> Sequence[Change]:
        """Return the changes of the proof; `{}` is meant to drop all addresses."""
        dropped = self._check.plan_dropped() if self._config.asks else ()
        return [*self._check.plan_act(ctx), *dropped]

    def _idle(self, name: str) -> Task:
        """Return a stand-in for a task without work; of a void config, the first plan raises."""

        def plan_nothing(_ctx: Context) -> Sequence[Change]:
            if name == "install-boot-files":
                self._boot.changes_nothing(self._config)
            return ()

        return task(name, plan=plan_nothing, records=True)(lambda _: None)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it.

        The step is degraded if the aim is not reached all the same: a program that a boot needs is
        missing, another one has changed a route meanwhile, or, under WARN, an address leaves wrong.
        The `NodeReport` is its value.
        """
        self.applied = None
        if self._boot.changes_nothing(self._config):
            for subtask in self.subtasks:
                execute(subtask, ctx, logger=self._logger)
            return
        run = self._carry_out(ctx)
        self._look(ctx, run)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        with self.planning(ctx):
            return plan(self, ctx).changes

    def forecast(self, ctx: Context) -> Forecast:
        """Return the proof of the node after the plan; change nothing, and do not wait."""
        with self.planning(ctx) as planned:
            return planned.forecast

    @contextmanager
    def planning(self, ctx: Context) -> Iterator[Plan]:
        """Make one plan for the `with` block; change nothing, and do not wait."""
        thread = get_ident()
        earlier = self._foreseen.get(thread)
        planned = self._planned(ctx)
        self._foreseen[thread] = planned
        try:
            yield planned
        finally:
            self._foreseen.pop(thread)
            if earlier is not None:
                self._foreseen[thread] = earlier

    def _planned(self, ctx: Context) -> Plan:
        # Nothing is proven in an image.
        if not self._host.is_live:
            return Plan(None, Forecast())
        earlier = installed_over(self._host.files, self._config)
        with interruptible(ctx):
            forecaster = Forecaster(ctx, self._config, self._host, earlier=self._counted(earlier))
            return forecaster.plan(partial(self._plan_routes, ctx))

    def _pins(self, ctx: Context, planned: Plan | None) -> Exits | None:
        section = self._config.route_overlap
        if skips(ctx, self._check) or section.expected_devs or not section.cidrs:
            return None
        if planned is None:
            planned = self._planned(ctx)
        return planned.forecast.exits(force=self._force)

    def undo(self, ctx: Context) -> None:
        """Do as `Reset`, but nothing for a whole agent config without `hostRouting`."""
        if self._config.given is not None:
            Reset(self._config, host=self._host, logger=self._logger).do(ctx)

    def _do_all(self, files: Work, *others: Work) -> None:
        routes, *last = others
        deployment = self._run.deployment
        ctx = deployment.transaction.ctx
        # Without boot files that of the watch is not installed either.
        if self._files in self.subtasks:
            self._boot.refuse_exposed(*sibling_units(self._config, self._host))
        # A gateway that leads nowhere is refused before anything is changed.
        self._routes.refuse_own_gateways()
        earlier = deployment.config_over(self._config)
        refuse_local_over(earlier, self._config)
        counted = self._counted(earlier)
        if earlier is not None and earlier is not self._config:
            for warning in dropped(earlier, self._config):
                self._log.warning("%s", warning)
        if not skips(ctx, self._check):
            log_dropped(ctx, counted, self._config, self._log)
        prove = self._prove_before(ctx, counted)
        run = self._run
        deployment.prepare(*self._parts(ctx, run.plan), changes_routes=run.changes_routes)
        if deployment.carry_out(files, routes, prove=prove):
            try:
                deployment.attempt(*last)
            finally:
                is_installed = not deployment.has_undone_files and self._boot.is_installed
                if deployment.failures and is_installed:
                    message = (
                        "this config is installed all the same; "
                        "gated units start once this is fixed"
                    )
                    self._log.warning(message)

    def _look(self, ctx: Context, run: _Run) -> None:
        """Degrade the step if the aim is not reached, by all that was done, and by its proof."""
        pair = (self._files, self._routes, self._check)
        # A task that is skipped, or that does not install anything for a boot, is so on purpose.
        if self._files not in self.subtasks or any(skips(ctx, part) for part in pair):
            return
        from hostrouting.node.check import look_after_apply

        # The changes are made, so the end of the run does not matter.
        own = ctx.shielded().child(_SECONDS_TO_LOOK)
        node = None if run.proofs is None else run.proofs.node
        # What cannot be read is unknown.
        with suppress(HostRoutingError, DeadlineExceededError):
            self.applied = look_after_apply(
                own, self._config, self._host, overlap=run.overlap, node=node
            )
            leave(ctx, self.applied)
            # Under WARN an address that leaves wrong is no error of the node.
            if self.applied.is_wrong or not self.applied.overlap.ok:
                ctx.degrade(self.applied.first_wrong)

    def _plan_routes(self, ctx: Context, node: Host) -> RoutePlan | None:
        return None if skips(ctx, self._routes) else self._routes.plan_routes(node)

    def _counted(self, earlier: HostRoutingConfig | None) -> HostRoutingConfig | None:
        """Return the earlier config if its addresses count: `{}` is meant to drop all of them."""
        return earlier if self._config.asks else None

    def _prove_before(
        self, ctx: Context, earlier: HostRoutingConfig | None
    ) -> Callable[[str], None] | None:
        """Refuse a plan that makes the node worse; return the proof for after the changes."""
        if skips(ctx, self._check):
            # The installed proof stays, and nothing compares it.
            if earlier is not None and earlier.route_overlap.cidrs:
                ctx.degrade("the installed proof stays, and nothing compares it with this config")
            return None
        if not self._host.is_live:
            return None
        proofs = ProvenRun(
            ctx, self._config, self._host, earlier=earlier, logger=self._log, force=self._force
        )
        if not proofs.expects:
            return None
        proofs.before(partial(self._plan_routes, ctx))
        run = self._run
        run.plan = proofs.plan

        def prove(state: str) -> None:
            try:
                proofs.after(state, self._accepted)
            except HostRoutingError as error:
                raise TaskFailedError((self._check.name,), error) from error
            # After a sweep the node is another one.
            if not any(map(self._precedes_proof, SIBLINGS)):
                run.proofs = proofs

        return prove

    def _sibling(self, sibling: Capability) -> Task:
        section = sibling.in_config(self._config)
        if sibling.restore is not None and not section.asks:
            # Its room takes a while to import.
            return self._idle(sibling.name)
        bounded = with_timeout(self._make(sibling.task()), _SIBLING_SECONDS, share=0.5)
        return bounded if section.required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Do not tolerate the failure of an optional task if the config is wrong."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            raise failure


class ConfigureLive(Configure):
    """Change and prove the live routes of a config, and install nothing: for a first try.

    It needs no systemd. A node with an installed config is refused, since its next boot and its
    watch would undo this.
    """

    name = "configure-live"

    def _arranged(self) -> tuple[Task, ...]:
        return self._live_routes(), self._live_check()

    def _parts(self, ctx: Context, planned: Plan | None) -> list[Part]:
        ctx.check()
        del planned  # nothing is installed
        return []

    def _do_all(self, *works: Work) -> None:
        if left := ", ".join(sorted(self._config.to_mapping().keys() - _LIVE)):
            self._log.warning("--live leaves these sections out: %s", left)
        if self._run.deployment.is_installed or self._host.files.exists(INTENT_PATH):
            step = "apply this one without --live, or run: hostrouting reset"
            mistake = ConfigMistake("", f"a config is installed, and would undo this; {step}")
            raise InvalidConfigError([mistake])
        super()._do_all(lambda _: None, *works)


class Reset(_Pipeline):
    """Remove everything that hostrouting installed, by any config, and restore swept objects.

    Most tasks remove their part under an empty config; only the sweep needs an explicit undo, since
    a config without its section must not restore stale objects. If a boot file cannot be removed,
    all changes are undone; after any other failure the rest of the tasks goes on.
    """

    name = "reset"
    _committed = "the boot files are removed"

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        require_config(config)
        super().__init__(HostRoutingConfig(gates=()), host, logger)
        pair = {task.name: task for task in (self._live_routes(), self._live_check())}
        removals: list[Task] = []
        restorations: list[Task] = []
        # What keeps the others right would bring them back.
        for each in sorted(CAPABILITIES, key=self._is_kept):
            if each.restore is not None:
                restorations.append(each.restore(config, self._host, self._log))
            elif each.name in pair:
                removals.append(pair[each.name])
            else:
                removals.append(self._make(each.task()))
        # The gate first: the units would add the routes again if a gated machine started
        # meanwhile.
        self.subtasks = (self._files, *removals, *restorations)

    def _is_kept(self, capability: Capability) -> bool:
        return FREE_UNITS.isdisjoint(capability.in_config(self._config).units)

    def _do_all(self, files: Work, *others: Work) -> None:
        run = self._run.deployment
        run.prepare(*self._parts(run.transaction.ctx, None))
        state = "what was installed is in force, live and for the next boot"
        # The gates and the config stay, so the routes must, too.
        if not run.carry_out_files(files, undone=state):
            return
        run.is_committed = True
        if run.failures:
            self._log.warning("%s all the same", self._committed)
        run.attempt(*others)
        # The same failure of several tasks is reported once.
        by_cause: dict[str, TaskFailedError] = {}
        for failure in run.failures:
            by_cause.setdefault(str(failure.cause), failure)
        run.failures = [*by_cause.values()]


def _do_only(own: Task, work: Task, ctx: Context) -> None:
    """Do a task if it is the own one; its failure is as one of the runner, which adds the name."""
    if work is not own:
        return
    try:
        own.do(ctx)
    except (CancelledError, DeadlineExceededError, TaskFailedError):
        raise
    except Exception as error:
        raise TaskFailedError((), error) from error


def dropped(earlier: HostRoutingConfig, config: HostRoutingConfig) -> Iterator[str]:
    """Yield a warning for each part of the installed config that the new one does without."""
    for name, old, new in (
        ("the static routes to", _destinations(earlier), _destinations(config)),
        ("the gates", earlier.gates, config.gates),
        ("the units of after,", earlier.after, config.after),
    ):
        # A search of lists would take half a second for 10,000 routes.
        kept = {*new}
        missing = [part for part in dict.fromkeys(old) if part not in kept]
        if missing:
            parts = ", ".join(missing)
            yield f"{name} {parts}: the installed config has this, and the new one does not"


def _destinations(config: HostRoutingConfig) -> list[str]:
    return [route.destination for route in config.static_routes.routes]
