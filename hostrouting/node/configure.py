"""Configure: the tasks of a config in their order, one run at a time. Reset removes everything."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import attrs

from hostrouting.apply.carry_out import Apply, Made
from hostrouting.apply.pair import CheckRouteOverlap
from hostrouting.apply.plan import NodePlan, Wanted, decide
from hostrouting.apply.proof import Proof
from hostrouting.apply.run import (
    CHECK,
    DECIDE,
    FILES,
    ROUTES,
    SECONDS_TO_UNDO,
    Run,
    Steps,
    locked,
    with_name,
)
from hostrouting.base.errors import HostRoutingError, InvalidConfigError
from hostrouting.boot.boot import Boot
from hostrouting.boot.intent import Intent, Part, as_installed, installed_over, refuse_local_over
from hostrouting.boot.layout import FREE_UNITS
from hostrouting.boot.task import NOT_CONFIGURED, ROUTES_ONLY, NamedTask, NodeTask
from hostrouting.config.sections import HostRoutingConfig, OverlapMode, require_config
from hostrouting.host import Host
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.capabilities import CAPABILITIES, SIBLINGS, sibling_units
from hostrouting.route_overlap.logged import log_dropped
from hostrouting.static_routes.forecast import Forecast
from hostrouting.static_routes.refusals import refuse_own_gateways
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
from phases.hosting import leave, skips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.boot.capability import Capability
    from hostrouting.node.report import NodeReport
    from hostrouting.route_overlap.proven import OverlapReport
    from hostrouting.static_routes.plan import RoutePlan

    _T = TypeVar("_T", bound=NodeTask)

#: A sibling of the routing pair may take this long, and never more than half of the time that is
#: left.
_SIBLING_SECONDS = 60.0
#: For the look at the node after all tasks, when the deadline may have passed.
_SECONDS_TO_LOOK = 10.0
#: The keys of a config that a host without boot files needs.
_LIVE: Final = {"staticRoutes", "routeOverlap"}
#: The kind of the change of a unit that its gate held before the run.
RELEASED: Final = "released"


@attrs.frozen(eq=False, repr=False)
class _Part(NamedTask):
    """A task of a whole: by itself it does its part of it, in a run of its own."""

    name: str
    #: Returns what it changes by the plan of the whole.
    planned: Callable[[Context, NodePlan], Sequence[Change]]
    #: Return as much of the plan as it needs alone, and do its part of the whole.
    plan_for: Callable[[Context, _Part], NodePlan]
    carry_out: Callable[[Context, _Part], object]
    proves: bool = False
    records = True

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make now."""
        return self.planned(ctx, self.plan_for(ctx, self))

    def do(self, ctx: Context) -> None:
        """Do it in a run of its own."""
        self.carry_out(ctx, self)


class _Seen(NamedTuple):
    """What a run has seen of the node last."""

    #: The check of the report, and the reading of which it was made; None for a new one.
    overlap: OverlapReport | None = None
    node: Host | None = None
    #: What the node lacked of the config then.
    left: RoutePlan | None = None


class _Whole(NamedTask, ABC):
    """Tasks under one hold of the run lock: all are attempted, and one error has all failures."""

    anonymous = False
    subtasks: tuple[Task, ...]
    #: What is so once a run is complete.
    _committed = "the config is changed"
    _force = False

    def __init__(
        self, config: HostRoutingConfig, host: Host | None, logger: logging.Logger | None
    ) -> None:
        """Make the tasks of the pair, whose boot files are installed together."""
        self._config = require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger
        self._log = logger or logging.getLogger("hostrouting")
        self._boot = Boot(self._host, gates=config.gates, logger=self._log)
        self._proof = Proof(self._config, self._host, self._boot, self._log)
        # The scripts, units and gates of the pair, and the intent. Without it no gate is held.
        is_strict = config.route_overlap.mode is OverlapMode.STRICT
        proves = self._make(CheckRouteOverlap).proves
        whole = self._plan_for, self._carry_out
        self._files = _Part(FILES, self._plan_files, *whole, is_strict)
        self._routes = _Part(ROUTES, self._plan_changes, *whole)
        self._check = _Part(CHECK, self._plan_check, *whole, proves)

    def _make(self, kind: type[_T]) -> _T:
        return kind(self._config, host=self._host, logger=self._log)

    def _idle(self, name: str, reason: str = NOT_CONFIGURED) -> Task:
        """Return a stand-in for a task without work; of a void config, the first plan raises."""

        def plan_nothing(ctx: Context) -> Sequence[Change]:
            if name == FILES:
                self._boot.changes_nothing(ctx, self._config)
            return ()

        return task(name, plan=plan_nothing, records=True)(lambda ctx: ctx.skip(reason))

    def _plan_files(self, ctx: Context, plan: NodePlan) -> Sequence[Change]:
        return self._boot.plan_install(ctx, *self._parts(ctx, plan.forecast), force=self._force)

    def _plan_changes(self, ctx: Context, plan: NodePlan) -> Sequence[Change]:
        ctx.check()
        refuse_own_gateways(self._config, self._host)
        return plan.entries

    def _plan_check(self, ctx: Context, _plan: NodePlan) -> Sequence[Change]:
        """Return the changes of the proof; `{}` is meant to drop all addresses."""
        dropped = self._proof.plan_dropped() if self._config.asks else ()
        return [*self._proof.plan(ctx), *dropped]

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        self._carry_out(ctx)

    def _plan_for(self, ctx: Context, part: _Part) -> NodePlan:
        """Return as much of the plan as a task needs that is planned alone."""
        if part is self._files and self._finds_devs(ctx):
            return self.planned(ctx)
        wanted = Wanted(self._config, has_routes=part is self._routes, is_proven=False)
        return decide(ctx, wanted, self._host)

    def planned(self, ctx: Context) -> NodePlan:
        """Make one plan; change nothing, and do not wait."""
        return decide(
            ctx, self._wanted(ctx, installed_over(self._host.files, self._config)), self._host
        )

    def _carry_out(self, ctx: Context, alone: _Part | None = None) -> _Seen:
        """Do all tasks, or one alone, under the run lock, and start the units that were held."""
        proving = [part.name for part in (self._files, self._routes, self._check) if part.proves]
        name = alone.name if alone else None
        steps = Steps(proving=proving, alone=name, logger=self._logger)
        with locked(ctx, self._host, self._boot, self._log, steps) as run:
            held = self._boot.held(run.ctx)
            wanted = self._wanted(run.ctx, run.config_over(self._config))
            seen = _Seen()
            try:
                seen = self._do_all(Apply(run, wanted))
            except BaseException as error:
                if run.is_complete:
                    self._log.warning("%s; the rest was interrupted", self._committed)
                is_end = isinstance(error, (CancelledError, DeadlineExceededError))
                if not (is_end and run.failures):
                    raise
            self._release(run, held)
        if run.failures:
            raise TaskFailedError.combine(run.failures)
        return seen

    def _release(self, run: Run, held: Sequence[str]) -> None:
        """Start the units that were held if routing is right, and report what happened to them."""
        ctx = run.ctx
        if run.failures:
            # The deadline may have passed, and would hide the causes.
            ctx = ctx.shielded().child(SECONDS_TO_UNDO)
        is_right = not run.failures
        try:
            still, released = self._boot.release(ctx, held, is_right=is_right)
        except BaseException:
            if run.is_complete and is_right:
                step = "see which units are held: hostrouting status"
                self._log.warning("%s all the same; %s", self._committed, step)
            raise
        for unit in released:
            ctx.record(Change("~", unit, "was held, and starts within seconds", RELEASED))
        if still:
            message = "these are held until routing is right: %s"
            self._log.warning(message, ", ".join(still), extra={"held": still})

    def _wanted(self, ctx: Context, earlier: HostRoutingConfig | None) -> Wanted:
        """Return what a run over an earlier config brings into force."""
        return Wanted(
            self._config,
            partial(self._parts, ctx),
            earlier=self._counted(earlier),
            has_routes=not skips(ctx, self._routes.name),
            is_proven=not skips(ctx, self._check.name),
            force=self._force,
        )

    def _counted(self, earlier: HostRoutingConfig | None) -> HostRoutingConfig | None:
        """Return the earlier config if its addresses count: `{}` is meant to drop all of them."""
        return earlier if self._config.asks else None

    @abstractmethod
    def _do_all(self, apply: Apply) -> _Seen:
        """Attempt all tasks, or one, under the lock."""

    def _finds_devs(self, ctx: Context) -> bool:
        section = self._config.route_overlap
        is_proven = not skips(ctx, self._check.name)
        return is_proven and not section.expected_devs and bool(section.cidrs)

    def _parts(self, ctx: Context, forecast: Forecast) -> list[Part]:
        """Return the parts to install or remove; that of a skipped task stays as it is."""
        if not self._host.has_boot:
            return []
        config = self._as_installed(ctx, forecast)
        pair = zip((self._routes, self._check), boot_parts(config), strict=True)
        kept = frozenset(
            capability.section
            for capability in CAPABILITIES
            if capability.in_config(self._config).part_names() and skips(ctx, capability.name)
        )
        return [
            *(part for live, part in pair if not skips(ctx, live.name)),
            Intent(config=config, kept=kept),
        ]

    def _as_installed(self, ctx: Context, forecast: Forecast) -> HostRoutingConfig:
        """Return the config with the device by which the node leaves, if it does not name one."""
        found = forecast.found_devs if self._finds_devs(ctx) else None
        if found is None or not self._host.is_live:
            return as_installed(self._config, self._host)
        return attrs.evolve(self._config, found_devs=found)


class Configure(_Whole):
    """Configure a node, now and for every boot: routes, proof, gates, cleanup, probes and watch.

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

    A sibling (the cleanup, the probes, the watch) that fails is a warning, unless its section is
    `required`; one error with all failures is raised at the end. Each of `subtasks` may be executed
    by itself: it does its part of the whole, with a plan, the lock and a proof of its own. An empty
    config changes nothing, and is refused over an installed one; a whole agent config without
    `hostRouting` leaves that alone, and `{"hostRouting": {}}` removes it.
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
        super().__init__(config, host, logger)
        #: The report of the last run that has completed: the part of `check_node` that decides if
        #: the aim is reached.
        self.applied: NodeReport | None = None
        self._force = force
        files = self._files if self._host.has_boot else self._idle(FILES, ROUTES_ONLY)
        self.subtasks = (files, self._routes, self._check, *map(self._sibling, SIBLINGS))
        if config.void:
            self.subtasks = tuple(self._idle(subtask.name) for subtask in self.subtasks)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it.

        The step is degraded if the aim is not reached all the same: a program that a boot needs is
        missing, another one has changed a route meanwhile, or, under WARN, an address leaves wrong.
        The `NodeReport` is its value.
        """
        self.applied = None
        if self._boot.changes_nothing(ctx, self._config):
            for subtask in self.subtasks:
                execute(subtask, ctx, logger=self._logger)
            return
        seen = self._carry_out(ctx)
        pair = (self._files, self._routes, self._check)
        # A task that is skipped, or that does not install anything for a boot, is so on purpose.
        if self._host.has_boot and not any(skips(ctx, part.name) for part in pair):
            # The changes are made, so the end of the run does not matter.
            own = ctx.shielded().child(_SECONDS_TO_LOOK)
            look = task("check-node", records=True)(partial(self._look, ctx, seen))
            execute(look, own, logger=self._logger)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        planned = self.planned(ctx)
        return [change for each in self.subtasks for change in plan_of(each, ctx, planned)]

    def undo(self, ctx: Context) -> None:
        """Do as `Reset`, but nothing for a whole agent config without `hostRouting`."""
        if self._config.given is not None:
            Reset(self._config, host=self._host, logger=self._logger).do(ctx)

    def _do_all(self, apply: Apply) -> _Seen:
        run = apply.run
        self._refuse_mistakes(run)
        plan = run.step(DECIDE, lambda _: apply.decide()) or NodePlan()
        made = apply.carry_out(plan)
        if not made.is_kept:
            return _Seen()
        try:
            # Where routes have failed, they decide whether a retry may help: a check that fails,
            # too, is a consequence, which the report has.
            work = partial(self._check_node, apply, made)
            seen = run.attempt(CHECK, work, counts=not made.lacks_routes) or _Seen()
            run.attempt_others([each for each in self.subtasks if not isinstance(each, _Part)])
        finally:
            if run.failures and not made.has_undone_files and self._boot.is_installed:
                message = "this config is installed all the same"
                self._log.warning("%s; gated units start once this is fixed", message)
        return seen

    def _check_node(self, apply: Apply, made: Made, ctx: Context) -> _Seen:
        """Report the check that committed the run, or another one after a wait."""
        last = made.last
        overlap = self._proof.do(
            ctx,
            seconds=apply.run.seconds,
            checked=last.checked if last else None,
            accepted=partial(apply.accepted, last.left if last else None),
        )
        if last is None or overlap is not last.checked.report:
            return _Seen(overlap)
        return _Seen(overlap, last.node, last.left)

    def _refuse_mistakes(self, run: Run) -> None:
        """Refuse what is wrong in itself, before anything is changed; log what is dropped."""
        ctx = run.ctx
        left = ", ".join(sorted(self._config.to_mapping().keys() - _LIVE))
        if left and not self._host.has_boot:
            self._log.warning("%s; left out: %s", ROUTES_ONLY, left)
        if self._host.has_boot:
            self._boot.refuse_exposed(*sibling_units(self._config, self._host))
        refuse_own_gateways(self._config, self._host)
        earlier = run.config_over(self._config)
        refuse_local_over(earlier, self._config)
        if earlier is not None and earlier is not self._config:
            for warning in dropped(earlier, self._config):
                self._log.warning("%s", warning)
        counted = self._counted(earlier)
        if not skips(ctx, self._check.name):
            log_dropped(ctx, counted, self._config, self._log)
        elif counted is not None and counted.route_overlap.cidrs:
            # The installed proof stays.
            ctx.degrade("the installed proof stays, and nothing compares it with this config")

    def _look(self, ctx: Context, seen: _Seen, own: Context) -> None:
        """Degrade the step if the aim is not reached, by all that was done, and by its proof."""
        # Imported late: an agent may do without the check after an apply.
        from hostrouting.node.check import look_after_apply

        # What cannot be read is unknown.
        with suppress(HostRoutingError, DeadlineExceededError):
            self.applied = look_after_apply(
                own.expiring(),
                self._config,
                self._host,
                overlap=seen.overlap,
                node=seen.node,
                left=seen.left,
            )
            leave(ctx, self.applied)
            # Under WARN an address that leaves wrong is not an error of the node.
            if self.applied.is_wrong or not self.applied.overlap.ok:
                ctx.degrade(self.applied.first_wrong)

    def _sibling(self, sibling: Capability) -> Task:
        section = sibling.in_config(self._config)
        if not (section.asks or section.part_names()):
            # It neither does nor removes anything, and its room takes a while to import.
            return self._idle(sibling.name)
        if not self._host.has_boot:
            return self._idle(sibling.name, ROUTES_ONLY if section.asks else NOT_CONFIGURED)
        bounded = with_timeout(self._make(sibling.task()), _SIBLING_SECONDS, share=0.5)
        return bounded if section.required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Do not tolerate the failure of an optional task if the config is wrong."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            raise failure


class Reset(_Whole):
    """Remove everything that hostrouting installed, by any config.

    If a boot file cannot be removed, all changes are undone; after any other failure the rest of
    the tasks goes on.
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
        pair = {part.name: part for part in (self._routes, self._check)}
        removals = (
            pair.get(each.name) or self._removal(each, config)
            for each in sorted(CAPABILITIES, key=self._turn)
            if each.in_config(self._config).part_names()
        )
        # The gate first: the units would add the routes again if a gated machine started
        # meanwhile.
        files = self._files if self._host.has_boot else self._idle(FILES, ROUTES_ONLY)
        self.subtasks = (files, *removals)

    def _removal(self, sibling: Capability, config: HostRoutingConfig) -> Task:
        if not self._host.has_boot:
            return self._idle(sibling.name, ROUTES_ONLY)
        return sibling.task().reset(config, self._host, self._log)

    def _turn(self, capability: Capability) -> bool:
        """Return False for a capability that is reset before the others."""
        # It keeps the rest right, and would restore it.
        return FREE_UNITS.isdisjoint(capability.in_config(self._config).units)

    def _do_all(self, apply: Apply) -> _Seen:
        run = apply.run
        if not self._host.has_boot:
            plan = apply.decide()
        else:
            plan = apply.with_files(NodePlan())
            # The gates and the config stay, so the routes must, too.
            undone = "what was installed is in force, live and for the next boot"
            if not apply.change_files(plan, undone=undone):
                return _Seen()
            run.is_complete = True
        if run.failures:
            self._log.warning("%s all the same", self._committed)
        for each in self.subtasks:
            if each is self._files:
                continue
            if each is self._routes:
                run.attempt(ROUTES, partial(apply.settle, plan))
            elif each is self._check:
                run.attempt(CHECK, self._proof.do)
            else:
                run.attempt_others([each])
        # The same failure of several tasks is reported once.
        by_cause: dict[str, TaskFailedError] = {}
        for failure in run.failures:
            by_cause.setdefault(str(failure.cause), failure)
        run.failures = [*by_cause.values()]
        return _Seen()


def plan_of(task: Task, ctx: Context, planned: NodePlan) -> Sequence[Change]:
    """Return the part of a plan that a task carries out."""
    if not isinstance(task, _Part):
        return plan(task, ctx).changes
    return with_name((task.name,), lambda ctx: task.planned(ctx, planned), ctx)


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
