"""The kernel's routes become those that are wanted, beside programs that change the same places.

Read, reconcile, write down, apply; and again where another program was faster, or where ours was put before routes of
others, which are displaced only when it stands there.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.exceptions import BackendError, HostFileError, Refusal, RouteRejectedError
from hostrouting.net.routes import OUR_PROTOCOL, place, signature
from hostrouting.static_routes.account import RouteAccount, ours_by_place
from hostrouting.static_routes.displaced import RECORDS_PATH, read_records, set_damaged_aside, write_records
from hostrouting.static_routes.reconcile import GivenUp, reconcile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostrouting.host import Host, ObservedRoute, Route, RouteChange
    from hostrouting.net.routes import Place
    from hostrouting.static_routes.reconcile import Reconciliation, WayBack
    from phases import Context

__all__ = ["ChangesRefusedError", "Convergence", "restorable"]

#: Refusals that another program's change brings about.
_CONFLICTS: Final = frozenset({errno.EEXIST, errno.ESRCH, errno.ENOENT})
#: How often the routes are read before a program that changes the same places all the time has won.
_READINGS: Final = 24


class ChangesRefusedError(Exception):
    """The kernel refused changes of `outcome`, and not since another program was faster."""

    def __init__(self, error: RouteRejectedError, outcome: Reconciliation) -> None:
        self.error = error
        self.outcome = outcome
        super().__init__(str(error))


@attrs.define
class _State:
    """How far a run has come."""

    #: What has yet to come back, as of the changes that were made.
    records: list[ObservedRoute]
    prepended: Mapping[Place, tuple[ObservedRoute, ...]] = attrs.field(factory=dict)
    #: Routes whose owners take them for replaced, and that could not be removed yet.
    stale: list[ObservedRoute] = attrs.field(factory=list)
    #: Those of `records` that stand again: one that is gone at the next reading its owner has deleted.
    returned: set[ObservedRoute] = attrs.field(factory=set)
    #: Routes that the kernel does not take back now; they stay on record.
    waiting: list[ObservedRoute] = attrs.field(factory=list)
    told: list[GivenUp] = attrs.field(factory=list)
    changed: int = 0
    #: Ours as they were, to go back to.
    ours: list[ObservedRoute] = attrs.field(factory=list)


class Convergence:
    """One run over the routes of a live machine."""

    def __init__(self, host: Host, logger: logging.Logger) -> None:
        self._host = host
        self._routes = host.routes
        self._files = host.files
        self._logger = logger

    def run(self, ctx: Context, desired: Sequence[Route]) -> None:
        """Make our routes exactly these, restore displaced routes whose place is free again, and record the changes."""
        recorded = read_records(self._files)
        if recorded.damage:
            self._logger.warning("%s", set_damaged_aside(self._files, recorded))
        kept, lost = restorable(recorded.routes, (link.name for link in self._routes.links()))
        state = _State(kept, told=lost)
        try:
            self._bring_about(desired, state)
        except (BackendError, ChangesRefusedError) as error:
            refused = error.error if isinstance(error, ChangesRefusedError) else error
            if state.changed or state.prepended:
                self._take_back(state, refused)
            elif not isinstance(refused, RouteRejectedError) or refused.rolled_back:
                self._keep(recorded.routes)
            if isinstance(refused, RouteRejectedError) and not refused.rolled_back:
                with suppress(BackendError):
                    self._record(ctx, state, ours_by_place(self._routes.routes()), recorded.routes)
            raise
        self._logger.info("%d routes changed", state.changed, extra={"changed": state.changed})
        self._record(ctx, state, {place(route): route for route in desired}, recorded.routes)
        self._tell(desired, recorded.routes, state)
        write_records(self._files, [*state.records, *state.waiting])

    def _record(
        self,
        ctx: Context,
        state: _State,
        after: Mapping[Place, Route | ObservedRoute],
        recorded: Sequence[ObservedRoute],
    ) -> None:
        """Record what stands now and did not before, with one inverse for all of it."""
        displaced = [route for route in state.records if route not in recorded]
        restored = [route for route in recorded if route in state.returned]
        account = RouteAccount(state.ours, after, displaced=displaced, restored=restored)

        def undo(ctx: Context) -> None:
            with self._host.lock.hold(ctx) as held:
                wanted, altered = account.reversed(self._routes.routes())
                for route in altered:
                    self._logger.warning("route '%s' changed since this run; it stays as it is now", route)
                Convergence(self._host, self._logger).run(held, wanted)

        for change in account.changes():
            ctx.record(change, undo=undo)

    def _bring_about(self, desired: Sequence[Route], state: _State) -> None:
        """Read and change until nothing is left to do."""
        for reading in range(_READINGS):
            observed = self._routes.routes()
            if not reading:
                state.ours = [route for route in observed if route.protocol == OUR_PROTOCOL]
            outcome = self._reconciled(desired, observed, state)
            if reading and not outcome.all_changes:
                self._accept(outcome, state)
                return
            # Before anything is displaced: a run that is killed in between can be undone all the same.
            write_records(self._files, list(dict.fromkeys([*outcome.safeguard, *state.waiting])))
            try:
                # Where ours was put before others the next reading tells what became of it.
                self._routes.apply(outcome.changes, verify=not outcome.prepended)
            except RouteRejectedError as error:
                state.stale = list(outcome.stale.values())
                state.prepended = {**state.prepended, **_taken_from_us(error, outcome)}
                if not _is_overtaken(error, outcome):
                    raise ChangesRefusedError(error, outcome) from error
                continue
            self._accept(outcome, state)
            # Read again also after routes were displaced: meanwhile ours may have been taken for one of them.
            if not (outcome.prepended or outcome.ways_back or outcome.clearings):
                return
        self._settle_for(desired, state)

    @staticmethod
    def _reconciled(desired: Sequence[Route], observed: Sequence[ObservedRoute], state: _State) -> Reconciliation:
        if state.returned:
            there = {(route.network, signature(route)) for route in observed}
            deleted = {record for record in state.returned if (record.network, signature(record)) not in there}
            state.records = [route for route in state.records if route not in deleted]
            state.returned -= deleted
        return reconcile(desired, observed, displaced=state.records, prepended=state.prepended, stale=state.stale)

    def _accept(self, outcome: Reconciliation, state: _State) -> None:
        """The changes are made: the rest is, place by place."""
        self._count(outcome.changes, state)
        state.records = list(outcome.records)
        state.prepended, state.stale = outcome.prepended, []
        state.told += outcome.given_up
        for way in outcome.ways_back:
            self._return(way, outcome, state)
        for change in outcome.clearings:
            displaced = outcome.displaced.get(change, ())
            try:
                self._routes.apply([change], verify=False)
            except RouteRejectedError as error:
                if error.errno != errno.ESRCH:
                    raise
                # Its owner was faster: nothing of it is to come back.
                state.records = [route for route in state.records if route not in displaced]
            else:
                self._count([change], state)
            # It is we who took it away: that it does not stand is no news of its owner.
            state.returned.difference_update(displaced)

    def _count(self, changes: Sequence[RouteChange], state: _State) -> None:
        """These are made."""
        state.changed += len(changes)
        if self._logger.isEnabledFor(logging.DEBUG):
            for change in changes:
                self._logger.debug("%s", change)

    def _return(self, way: WayBack, outcome: Reconciliation, state: _State) -> None:
        """Bring one place back; where that is refused, the next reading tells what is left to do."""
        try:
            self._routes.apply(way.changes, verify=False)
        except RouteRejectedError as error:
            if not error.rolled_back:
                self._count(way.changes, state)
                state.records += way.recorded
                raise
            coming_back = {
                str(change): outcome.put_back[change] for change in way.changes if change in outcome.put_back
            }
            # What stood there for a moment, and was taken away before we could, its owner has deleted.
            without = [coming_back[change] for change in error.overtaken if change in coming_back]
            for refusal in error.refusals:
                if refusal.errno in _CONFLICTS or refusal.change not in coming_back:
                    continue
                # What others had must not hold up what is ours: without it, then.
                record = coming_back[refusal.change]
                without.append(record)
                state.waiting.append(record)
                state.told.append(
                    GivenUp(
                        record, f"{refusal.reason}. It stays on record in {RECORDS_PATH}, and is tried again by reset"
                    )
                )
            state.records += [route for route in way.recorded if route not in without]
            return
        self._count(way.changes, state)
        state.records += way.recorded
        state.returned |= {outcome.put_back[change] for change in way.changes if change in outcome.put_back}

    def _settle_for(self, desired: Sequence[Route], state: _State) -> None:
        """The readings are used up: accept what stands, if ours stands first, or fail."""
        outcome = self._reconciled(desired, self._routes.routes(), state)
        lacking = [change for change in (*outcome.changes, *outcome.put_back) if change.after is not None]
        if lacking:
            refusals = [
                Refusal(
                    str(change), errno.EEXIST, f"another program changes this place all the time{_by(outcome, change)}"
                )
                for change in lacking
            ]
            raise ChangesRefusedError(RouteRejectedError(refusals, rolled_back=True), outcome)
        for change in outcome.changes:
            # Removals of ours that other programs took away meanwhile.
            with suppress(RouteRejectedError):
                self._routes.apply([change])
        self._accept(outcome, state)

    def _take_back(self, state: _State, error: BackendError) -> None:
        """Make ours what they were; where that fails, `error` says so, and what is on record stays there."""
        back = attrs.evolve(state, changed=0)
        try:
            # The last one wins: of several in one place the first decides.
            self._bring_about([route.to_route() for route in reversed(state.ours)], back)
            self._keep([*back.records, *back.waiting])
        except (BackendError, HostFileError, ChangesRefusedError) as second:
            self._logger.warning("what was changed before the refusal could not be taken back: %s", second)
            # What stands again is its owner's alone, who may delete it before the next run.
            self._keep([route for route in (*back.records, *back.waiting) if route not in back.returned])
            if isinstance(error, RouteRejectedError):
                error.rolled_back = False
                reasons = second.error.refusals if isinstance(second, ChangesRefusedError) else [second]
                error.left_behind += [f"could not be taken back: {reason}" for reason in reasons]

    def _keep(self, records: Sequence[ObservedRoute]) -> None:
        try:
            write_records(self._files, records)
        except HostFileError as error:
            # The next run finds those routes in their places; and what went wrong first matters more.
            self._logger.warning("%s", error)

    def _tell(self, desired: Sequence[Route], recorded: Sequence[ObservedRoute], state: _State) -> None:
        wanted = {place(route): route for route in desired}
        for route in state.records:
            if route not in recorded and place(route) in wanted:
                self._logger.warning(
                    "route '%s' of somebody else is displaced by '%s'; it comes back when ours goes",
                    route,
                    wanted[place(route)],
                    extra={"displaced": str(route), "route": str(wanted[place(route)])},
                )
        for route, reason in state.told:
            if route not in recorded:
                continue  # It was displaced for a moment within this run.
            self._logger.warning("route '%s', which we had displaced, is not put back: %s", route, reason)


def _taken_from_us(error: RouteRejectedError, outcome: Reconciliation) -> dict[Place, tuple[ObservedRoute, ...]]:
    """The places where another program has replaced ours, and what stood behind it."""
    behind: dict[Place, tuple[ObservedRoute, ...]] = {}
    absent = {refusal.change for refusal in error.refusals if refusal.errno == errno.ESRCH}
    for change in outcome.changes:
        if change.after is not None and str(change) in error.overtaken:
            spot = place(change.after)
            behind[spot] = outcome.prepended.get(spot, ())
        elif change.after is None and change.before is not None and str(change) in absent:
            spot = place(change.before)
            behind[spot] = outcome.hidden.get(spot, ())
    return {spot: routes for spot, routes in behind.items() if routes}


def _is_overtaken(error: RouteRejectedError, outcome: Reconciliation) -> bool:
    """Whether nothing but another program's changes stood against ours, so that it helps to read again."""
    hopeless = {str(change) for change in outcome.in_the_way}
    return error.rolled_back and all(
        refusal.errno in _CONFLICTS and refusal.change not in hopeless for refusal in error.refusals
    )


def restorable(records: Sequence[ObservedRoute], devices: Iterable[str]) -> tuple[list[ObservedRoute], list[GivenUp]]:
    """Of displaced routes those that can come back, and those whose device has gone."""
    kept: list[ObservedRoute] = []
    lost: list[GivenUp] = []
    names = set(devices) if records else set()
    for record in records:
        gone = sorted({*record.devs} - names)
        if gone:
            lost.append(GivenUp(record, f"there is no device {', '.join(gone)} any more"))
        else:
            kept.append(record)
    return kept, lost


def _by(outcome: Reconciliation, change: object) -> str:
    routes = outcome.displaced.get(change, ())  # type: ignore[call-overload]
    return f"; last it had '{routes[0]}'" if routes else ""
