"""The story of a run: read, decide, carry out, prove; commit or undo.

`decide` makes a plan by one reading of the node. `Story.carry_out` brings that plan into force:
each change is made only from the state by which it was decided. If that has changed meanwhile, the
run reads and decides again, and the last of many tries takes what it reads.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.apply.run import SECONDS_TO_UNDO
from hostrouting.base.conflicts import ConflictError, until_settled
from hostrouting.base.errors import BackendError, HostFileError
from hostrouting.base.waits import begin_wait
from hostrouting.boot.layout import STATE_DIRECTORY, WAITED, units_in
from hostrouting.host.reading import at_one_moment
from hostrouting.net.addresses import IPV6
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.net.routes import OUR_PROTOCOL, is_merged
from hostrouting.static_routes.converge import log_consequences, make_changes
from hostrouting.static_routes.entries import accepted, entries
from hostrouting.static_routes.forecast import Forecast, Forecaster, judge
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.static_routes.refusals import why_merged
from hostrouting.static_routes.script import LOGGED
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.apply.run import Run
    from hostrouting.boot.intent import Part
    from hostrouting.boot.recorded import DiskStep, RecordedFiles
    from hostrouting.config.sections import HostRoutingConfig, StaticRoutesConfig
    from hostrouting.host import Host
    from hostrouting.route_overlap.proven import OverlapReport
    from hostrouting.route_overlap.waiting import Checked
    from phases import Change, Context, Work

_NOTHING = "nothing is installed for the next boot"


def _no_parts(_forecast: Forecast) -> Sequence[Part]:
    return ()


class Wanted(NamedTuple):
    """What a run brings into force: all of a config, or the part of one task."""

    config: HostRoutingConfig
    #: Returns the boot files to install or remove, by a forecast.
    parts: Callable[[Forecast], Sequence[Part]] = _no_parts
    #: The config whose addresses count, too.
    earlier: HostRoutingConfig | None = None
    has_routes: bool = True
    #: False if its plan and its changes are not proven, though its config expects addresses.
    is_proven: bool = True
    #: True if what is worse degrades the run, and is not refused.
    force: bool = False


@attrs.frozen(eq=False, repr=False)
class NodePlan:
    """What a run changes on a node, by one reading, and what that means."""

    #: The changes of routes, and what they stand on; None if the run leaves them alone.
    routes: RoutePlan | None = None
    #: The proof of the node with them.
    forecast: Forecast = attrs.field(factory=Forecast)
    #: Proves the node after them; None if it is not proven.
    forecaster: Forecaster | None = None
    #: The reading.
    node: Host | None = None
    #: What the boot files are made of; the steps to them, and those that follow the commit.
    parts: Sequence[Part] = ()
    files: Sequence[DiskStep] = ()
    rest: Sequence[DiskStep] = ()

    @property
    def entries(self) -> list[Change]:
        """The changes of routes as entries of a report."""
        return entries(self.routes) if self.routes is not None else []


def decide(ctx: Context, wanted: Wanted, host: Host, *, is_shown: bool = True) -> NodePlan:
    """Read a node, and return the plan of its routes; change nothing, and do not wait.

    A plan that is carried out has the proof of the node as it is, too, and none where nothing is
    expected: a dump of all routes would be a waste.
    """
    # Nothing is proven in an image.
    if not host.is_live:
        return NodePlan()
    with interruptible(ctx):
        forecaster = None
        if wanted.is_proven:
            forecaster = Forecaster(ctx, wanted.config, host, earlier=wanted.earlier)
        node = at_one_moment(host) if forecaster is None else forecaster.node
        routes = _routes_of(wanted, node)
        if forecaster is None or not (is_shown or forecaster.expects):
            return NodePlan(routes, node=node)
        if not is_shown:
            forecaster.look()
        return NodePlan(routes, forecaster.of(routes), forecaster, node)


def _routes_of(wanted: Wanted, node: Host) -> RoutePlan | None:
    return plan_routes(wanted.config, node) if wanted.has_routes else None


def _directly(work: Work) -> Work:
    return work


class Ways(NamedTuple):
    """How the parts of a run are done.

    Directly, an error of a part is raised. As a step of the report of `Configure` a part is left
    out, or fails with a `TaskFailedError`, which a run keeps.
    """

    files: Callable[[Work], Work] = _directly
    routes: Callable[[Work], Work] = _directly
    proof: Callable[[Work], Work] = _directly


class Story:
    """One run: what it wants, its plan, and how that comes into force.

    An apply takes `decide` and `carry_out`. A reset takes `decide_files` and `change_files`, and
    `settle` later: its files are committed before its routes go.
    """

    def __init__(self, wanted: Wanted, run: Run) -> None:
        self.wanted = wanted
        self.run = run
        self.plan: NodePlan = NodePlan()
        #: True if a first apply could not write its files, and their undo was tried.
        self.has_undone_files: bool = False
        #: The number of changes of this run before its reading.
        self._changes_before = 0
        #: The plans of which routes were changed.
        self._made: list[RoutePlan] = []
        self._files: RecordedFiles | None = None
        #: The last proof, and the reading of which it was made; None if it was not.
        self.look: Checked | None = None
        self.node: Host | None = None
        #: What the node lacked of the config then.
        self.left: RoutePlan | None = None
        #: The proof of the report.
        self.overlap: OverlapReport | None = None

    # --- decide

    def decide(self) -> None:
        """Read the node, and plan all changes; refuse those that make the node worse."""
        self._decide_routes("nothing was changed")
        self.decide_files()

    def _decide_routes(self, state: str) -> None:
        run = self.run
        self._changes_before = run.count
        new = decide(run.ctx, self.wanted, run.host, is_shown=False)
        old = self.plan
        self.plan = attrs.evolve(new, parts=old.parts, files=old.files, rest=old.rest)
        force = self.wanted.force
        judge(run.ctx, new.forecast, state, run.log, logged=old.forecast, force=force)

    def decide_files(self) -> NodePlan:
        """Compare the boot files; raise if they cannot be installed, or a gate could never open."""
        run = self.run
        run.ctx.check()
        parts = self.wanted.parts(self.plan.forecast)
        if not parts:
            return self.plan
        steps = run.boot.steps_to_install(run.ctx, *parts)
        if units_in(parts):
            run.boot.require_program(run.ctx, steps, force=self.wanted.force)
        if not run.is_first:
            run.boot.refuse_unwritable(steps)
        # A file in a place that the config needs was refused above.
        for found in run.boot.foreign(*parts):
            run.log.warning("%s", found.text, extra={"kind": found.kind})
        # The files of the earlier config stay until the commit: an undo needs no space.
        stays_meanwhile = bool(units_in(parts)) and not run.is_first
        rest = [step for step in steps if stays_meanwhile and None in step.after.values()]
        files = [step for step in steps if step not in rest]
        self.plan = attrs.evolve(self.plan, parts=parts, files=files, rest=rest)
        return self.plan

    def _decide_again(self) -> RoutePlan | None:
        """Plan the routes of the node as it is now; judge them while there is nothing to undo."""
        run = self.run
        if not run.changes:
            self._decide_routes("the routes are as before")
        elif run.host.is_live:
            # The proof at the end counts for all changes of the run.
            self._changes_before = run.count
            node = at_one_moment(run.host)
            self.plan = attrs.evolve(self.plan, routes=_routes_of(self.wanted, node), node=node)
        return self.plan.routes

    @property
    def _is_fresh(self) -> bool:
        """True if this run has changed nothing since the reading of the plan."""
        return self._changes_before == self.run.count

    # --- carry out

    def carry_out(self, ways: Ways) -> bool:
        """Bring the plan into force, and prove it; return False if the earlier config stays.

        After a first apply verdict and siblings follow, even if a part of it has failed.

        On a node without hostrouting the files come first, and stay: if the routes fail, the
        machine must not start at the next boot either. They are undone if one cannot be written,
        and `Configure` tries the routes all the same. Over an installed config the routes come
        first, and all is undone if any part fails, is interrupted or is proven worse. After the
        commit nothing is undone.
        """
        run = self.run
        state = "the earlier config is in force, live and for the next boot"
        if run.is_first:
            state = self._install_first(ways)
        try:
            with run.undoing(state, always=run.count > 0):
                if run.is_first:
                    # From here on: a unit could start between the files and the first batch.
                    if self.plan.routes is not None and self.plan.routes.changes:
                        run.hold_gates()
                    run.attempt(ways.routes(self.settle))
                else:
                    self._change_installed(ways)
                run.ctx.check()
                # What a first apply has done is proven and kept, though a part of it has failed.
                if run.changes or not run.failures:
                    ways.proof(partial(self._prove, state))(run.ctx)
                run.commit()
                run.is_complete = not run.failures
        finally:
            run.open_gates()
        if run.failures and not run.is_first:
            return False
        if self.plan.rest:
            # An interrupt would leave files of both configs.
            ctx = run.ctx.shielded().child(SECONDS_TO_UNDO)
            run.attempt(ways.files(partial(self._install, is_rest=True)), ctx=ctx)
        return True

    def _install_first(self, ways: Ways) -> str:
        """Install the files on a node without any; return its state as long as routes may fail."""
        run = self.run
        if self.plan.parts:
            self.has_undone_files = not self.change_files(ways, undone=_NOTHING)
        if run.count:
            return "this config is installed for the next boot, and the routes are as before"
        if run.failures and not self.has_undone_files:
            run.log.warning(_NOTHING)
        return f"the routes are as before, and {_NOTHING}"

    def change_files(self, ways: Ways, *, undone: str) -> bool:
        """Change all files by themselves, and commit; return False if they were undone.

        They are undone if one of them could not be changed, or if the change was interrupted.
        """
        run = self.run
        with run.undoing(undone, always=True):
            run.attempt(ways.files(self._install))
            causes = [cause for failure in run.failures for cause in failure.failures]
            is_undone = any(isinstance(cause, HostFileError) for cause in causes)
            if is_undone:
                run.undo(undone, always=True)
        run.commit()
        return not is_undone

    def _change_installed(self, ways: Ways) -> None:
        run = self.run
        ways.routes(self.settle)(run.ctx)
        if not self.plan.parts:
            return
        count = run.count
        if self.plan.files:
            run.hold_gates()
        ways.files(self._install)(run.ctx)
        # A gate that has just started may have run the earlier script, which restores the earlier
        # routes.
        if run.count > count:
            # systemd had not read files that are right.
            run.hold_gates()
            self._decide_again()
            # From here on, each second is one in which gates wait.
            ways.routes(partial(self.settle, waits=False))(run.ctx)

    def _install(self, ctx: Context, *, is_rest: bool = False) -> None:
        """Install the planned files; compare again if another program has changed one."""
        run = self.run
        self._files = self._files or run.boot.recorded(ctx)

        def take(plan: NodePlan, is_last: bool) -> None:
            steps = plan.rest if is_rest else plan.files
            if is_last:
                steps = [step._replace(before=None) for step in steps]
            # A machine requires an outdated unit by a link that goes with the rest.
            stops_outdated = is_rest or run.is_first
            run.boot.install(
                ctx, *plan.parts, stops_outdated=stops_outdated, files=self._files, planned=steps
            )

        until_settled(self.plan, self.decide_files, take)

    def settle(self, ctx: Context, *, waits: bool = True) -> None:
        """Change the routes as planned; decide again after a conflict, or a wait that helps."""
        ctx.check()
        if not (self.run.host.is_live and self.wanted.has_routes):
            return
        left = ctx.remaining()
        seconds = self.run.seconds if waits else 0.0
        # Half of the caller's time: after a failure the boot files have yet to be installed.
        seconds = seconds if left is None else min(seconds, left / 2)
        until = ctx.clock.monotonic() + seconds
        is_logged = False
        # A reset has decided its files alone.
        plan = self.plan.routes or self._decide_again()
        while True:
            try:
                until_settled(plan, self._decide_again, partial(self._change_routes, ctx, seconds))
            except BackendError as error:
                # A device may appear later, but not one with a misspelt name: that is reported at
                # once, and so is a kernel without memory, though the caller may try again.
                if not error.may_heal or ctx.clock.monotonic() >= until:
                    raise
                if not is_logged:
                    begin_wait(ctx, self.run.log, self._reasons(error), seconds=seconds)
                    is_logged = True
            else:
                return
            self.run.open_gates()
            # No longer: the rest of the caller's time is for other tasks.
            ctx.sleep(min(1, until - ctx.clock.monotonic()))
            plan = self._decide_again()

    def _change_routes(
        self, ctx: Context, seconds: float, plan: RoutePlan | None, is_last: bool
    ) -> None:
        """Make exactly the changes of a plan.

        The routes are read once more directly before, and compared. The last of many conflicting
        plans is not: as its reading was, so be it.
        """
        run = self.run
        if plan is None:
            return
        plan.refuse_incomplete(seconds)
        if plan.changes:
            run.hold_gates()
        is_compared = not is_last and (plan.changes or not self._is_fresh)
        if is_compared and (changed := plan.changed_since(run.host.routes)):
            raise ConflictError(f"changed since the routes were planned: {changed}")
        make_changes(ctx, plan.outcome, run.host, run.log, is_last=is_last)
        if plan.changes:
            self._made.append(plan)
        log_consequences(plan.outcome, run.log)
        count = len(plan.changes)
        run.log.info("routes changed: %d", count, extra={"changed": count})
        if not self.wanted.config.static_routes.routes:
            forget_boot(run.host, LOGGED)
            _refuse_merged(run.host)

    def _reasons(self, error: BackendError) -> str:
        """Return why routes cannot be changed yet."""
        if isinstance(error, RouteRejectedError):
            return "; ".join(map(str, error.refusals))
        routes = self.plan.routes
        return (routes.resolution.reasons if routes is not None else "") or str(error)

    # --- prove

    def _prove(self, state: str, ctx: Context) -> None:
        """Prove the node; raise `WorseRoutingError` if the run has made it worse.

        `state` is that in which the undo leaves the node.
        """
        run, plan = self.run, self.plan
        made = chain.from_iterable(each.changes for each in self._made)
        # New routes ahead of the others of their places, which they hide.
        ahead = [change for change in made if change.verb == "prepend" and change.before is None]
        if plan.forecaster is None and not ahead:
            return
        # The reading of a plan after the files is of this moment. One before them may be old.
        fresh = plan.node if run.count and self._is_fresh else None
        node = fresh or at_one_moment(run.host)
        self.left = plan.routes if fresh else _routes_of(self.wanted, node)
        if self.left is not None:
            self.left.refuse_hidden(ahead)
        if plan.forecaster is None:
            return
        with interruptible(ctx):
            now, look = plan.forecaster.now(node, self.accepted)
        force = self.wanted.force
        judge(ctx, now, f"undone: {state}", run.log, logged=plan.forecast, force=force)
        self.look, self.node = look, node

    def accepted(self) -> StaticRoutesConfig:
        """Return the routes without those that the kernel refuses: an apply must accept them."""
        return accepted(self.left or plan_routes(self.wanted.config, self.run.host))


def forget_boot(host: Host, logged: str) -> None:
    """Remove what a boot script, which is gone, has written to /run: `logged` has its last text."""
    for path in (WAITED, logged):
        host.files.remove(path)
    # These files kept Boot from removing the folder.
    host.files.remove_directory_if_empty(STATE_DIRECTORY)


def _refuse_merged(host: Host) -> None:
    """Raise for routes that cannot be removed by themselves."""
    if IPV6 in host.routes.families:
        own = host.routes.routes_of(OUR_PROTOCOL, IPV6)
        if left := [why_merged(route) for route in own if is_merged(route)]:
            raise BackendError("; ".join(left))
