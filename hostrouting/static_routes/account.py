"""The account of a run: each change of a route that was made, with its inverse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

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
from hostrouting.static_routes.reconcile import Routes, owned_in, present_in
from phases import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@attrs.frozen(eq=False, repr=False)
class RouteAccount:
    """The changes of a run, and all routes as they were before."""

    made: Sequence[RouteChange]
    hidden: Mapping[Route, Routes]
    _before: Routes

    @classmethod
    def between(cls, before: Routes, after: Routes) -> RouteAccount:
        """Return the account of what two readings of our routes differ in, without merged ones."""
        routes = (*before, *after)
        merged = {place(route) for route in routes if is_merged(route)}
        old, new = (
            {route: None for route in owned_in(routes) if place(route) not in merged}
            for routes in (before, after)
        )
        added = [RouteChange.add(route.to_route()) for route in new if route not in old]
        removed = [RouteChange.remove(route) for route in old if route not in new]
        return cls([*added, *removed], {}, before)

    def inverse(self, observed: Routes) -> tuple[list[RouteChange], list[str]]:
        """Return the changes that reverse those of the run, and notes on routes that differ then.

        A place that another program has changed since is left alone.
        """
        touched: dict[Place, list[RouteChange]] = {}
        for change in self.made:
            touched.setdefault(place(change.route), []).append(change)
        by_place, by_place_before = present_in(observed, touched), present_in(self._before, touched)
        inverses: dict[RouteChange, list[RouteChange]] = {}
        notes: list[str] = []
        for key, changes in touched.items():
            present, before = by_place.get(key, []), by_place_before.get(key, [])
            removed = [change.before for change in changes if change.before]
            added = [signature(change.after) for change in changes if change.after]
            kept = [route for route in owned_in(before) if route not in removed]
            owned = {*map(signature, owned_in(present))}
            if owned != {*map(signature, kept), *added}:
                if owned != {*map(signature, owned_in(before))}:
                    text = "changed since this run; it stays as it is now"
                    notes += [f"route '{change.route}' {text}" for change in changes]
                continue
            foreign = (route for route in present if route.protocol != OUR_PROTOCOL)
            holder = next(foreign, None) if key[1] == IPV6 and removed else None
            if holder is not None:
                # The kernel would merge an IPv6 route by a gateway with that of another program.
                text = f"does not come back: '{holder}' has its place"
                notes += [f"route '{route}' {text}" for route in removed]
                continue
            for change in changes:
                inverses[change] = _undone(change, before, present)
                if change.before in before[1:]:
                    later = before[before.index(change.before) + 1 :]
                    if any(route in present for route in later if route.protocol != OUR_PROTOCOL):
                        notes.append(
                            f"route '{change.before}' is now the last of its place: the kernel "
                            f"puts one first or last only"
                        )
        ordered = [
            inverse for change in reversed(self.made) for inverse in inverses.get(change, ())
        ]
        return ordered, notes


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
