"""Bring the kernel's routes to the wanted ones while other programs change the same places.

Read, reconcile, record, apply; and repeat where another program was faster, or where our route was added before foreign
ones, which are displaced only once it is there. The journal has the displaced routes before their places are taken.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.boot import RUNTIME_DIRECTORY
from hostrouting.exceptions import BackendError, HostFileError, LinkNotFoundError, Refusal, RouteRejectedError
from hostrouting.journal import Record, read_record, set_aside, to_json
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import ObservedRoute, place, signature
from hostrouting.static_routes.account import RouteAccount, explain, forecast, ours_by_place, with_routes
from hostrouting.static_routes.reconcile import GivenUp, hidden_in, reconcile
from hostrouting.static_routes.resolve import place_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Container, Iterable, Mapping, Sequence

    from hostrouting.host import FileStore, Host, Route
    from hostrouting.net.links import Device
    from hostrouting.net.routes import Place
    from hostrouting.static_routes.reconcile import Reconciliation, Routes, WayBack
    from hostrouting.static_routes.resolve import Resolution
    from phases import Change, Context

__all__ = [
    "RECORDS_PATH",
    "Convergence",
    "foresee",
    "read_records",
    "set_damaged_aside",
    "write_records",
]

RECORDS_PATH: Final = f"{RUNTIME_DIRECTORY}/displaced-routes.json"
_MODE: Final = 0o644
#: Refusals that another program's change may cause.
_CONFLICTS: Final = frozenset({errno.EEXIST, errno.ESRCH, errno.ENOENT})
#: The number of readings after which a program that keeps changing the same places has won.
_READINGS: Final = 24


def foresee(host: Host, resolution: Resolution) -> list[Change]:
    """Return the changes of a convergence, once every missing value can be looked up."""
    observed, links = host.routes.routes(), host.routes.links()
    records, _ = _restorable(read_records(host.files).routes, links)
    undecided = {place_of(route) for route, _ in resolution.missing}
    outcome = reconcile(resolution.routes, observed, displaced=records, undecided=undecided)
    return forecast(outcome, resolution.missing, links, observed)


@attrs.define(eq=False)
class Convergence:
    """One run on the routes of a live machine."""

    _host: Host
    _logger: logging.Logger
    #: Places that are left as they are.
    _undecided: Container[Place] = ()
    #: `unrestored` of the run before, which is not logged again.
    _known: Mapping[str, str] = attrs.field(factory=dict)
    #: See `Reconciliation.behind`: a run for an undo has it from the beginning, any other for its rollback.
    _behind: Container[Place] | None = None
    #: The routes that were displaced before the run.
    _recorded: Routes = ()
    #: The routes that are displaced after the changes made so far.
    _records: list[ObservedRoute] = attrs.field(factory=list)
    _prepended: Mapping[Place, Routes] = attrs.field(factory=dict)
    #: Routes that their owners believe replaced, and that could not be removed yet.
    _stale: list[ObservedRoute] = attrs.field(factory=list)
    #: Restored routes of the records: one that is gone at the next reading was deleted by its owner.
    _returned: set[ObservedRoute] = attrs.field(factory=set)
    #: Routes that the kernel refuses to restore now; their records stay.
    _waiting: list[ObservedRoute] = attrs.field(factory=list)
    _told: list[GivenUp] = attrs.field(factory=list)
    #: Recorded routes of the places that are left as they are.
    _apart: Routes = ()
    #: The content of the journal, if it is known.
    _written: tuple[ObservedRoute, ...] | None = None
    _changed: int = 0
    #: Our routes before the run, for a rollback, and the places in which they came after others.
    _ours: Mapping[Place, ObservedRoute] | None = None
    _hidden: frozenset[Place] = frozenset()

    def run(self, ctx: Context, desired: Sequence[Route]) -> int:
        """Make our routes exactly these, restore displaced routes whose place is free again, and record the changes.

        Return the number of changes.
        """
        files = self._host.files
        recorded = read_records(files)
        if recorded.damage:
            self._logger.warning("%s", set_damaged_aside(files, recorded))
        self._recorded = recorded.routes
        # Without routes a removal may have to take the leftovers of a killed writer.
        self._written = tuple(recorded.routes) or None
        # A repair of one route asks the kernel for nothing that it does not need.
        links = self._host.routes.links() if self._recorded else ()
        self._records, self._told = _restorable(self._recorded, links)
        self._apart = [route for route in self._records if place(route) in self._undecided]
        self._records = [route for route in self._records if place(route) not in self._undecided]
        try:
            self._converge(desired)
        except (BackendError, HostFileError) as error:
            if self._changed or self._prepended:
                self._roll_back(error)
            elif not isinstance(error, RouteRejectedError) or error.rolled_back:
                self._keep(self._recorded)
            self._record_rest(ctx)
            if isinstance(error, LinkNotFoundError):
                raise with_routes(error, desired) from error
            raise
        except BaseException:
            # An interrupt: only another reading shows which routes there are.
            self._record_rest(ctx)
            raise
        after = {place(route): route for route in desired}
        left = {spot: route for spot, route in (self._ours or {}).items() if spot in self._undecided}
        self._record(ctx, {**left, **after})
        self._tell(after)
        self._write([*self._records, *self._waiting])
        return self._changed

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The routes displaced before this run that it could not restore, with the reason."""
        # Others were displaced for a moment within this run.
        return {str(route): reason for route, reason in self._told if route in self._recorded}

    @property
    def _displaced(self) -> list[ObservedRoute]:
        """The routes that this run has displaced so far."""
        recorded = set(self._recorded)
        return [route for route in self._records if route not in recorded]

    def _record_rest(self, ctx: Context) -> None:
        """Record the changes of a run that failed, as far as they are in force."""
        if self._ours is not None:
            with suppress(BackendError):
                self._record(ctx, ours_by_place(self._host.routes.routes()))

    def _record(self, ctx: Context, after: Mapping[Place, Route | ObservedRoute]) -> None:
        """Record the new state if it differs from the earlier one, with one inverse for all changes."""
        restored = [route for route in self._recorded if route in self._returned]
        account = RouteAccount(self._ours or {}, after, displaced=self._displaced, restored=restored)

        def undo(ctx: Context) -> None:
            with self._host.lock.hold(ctx) as held:
                wanted, altered = account.reversed(self._host.routes.routes())
                for route in altered:
                    self._logger.warning("route '%s' changed since this run; it stays as it is now", route)
                Convergence(self._host, self._logger, behind=self._hidden).run(held, wanted)

        for change in account.changes():
            ctx.record(change, undo=undo)

    def _converge(self, desired: Sequence[Route]) -> None:
        """Read and change until nothing is left to change."""
        for reading in range(_READINGS):
            observed = self._host.routes.routes()
            if self._ours is None:
                self._ours, self._hidden = ours_by_place(observed), hidden_in(observed)
            outcome = self._reconciled(desired, observed)
            if reading and not outcome.all_changes:
                self._accept(outcome)
                return
            # Before anything is displaced: `reset` can then restore it even if this run is killed.
            self._write(dict.fromkeys([*outcome.safeguard, *self._waiting]))
            try:
                # If ours was added before foreign routes, the next reading shows the result.
                self._host.routes.apply(outcome.changes, verify=not outcome.prepended)
            except RouteRejectedError as error:
                self._stale = outcome.stale
                self._prepended = {**self._prepended, **_taken_from_us(error, outcome)}
                if not _is_overtaken(error, outcome):
                    explain(error, outcome, self._host.routes)
                    raise
                continue
            self._accept(outcome)
            # Read again after routes were displaced, too: their owner may have replaced ours meanwhile.
            if not (outcome.prepended or outcome.ways_back or outcome.clearings):
                return
        self._settle_for(desired)

    def _reconciled(self, desired: Sequence[Route], observed: Routes) -> Reconciliation:
        if self._returned:
            there = {(route.network, signature(route)) for route in observed}
            deleted = {record for record in self._returned if (record.network, signature(record)) not in there}
            self._records = [route for route in self._records if route not in deleted]
            self._returned -= deleted
        return reconcile(
            desired,
            observed,
            displaced=self._records,
            undecided=self._undecided,
            prepended=self._prepended,
            stale=self._stale,
            behind=self._behind,
        )

    def _accept(self, outcome: Reconciliation) -> None:
        """Note the changes that were made, and make the rest, place by place."""
        self._count(outcome.changes)
        self._records = list(outcome.records)
        self._prepended, self._stale = outcome.prepended, []
        self._told += outcome.given_up
        for way in outcome.ways_back:
            self._return(way, outcome)
        for route in outcome.clearings:
            change = RouteChange.remove(route)
            try:
                self._host.routes.apply([change], verify=False)
            except RouteRejectedError as error:
                if error.errno != errno.ESRCH:
                    raise
                # Its owner was faster: it is not to be restored.
                self._records = [record for record in self._records if record != route]
            else:
                self._count([change])
            # We removed it: its absence says nothing about its owner.
            self._returned.discard(route)

    def _count(self, changes: Sequence[RouteChange]) -> None:
        """Count changes that were made."""
        self._changed += len(changes)
        for change in changes:
            self._logger.debug("%s", change)

    def _return(self, way: WayBack, outcome: Reconciliation) -> None:
        """Restore one place; after a refusal the next reading shows the rest."""
        restored = {change: outcome.put_back[change] for change in way.changes if change in outcome.put_back}
        try:
            self._host.routes.apply(way.changes, verify=False)
        except RouteRejectedError as error:
            if not error.rolled_back:
                self._count(way.changes)
                self._records += way.recorded
                raise
            coming_back = {str(change): route for change, route in restored.items()}
            # A route that was there for a moment was deleted by its owner.
            without = [coming_back[change] for change in error.overtaken if change in coming_back]
            if without and errno.ESRCH in [refusal.errno for refusal in error.refusals]:
                self._stale += way.passed_over(self._host.routes.routes())
            for refusal in error.refusals:
                if refusal.errno in _CONFLICTS or refusal.change not in coming_back:
                    continue
                # A foreign route must not block ours: go on without it.
                record = coming_back[refusal.change]
                without.append(record)
                self._waiting.append(record)
                self._told.append(
                    GivenUp(
                        record, f"{refusal.reason}. It stays on record in {RECORDS_PATH}, and is tried again by reset"
                    )
                )
            self._records += [route for route in way.recorded if route not in without]
            return
        self._count(way.changes)
        self._records += way.recorded
        self._returned.update(restored.values())

    def _settle_for(self, desired: Sequence[Route]) -> None:
        """After the last reading: accept the state if ours comes first in each place, or fail."""
        outcome = self._reconciled(desired, self._host.routes.routes())
        lacking = [change for change in (*outcome.changes, *outcome.put_back) if change.after is not None]
        if lacking:
            refusals = [
                Refusal(
                    str(change), errno.EEXIST, f"another program changes this place all the time{_by(outcome, change)}"
                )
                for change in lacking
            ]
            error = RouteRejectedError(refusals, rolled_back=True)
            explain(error, outcome, self._host.routes)
            raise error
        for change in outcome.changes:
            # Other programs may have removed ours meanwhile.
            with suppress(RouteRejectedError):
                self._host.routes.apply([change])
        self._accept(outcome)

    def _roll_back(self, error: BackendError | HostFileError) -> None:
        """Make our routes as they were; if that fails, `error` says so, and the records stay."""
        # Routes that this run has restored are displaced again.
        self._prepended = {**self._prepended, **{place(route): (route,) for route in self._returned}}
        self._behind = self._hidden
        ours = {spot: route for spot, route in (self._ours or {}).items() if spot not in self._undecided}
        try:
            self._converge([route.to_route() for route in ours.values()])
            self._keep([*self._records, *self._waiting])
        except (BackendError, HostFileError) as second:
            self._logger.warning("the changes before the refusal could not be rolled back: %s", second)
            # A restored route belongs to its owner, which may delete it before the next run.
            self._keep([route for route in (*self._records, *self._waiting) if route not in self._returned])
            if isinstance(error, RouteRejectedError):
                error.rolled_back = error.may_heal = False
                reasons = second.refusals if isinstance(second, RouteRejectedError) else [second]
                error.left_behind += [f"could not be rolled back: {reason}" for reason in reasons]

    def _keep(self, records: Routes) -> None:
        try:
            self._write(records)
        except HostFileError as error:
            # The next run finds those routes in their places; and the first error matters more.
            self._logger.warning("%s", error)

    def _write(self, records: Iterable[ObservedRoute]) -> None:
        """Record these routes and those of other places, unless the journal has exactly them."""
        places: dict[Place, int] = {}
        for number, route in enumerate(self._recorded):
            places.setdefault(place(route), number)
        all_of_them = dict.fromkeys([*self._apart, *records])
        wanted = tuple(sorted(all_of_them, key=lambda route: places.get(place(route), len(self._recorded))))
        if wanted != self._written:
            self._written = None
            write_records(self._host.files, wanted)
            self._written = wanted

    def _tell(self, wanted: Mapping[Place, Route]) -> None:
        for route in self._displaced:
            ours = wanted.get(place(route))
            if ours is not None:
                self._logger.warning(
                    "foreign route '%s' is displaced by '%s'; it is restored when ours is removed",
                    route,
                    ours,
                    extra={"displaced": str(route), "route": str(ours)},
                )
        for foreign, reason in self.unrestored.items():
            if self._known.get(foreign) != reason:
                self._logger.warning("displaced route '%s' is not restored: %s", foreign, reason)


def _taken_from_us(error: RouteRejectedError, outcome: Reconciliation) -> dict[Place, Routes]:
    """Return the places where another program has replaced ours, and the routes after ours."""
    taken: dict[Place, Routes] = {}
    absent = {refusal.change for refusal in error.refusals if refusal.errno == errno.ESRCH}
    for change in outcome.changes:
        if change.after is not None and str(change) in error.overtaken:
            taken[place(change.after)] = outcome.displaced_by(change)
        elif change.after is None and change.before is not None and str(change) in absent:
            spot = place(change.before)
            taken[spot] = outcome.hidden.get(spot, ())
    return {spot: routes for spot, routes in taken.items() if routes}


def _is_overtaken(error: RouteRejectedError, outcome: Reconciliation) -> bool:
    """Return True if only another program's changes caused the refusal, so that another reading helps."""
    hopeless = {str(change) for change in outcome.in_the_way}
    return error.rolled_back and all(
        refusal.errno in _CONFLICTS and refusal.change not in hopeless for refusal in error.refusals
    )


def _restorable(records: Routes, links: Iterable[Device]) -> tuple[list[ObservedRoute], list[GivenUp]]:
    """Return the displaced routes that can be restored, and those whose device is gone."""
    names = {link.name for link in links}
    missing = {record: sorted({*record.devs} - names) for record in records}
    lost = [
        GivenUp(record, f"there is no device {', '.join(gone)} any more") for record, gone in missing.items() if gone
    ]
    return [record for record in records if not missing[record]], lost


def _by(outcome: Reconciliation, change: RouteChange) -> str:
    routes = outcome.displaced_by(change)
    return f"; last it had '{routes[0]}'" if routes else ""


# --- the journal of displaced routes


def read_records(files: FileStore) -> Record:
    """Return the record of the displaced routes, those of one place in their order; an empty one if there is no file.

    A damaged record has its good entries, and one that is not root's has none.
    """
    return read_record(files, RECORDS_PATH) or Record(objects=())


def set_damaged_aside(files: FileStore, record: Record) -> str:
    """Rename the damaged record, and write its good entries to a new one; return a sentence that says so."""
    told = f"{record.damage}; {set_aside(files, RECORDS_PATH)}"
    write_records(files, record.routes)
    return told


def write_records(files: FileStore, routes: Iterable[ObservedRoute]) -> None:
    """Record exactly these routes; without any, remove the record."""
    record = Record(objects=tuple(routes))
    if record.objects:
        files.write(RECORDS_PATH, to_json(record), mode=_MODE)
    elif files.remove(RECORDS_PATH):
        files.remove_directory_if_empty(RUNTIME_DIRECTORY)
