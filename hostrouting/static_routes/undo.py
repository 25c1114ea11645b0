"""The route changes that a run made, and how to undo them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.net.routes import (
    OUR_PROTOCOL,
    Route,
    RouteChange,
    RouteKey,
    is_merged,
    route_key,
    signature,
)
from hostrouting.static_routes.reconcile import (
    Reconciliation,
    Routes,
    owned_in,
    present_in,
    reconcile,
)
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostrouting.net.routes import ObservedRoute


_LOST: Final = "route '{}' is not restored: '{}' has the same destination and metric"
_CHANGED: Final = "has changed since this run and is left as it is"


def changes_between(before: Routes, after: Routes) -> Reconciliation:
    """Return the changes to our routes between two snapshots, without merged routes."""
    merged = {route_key(route) for route in (*before, *after) if is_merged(route)}

    def own_in(routes: Routes) -> dict[ObservedRoute, None]:
        own = (route for route in owned_in(routes) if route_key(route) not in merged)
        return dict.fromkeys(own)

    old = own_in(before)
    new = own_in(after)
    added = [RouteChange.add(route.to_route()) for route in new if route not in old]
    removed = [RouteChange.remove(route) for route in old if route not in new]
    return Reconciliation(changes=[*added, *removed], observed=before)


def changes_to_undo(made: Reconciliation, observed: Routes) -> tuple[list[RouteChange], list[str]]:
    """Return the changes that restore our routes from before a run, and notes on what they cannot.

    Only the route keys that the run changed are considered. Routes that other programs have added
    since then stay, and a key whose route of ours has changed again is left alone. A route that
    came after one of another program is put after it again.
    """
    touched: dict[RouteKey, list[RouteChange]] = {}
    for change in made.changes:
        touched.setdefault(route_key(change.route), []).append(change)
    now = present_in(observed, touched)
    then = present_in(made.observed, touched)
    notes: list[str] = []
    wanted: dict[RouteKey, Route] = {}
    behind: set[RouteKey] = set()
    for key, changes in touched.items():
        before = then.get(key, [])
        if _own(now.get(key, [])) not in (_own(before), _left_by(changes, before)):
            notes.append(f"route '{changes[0].route}' {_CHANGED}")
            continue
        for route in owned_in(before)[:1]:
            # A run that was killed while it replaced a route may have left a second one, which the
            # next run removes.
            wanted[key] = route.to_route()
        if before and before[0].protocol != OUR_PROTOCOL:
            behind.add(key)
            notes += _moved(before, now.get(key, []))
        now.pop(key, None)
    back = reconcile([*wanted.values()], observed, undecided=now, behind=behind)
    for change, rival in back.in_the_way.items():
        notes.append(_LOST.format(change.after, rival))
    return [change for change in back.changes if change not in back.in_the_way], notes


def _moved(before: Routes, present: Routes) -> Iterator[str]:
    """Yield a note if our route was between two routes of other programs: it can only be last."""
    for route in owned_in(before)[:1]:
        later = before[before.index(route) + 1 :]
        foreign = {rival for rival in later if rival.protocol != OUR_PROTOCOL}
        if not foreign.isdisjoint(present):
            yield f"route '{route}' now comes after all others with its destination and metric"


def _own(routes: Iterable[ObservedRoute]) -> set[object]:
    """Return what distinguishes our routes that have the same key."""
    return {*map(signature, owned_in(routes))}


def _left_by(changes: Iterable[RouteChange], before: Routes) -> set[object]:
    """Return what distinguishes our routes with one key after a run."""
    removed = {change.before for change in changes}
    added = {signature(change.after) for change in changes if change.after}
    return _own(route for route in before if route not in removed) | added


def report_entry(change: RouteChange, hidden: Mapping[Route, Routes]) -> Change:
    """Return a route change as an entry of a report."""
    before, after = change.before, change.after
    if after is None:
        return Change("-", str(before))
    details = []
    if before is not None and not before.fulfils(after):
        # Attributes such as the MTU are not part of a route's text.
        is_same = str(before) == str(after)
        details = ["was the same with other attributes" if is_same else f"was '{before}'"]
    if hidden and after in hidden:
        names = " and ".join(f"'{route}'" for route in hidden[after])
        details.append(f"hides {names} until this route is removed")
    return Change("+" if before is None else "~", str(after), "; ".join(details) or None)
