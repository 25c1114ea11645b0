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
from hostrouting.apply.check import AddressCheck
from hostrouting.apply.plan import NodePlan, Wanted, decide
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
from hostrouting.apply.tasks import CheckRouteOverlap
from hostrouting.base.errors import HostRoutingError, InvalidConfigError
from hostrouting.boot.boot import Boot
from hostrouting.boot.installed_config import (
    BootPart,
    NewConfig,
    as_installed,
    installed_over,
    refuse_local_over,
)
from hostrouting.boot.layout import FREE_UNITS
from hostrouting.boot.task import NOT_CONFIGURED, ROUTES_ONLY, NamedTask, NodeTask
from hostrouting.config.sections import HostRoutingConfig, OverlapMode, require_config
from hostrouting.host import Host
from hostrouting.node.boot_files import boot_parts
from hostrouting.node.capabilities import CAPABILITIES, OPTIONAL_SECTIONS, optional_units
from hostrouting.route_overlap.logs import log_dropped
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
    from hostrouting.route_overlap.report import OverlapReport
    from hostrouting.static_routes.plan import RoutePlan

    _T = TypeVar("_T", bound=NodeTask)

#: An optional feature may take this long, and never more than half of the time that is left.
_FEATURE_SECONDS = 60.0
#: For the check of the node after all tasks, when the deadline may have passed.
_SECONDS_TO_CHECK = 10.0
#: The result of the step has the others: 10,000 routes may be lost.
_MOST_REASONS: Final = 20
#: The keys of a config that a host without boot files needs.
_LIVE: Final = {"staticRoutes", "routeOverlap"}
#: The kind of the change of a unit that its gate held before the run.
RELEASED: Final = "released"


@attrs.frozen(eq=False, repr=False)
class _Part(NamedTask):
    """A part of `Configure` or `Reset`; executed alone, it does that part in a run of its own."""

    name: str
    #: Returns its changes, given the plan of the whole.
    planned: Callable[[Context, NodePlan], Sequence[Change]]
    #: Returns as much of the plan as it needs, and carries out its part.
    plan_for: Callable[[Context, _Part], NodePlan]
    carry_out: Callable[[Context, _Part], object]
    checks: bool = False
    records = True

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make now."""
        return self.planned(ctx, self.plan_for(ctx, self))

    def do(self, ctx: Context) -> None:
        """Do it in a run of its own."""
        self.carry_out(ctx, self)


class _Seen(NamedTuple):
    """The last check of a run."""

    #: Its report, and the snapshot that was checked; None to take a new one.
    overlap: OverlapReport | None = None
    node: Host | None = None
    #: The routes of the config that the node did not have then.
    left: RoutePlan | None = None


class _Whole(NamedTask, ABC):
    """Tasks that run together under the run lock; one error has all their failures."""

    anonymous = False
    subtasks: tuple[Task, ...]
    #: What is true once a run is complete.
    _committed = "the config is changed"
    _force = False

    def __init__(
        self, config: HostRoutingConfig, host: Host | None, logger: logging.Logger | None
    ) -> None:
        """Make the tasks of routes and check, whose boot files are installed together."""
        self._config = require_config(config)
        self._host = Host.given_or_live(host)
        self._logger = logger
        self._log = logger or logging.getLogger("hostrouting")
        self._boot = Boot(self._host, gates=config.gates, logger=self._log)
        self._address_check = AddressCheck(self._config, self._host, self._boot, self._log)
        # The scripts, units, gates and the installed config. Without these files, no gate is held.
        is_strict = config.route_overlap.mode is OverlapMode.STRICT
        is_check = self._make(CheckRouteOverlap).checks
        whole = self._plan_for, self._carry_out
        self._files = _Part(FILES, self._plan_files, *whole, is_strict)
        self._routes = _Part(ROUTES, self._plan_changes, *whole)
        self._check = _Part(CHECK, self._plan_check, *whole, is_check)

    def _make(self, kind: type[_T]) -> _T:
        return kind(self._config, host=self._host, logger=self._log)

    def _idle(self, name: str, reason: str = NOT_CONFIGURED) -> Task:
        """Return a task without work; for a void config, the plan of the first raises."""

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
        """Return the changes of the check; `{}` intentionally drops all addresses."""
        dropped = self._address_check.plan_dropped() if self._config.asks else ()
        return [*self._address_check.plan(ctx), *dropped]

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it."""
        self._carry_out(ctx)

    def _plan_for(self, ctx: Context, part: _Part) -> NodePlan:
        """Return as much of the plan as one task needs."""
        if part is self._files and self._finds_devs(ctx):
            return self.planned(ctx)
        wanted = Wanted(self._config, has_routes=part is self._routes, is_checked=False)
        return decide(ctx, wanted, self._host)

    def planned(self, ctx: Context) -> NodePlan:
        """Plan all changes; change nothing, and do not wait."""
        return decide(
            ctx, self._wanted(ctx, installed_over(self._host.files, self._config)), self._host
        )

    def _carry_out(self, ctx: Context, alone: _Part | None = None) -> _Seen:
        """Do all tasks, or one of them, under the run lock, then start the units that were held."""
        checking = [part.name for part in (self._files, self._routes, self._check) if part.checks]
        name = alone.name if alone else None
        steps = Steps(checking=checking, alone=name, logger=self._logger)
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
        """Start the units that were held if the node is healthy, and report what happened."""
        ctx = run.ctx
        if run.failures:
            # The deadline may have passed; its error would hide the causes.
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
            is_checked=not skips(ctx, self._check.name),
            force=self._force,
        )

    def _counted(self, earlier: HostRoutingConfig | None) -> HostRoutingConfig | None:
        """Return the earlier config if its addresses count: `{}` intentionally drops them."""
        return earlier if self._config.asks else None

    @abstractmethod
    def _do_all(self, apply: Apply) -> _Seen:
        """Attempt all tasks, or one of them, under the lock."""

    def _finds_devs(self, ctx: Context) -> bool:
        section = self._config.route_overlap
        is_checked = not skips(ctx, self._check.name)
        return is_checked and not section.expected_devs and bool(section.cidrs)

    def _parts(self, ctx: Context, forecast: Forecast) -> list[BootPart]:
        """Return the parts to install or remove; the part of a skipped task stays as it is."""
        if not self._host.has_boot:
            return []
        config = self._as_installed(ctx, forecast)
        both = zip((self._routes, self._check), boot_parts(config), strict=True)
        kept = frozenset(
            capability.section
            for capability in CAPABILITIES
            if capability.in_config(self._config).part_names() and skips(ctx, capability.name)
        )
        return [
            *(part for live, part in both if not skips(ctx, live.name)),
            NewConfig(config=config, kept=kept),
        ]

    def _as_installed(self, ctx: Context, forecast: Forecast) -> HostRoutingConfig:
        """Return the config with the outbound device found on the node, unless it names one."""
        found = forecast.found_devs if self._finds_devs(ctx) else None
        if found is None or not self._host.is_live:
            return as_installed(self._config, self._host)
        return attrs.evolve(self._config, found_devs=found)


class Configure(_Whole):
    """Configure a node, now and for every boot: routes, check, gates, cleanup, probes and watch.

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

    It holds the run lock from the first task to the last, so no other run changes routes before
    they are checked.

    It never makes a node worse: in STRICT mode, a config that would misroute an expected address
    which is routed correctly now is refused before any change (`WorseRoutingError`), unless `force`
    is true; in WARN mode, that is logged. Over an installed config, the routes come first, and the
    run is one transaction until the check after them: if it fails, is interrupted, or makes an
    address worse, it is undone, and the earlier config is in force, now and for every boot. A node
    that was unhealthy before and stays so is configured, and its gates are held. On a node without
    hostrouting, the boot files come first and stay, because a node that fails the check must not
    start its machine at the next boot either.

    An optional feature (cleanup, probes, watch) that fails is a warning, unless its section is
    `required`. One error with all failures is raised at the end. Each of `subtasks` can be executed
    alone: it does its part with a plan, the lock and a check of its own. An empty config changes
    nothing, and is refused over an installed one; an agent's config without `hostRouting` leaves
    that alone, and `{"hostRouting": {}}` removes it.
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
        #: The report of the last completed run: the part of `check_node` that decides whether the
        #: config is in force.
        self.applied: NodeReport | None = None
        self._force = force
        files = self._files if self._host.has_boot else self._idle(FILES, ROUTES_ONLY)
        self.subtasks = (files, self._routes, self._check, *map(self._feature, OPTIONAL_SECTIONS))
        if config.void:
            self.subtasks = tuple(self._idle(subtask.name) for subtask in self.subtasks)

    def do(self, ctx: Context) -> None:
        """Do all tasks; raise one error with every failure in it.

        The step is degraded if the config is not fully in force: a program that a boot needs is
        missing, another program has changed a route meanwhile, or, in WARN mode, an address is
        misrouted. Its value is the `NodeReport`.
        """
        self.applied = None
        if self._boot.changes_nothing(ctx, self._config):
            for subtask in self.subtasks:
                execute(subtask, ctx, logger=self._logger)
            return
        seen = self._carry_out(ctx)
        essential = (self._files, self._routes, self._check)
        # A task that is skipped is skipped on purpose, so nothing is missing.
        if self._host.has_boot and not any(skips(ctx, part.name) for part in essential):
            # The changes are made, so the end of the run does not matter.
            own = ctx.shielded().child(_SECONDS_TO_CHECK)
            check = task("check-node", records=True)(partial(self._check_again, ctx, seen))
            execute(check, own, logger=self._logger)

    def plan(self, ctx: Context) -> Sequence[Change]:
        """Return the changes that `do` would make; do not change or wait."""
        planned = self.planned(ctx)
        return [change for each in self.subtasks for change in plan_of(each, ctx, planned)]

    def undo(self, ctx: Context) -> None:
        """Do what `Reset` does; do nothing if an agent's config has no `hostRouting`."""
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
            # If routes have failed, they decide whether a retry may help: a check that fails then
            # is a consequence, and is in the report.
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
        overlap = self._address_check.do(
            ctx,
            seconds=apply.run.seconds,
            checked=last.checked if last else None,
            accepted=partial(apply.accepted, last.left if last else None),
        )
        if last is None or overlap is not last.checked.report:
            return _Seen(overlap)
        return _Seen(overlap, last.node, last.left)

    def _refuse_mistakes(self, run: Run) -> None:
        """Refuse mistakes in the config before anything is changed; log what is dropped."""
        ctx = run.ctx
        left = ", ".join(sorted(self._config.to_mapping().keys() - _LIVE))
        if left and not self._host.has_boot:
            self._log.warning("%s; left out: %s", ROUTES_ONLY, left)
        if self._host.has_boot:
            self._boot.refuse_exposed(*optional_units(self._config, self._host))
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
            # The boot files of the check stay.
            ctx.degrade("the installed check stays, and nothing compares it with this config")

    def _check_again(self, ctx: Context, seen: _Seen, own: Context) -> None:
        """Degrade the step if the config is not fully in force after all that was done."""
        # Imported here because not every run ends with this check.
        from hostrouting.node.check import check_after_apply

        # What cannot be read is unknown.
        with suppress(HostRoutingError, DeadlineExceededError):
            self.applied = check_after_apply(
                own.expiring(),
                self._config,
                self._host,
                overlap=seen.overlap,
                node=seen.node,
                left=seen.left,
            )
            leave(ctx, self.applied)
            # In WARN mode, a misrouted address is not an error of the node.
            if not self.applied.overlap.ok:
                ctx.degrade(self.applied.overlap.first_wrong)
            elif self.applied.is_wrong:
                errors = [each for each in self.applied.findings if each.severity == "error"]
                for finding in errors[:_MOST_REASONS]:
                    ctx.degrade(finding.text)

    def _feature(self, feature: Capability) -> Task:
        section = feature.in_config(self._config)
        if not (section.asks or section.part_names()):
            # It neither does nor removes anything, and its package takes a while to import.
            return self._idle(feature.name)
        if not self._host.has_boot:
            return self._idle(feature.name, ROUTES_ONLY if section.asks else NOT_CONFIGURED)
        bounded = with_timeout(self._make(feature.task()), _FEATURE_SECONDS, share=0.5)
        return bounded if section.required else tolerate(bounded, on_failure=self._keep_mistakes)

    def _keep_mistakes(self, failure: TaskFailedError) -> None:
        """Raise the failure of an optional feature if its config is wrong."""
        if any(isinstance(cause, InvalidConfigError) for cause in failure.failures):
            raise failure


class Reset(_Whole):
    """Remove everything that hostrouting installed, whatever the config was.

    If a boot file cannot be removed, all changes are undone; after any other failure, the other
    tasks go on.
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
        essential = {part.name: part for part in (self._routes, self._check)}
        removals = (
            essential.get(each.name) or self._removal(each, config)
            for each in sorted(CAPABILITIES, key=self._turn)
            if each.in_config(self._config).part_names()
        )
        # The gates come first, because the units would add the routes again if a gated machine
        # started meanwhile.
        files = self._files if self._host.has_boot else self._idle(FILES, ROUTES_ONLY)
        self.subtasks = (files, *removals)

    def _removal(self, feature: Capability, config: HostRoutingConfig) -> Task:
        if not self._host.has_boot:
            return self._idle(feature.name, ROUTES_ONLY)
        return feature.task().reset(config, self._host, self._log)

    def _turn(self, capability: Capability) -> bool:
        """Return False for the feature that is reset first."""
        # The watch would restore the rest.
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
                run.attempt(CHECK, self._address_check.do)
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
    """Yield a warning for each part of the installed config that the new one does not have."""
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
