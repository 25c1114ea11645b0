"""Carry out a plan: change routes and files, check the node, and commit or undo.

A change is made only if the node is still as it was when the run decided. If another program has
changed it meanwhile, the run reads and decides again; the last of many attempts no longer compares.
So each step takes a plan, and returns the plan that it carried out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.apply.live import record
from hostrouting.apply.plan import NodePlan, Wanted, decide
from hostrouting.apply.run import CHECK, FILES, ROUTES, SECONDS_TO_UNDO
from hostrouting.base.conflicts import ConflictError, until_settled
from hostrouting.base.errors import BackendError, HostFileError
from hostrouting.base.waits import begin_wait
from hostrouting.boot.layout import LIVE_RECORD, STATE_DIRECTORY, WAITED, units_in
from hostrouting.boot.task import NOT_CONFIGURED, NOT_IN_IMAGE
from hostrouting.host.cached_routing import with_cached_routing
from hostrouting.net.addresses import IPV6
from hostrouting.net.rejected import RouteRejectedError
from hostrouting.net.routes import OUR_PROTOCOL, is_merged
from hostrouting.static_routes.converge import log_consequences, make_changes
from hostrouting.static_routes.entries import accepted
from hostrouting.static_routes.forecast import judge
from hostrouting.static_routes.plan import RoutePlan, plan_routes
from hostrouting.static_routes.refusals import why_merged
from hostrouting.static_routes.script import LOGGED
from phases.hosting import interruptible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.apply.run import Run
    from hostrouting.config.sections import StaticRoutesConfig
    from hostrouting.host import Host
    from hostrouting.net.routes import RouteChange
    from hostrouting.route_overlap.waiting import Checked
    from phases import Context

_NOTHING = "nothing is installed for the next boot"
_EARLIER = "the earlier config is in force, live and for the next boot"


class Settled(NamedTuple):
    """A plan whose routes are in force, and all changes that it took."""

    plan: NodePlan
    changes: tuple[RouteChange, ...] = ()


class LastCheck(NamedTuple):
    """The check that decided the commit."""

    checked: Checked
    #: The snapshot that was checked.
    node: Host
    #: The routes of the config that the node did not have.
    left: RoutePlan | None


class Made(NamedTuple):
    """The outcome of a plan."""

    #: False if the earlier config stays in force.
    is_kept: bool = True
    #: None if nothing was checked.
    last: LastCheck | None = None
    #: True if a first apply could not bring its routes into force.
    lacks_routes: bool = False
    #: True if a first apply could not write its files, and tried to undo them.
    has_undone_files: bool = False


@attrs.frozen(eq=False, repr=False)
class Apply:
    """One run: what it wants, and the node that it changes.

    An apply calls `decide` and `carry_out`. A reset calls `with_files` and `change_files`, then
    `settle`, because its files are committed before its routes are removed.
    """

    run: Run
    wanted: Wanted

    # --- decide

    def decide(self) -> NodePlan:
        """Read the node, and plan all changes; refuse those that make the node worse."""
        return self.with_files(self._with_routes(NodePlan(), "nothing was changed"))

    def _with_routes(self, old: NodePlan, state: str) -> NodePlan:
        """Plan the routes of the node as it is now, and judge them; keep the files of `old`."""
        run = self.run
        new = decide(run.ctx, self.wanted, run.host, is_shown=False)
        force = self.wanted.force
        judge(run.ctx, new.forecast, state, run.log, logged=old.forecast, force=force)
        return attrs.evolve(
            new, changes_before=run.count, parts=old.parts, files=old.files, rest=old.rest
        )

    def with_files(self, plan: NodePlan) -> NodePlan:
        """Return the plan with the steps that install the boot files.

        Raises if they cannot be installed, or if a gate could never open.
        """
        run = self.run
        run.ctx.check()
        parts = self.wanted.parts(plan.forecast)
        if not parts:
            return plan
        steps = run.boot.steps_to_install(run.ctx, *parts)
        if units_in(parts):
            run.boot.require_program(run.ctx, steps, force=self.wanted.force)
        if not run.is_first:
            run.boot.refuse_unwritable(steps)
        # Those where the config needs a file of its own were refused above.
        for found in run.boot.foreign(*parts):
            run.log.warning("%s", found.text, extra={"kind": found.kind})
        # The files of the earlier config stay until the commit, so an undo needs no space.
        stays_meanwhile = bool(units_in(parts)) and not run.is_first
        rest = [step for step in steps if stays_meanwhile and None in step.after.values()]
        files = [step for step in steps if step not in rest]
        return attrs.evolve(plan, parts=parts, files=files, rest=rest)

    def _again(self, plan: NodePlan) -> NodePlan:
        """Plan the routes of the node as it is now; judge them if there is nothing to undo yet."""
        run = self.run
        if not run.changes:
            return self._with_routes(plan, "the routes are as before")
        if not run.host.is_live:
            return plan
        # The check at the end judges all changes of the run.
        node = with_cached_routing(run.host)
        routes = self.wanted.routes_on(node)
        return attrs.evolve(plan, routes=routes, node=node, changes_before=run.count)

    def _is_fresh(self, plan: NodePlan) -> bool:
        """Return True if this run has changed nothing since the snapshot of a plan."""
        return plan.changes_before == self.run.count

    # --- carry out

    def carry_out(self, plan: NodePlan) -> Made:
        """Bring a plan into force, and check the node; commit, or go back to the earlier config.

        On a node without hostrouting, the files come first and stay, because a machine whose routes
        fail must not start at the next boot either. If a file cannot be written, they are undone,
        and `Configure` still tries the routes. Over an installed config, the routes come first, and
        everything is undone if any step fails, is interrupted, or makes an address worse. Nothing
        is undone after the commit.
        """
        run = self.run
        made = Made()
        state = _EARLIER
        if run.is_first:
            made, state = self._install_first(plan)
        try:
            with run.undoing(state, always=run.count > 0):
                if run.is_first:
                    settled = self._change_first(plan)
                    made = made._replace(lacks_routes=settled is None)
                else:
                    settled = self._change_installed(plan)
                run.ctx.check()
                # What a first apply has done is checked and kept, even if a part of it failed.
                if run.changes or not run.failures:
                    last = run.named(CHECK, partial(self._check, settled or Settled(plan), state))
                    made = made._replace(last=last)
                run.commit()
                run.is_complete = not run.failures
        finally:
            run.open_gates()
        if run.failures and not run.is_first:
            return made._replace(is_kept=False)
        if plan.rest:
            # Not interruptible: that would leave files of both configs.
            ctx = run.ctx.shielded().child(SECONDS_TO_UNDO)
            run.attempt(FILES, partial(self._install, plan, is_rest=True), ctx=ctx)
        return made

    def _install_first(self, plan: NodePlan) -> tuple[Made, str]:
        """Install the first files; return the outcome, and the state if the routes fail next."""
        run = self.run
        made = Made()
        if plan.parts:
            is_undone = not self.change_files(plan, undone=_NOTHING)
            made = made._replace(has_undone_files=is_undone)
        if run.count:
            return made, "this config is installed for the next boot, and the routes are as before"
        if run.failures and not made.has_undone_files:
            run.log.warning(_NOTHING)
        return made, f"the routes are as before, and {_NOTHING}"

    def change_files(self, plan: NodePlan, *, undone: str) -> bool:
        """Change all files and commit; return False if they were undone.

        They are undone if one of them could not be changed, or if the change was interrupted.
        """
        run = self.run
        with run.undoing(undone, always=True):
            run.attempt(FILES, partial(self._install, plan))
            causes = [cause for failure in run.failures for cause in failure.failures]
            is_undone = any(isinstance(cause, HostFileError) for cause in causes)
            if is_undone:
                run.undo(undone, always=True)
        run.commit()
        return not is_undone

    def _change_first(self, plan: NodePlan) -> Settled | None:
        """Change the routes of a first apply; return None if that failed."""
        # From here on, because a unit could start between the files and the first routes.
        if plan.routes is not None and plan.routes.changes:
            self.run.hold_gates()
        count = len(self.run.failures)
        settled = self.run.attempt(ROUTES, partial(self.settle, plan))
        return settled or (Settled(plan) if len(self.run.failures) == count else None)

    def _change_installed(self, plan: NodePlan) -> Settled:
        run = self.run
        settled = run.step(ROUTES, partial(self.settle, plan)) or Settled(plan)
        if not plan.parts:
            return settled
        count = run.count
        if plan.files:
            run.hold_gates()
        run.step(FILES, partial(self._install, settled.plan))
        # A gate that started before may have run the earlier script, which restores the earlier
        # routes.
        if run.count > count:
            # The files may have been right, but not read by systemd yet.
            run.hold_gates()
            new = self._again(settled.plan)
            # No waiting from here on, because gates wait for this run.
            again = run.step(ROUTES, partial(self.settle, new, waits=False)) or Settled(new)
            settled = Settled(again.plan, (*settled.changes, *again.changes))
        return settled

    def _install(self, plan: NodePlan, ctx: Context, *, is_rest: bool = False) -> None:
        """Install the planned files; plan them again if another program has changed one."""
        run = self.run
        recorded = run.boot.recorded(ctx)

        def take(plan: NodePlan, is_last: bool) -> None:
            steps = plan.rest if is_rest else plan.files
            if is_last:
                steps = [step._replace(before=None) for step in steps]
            # A machine requires an outdated unit through a link that is removed with the rest.
            stops_outdated = is_rest or run.is_first
            run.boot.install(
                ctx, *plan.parts, stops_outdated=stops_outdated, files=recorded, planned=steps
            )

        until_settled(plan, self.with_files, take)

    def settle(self, plan: NodePlan, ctx: Context, *, waits: bool = True) -> Settled:
        """Change the routes as planned; decide again after a conflict or a wait."""
        ctx.check()
        if not (self.run.host.is_live and self.wanted.has_routes):
            self.run.skip(NOT_IN_IMAGE, ctx)
            return Settled(plan)
        left = ctx.remaining()
        seconds = self.run.seconds if waits else 0.0
        # Half of the caller's time, because the boot files must still be installed after a failure.
        seconds = seconds if left is None else min(seconds, left / 2)
        until = ctx.clock.monotonic() + seconds
        is_logged = False
        # A reset has only planned its files.
        plan = plan if plan.routes else self._again(plan)
        while True:
            try:
                change = partial(self._change_routes, ctx, seconds)
                plan = until_settled(plan, self._again, change)
            except BackendError as error:
                # A device may appear later. A misspelt name, and a kernel without memory, are
                # reported at once; the caller may retry.
                if not error.may_heal or ctx.clock.monotonic() >= until:
                    raise
                if not is_logged:
                    begin_wait(ctx, self.run.log, _reasons(plan, error), seconds=seconds)
                    is_logged = True
            else:
                if not self.wanted.config.static_routes.routes:
                    self.run.skip(NOT_CONFIGURED, ctx)
                return Settled(plan, tuple(plan.routes.changes) if plan.routes else ())
            self.run.open_gates()
            # No longer, because the rest of the caller's time is for other tasks.
            ctx.sleep(min(1, until - ctx.clock.monotonic()))
            plan = self._again(plan)

    def _change_routes(self, ctx: Context, seconds: float, plan: NodePlan, is_last: bool) -> None:
        """Make exactly the changes of a plan.

        Directly before, the routes are read again and compared with its snapshot, except for the
        last of many conflicting plans.
        """
        run, routes = self.run, plan.routes
        if routes is None:
            return
        routes.refuse_incomplete(seconds)
        if routes.changes:
            run.hold_gates()
        is_compared = not is_last and (routes.changes or not self._is_fresh(plan))
        if is_compared and (changed := routes.changed_since(run.host.routes)):
            raise ConflictError(f"changed since the routes were planned: {changed}")
        if not run.host.has_boot:
            record(run.host, routes)
        make_changes(ctx, routes.outcome, run.host, run.log, is_last=is_last)
        log_consequences(routes.outcome, run.log)
        count = len(routes.changes)
        run.log.info("routes changed: %d", count, extra={"changed": count})
        if not self.wanted.config.static_routes.routes:
            run.host.files.remove(LIVE_RECORD)
            forget_boot(run.host, LOGGED)
            _refuse_merged(run.host)

    # --- check

    def _check(self, settled: Settled, state: str, ctx: Context) -> LastCheck | None:
        """Check the node; raise `WorseRoutingError` if the run has made it worse.

        `state` describes the node after the undo.
        """
        run, plan = self.run, settled.plan
        ahead = _ahead(settled.changes)
        if plan.forecaster is None and not ahead:
            return None
        # A snapshot from after the files is fresh; one from before them may be old.
        fresh = plan.node if run.count and self._is_fresh(plan) else None
        node = fresh or with_cached_routing(run.host)
        left = plan.routes if fresh else self.wanted.routes_on(node)
        if left is not None:
            left.refuse_hidden(ahead)
        if plan.forecaster is None:
            return None
        with interruptible(ctx):
            now, checked = plan.forecaster.now(node, partial(self.accepted, left))
        force = self.wanted.force
        judge(ctx, now, f"undone: {state}", run.log, logged=plan.forecast, force=force)
        return LastCheck(checked, node, left)

    def accepted(self, left: RoutePlan | None) -> StaticRoutesConfig:
        """Return the routes that the kernel does not refuse: an apply must accept them."""
        return accepted(left or plan_routes(self.wanted.config, self.run.host))


def _ahead(changes: Iterable[RouteChange]) -> list[RouteChange]:
    """Return the new routes that hide others with the same key."""
    return [change for change in changes if change.verb == "prepend" and change.before is None]


def _reasons(plan: NodePlan, error: BackendError) -> str:
    """Return why routes cannot be changed yet."""
    if isinstance(error, RouteRejectedError):
        return "; ".join(map(str, error.refusals))
    return (plan.routes.resolution.reasons if plan.routes is not None else "") or str(error)


def forget_boot(host: Host, logged: str) -> None:
    """Remove what a removed boot script has written to /run; `logged` has its last message."""
    for path in (WAITED, logged):
        host.files.remove(path)
    # With these files in it, the folder could not be removed before.
    host.files.remove_directory_if_empty(STATE_DIRECTORY)


def _refuse_merged(host: Host) -> None:
    """Raise for routes that cannot be removed by themselves."""
    if IPV6 in host.routes.families:
        own = host.routes.routes_of(OUR_PROTOCOL, IPV6)
        if left := [why_merged(route) for route in own if is_merged(route)]:
            raise BackendError("; ".join(left))
