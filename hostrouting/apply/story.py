"""The story of an apply: read, decide, carry out, prove, and commit or undo.

`decide` reads the node once, and returns the plan that `carry_out` makes, and no other: each change
is made only from the state by which it was decided. Whoever was overtaken reads and decides again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.base.waits import begin_wait
from hostrouting.boot.boot import is_removal
from hostrouting.boot.deployment import SECONDS_TO_UNDO
from hostrouting.boot.layout import WAIT_SECONDS, units_in
from hostrouting.boot.recorded import DiskStep, FilesChangedError, RecordedFiles
from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import BackendError, HostFileError, RouteRejectedError
from hostrouting.host.reading import at_one_moment
from hostrouting.static_routes.converge import (
    Conflict,
    always_changing,
    carry_out,
    log_consequences,
)
from hostrouting.static_routes.forecast import Forecast, Forecaster, judge
from hostrouting.static_routes.plan import RoutePlan
from phases.hosting import interruptible

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from hostrouting.boot.boot import Boot
    from hostrouting.boot.deployment import Deployment
    from hostrouting.boot.intent import Part
    from hostrouting.config import StaticRoutesConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.look import Look
    from hostrouting.static_routes.task import ConfigureStaticRoutes
    from phases import Context, Work

#: The number of plans after which a program that keeps changing the same places has won.
_PLANS = 24
_NOTHING = "nothing is installed for the next boot"


class Selection(NamedTuple):
    """What a run is to bring into force: all of a config, or the part of one task."""

    config: HostRoutingConfig
    #: Has the section of the routes: its refusals, and what it leaves behind without routes.
    routes: ConfigureStaticRoutes
    #: Returns the boot files for a forecast.
    parts: Callable[[Forecast], Sequence[Part]]
    #: The config whose addresses count besides.
    earlier: HostRoutingConfig | None = None
    changes_routes: bool = True
    #: False if no plan of it is proven.
    is_judged: bool = True
    force: bool = False


@attrs.frozen
class Plan:
    """What a run changes on a node, by one reading, and what that means."""

    #: None if it leaves them alone.
    routes: RoutePlan | None = None
    forecast: Forecast = Forecast()
    parts: Sequence[Part] = ()
    files: Sequence[DiskStep] = ()


class Story:
    """One run under the run lock."""

    def __init__(
        self, wanted: Selection, host: Host, boot: Boot, logger: logging.Logger, run: Deployment
    ) -> None:
        self.wanted = wanted
        self.run = run
        self.ctx: Context = run.transaction.ctx
        self._host = host
        self._boot = boot
        self._log = logger
        self.plan = Plan()
        #: It proves the plan, and the node after it; None if neither is proven.
        self.forecaster: Forecaster | None = None
        #: The last proof, and the reading of which it was made.
        self.look: Look | None = None
        self.node: Host | None = None
        #: The reading of a plan after the files, as long as this run has changed nothing since.
        self._node: Host | None = None
        self._files: RecordedFiles | None = None
        self._rest: Sequence[DiskStep] = ()
        self._until = self.ctx.clock.monotonic() + WAIT_SECONDS
        self._may_wait = True
        self._is_cleaning = False
        self._removes_all = False
        #: The plans of which changes were made.
        self._made: list[RoutePlan] = []
        #: What the node lacks of the config after the changes; None if it was not compared.
        self.left: RoutePlan | None = None
        self._has_committed_files = False

    # --- decide

    def decide(self, state: str = "nothing was changed") -> None:
        """Read the node, and make the plan of its routes."""
        wanted, ctx = self.wanted, self.ctx
        self.forecaster = self._forecaster()
        plan_of = wanted.routes.plan_routes if wanted.changes_routes else lambda _: None
        if self.forecaster is None:
            routes = plan_of(at_one_moment(self._host)) if self._host.is_live else None
            self.plan = attrs.evolve(self.plan, routes=routes, forecast=Forecast())
            return
        with interruptible(ctx):
            self.forecaster.look()
            routes, forecast = self.forecaster.plan(plan_of)
        self.plan = attrs.evolve(self.plan, routes=routes, forecast=forecast)
        judge(ctx, forecast, state, self._log, force=wanted.force)

    def _forecaster(self) -> Forecaster | None:
        """Return what proves a plan; None if nothing is expected, or the run has changed routes."""
        wanted, ctx = self.wanted, self.ctx
        if not (self._host.is_live and wanted.is_judged) or self.run.transaction.changes:
            return None
        with interruptible(ctx):
            forecaster = Forecaster(ctx, wanted.config, self._host, earlier=wanted.earlier)
        return forecaster if forecaster.expects else None

    def decide_files(self) -> None:
        """Compare the boot files; raise if they cannot be installed, or a gate could never open."""
        parts = self.wanted.parts(self.plan.forecast)
        # A try of the routes alone installs nothing.
        files = self._boot.refuse_gates(self.ctx, *parts) if parts else []
        if parts and self._boot.is_installed:
            self._boot.refuse_unwritable(files)
        for found in self._boot.foreign(*parts):
            self._log.warning("%s", found.text, extra={"kind": found.kind})
        self.plan = attrs.evolve(self.plan, parts=parts, files=files)

    def decide_again(self) -> None:
        """Do so as another program, or this run, has changed the node."""
        if not self._host.is_live:
            return
        if self.run.transaction.changes or not self.forecaster:
            # The proof at the end counts for all changes of the run.
            self._node = at_one_moment(self._host)
            routes = self.wanted.routes.plan_routes(self._node)
            self.plan = attrs.evolve(self.plan, routes=routes)
        else:
            self.decide("the routes are as before")

    # --- carry out

    def carry_out(self, files: Work, routes: Work, prove: Callable[[str], None] | None) -> bool:
        """Bring the plan into force, and prove it; return False if the earlier config stays.

        On a node without any the files come first, and stay.
        """
        run, ctx = self.run, self.ctx
        state = "the earlier config is in force, live and for the next boot"
        is_kept = False
        if is_first := not run.is_installed:
            is_kept = self.commit_files(files, undone=_NOTHING)
            state = f"the routes are as before, and {_NOTHING}"
            if is_kept:
                state = "this config is installed for the next boot, and the routes are as before"
            elif run.failures and not run.has_undone_files:
                self._log.warning(_NOTHING)
        try:
            with run.undoing(lambda: state, always=is_kept):
                if is_first:
                    if self.plan.routes and self.plan.routes.changes:
                        run.hold_gates()
                    run.attempt(routes)
                else:
                    self._change_installed(files, routes)
                ctx.check()
                # Routes of a first apply come though its files have failed.
                if prove is not None and (run.transaction.changes or not run.failures):
                    prove(state)
                run.transaction.commit()
                run.is_committed = not run.failures
        finally:
            self._may_wait = True
            run.open_gates()
        is_undone = bool(run.failures) and not (run.is_committed or is_first)
        if not is_undone and self._rest:
            # An interrupt would leave files of both configs.
            self._is_cleaning = True
            run.attempt(files, ctx=ctx.shielded().child(SECONDS_TO_UNDO))
        return not is_undone

    def _change_installed(self, files: Work, routes: Work) -> None:
        routes(self.ctx)
        # From here on, each second is one in which gates wait.
        self._may_wait = False
        count = len(self.run.transaction.changes)
        files(self.ctx)
        # A gate that has just started may have run the earlier script, which restores the earlier
        # routes.
        if len(self.run.transaction.changes) > count:
            self.run.hold_gates()
            self.decide_again()
            routes(self.ctx)

    def commit_files(self, files: Work, *, undone: str) -> bool:
        """Install the files by themselves; return True if that has changed anything.

        They are undone if one of them could not be changed, or if the change was interrupted.
        """
        run = self.run
        with run.undoing(lambda: undone, always=True):
            run.attempt(files)
            causes = [cause for failure in run.failures for cause in failure.failures]
            run.has_undone_files = any(isinstance(cause, HostFileError) for cause in causes)
            if run.has_undone_files:
                run._undo(undone, always=True)
        is_changed = self._has_committed_files = bool(run.transaction.changes)
        run.transaction.commit()
        return is_changed

    def remove_files(self, files: Work, *, undone: str) -> None:
        """Remove all boot files at once, the departures, too."""
        self._removes_all = True
        self.commit_files(files, undone=undone)

    def install(self, ctx: Context) -> None:
        """Install the files of the plan; compare again if another program has changed one."""
        if self._is_cleaning:
            self._boot.install(ctx, *self.plan.parts, files=self._files, planned=self._rest)
            return
        self._files = self._files or self._boot.recorded(ctx)
        is_first = self._removes_all or not self.run.is_installed
        planned: Sequence[DiskStep] = self.plan.files
        if not is_first:
            # The files of the earlier config stay until the commit: an undo needs no space.
            if units_in(self.plan.parts):
                self._rest = [*filter(is_removal, planned)]
                planned = [step for step in planned if not is_removal(step)]
            if planned:
                self.run.hold_gates()
        while True:
            try:
                self._boot.install(
                    ctx, *self.plan.parts, files=self._files, planned=planned, removes=is_first
                )
            except FilesChangedError:
                ctx.check()
                planned = self._boot.refuse_gates(ctx, *self.plan.parts)
            else:
                return

    def settle(self, ctx: Context) -> None:
        """Make the planned changes of routes; decide again after a conflict, or a wait that helps."""
        section = self.wanted.config.static_routes
        ctx.check()
        if not self._host.is_live:
            return
        left = ctx.remaining()
        now = ctx.clock.monotonic
        seconds = max(0.0, self._until - now()) if self._may_wait else 0.0
        # Half of the caller's time: after a failure the boot files have yet to be installed.
        seconds = seconds if left is None else min(seconds, left / 2)
        until = now() + seconds
        conflicts = 0
        is_logged = False
        if self.plan.routes is None:
            self.decide_again()
        while True:
            plan = self.plan.routes
            try:
                self.wanted.routes.refuse_incomplete(plan.resolution, seconds)
                if plan.changes:
                    self.run.hold_gates()
                outcome = carry_out(ctx, plan, self._host, self._log, is_fresh=self._is_fresh(plan))
                if plan.changes:
                    self._made.append(plan)
                    self._node = None
                break
            except Conflict as error:
                conflicts += 1
                if conflicts == _PLANS:
                    raise always_changing(error) from None
            except BackendError as error:
                # A device may appear later, but not one with a misspelt name.
                if not error.may_heal or now() >= until:
                    raise
                if not is_logged:
                    reasons = plan.resolution.reasons
                    if isinstance(error, RouteRejectedError):
                        reasons = "; ".join(map(str, error.refusals))
                    begin_wait(ctx, self._log, reasons or str(error), seconds=seconds)
                    is_logged = True
                if not self.run.transaction.changes:
                    self.run.open_gates()
                ctx.sleep(min(1, until - now()))
            self.decide_again()
        log_consequences(outcome, self._log)
        changed = len(outcome.changes)
        self._log.info("routes changed: %d", changed, extra={"changed": changed})
        if not section.routes:
            self.wanted.routes.clean_up()

    def _is_fresh(self, plan: RoutePlan) -> bool:
        """True of a plan without changes, if this run has changed nothing since it was made."""
        is_untouched = not (self._has_committed_files or self.run.transaction.changes)
        return not plan.changes and (is_untouched or self._node is not None)

    # --- prove

    def prove(self, state: str) -> None:
        """Prove the node; raise `WorseRoutingError` if the run has made it worse.

        Raise `BackendError` if a change hides a connected route that came after its plan.
        """
        if not self.forecaster:
            return
        node = self._node or at_one_moment(self._host)
        if self.wanted.changes_routes and self._host.is_live:
            fresh = self._node is not None and self.plan.routes is not None
            left = self.plan.routes if fresh else self.wanted.routes.plan_routes(node)
            self.left = left
            made = {change.after for each in self._made for change in each.outcome.changes}
            known = {route for each in self._made for route in each.outcome.connected}
            if hidden := [
                own for route, own in left.outcome.connected.items() if route in made - known
            ]:
                raise BackendError(
                    f"the kernel's own route '{hidden[0]}' came meanwhile, and would be hidden"
                )
        with interruptible(self.ctx):
            now, look = self.forecaster.now(node, self.accepted)
        known = [each.fact for each in self.plan.forecast.worse]
        force = self.wanted.force
        judge(self.ctx, now, f"undone: {state}", self._log, known=known, force=force)
        self.look, self.node = look, node

    def accepted(self) -> StaticRoutesConfig:
        """Return the section without the routes that the kernel certainly refuses."""
        left = self.left or self.wanted.routes.plan_routes()
        return left.accepted

    @property
    def seconds_to_wait(self) -> float:
        """The seconds that the proof of the task may wait, after the commit."""
        return max(0.0, self._until - self.ctx.clock.monotonic())
