"""Compute the changes from the observed routes to the desired ones, in an order that the kernel accepts. Pure.

The kernel lists routes by their place: table, destination, type of service and metric. The first route of a place that
is alive decides. If a place has foreign routes, ours is added ahead of them. The routes that it hides are displaced:
recorded and removed, so that an owner that replaces its route replaces only ours. To restore them, the recorded routes
are appended in their order, and then ours is removed.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.net.changes import RouteChange, is_deleted_by
from hostrouting.net.routes import FLAG_ONLINK, OUR_PROTOCOL, ObservedRoute, Place, Route, place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["GivenUp", "Reconciliation", "WayBack", "reconcile"]

_KERNEL: Final = 2
_network: Final = itemgetter(0, 1)
_RESTING: Final = frozenset({0, FLAG_ONLINK})

_Routes = tuple[ObservedRoute, ...]


class GivenUp(NamedTuple):
    """A displaced route that will not be restored, with the reason."""

    route: ObservedRoute
    reason: str


class WayBack(NamedTuple):
    """The changes that restore one place, and the removals of our routes once a snapshot shows the right order.

    If foreign routes already exist after ours (`appended`), the restored one is added ahead of our routes, which
    `changes` then remove.
    """

    changes: tuple[RouteChange, ...]
    removals: tuple[RouteChange, ...]
    recorded: _Routes
    appended: _Routes = ()

    def passed_over(self, observed: Sequence[ObservedRoute]) -> list[ObservedRoute]:
        """Return the route that replaced ours, if its owner then replaced the restored one, which was ahead of it.

        The owner believes it replaced, and would leave it there for ever.
        """
        spot = place(self.recorded[0])
        standing = _held(observed, [spot]).get(spot, [])
        if not self.appended or tuple(standing[2 : 2 + len(self.appended)]) != self.appended:
            return []
        return [route for route in standing[1:2] if route not in self.recorded]


@attrs.frozen(kw_only=True)
class Reconciliation:
    """The changes to make, and their consequences for foreign routes."""

    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: list[RouteChange] = attrs.field(factory=list)
    #: Made after `changes`, one by one. Between the reading and a change another program may append a route, which must
    #: then come after the restored ones.
    ways_back: list[WayBack] = attrs.field(factory=list)
    #: Then removals of routes that decide nothing: routes that ours hides, and stale ones. Each can be made by itself.
    #: If one is refused (ESRCH), the owner has already removed the route.
    clearings: list[RouteChange] = attrs.field(factory=list)
    #: Our changes that hide or remove foreign routes, with these routes.
    displaced: dict[RouteChange, _Routes] = attrs.field(factory=dict)
    #: Places where ours is added ahead of foreign routes, with these routes. The next reading decides the rest.
    prepended: dict[Place, _Routes] = attrs.field(factory=dict)
    #: Places where ours is removed, with the foreign routes after it. If the removal is refused, another program has
    #: replaced ours, and none of them.
    hidden: dict[Place, _Routes] = attrs.field(factory=dict)
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
        return [*self.changes, *back, *self.clearings]

    def only_moves(self, change: RouteChange) -> bool:
        """Return True if a change only moves a foreign route after one that is restored."""
        route = change.after or change.before
        is_ours = route is not None and route.protocol == OUR_PROTOCOL
        return not (is_ours or change in self.put_back or change in self.clearings)


def reconcile(
    desired: Sequence[Route],
    observed: Sequence[ObservedRoute],
    *,
    displaced: Iterable[ObservedRoute] = (),
    undecided: Collection[Place] = (),
    prepended: Mapping[Place, _Routes] | None = None,
    stale: Iterable[ObservedRoute] = (),
) -> Reconciliation:
    """Compare the desired routes with the observed ones.

    `displaced` are the routes that were displaced earlier, those of one place in their order. `undecided` places are
    left as they are. `prepended` comes from the previous reconciliation if its changes were made, and `stale` comes
    from it if they were not.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    wanted = {place(route): route for route in sorted(desired, key=_nearest_first)}
    records: dict[Place, list[ObservedRoute]] = {}
    for record in displaced:
        records.setdefault(place(record), []).append(_resting(record))
    for spot in (*(prepended or ()), *map(place, stale := tuple(stale))):
        records.setdefault(spot, [])
    held = _held(observed, [*wanted, *records])
    decisions = _Decisions(prepended or {})
    for other in stale:
        if other in held.get(place(other), ()):
            held[place(other)].remove(other)
            decisions.remove_stale(other)
    for spot, route in wanted.items():
        decisions.settle(route, held.pop(spot, []), records.pop(spot, []))
    for spot, recorded in sorted(records.items(), key=lambda item: min(map(_nearest_first, item[1]), default=0)):
        if spot in undecided:
            decisions.keep(recorded)
        else:
            decisions.restore(spot, held.pop(spot, []), recorded)
    for spot, standing in held.items():
        if spot not in undecided and any(route.protocol == OUR_PROTOCOL for route in standing):
            decisions.leave(standing)
    return decisions.summary()


def _nearest_first(route: Route | ObservedRoute) -> int:
    """Return the sort key by scope: local addresses, then routes on a link, then routes via a gateway on a link."""
    return -route.scope


def _held(observed: Sequence[ObservedRoute], places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Return the routes in these places, and in all places that have one of our routes, in the kernel's order."""
    networks = {spot[2:4] for spot in places}
    networks.update(map(_network, [route for route in observed if route.protocol == OUR_PROTOCOL]))
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Of hundreds of thousands of routes hardly any matter here.
        if _network(route) in networks:
            held[place(route)].append(route if route.flags in _RESTING else _resting(route))
    return dict(held)


def _resting(route: ObservedRoute) -> ObservedRoute:
    """Return the route without the state of its devices, so that it equals its record."""
    return route._replace(flags=route.flags & FLAG_ONLINK)


def _foreign(standing: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    return [route for route in standing if route.protocol != OUR_PROTOCOL]


def _without_us(
    standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]
) -> tuple[list[ObservedRoute], list[GivenUp]]:
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


def _stale(standing: Sequence[ObservedRoute], before: Sequence[ObservedRoute]) -> ObservedRoute | None:
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


class _Decisions:
    """Decides place by place, and collects the decisions in `made`."""

    def __init__(self, before: Mapping[Place, _Routes]) -> None:
        self.made = Reconciliation()
        self._before = before
        self._removals: list[RouteChange] = []

    def settle(self, route: Route, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """Decide how `route` gets its place."""
        if not standing:
            self.made.changes.append(RouteChange.add(route))
            self.keep(recorded)
            return
        own = next((other for other in standing if other.protocol == _KERNEL), None)
        if own is not None:
            # It is requested all the same, as an addition to an empty place: the kernel refuses it together with all
            # other bad routes, and the error shows all of them at once.
            change = RouteChange.add(route)
            self.made.in_the_way[change] = own
            self.made.changes.append(change)
            self.keep(recorded)
        elif standing[0].fulfils(route):
            if len(standing) > 1:
                self.remove_ours(standing[1:])
            if len(standing) > 1 or recorded:
                self._hide(_foreign(standing), recorded)
        elif standing[0].protocol == OUR_PROTOCOL:
            self._replace_ours(route, standing)
            self.keep(recorded)
        else:
            self._put_before(route, standing, recorded)

    def _hide(self, foreign: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """Ours is first: remove the routes that it hides, if this run has added ours."""
        if foreign and place(foreign[0]) in self._before:
            # The last is removed first: then a rollback appends them in their order. But a route that the deletion of
            # another would remove, too, goes before that other.
            last_first = list(reversed(foreign))
            for route in sorted(last_first, key=lambda route: (route.source is None, not route.extra)):
                change = RouteChange.remove(route)
                self.made.clearings.append(change)
                self.made.displaced[change] = (route,)
            self.keep(list(dict.fromkeys([foreign[0], *recorded, *foreign[1:]])))
        elif not all(route in foreign for route in recorded):
            self.keep(recorded)
        # Else all of them exist: they are not displaced.

    def _replace_ours(self, route: Route, standing: Sequence[ObservedRoute]) -> None:
        first, *others = standing
        # The kernel does not move an existing route to the front, so it must be removed before.
        self.made.changes.extend(_removals_of_ours(others))
        if is_deleted_by(first, route):
            # The removal at the end of a replacement may take the new route, too, so it comes first.
            self.made.changes.extend([RouteChange.remove(first), RouteChange.prepend(route)])
        else:
            self.made.changes.append(RouteChange.replace(first, route))

    def leave(self, standing: Sequence[ObservedRoute]) -> None:
        """Remove ours from a place that has no records."""
        if len(standing) > 1 and standing[0].protocol == OUR_PROTOCOL:
            self.made.hidden[place(standing[0])] = tuple(_foreign(standing))
        self.remove_ours(standing)

    def _put_before(self, route: Route, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """Add ours ahead of the foreign routes of the place."""
        without_us = self._without_us(place(route), standing, recorded)
        foreign = tuple(other for other in _foreign(standing) if other in without_us)
        self.made.changes.extend(_removals_of_ours(standing))
        change = RouteChange.prepend(route)
        self.made.changes.append(change)
        self.made.displaced[change] = self.made.prepended[place(route)] = foreign
        self.made.safeguard.extend(without_us)
        self.made.records.extend([other for other in without_us if other not in foreign])

    def _without_us(
        self, spot: Place, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]
    ) -> list[ObservedRoute]:
        """Return the routes that a place would have without us; stale ones are removed."""
        before = self._before.get(spot)
        if before is None:
            target, given_up = _without_us(standing, recorded)
            self.made.given_up.extend(given_up)
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

    def restore(self, spot: Place, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """Remove ours from a place and restore the recorded routes."""
        foreign = _foreign(standing)
        own = next((route for route in foreign if route.protocol == _KERNEL), None)
        if own is not None:
            reason = f"its place was taken meanwhile by '{own}'"
            self.made.given_up.extend([GivenUp(route, reason) for route in recorded if route not in foreign])
        else:
            target = self._without_us(spot, standing, recorded)
            self.made.safeguard.extend(target)
            kept, ours = [route for route in foreign if route in target], tuple(_removals_of_ours(standing))
            back = [route for route in target if route in recorded]
            appended = [route for route in kept if route not in back]
            in_front = bool(appended) and standing[0].protocol == OUR_PROTOCOL and target == back + appended != kept
            if in_front and len(back) == 1:
                # They are added ahead of the routes that were appended after ours meanwhile: moving those would lose
                # the order of routes that are added at this moment. Ours is removed in the same batch, so that a
                # refusal rolls the additions back.
                self.made.ways_back.append(
                    WayBack((*self._before_ours(back, kept), *ours), (), tuple(recorded), tuple(appended))
                )
                return
            arranged = self._arranged(kept, target)
            if arranged:
                self.made.ways_back.append(WayBack(tuple(arranged), ours, tuple(recorded)))
                return
        self.remove_ours(standing)

    def _before_ours(self, back: Sequence[ObservedRoute], kept: Sequence[ObservedRoute]) -> list[RouteChange]:
        """Return the changes that add these ahead of our routes; the kernel moves no existing route to the front."""
        changes = [RouteChange.remove(route) for route in back if route in kept]
        for route in reversed(back):
            changes.append(RouteChange.prepend(route.to_route()))
            if route not in kept:
                self.made.put_back[changes[-1]] = route
        return changes

    def _arranged(self, foreign: Sequence[ObservedRoute], target: Sequence[ObservedRoute]) -> list[RouteChange]:
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
                self.made.put_back[change] = route
            changes.append(change)
        return changes

    def remove_stale(self, route: ObservedRoute) -> None:
        """Remove a route that its owner believes replaced."""
        self.made.stale.append(route)
        self.made.clearings.append(RouteChange.remove(route))

    def remove_ours(self, standing: Iterable[ObservedRoute]) -> None:
        """Remove each of our routes."""
        self._removals += _removals_of_ours(standing)

    def keep(self, recorded: Sequence[ObservedRoute]) -> None:
        """Keep the records of these routes."""
        self.made.safeguard.extend(recorded)
        self.made.records.extend(recorded)

    def summary(self) -> Reconciliation:
        """Return the decisions, with the removals of our routes."""
        # Removals in the reverse order: a rollback goes backwards, and then each route finds its gateway.
        self.made.changes.extend(sorted(self._removals, key=_scope_of_removal))
        return self.made


def _scope_of_removal(change: RouteChange) -> int:
    return change.before.scope if change.before is not None else 0


def _removals_of_ours(routes: Iterable[ObservedRoute]) -> list[RouteChange]:
    return [RouteChange.remove(route) for route in routes if route.protocol == OUR_PROTOCOL]
