"""Configure: the tasks of a config in their order, one run at a time. Reset removes everything."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.apply.story import Plan, Selection, Story
from hostrouting.boot.boot import Boot
from hostrouting.boot.deployment import SECONDS_TO_UNDO, Deployment, Waiting, deploying
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
from hostrouting.static_routes.forecast import Forecast, Forecaster
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


class _Alone(NamedTask):
    """A task of a pipeline: by itself it does its part of the whole, under the lock."""

    records = True

    def __init__(
        self,
        whole: _Pipeline,
        name: str,
        plan: Callable[[Context, Plan], Sequence[Change]],
        *,
        proves: bool = False,
    ) -> None:
        self.name = name
        self.proves = proves
        self._whole = whole
        self.planned = plan

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make now."""
        return self.planned(ctx, self._whole.decide(ctx, self))

    def do(self, ctx: Context) -> None:
        """Do it in a run of its own."""
        self._whole.carry_out(ctx, self)


class _Pipeline(NamedTask, ABC):
    """Tasks under one hold of the run lock: all are attempted, and one error has all failures."""

    anonymous = False
    subtasks: tuple[Task, ...]
    #: What is so once a run is committed.
    _committed = "the config is changed"

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
        # The scripts, units and gates of the pair, and the intent. Without it no gate is held.
        self._files = _Alone(
            self,
            "install-boot-files",
            lambda ctx, plan: self._boot.plan_install(ctx, *self._parts(ctx, plan.forecast)),
            proves=config.route_overlap.mode is OverlapMode.STRICT,
        )
        self._live_routes = _Alone(self, self._routes.name, self._plan_changes)
        self._live_check = _Alone(
            self, self._check.name, self._plan_check, proves=self._check.proves
        )

    def _make(self, kind: type[_T]) -> _T:
        return kind(self._config, host=self._host, logger=self._log)

    def _plan_changes(self, _ctx: Context, plan: Plan) -> Sequence[Change]:
        self._routes.refuse_own_gateways()
        return [each.entry for each in plan.routes.entries] if plan.routes else []

    def _plan_check(self, ctx: Context, _plan: Plan) -> Sequence[Change]:
        return self._check.plan_act(ctx)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        self.carry_out(ctx)

    def decide(self, ctx: Context, task: Task | None = None) -> Plan:
        """Return the plan of a run, or of what one of its tasks needs; change nothing."""
        ctx.check()
        return Plan(self._routes.plan_routes() if self._host.is_live else None)

    def carry_out(
        self, ctx: Context, alone: Task | None = None
    ) -> tuple[Story, OverlapReport | None]:
        """Do all tasks, or one alone, under the run lock, and start the units that were held."""
        with deploying(ctx, self._host, self._boot, self._log) as run:
            ctx = run.transaction.ctx
            held = self._boot.held(ctx)
            story = Story(self._selected(ctx, run), self._host, self._boot, self._log, run)
            proof = None
            try:
                proof = self._do_all(story, _Steps(alone, self._logger))
            except BaseException as error:
                if run.is_committed:
                    self._log.warning("%s; the rest was interrupted", self._committed)
                is_end = isinstance(error, (CancelledError, DeadlineExceededError))
                if not (is_end and run.failures):
                    raise
            self._release(ctx, run, held)
        if run.failures:
            raise TaskFailedError.combine(run.failures)
        return story, proof

    def _release(self, ctx: Context, run: Deployment, held: Sequence[str]) -> None:
        """Start the units that were held if routing is right, and report what happened to them."""
        if run.failures:
            # The deadline may have passed, and would hide the causes.
            ctx = ctx.shielded().child(SECONDS_TO_UNDO)
        is_right = not run.failures
        try:
            still, released = self._boot.release(ctx, held, is_right=is_right)
        except BaseException:
            if run.is_committed and is_right:
                step = "see which units are held: hostrouting status"
                self._log.warning("%s all the same; %s", self._committed, step)
            raise
        for unit in released:
            ctx.record(Change("~", unit, "was held, and starts within seconds", RELEASED))
        if still:
            message = "these are held until routing is right: %s"
            self._log.warning(message, ", ".join(still), extra={"held": still})

    @abstractmethod
    def _selected(self, ctx: Context, run: Deployment) -> Selection:
        """Return what a run is to bring into force."""

    @abstractmethod
    def _do_all(self, story: Story, steps: _Steps) -> OverlapReport | None:
        """Attempt the tasks, under the lock; return the proof of the task."""

    def _pins(self, ctx: Context, forecast: Forecast) -> Exits | None:
        """Return the exits that a run pins by its forecast; None leaves those installed."""
        ctx.check()
        del forecast  # nothing is proven
        return None

    def _parts(self, ctx: Context, forecast: Forecast) -> list[Part]:
        """Return the parts to install or remove; that of a skipped task stays as it is."""
        # An image may boot on another node.
        pins = self._pins(ctx, forecast) if self._host.is_live else {}
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


class _Steps:
    """Runs the tasks of a run as steps of its report; of one alone, that one as itself."""

    def __init__(self, alone: Task | None, logger: logging.Logger | None) -> None:
        self._alone = alone
        self._logger = logger

    def of(self, own: _Alone, work: Work) -> Work:
        """Return the work of a task of the pair."""
        if self._alone is not None:
            return partial(_do_only, own, self._alone, work)
        step = task(own.name, records=True, proves=own.proves)(work)
        return partial(execute, step, logger=self._logger)

    def siblings(self, *tasks: Task) -> list[Work]:
        """Return the works of other tasks."""
        if self._alone is not None:
            return [partial(_do_only, each, self._alone, each.do) for each in tasks]
        return [partial(execute, each, logger=self._logger) for each in tasks]


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
        before: list[Task] = []
        after: list[Task] = []
        for sibling in SIBLINGS:
            siblings = before if self._precedes_proof(sibling) else after
            siblings.append(self._sibling(sibling))
        return self._files, self._live_routes, *before, self._live_check, *after

    def _precedes_proof(self, sibling: Capability) -> bool:
        return sibling.precedes_proof and sibling.in_config(self._config).asks

    def _plan_check(self, ctx: Context, _plan: Plan) -> Sequence[Change]:
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
        self._look(ctx, *self.carry_out(ctx))

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        with self.planning(ctx) as planned:
            return [change for each in self.subtasks for change in plan_of(each, ctx, planned)]

    def forecast(self, ctx: Context) -> Forecast:
        """Return the proof of the node after the plan; change nothing, and do not wait."""
        return self._planned(ctx).forecast

    @contextmanager
    def planning(self, ctx: Context) -> Iterator[Plan]:
        """Make one plan; change nothing, and do not wait."""
        yield self._planned(ctx)

    def decide(self, ctx: Context, task: Task | None = None) -> Plan:
        """Return the plan of a run, or of what one of its tasks needs."""
        if task is self._files and self._proves_plan(ctx):
            return self._planned(ctx)
        if task is self._live_check:
            return Plan()
        return super().decide(ctx, task)

    def _planned(self, ctx: Context) -> Plan:
        # Nothing is proven in an image.
        if not self._host.is_live:
            return Plan()
        earlier = installed_over(self._host.files, self._config)
        with interruptible(ctx):
            forecaster = Forecaster(ctx, self._config, self._host, earlier=self._counted(earlier))
            routes, forecast = forecaster.plan(partial(self._plan_routes, ctx))
            return Plan(routes, forecast)

    def _proves_plan(self, ctx: Context) -> bool:
        section = self._config.route_overlap
        return not skips(ctx, self._check) and not section.expected_devs and bool(section.cidrs)

    def _pins(self, ctx: Context, forecast: Forecast) -> Exits | None:
        return forecast.exits(force=self._force) if self._proves_plan(ctx) else None

    def undo(self, ctx: Context) -> None:
        """Do as `Reset`, but nothing for a whole agent config without `hostRouting`."""
        if self._config.given is not None:
            Reset(self._config, host=self._host, logger=self._logger).do(ctx)

    def _selected(self, ctx: Context, run: Deployment) -> Selection:
        return Selection(
            self._config,
            self._routes,
            partial(self._parts, ctx),
            earlier=self._counted(run.config_over(self._config)),
            changes_routes=not skips(ctx, self._routes),
            is_judged=not skips(ctx, self._check),
            force=self._force,
        )

    def _do_all(self, story: Story, steps: _Steps) -> OverlapReport | None:
        self._refuse(story)
        story.decide()
        story.decide_files()
        proof: list[OverlapReport | None] = []
        sweeps = any(map(self._precedes_proof, SIBLINGS))

        def prove(state: str) -> None:
            try:
                story.prove(state)
            except HostRoutingError as error:
                raise TaskFailedError((self._check.name,), error) from error

        def check(ctx: Context) -> None:
            # After a sweep the node is another one.
            look = None if sweeps else story.look
            waiting = Waiting(story.seconds_to_wait)
            proof[:] = [self._check.act(ctx, waiting, look, story.accepted)]
            if look is None or look.report is not proof[0]:
                # It was proven again after a wait.
                story.node = None

        files = steps.of(self._files, story.install) if self._files in self.subtasks else _nothing
        routes = steps.of(self._live_routes, story.settle)
        if story.carry_out(files, routes, prove):
            turn = self.subtasks.index(self._live_check)
            before = [
                each
                for each in self.subtasks[:turn]
                if each not in (self._files, self._live_routes)
            ]
            try:
                story.run.attempt(
                    *steps.siblings(*before),
                    steps.of(self._live_check, check),
                    *steps.siblings(*self.subtasks[turn + 1 :]),
                )
            finally:
                self._warn_if_installed(story.run)
        return proof[0] if proof else None

    def _warn_if_installed(self, run: Deployment) -> None:
        if run.failures and not run.has_undone_files and self._boot.is_installed:
            message = "this config is installed all the same; gated units start once this is fixed"
            self._log.warning(message)

    def _refuse(self, story: Story) -> None:
        """Refuse what is wrong in itself, before the node is read."""
        ctx = story.ctx
        # Without boot files that of the watch is not installed either.
        if self._files in self.subtasks:
            self._boot.refuse_exposed(*sibling_units(self._config, self._host))
        # A gateway that leads nowhere is refused before anything is changed.
        self._routes.refuse_own_gateways()
        earlier = story.run.config_over(self._config)
        refuse_local_over(earlier, self._config)
        if earlier is not None and earlier is not self._config:
            for warning in dropped(earlier, self._config):
                self._log.warning("%s", warning)
        counted = self._counted(earlier)
        if not skips(ctx, self._check):
            log_dropped(ctx, counted, self._config, self._log)
        elif counted is not None and counted.route_overlap.cidrs:
            # The installed proof stays, and nothing compares it.
            ctx.degrade("the installed proof stays, and nothing compares it with this config")

    def _look(self, ctx: Context, story: Story, overlap: OverlapReport | None) -> None:
        """Degrade the step if the aim is not reached, by all that was done, and by its proof."""
        pair = (self._files, self._routes, self._check)
        # A task that is skipped, or that does not install anything for a boot, is so on purpose.
        if self._files not in self.subtasks or any(skips(ctx, part) for part in pair):
            return
        from hostrouting.node.check import look_after_apply

        # The changes are made, so the end of the run does not matter.
        own = ctx.shielded().child(_SECONDS_TO_LOOK)
        # What cannot be read is unknown.
        with suppress(HostRoutingError, DeadlineExceededError):
            self.applied = look_after_apply(
                own, self._config, self._host, overlap=overlap, node=story.node, left=story.left
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
        return self._live_routes, self._live_check

    def _parts(self, ctx: Context, forecast: Forecast) -> list[Part]:
        ctx.check()
        del forecast  # nothing is installed
        return []

    def _refuse(self, story: Story) -> None:
        if left := ", ".join(sorted(self._config.to_mapping().keys() - _LIVE)):
            self._log.warning("--live leaves these sections out: %s", left)
        if story.run.is_installed or self._host.files.exists(INTENT_PATH):
            step = "apply this one without --live, or run: hostrouting reset"
            mistake = ConfigMistake("", f"a config is installed, and would undo this; {step}")
            raise InvalidConfigError([mistake])
        super()._refuse(story)


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
        pair = {task.name: task for task in (self._live_routes, self._live_check)}
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

    def _selected(self, ctx: Context, run: Deployment) -> Selection:
        del run  # every address may be dropped
        return Selection(self._config, self._routes, partial(self._parts, ctx), is_judged=False)

    def _do_all(self, story: Story, steps: _Steps) -> OverlapReport | None:
        run = story.run
        story.decide_files()
        state = "what was installed is in force, live and for the next boot"
        # The gates and the config stay, so the routes must, too.
        story.remove_files(steps.of(self._files, story.install), undone=state)
        if run.has_undone_files:
            return None
        run.is_committed = True
        if run.failures:
            self._log.warning("%s all the same", self._committed)
        own: dict[Task, Work] = {
            self._live_routes: steps.of(self._live_routes, story.settle),
            self._live_check: steps.of(self._live_check, lambda ctx: self._check.act(ctx) and None),
        }
        for each in self.subtasks[1:]:
            run.attempt(*([own[each]] if each in own else steps.siblings(each)))
        # The same failure of several tasks is reported once.
        by_cause: dict[str, TaskFailedError] = {}
        for failure in run.failures:
            by_cause.setdefault(str(failure.cause), failure)
        run.failures = [*by_cause.values()]
        return None


def _nothing(_ctx: Context) -> None:
    """Install nothing."""


def plan_of(task: Task, ctx: Context, planned: Plan) -> Sequence[Change]:
    """Return the part of a plan that a task carries out."""
    if not isinstance(task, _Alone):
        return plan(task, ctx).changes
    try:
        return task.planned(ctx, planned)
    except (CancelledError, DeadlineExceededError):
        raise
    except Exception as error:
        raise TaskFailedError((task.name,), error) from error


def _do_only(own: Task, alone: Task, work: Work, ctx: Context) -> None:
    """Do the work of a task that is done alone; its failure is as one of the runner."""
    if own is not alone:
        return
    try:
        work(ctx)
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
