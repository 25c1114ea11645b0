"""Compute the changes from the observed routes to the desired ones, in an order that the kernel accepts. Pure.

The kernel lists routes by their place: table, destination, type of service and metric. The first route of a place that
is alive decides. If a place has foreign routes, ours is added ahead of them. The routes that it hides are displaced:
recorded and removed, so that an owner that replaces its route replaces only ours. To restore them, the recorded routes
are appended in their order, and then ours is removed.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.fib.model import resting
from hostrouting.net.changes import RouteChange, is_deleted_by
from hostrouting.net.routes import FLAG_ONLINK, OUR_PROTOCOL, ObservedRoute, Place, Route, place

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

__all__ = ["GivenUp", "Reconciliation", "Routes", "WayBack", "held_in", "hidden_in", "reconcile"]

_KERNEL: Final = 2
_network: Final = itemgetter(0, 1)
_RESTING: Final = frozenset({0, FLAG_ONLINK})

#: Routes in the kernel's order.
Routes: TypeAlias = "Sequence[ObservedRoute]"


class GivenUp(NamedTuple):
    """A displaced route that will not be restored, with the reason."""

    route: ObservedRoute
    reason: str


class WayBack(NamedTuple):
    """The changes that restore one place, and the removals of our routes once a snapshot shows the right order.

    If foreign routes already exist after ours (`appended`), the restored one is added ahead of our routes, which
    `changes` then remove.
    """

    changes: list[RouteChange]
    removals: list[RouteChange]
    recorded: Routes
    appended: Routes = ()

    def passed_over(self, observed: Routes) -> list[ObservedRoute]:
        """Return the route that replaced ours, if its owner then replaced the restored one, which was ahead of it.

        The owner believes it replaced, and would leave it there for ever.
        """
        spot = place(self.recorded[0])
        standing = held_in(observed, [spot]).get(spot, [])
        if not self.appended or standing[2 : 2 + len(self.appended)] != self.appended:
            return []
        return [route for route in standing[1:2] if route not in self.recorded]


@attrs.frozen(kw_only=True)
class Reconciliation:
    """The changes to make, and their consequences for foreign routes; its methods decide place by place."""

    #: The `prepended` of the previous reading, if its changes were made.
    before: Mapping[Place, Routes]
    #: None if a config wants our routes. Otherwise they are to be as they were, and came after others in these places.
    behind: Container[Place] | None = None
    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: Our routes that `changes` remove at their end.
    removals: list[ObservedRoute] = attrs.field(factory=list)
    #: Made after `changes`, one by one. Between the reading and a change another program may append a route, which must
    #: then come after the restored ones.
    ways_back: list[WayBack] = attrs.field(factory=list)
    #: Then these routes, which decide nothing, are removed: routes that ours hides, and stale ones. Each removal can be
    #: made by itself. If one is refused (ESRCH), the owner has already removed the route.
    clearings: list[ObservedRoute] = attrs.field(factory=list)
    #: Places where ours is added ahead of foreign routes, with these routes. The next reading decides the rest.
    prepended: dict[Place, Routes] = attrs.field(factory=dict)
    #: Places where ours is removed, with the foreign routes after it. If the removal is refused, another program has
    #: replaced ours, and none of them.
    hidden: dict[Place, Routes] = attrs.field(factory=dict)
    #: Changes that restore displaced routes.
    put_back: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Additions that the kernel will refuse, because its own route, which is never overwritten, has the place.
    in_the_way: dict[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    given_up: list[GivenUp] = attrs.field(factory=list)
    #: Routes among `clearings` that their owner would have replaced if it had not replaced ours, which came first.
    stale: list[ObservedRoute] = attrs.field(factory=list)
    #: The routes that the journal must have while the changes are made, so that a killed run can be undone.
    safeguard: list[ObservedRoute] = attrs.field(factory=list)
    #: The displaced routes that are not yet restored after the changes.
    records: list[ObservedRoute] = attrs.field(factory=list)

    @property
    def all_changes(self) -> list[RouteChange]:
        """All changes, in the order in which they are made."""
        back = (change for way in self.ways_back for change in way.changes + way.removals)
        return [*self.changes, *back, *map(RouteChange.remove, self.clearings)]

    def displaced_by(self, change: RouteChange) -> Routes:
        """Return the foreign routes that our addition hides."""
        return () if change.after is None else self.prepended.get(place(change.after), ())

    def only_moves(self, change: RouteChange) -> bool:
        """Return True if a change only moves a foreign route after one that is restored."""
        route = change.after or change.before
        is_ours = route is not None and route.protocol == OUR_PROTOCOL
        return not (is_ours or change in self.put_back or route in self.clearings)

    def settle(self, route: Route, standing: Routes, recorded: Routes) -> None:
        """Decide how `route` gets its place."""
        own = _kernels_own(standing)
        if not standing or (own is not None and self.behind is None):
            change = RouteChange.add(route)
            self.changes.append(change)
            self.keep(recorded)
            if own is not None:
                # It is requested all the same, as an addition to an empty place: the kernel refuses it together with
                # all other bad routes, and the error shows all of them at once.
                self.in_the_way[change] = own
        elif standing[0].fulfils(route):
            self.remove_ours(standing[1:])
            self._hide([] if own is not None else _foreign(standing), recorded)
        elif standing[0].protocol == OUR_PROTOCOL:
            self._replace_ours(route, standing)
            self.keep(recorded)
        elif self.behind is not None and (own is not None or place(route) in self.behind):
            self._return_among(route, standing, is_behind=place(route) in self.behind)
            self.keep(recorded)
        else:
            self._put_before(route, standing, recorded)

    def _return_among(self, route: Route, standing: Routes, *, is_behind: bool) -> None:
        """Let a route of ours be again among others that stay.

        No config can have the place of a kernel's own route. But an address may have brought that after ours.
        """
        if not any(other.fulfils(route) for other in standing):
            self.changes.append(RouteChange.append(route) if is_behind else RouteChange.prepend(route))

    def _hide(self, foreign: Routes, recorded: Routes) -> None:
        """Ours is first: remove the routes that it hides, if this run has added ours."""
        if foreign and place(foreign[0]) in self.before:
            # The last is removed first: then a rollback appends them in their order. But a route that the deletion of
            # another would remove, too, goes before that other.
            last_first = list(reversed(foreign))
            self.clearings.extend(sorted(last_first, key=lambda route: (route.source is None, not route.extra)))
            self.keep(list(dict.fromkeys([foreign[0], *recorded, *foreign[1:]])))
        elif not all(route in foreign for route in recorded):
            self.keep(recorded)
        # Else all of them exist: they are not displaced.

    def _replace_ours(self, route: Route, standing: Routes) -> None:
        first, *others = standing
        # The kernel does not move an existing route to the front, so it must be removed before.
        self.changes.extend(map(RouteChange.remove, _ours(others)))
        if is_deleted_by(first, route):
            # The removal at the end of a replacement may take the new route, too, so it comes first.
            self.changes.extend([RouteChange.remove(first), RouteChange.prepend(route)])
        else:
            self.changes.append(RouteChange.replace(first, route))

    def leave(self, standing: Routes) -> None:
        """Remove ours from a place that has no records."""
        if standing[0].protocol == OUR_PROTOCOL:
            self.hidden[place(standing[0])] = _foreign(standing)
        self.remove_ours(standing)

    def _put_before(self, route: Route, standing: Routes, recorded: Routes) -> None:
        """Add ours ahead of the foreign routes of the place."""
        without_us = self._without_us(place(route), standing, recorded)
        foreign = [other for other in _foreign(standing) if other in without_us]
        self.changes.extend(map(RouteChange.remove, _ours(standing)))
        self.changes.append(RouteChange.prepend(route))
        self.prepended[place(route)] = foreign
        self.safeguard.extend(without_us)
        self.records.extend([other for other in without_us if other not in foreign])

    def _without_us(self, spot: Place, standing: Routes, recorded: Routes) -> list[ObservedRoute]:
        """Return the routes that a place would have without us; stale ones are removed."""
        before = self.before.get(spot)
        if before is None:
            target, given_up = _without_us(standing, recorded)
            self.given_up.extend(given_up)
            for route, _ in given_up:
                # It was about to be restored when another program replaced ours ahead of it.
                if standing[0] not in recorded and route in target:
                    target.remove(route)
                    self.remove_stale(route)
            return target
        foreign = _foreign(standing)
        stale = _stale(standing, before)
        if stale is not None:
            foreign.remove(stale)
            self.remove_stale(stale)
        return list(dict.fromkeys([*foreign[:1], *recorded, *foreign[1:]]))

    def restore(self, spot: Place, standing: Routes, recorded: Routes) -> None:
        """Remove ours from a place and restore the recorded routes."""
        own = _kernels_own(standing)
        if own is not None:
            reason = f"its place was taken meanwhile by '{own}'"
            self.given_up.extend([GivenUp(route, reason) for route in recorded if route not in standing])
            self.remove_ours(standing)
            return
        target = self._without_us(spot, standing, recorded)
        self.safeguard.extend(target)
        ours = [*map(RouteChange.remove, _ours(standing))]
        kept = [route for route in _foreign(standing) if route in target]
        back = [route for route in target if route in recorded]
        appended = [route for route in kept if route not in back]
        in_front = bool(appended) and standing[0].protocol == OUR_PROTOCOL and target == back + appended != kept
        if in_front and len(back) == 1:
            # It is added ahead of the routes that were appended after ours meanwhile: moving those would lose the order
            # of routes that are added at this moment. Ours is removed in the same batch, so that a refusal rolls the
            # addition back.
            self.ways_back.append(WayBack(self._before_ours(back[0], kept) + ours, [], recorded, appended))
        elif arranged := self._arranged(kept, target):
            self.ways_back.append(WayBack(arranged, ours, recorded))
        else:
            self.remove_ours(standing)

    def _before_ours(self, route: ObservedRoute, kept: Routes) -> list[RouteChange]:
        """Return the changes that add a route ahead of ours; the kernel moves no existing route to the front."""
        change = RouteChange.prepend(route.to_route())
        if route in kept:
            return [RouteChange.remove(route), change]
        self.put_back[change] = route
        return [change]

    def _arranged(self, foreign: Routes, target: Routes) -> list[RouteChange]:
        """Return the changes that turn the foreign routes of a place into `target`, by appending."""
        changes: list[RouteChange] = []
        right = 0
        while right < min(len(foreign), len(target)) and foreign[right] == target[right]:
            right += 1
        for route in target[right:]:
            change = RouteChange.append(route.to_route())
            if route in foreign:
                changes.append(RouteChange.remove(route))
            else:
                self.put_back[change] = route
            changes.append(change)
        return changes

    def remove_stale(self, route: ObservedRoute) -> None:
        """Remove a route that its owner believes replaced."""
        self.stale.append(route)
        self.clearings.append(route)

    def remove_ours(self, standing: Iterable[ObservedRoute]) -> None:
        """Remove each of our routes."""
        self.removals.extend(_ours(standing))

    def keep(self, recorded: Routes) -> None:
        """Keep the records of these routes."""
        self.safeguard.extend(recorded)
        self.records.extend(recorded)


def reconcile(
    desired: Sequence[Route],
    observed: Routes,
    *,
    displaced: Iterable[ObservedRoute] = (),
    undecided: Container[Place] = (),
    prepended: Mapping[Place, Routes] | None = None,
    stale: Routes = (),
    behind: Container[Place] | None = None,
) -> Reconciliation:
    """Compare the desired routes with the observed ones.

    `displaced` are the routes that were displaced earlier, those of one place in their order. `undecided` places are
    left as they are. `prepended` comes from the previous reconciliation if its changes were made, and `stale` comes
    from it if they were not. With `behind`, our routes are to be as they were, and came after others in these places.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    wanted = {place(route): route for route in sorted(desired, key=_nearest_first)}
    made = Reconciliation(before=prepended or {}, behind=behind)
    records: dict[Place, list[ObservedRoute]] = {spot: [] for spot in (*made.before, *map(place, stale))}
    for record in displaced:
        records.setdefault(place(record), []).append(resting(record))
    held = held_in(observed, [*wanted, *records])
    for other in stale:
        if other in held.get(place(other), ()):
            held[place(other)].remove(other)
            made.remove_stale(other)
    for spot, route in wanted.items():
        made.settle(route, held.pop(spot, []), records.pop(spot, []))
    for spot, recorded in sorted(records.items(), key=lambda item: min(map(_nearest_first, item[1]), default=0)):
        if spot in undecided:
            made.keep(recorded)
        else:
            made.restore(spot, held.pop(spot, []), recorded)
    for spot, standing in held.items():
        if spot not in undecided and _ours(standing):
            made.leave(standing)
    # Removals in the reverse order: a rollback goes backwards, and then each route finds its gateway.
    made.changes.extend(map(RouteChange.remove, sorted(made.removals, key=attrgetter("scope"))))
    return made


def _nearest_first(route: Route | ObservedRoute) -> int:
    """Return the sort key by scope: local addresses, then routes on a link, then routes via a gateway on a link."""
    return -route.scope


def held_in(observed: Routes, places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Return the routes in these places, and in all places that have one of our routes, in the kernel's order."""
    networks = {spot[2:4] for spot in places}
    networks.update(map(_network, _ours(observed)))
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            held[place(route)].append(route if route.flags in _RESTING else resting(route))
    return dict(held)


def hidden_in(observed: Routes) -> frozenset[Place]:
    """Return the places in which a route of ours comes after one of another program or of the kernel."""
    ours = _ours(observed)
    networks = set(map(_network, ours))
    near = [route for route in observed if _network(route) in networks]
    if len(near) == len(ours):
        # As usual, each has its network for itself.
        return frozenset()
    held = held_in(near, ())
    return frozenset(spot for spot, standing in held.items() if _ours(standing) and _foreign(standing[:1]))


def _foreign(standing: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    return [route for route in standing if route.protocol != OUR_PROTOCOL]


def _ours(standing: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    return [route for route in standing if route.protocol == OUR_PROTOCOL]


def _kernels_own(standing: Iterable[ObservedRoute]) -> ObservedRoute | None:
    return next((route for route in standing if route.protocol == _KERNEL), None)


def _without_us(standing: Routes, recorded: Routes) -> tuple[list[ObservedRoute], list[GivenUp]]:
    """Return the routes that a place would have without us, in order, and the records that are no longer of use."""
    foreign = _foreign(standing)
    if not foreign or standing[0].protocol == OUR_PROTOCOL:
        # Foreign routes after ours were added after we displaced the others.
        return [*recorded, *(route for route in foreign if route not in recorded)], []
    # A first route that is not ours has replaced ours. Without us it would have replaced the first of the others.
    first = foreign[0]
    gone = recorded.index(first) if first in recorded else 1
    rest = [route for route in recorded[gone:] if route != first]
    reason = f"its place was taken meanwhile by '{first}'"
    given_up = [GivenUp(route, reason) for route in recorded[:gone]]
    return [first, *rest, *(route for route in foreign[1:] if route not in rest)], given_up


def _stale(standing: Routes, before: Routes) -> ObservedRoute | None:
    """Return the route that the first one would have replaced if it had not replaced ours, which came first.

    `before` are the routes of the last reading, after which ours was added ahead of them. The route that replaced ours
    is a new one, and the first.
    """
    if len(standing) < 2 or not before or any(route.protocol == OUR_PROTOCOL for route in standing):
        return None
    first, second, *rest = standing
    if first in before:
        # An owner that alternates between two routes had already changed before ours was added.
        return second if second not in before and rest == [*before[1:]] else None
    return second if second in before or len(standing) == len(before) + 1 else None
