"""Bring the kernel's routes to the wanted ones while other programs change the same places.

Read, reconcile, record, apply; and repeat where another program was faster, or where our route was added before foreign
ones, which are displaced only once it is there.
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

#: Refusals that another program's change may cause.
_CONFLICTS: Final = frozenset({errno.EEXIST, errno.ESRCH, errno.ENOENT})
#: The number of readings after which a program that keeps changing the same places has won.
_READINGS: Final = 24


class ChangesRefusedError(Exception):
    """The kernel refused changes of `outcome`, for another reason than a faster program."""

    def __init__(self, error: RouteRejectedError, outcome: Reconciliation) -> None:
        self.error = error
        self.outcome = outcome
        super().__init__(str(error))


@attrs.define
class _State:
    """The progress of a run."""

    #: The routes that are displaced after the changes made so far.
    records: list[ObservedRoute]
    prepended: Mapping[Place, tuple[ObservedRoute, ...]] = attrs.field(factory=dict)
    #: Routes that their owners believe replaced, and that could not be removed yet.
    stale: list[ObservedRoute] = attrs.field(factory=list)
    #: Restored routes of `records`: one that is gone at the next reading was deleted by its owner.
    returned: set[ObservedRoute] = attrs.field(factory=set)
    #: Routes that the kernel refuses to restore now; their records stay.
    waiting: list[ObservedRoute] = attrs.field(factory=list)
    told: list[GivenUp] = attrs.field(factory=list)
    changed: int = 0
    #: Our routes before the run, for a rollback; None before the first reading.
    ours: list[ObservedRoute] | None = None


class Convergence:
    """One run on the routes of a live machine."""

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
            self._converge(desired, state)
        except (BackendError, HostFileError, ChangesRefusedError) as error:
            refused = error.error if isinstance(error, ChangesRefusedError) else error
            if state.changed or state.prepended:
                self._roll_back(state, refused)
            elif not isinstance(refused, RouteRejectedError) or refused.rolled_back:
                self._keep(recorded.routes)
            self._record_rest(ctx, state, recorded.routes)
            raise
        except BaseException:
            # An interrupt: nothing is certain but what another reading shows.
            self._record_rest(ctx, state, recorded.routes)
            raise
        self._logger.info("%d routes changed", state.changed, extra={"changed": state.changed})
        self._record(ctx, state, {place(route): route for route in desired}, recorded.routes)
        self._tell(desired, recorded.routes, state)
        write_records(self._files, [*state.records, *state.waiting])

    def _record_rest(self, ctx: Context, state: _State, recorded: Sequence[ObservedRoute]) -> None:
        """Record the changes of a run that failed, as far as they are still in force."""
        if state.ours is not None:
            with suppress(BackendError):
                self._record(ctx, state, ours_by_place(self._routes.routes()), recorded)

    def _record(
        self,
        ctx: Context,
        state: _State,
        after: Mapping[Place, Route | ObservedRoute],
        recorded: Sequence[ObservedRoute],
    ) -> None:
        """Record the new state if it differs from the earlier one, with one inverse for all changes."""
        displaced = [route for route in state.records if route not in recorded]
        restored = [route for route in recorded if route in state.returned]
        account = RouteAccount(state.ours or (), after, displaced=displaced, restored=restored)

        def undo(ctx: Context) -> None:
            with self._host.lock.hold(ctx) as held:
                wanted, altered = account.reversed(self._routes.routes())
                for route in altered:
                    self._logger.warning("route '%s' changed since this run; it stays as it is now", route)
                Convergence(self._host, self._logger).run(held, wanted)

        for change in account.changes():
            ctx.record(change, undo=undo)

    def _converge(self, desired: Sequence[Route], state: _State) -> None:
        """Read and change until nothing is left to change."""
        for reading in range(_READINGS):
            observed = self._routes.routes()
            if not reading:
                state.ours = [route for route in observed if route.protocol == OUR_PROTOCOL]
            outcome = self._reconciled(desired, observed, state)
            if reading and not outcome.all_changes:
                self._accept(outcome, state)
                return
            # Before anything is displaced: `reset` can then restore it even if this run is killed.
            write_records(self._files, list(dict.fromkeys([*outcome.safeguard, *state.waiting])))
            try:
                # If ours was added before foreign routes, the next reading shows the result.
                self._routes.apply(outcome.changes, verify=not outcome.prepended)
            except RouteRejectedError as error:
                state.stale = list(outcome.stale.values())
                state.prepended = {**state.prepended, **_taken_from_us(error, outcome)}
                if not _is_overtaken(error, outcome):
                    raise ChangesRefusedError(error, outcome) from error
                continue
            self._accept(outcome, state)
            # Read again after routes were displaced, too: their owner may have replaced ours meanwhile.
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
        """Note the changes that were made, and make the rest, place by place."""
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
                # Its owner was faster: it is not to be restored.
                state.records = [route for route in state.records if route not in displaced]
            else:
                self._count([change], state)
            # We removed it: its absence says nothing about its owner.
            state.returned.difference_update(displaced)

    def _count(self, changes: Sequence[RouteChange], state: _State) -> None:
        """Count changes that were made."""
        state.changed += len(changes)
        if self._logger.isEnabledFor(logging.DEBUG):
            for change in changes:
                self._logger.debug("%s", change)

    def _return(self, way: WayBack, outcome: Reconciliation, state: _State) -> None:
        """Restore one place; after a refusal the next reading shows the rest."""
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
            # A route that was there for a moment was deleted by its owner.
            without = [coming_back[change] for change in error.overtaken if change in coming_back]
            for refusal in error.refusals:
                if refusal.errno in _CONFLICTS or refusal.change not in coming_back:
                    continue
                # A foreign route must not block ours: go on without it.
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
        """After the last reading: accept the state if ours comes first in each place, or fail."""
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
            # Other programs may have removed ours meanwhile.
            with suppress(RouteRejectedError):
                self._routes.apply([change])
        self._accept(outcome, state)

    def _roll_back(self, state: _State, error: BackendError | HostFileError) -> None:
        """Make our routes as they were; if that fails, `error` says so, and the records stay."""
        # Routes that this run has restored are displaced again.
        returned = {place(route): (route,) for route in state.returned}
        back = attrs.evolve(state, changed=0, prepended={**state.prepended, **returned})
        try:
            # The last one wins: of several routes in one place the first decides.
            self._converge([route.to_route() for route in reversed(state.ours or ())], back)
            self._keep([*back.records, *back.waiting])
        except (BackendError, HostFileError, ChangesRefusedError) as second:
            self._logger.warning("the changes before the refusal could not be rolled back: %s", second)
            # A restored route belongs to its owner, which may delete it before the next run.
            self._keep([route for route in (*back.records, *back.waiting) if route not in back.returned])
            if isinstance(error, RouteRejectedError):
                error.rolled_back = False
                reasons = second.error.refusals if isinstance(second, ChangesRefusedError) else [second]
                error.left_behind += [f"could not be rolled back: {reason}" for reason in reasons]

    def _keep(self, records: Sequence[ObservedRoute]) -> None:
        try:
            write_records(self._files, records)
        except HostFileError as error:
            # The next run finds those routes in their places; and the first error matters more.
            self._logger.warning("%s", error)

    def _tell(self, desired: Sequence[Route], recorded: Sequence[ObservedRoute], state: _State) -> None:
        displaced = [route for route in state.records if route not in recorded]
        wanted = {place(route): route for route in desired} if displaced else {}
        for route in displaced:
            if place(route) in wanted:
                self._logger.warning(
                    "foreign route '%s' is displaced by '%s'; it is restored when ours is removed",
                    route,
                    wanted[place(route)],
                    extra={"displaced": str(route), "route": str(wanted[place(route)])},
                )
        for route, reason in state.told:
            if route not in recorded:
                continue  # Displaced for a moment within this run.
            self._logger.warning("displaced route '%s' is not restored: %s", route, reason)


def _taken_from_us(error: RouteRejectedError, outcome: Reconciliation) -> dict[Place, tuple[ObservedRoute, ...]]:
    """Return the places where another program has replaced ours, and the routes after ours."""
    hidden: dict[Place, tuple[ObservedRoute, ...]] = {}
    absent = {refusal.change for refusal in error.refusals if refusal.errno == errno.ESRCH}
    for change in outcome.changes:
        if change.after is not None and str(change) in error.overtaken:
            spot = place(change.after)
            hidden[spot] = outcome.prepended.get(spot, ())
        elif change.after is None and change.before is not None and str(change) in absent:
            spot = place(change.before)
            hidden[spot] = outcome.hidden.get(spot, ())
    return {spot: routes for spot, routes in hidden.items() if routes}


def _is_overtaken(error: RouteRejectedError, outcome: Reconciliation) -> bool:
    """Return True if only another program's changes caused the refusal, so that another reading helps."""
    hopeless = {str(change) for change in outcome.in_the_way}
    return error.rolled_back and all(
        refusal.errno in _CONFLICTS and refusal.change not in hopeless for refusal in error.refusals
    )


def restorable(records: Sequence[ObservedRoute], devices: Iterable[str]) -> tuple[list[ObservedRoute], list[GivenUp]]:
    """Return the displaced routes that can be restored, and those whose device is gone."""
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
