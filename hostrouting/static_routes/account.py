"""The account of a run: each change of a route that was made, with its inverse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.addresses import IPV6
from hostrouting.net.routes import (
    OUR_PROTOCOL,
    Place,
    Route,
    RouteChange,
    is_merged,
    may_merge,
    place,
    signature,
)
from hostrouting.static_routes.reconcile import Reconciliation, Routes, owned_in, present_in
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.net.routes import ObservedRoute


def between(before: Routes, after: Routes) -> Reconciliation:
    """Return the changes in which two readings of our routes differ, without merged ones."""
    merged = {place(route) for route in (*before, *after) if is_merged(route)}

    def own_in(routes: Routes) -> dict[ObservedRoute, None]:
        own = (route for route in owned_in(routes) if place(route) not in merged)
        return dict.fromkeys(own)

    old = own_in(before)
    new = own_in(after)
    added = [RouteChange.add(route.to_route()) for route in new if route not in old]
    removed = [RouteChange.remove(route) for route in old if route not in new]
    return Reconciliation(changes=[*added, *removed], observed=before)


def inverse(made: Reconciliation, observed: Routes) -> tuple[list[RouteChange], list[str]]:
    """Return the changes that reverse those of a run, and notes on routes that differ then.

    A place that another program has changed since is left alone.
    """
    touched: dict[Place, list[RouteChange]] = {}
    for change in made.changes:
        touched.setdefault(place(change.route), []).append(change)
    now = present_in(observed, touched)
    then = present_in(made.observed, touched)
    inverses: dict[RouteChange, list[RouteChange]] = {}
    notes: list[str] = []
    for key, changes in touched.items():
        present = now.get(key, [])
        before = then.get(key, [])
        if not _is_as_left(changes, before, present):
            if _signatures(present) != _signatures(before):
                text = "changed since this run; it stays as it is now"
                notes += [f"route '{change.route}' {text}" for change in changes]
        elif obstacles := _obstacles(changes, present):
            notes += obstacles
        else:
            for change in changes:
                inverses[change] = _undone(change, before, present)
                notes += _moved(change, before, present)
    ordered: list[RouteChange] = []
    for change in reversed(made.changes):
        ordered += inverses.get(change, ())
    return ordered, notes


def _signatures(routes: Routes) -> set[object]:
    """Return what distinguishes the routes of hostrouting in one place."""
    return {*map(signature, owned_in(routes))}


def _is_as_left(changes: Sequence[RouteChange], before: Routes, present: Routes) -> bool:
    """Return True if a place has the routes of hostrouting with which the run has left it."""
    removed = [change.before for change in changes if change.before]
    kept = [route for route in before if route not in removed]
    added = {signature(change.after) for change in changes if change.after}
    return _signatures(present) == _signatures(kept) | added


def _obstacles(changes: Sequence[RouteChange], present: Routes) -> list[str]:
    """Return a note for each removed route that cannot come back.

    The kernel would merge an IPv6 route by a gateway with that of another program.
    """
    removed = [change.before for change in changes if change.before]
    foreign = [route for route in present if route.protocol != OUR_PROTOCOL]
    if not foreign or foreign[0].family != IPV6:
        return []
    return [
        f"route '{route}' does not come back: '{foreign[0]}' has its place" for route in removed
    ]


def _moved(change: RouteChange, before: Routes, present: Routes) -> list[str]:
    """Return a note if the inverse puts a route behind one of another program that it preceded."""
    if change.before not in before[1:]:
        return []
    later = before[before.index(change.before) + 1 :]
    if not any(route in present for route in later if route.protocol != OUR_PROTOCOL):
        return []
    position = "is now the last of its place: the kernel puts one first or last only"
    return [f"route '{change.before}' {position}"]


def _undone(change: RouteChange, before: Routes, present: Routes) -> list[RouteChange]:
    """Return the inverse of a change: the route that decided its place comes first, others last."""
    route, after = change.before, change.after
    new = next((own for own in present if after is not None and own.fulfils(after)), None)
    if route is None:
        return [] if new is None else [RouteChange.remove(new)]
    was_first = before[0].fulfils(route)
    if route.family == IPV6:
        verb = "add" if may_merge(route) or was_first else "append"
        return [RouteChange(new, route.to_route(), verb)]
    if not was_first and present and present[-1].fulfils(route):
        return []
    return [RouteChange(new, route.to_route(), "prepend" if was_first else "append")]


def described(change: RouteChange, hidden: Mapping[Route, Routes]) -> Change:
    """Return a change as an entry of a report."""
    before, after = change.before, change.after
    if after is None:
        return Change("-", str(before))
    details = []
    if before is not None and not before.fulfils(after):
        # Metrics of the route itself, such as an mtu, do not show in its text.
        is_same = str(before) == str(after)
        details = ["was the same with other attributes" if is_same else f"was '{before}'"]
    if hidden and after in hidden:
        names = " and ".join(f"'{route}'" for route in hidden[after])
        details.append(f"hides {names} until this route is removed")
    return Change("+" if before is None else "~", str(after), "; ".join(details) or None)
