"""Desired and observed -> the changes that lead from one to the other, in an order that the kernel accepts. Pure.

The kernel lists routes by their place: table, destination, type of service and metric. The first of a place that is
alive decides. Where other owners' routes stand, ours is put before them, and what it hides is displaced: recorded and
removed, so that an owner who replaces its route takes only ours. On the way back the recorded routes are appended, in
their order, and then ours is removed.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import FLAG_ONLINK, OUR_PROTOCOL, ObservedRoute, Place, Route, place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["GivenUp", "Reconciliation", "WayBack", "reconcile"]

_KERNEL: Final = 2
_network: Final = itemgetter(0, 1)
_RESTING: Final = frozenset({0, FLAG_ONLINK})

_Routes = tuple[ObservedRoute, ...]


class GivenUp(NamedTuple):
    """A displaced route that will not come back, and why."""

    route: ObservedRoute
    reason: str


class WayBack(NamedTuple):
    """How one place becomes what it was: what comes back first, and ours goes when the next reading shows the order.

    Where routes of others stand behind ours already, what comes back is put before ours, which goes at once.
    """

    changes: tuple[RouteChange, ...]
    removals: tuple[RouteChange, ...]
    recorded: _Routes


@attrs.frozen(kw_only=True)
class Reconciliation:
    """What to change, and what that means for routes of others."""

    #: Additions and replacements first, on-link routes before the routes via them; then removals.
    changes: tuple[RouteChange, ...] = ()
    #: After them, and each by itself. Between the reading and a change another program may append a route, which is
    #: to stand behind what comes back.
    ways_back: tuple[WayBack, ...] = ()
    #: Then removals of routes that decide nothing: what ours hides, and what is stale. Each can be made by itself; one
    #: that is refused (ESRCH) its owner has made.
    clearings: tuple[RouteChange, ...] = ()
    #: Changes of ours that hide routes of others, or remove one of them, and these routes.
    displaced: Mapping[RouteChange, _Routes] = attrs.field(factory=dict)
    #: Places where ours is put before routes of others, and these: read again, then the rest can be decided.
    prepended: Mapping[Place, _Routes] = attrs.field(factory=dict)
    #: Places where ours goes and these stand behind it: if its removal is refused, what took ours has not taken them.
    hidden: Mapping[Place, _Routes] = attrs.field(factory=dict)
    #: Changes that bring back what was displaced.
    put_back: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Changes that only move a route of another owner behind one that comes back.
    moved: frozenset[RouteChange] = frozenset()
    #: Additions that the kernel will refuse, since a route of its own, which is never overwritten, holds the place.
    in_the_way: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    given_up: tuple[GivenUp, ...] = ()
    #: Removals of routes that their owner would have replaced, had it not replaced ours, which stood before them.
    stale: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: What has to be on record while the changes are made: with it a run that is killed can be undone.
    safeguard: _Routes = ()
    #: Of all that was ever displaced, what has yet to come back when the changes are made.
    records: _Routes = ()

    @property
    def all_changes(self) -> tuple[RouteChange, ...]:
        """Everything, in the order in which it is made."""
        back = (change for way in self.ways_back for change in way.changes + way.removals)
        return (*self.changes, *back, *self.clearings)


def reconcile(
    desired: Sequence[Route],
    observed: Sequence[ObservedRoute],
    *,
    displaced: Iterable[ObservedRoute] = (),
    undecided: Collection[Place] = (),
    prepended: Mapping[Place, _Routes] | None = None,
    stale: Iterable[ObservedRoute] = (),
) -> Reconciliation:
    """Compare.

    `displaced` are the routes that we took the place of earlier, those of one place in their order; `undecided` places
    are left as they are; `prepended` is what the reconciliation before this one said, if its changes were made, and
    `stale` what it found stale, if they were not.

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
    outcome = _Outcome(prepended or {})
    for other in stale:
        if other in held.get(place(other), ()):
            held[place(other)].remove(other)
            outcome.remove_stale(other)
    for spot, route in wanted.items():
        outcome.settle(route, held.pop(spot, []), records.pop(spot, []))
    for spot, recorded in sorted(records.items(), key=lambda item: min(map(_nearest_first, item[1]), default=0)):
        if spot in undecided:
            outcome.keep(recorded)
        else:
            outcome.bring_back(spot, held.pop(spot, []), recorded)
    for spot, standing in held.items():
        if spot not in undecided and any(route.protocol == OUR_PROTOCOL for route in standing):
            outcome.leave(standing)
    return outcome.summary()


def _nearest_first(route: Route | ObservedRoute) -> int:
    """By scope: a local address before what is on a link, and that before what lies behind a gateway on the link."""
    return -route.scope


def _held(observed: Sequence[ObservedRoute], places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Who holds the places, and all places that we hold, each in the kernel's order."""
    networks = {spot[2:4] for spot in places}
    networks.update(map(_network, [route for route in observed if route.protocol == OUR_PROTOCOL]))
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Out of a table of hundreds of thousands hardly any concern us.
        if _network(route) in networks:
            held[place(route)].append(route if route.flags in _RESTING else _resting(route))
    return dict(held)


def _resting(route: ObservedRoute) -> ObservedRoute:
    """The route whatever state its devices are in, so that it equals its record."""
    return route._replace(flags=route.flags & FLAG_ONLINK)


def _foreign(standing: Iterable[ObservedRoute]) -> list[ObservedRoute]:
    return [route for route in standing if route.protocol != OUR_PROTOCOL]


def _without_us(
    standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]
) -> tuple[list[ObservedRoute], list[GivenUp]]:
    """What would stand in a place had we never come, in its order; and which records are of no use any more."""
    foreign = _foreign(standing)
    if not foreign or standing[0].protocol == OUR_PROTOCOL:
        # What stands behind ours came after we took the place of the others.
        return [*recorded, *(route for route in foreign if route not in recorded)], []
    # Without ours before it, a route took the place by replacing ours. It would have replaced the first of the others.
    first = foreign[0]
    gone = recorded.index(first) if first in recorded else 1
    rest = [route for route in recorded[gone:] if route != first]
    reason = f"its place was taken meanwhile by '{first}'"
    given_up = [GivenUp(route, reason) for route in recorded[:gone]]
    return [first, *rest, *(route for route in foreign[1:] if route not in rest)], given_up


def _stale(standing: Sequence[ObservedRoute], before: Sequence[ObservedRoute]) -> ObservedRoute | None:
    """The route that the first one would have replaced, had it not replaced ours, which stood before it.

    `before` stood there when we looked, and then ours was put before them. What replaced ours is one more, and first.
    """
    if len(standing) < 2 or not before or any(route.protocol == OUR_PROTOCOL for route in standing):
        return None
    first, second, *rest = standing
    if first in before:
        # An owner that goes back and forth between two had gone forth before ours was put there.
        return second if second not in before and rest == [*before[1:]] else None
    return second if second in before or len(standing) == len(before) + 1 else None


class _Outcome:
    """Collects what is decided place by place."""

    def __init__(self, prepended: Mapping[Place, _Routes]) -> None:
        self._before = prepended
        self._records: list[ObservedRoute] = []
        self._safeguard: list[ObservedRoute] = []
        self._changes: list[RouteChange] = []
        self._ways_back: list[WayBack] = []
        self._removals: list[RouteChange] = []
        self._clearings: list[RouteChange] = []
        self._displaced: dict[RouteChange, _Routes] = {}
        self._prepended: dict[Place, _Routes] = {}
        self._hidden: dict[Place, _Routes] = {}
        self._put_back: dict[RouteChange, ObservedRoute] = {}
        self._moved: set[RouteChange] = set()
        self._stale: dict[RouteChange, ObservedRoute] = {}
        self._in_the_way: dict[RouteChange, ObservedRoute] = {}
        self._given_up: list[GivenUp] = []

    def settle(self, route: Route, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """The place is to be held by `route`."""
        if not standing:
            self._changes.append(RouteChange.add(route))
            self.keep(recorded)
            return
        own = next((other for other in standing if other.protocol == _KERNEL), None)
        if own is not None:
            # Asked for all the same, as an addition to an empty place: so it is refused together with whatever else
            # the kernel refuses, and whoever reads the error sees all of it at once.
            change = RouteChange.add(route)
            self._in_the_way[change] = own
            self._changes.append(change)
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
        """Ours stands first: remove what it hides, if it was put there by this run."""
        if foreign and place(foreign[0]) in self._before:
            # The last first: then a rollback appends them in their order. But one that a deletion of another would
            # take as well goes before that.
            last_first = list(reversed(foreign))
            for route in sorted(last_first, key=lambda route: (route.source is None, not route.extra)):
                change = RouteChange.remove(route)
                self._clearings.append(change)
                self._displaced[change] = (route,)
            self.keep(list(dict.fromkeys([foreign[0], *recorded, *foreign[1:]])))
        elif not all(route in foreign for route in recorded):
            self.keep(recorded)
        # Else all of them stand there: they are not displaced.

    def _replace_ours(self, route: Route, standing: Sequence[ObservedRoute]) -> None:
        first, *others = standing
        # The kernel puts nothing first that stands there already, so that has to go before.
        self._changes += _removals_of_ours(others)
        self._changes.append(RouteChange.replace(first, route))

    def leave(self, standing: Sequence[ObservedRoute]) -> None:
        """The place is ours no longer, and nothing of it is on record."""
        if len(standing) > 1 and standing[0].protocol == OUR_PROTOCOL:
            self._hidden[place(standing[0])] = tuple(_foreign(standing))
        self.remove_ours(standing)

    def _put_before(self, route: Route, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """Other owners' routes hold the place: ours goes before them."""
        without_us = self._without_us(place(route), standing, recorded)
        foreign = tuple(other for other in _foreign(standing) if other in without_us)
        self._changes += _removals_of_ours(standing)
        change = RouteChange.prepend(route)
        self._changes.append(change)
        self._displaced[change] = self._prepended[place(route)] = foreign
        self._safeguard += without_us
        self._records += [other for other in without_us if other not in foreign]

    def _without_us(
        self, spot: Place, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]
    ) -> list[ObservedRoute]:
        """What would stand in a place had we never come; what is stale is removed."""
        before = self._before.get(spot)
        if before is None:
            target, given_up = _without_us(standing, recorded)
            self._given_up += given_up
            for route, _ in given_up:
                # It was about to come back when another program replaced ours before it.
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

    def bring_back(self, spot: Place, standing: Sequence[ObservedRoute], recorded: Sequence[ObservedRoute]) -> None:
        """The place is ours no longer, and was `recorded`'s before."""
        foreign = _foreign(standing)
        own = next((route for route in foreign if route.protocol == _KERNEL), None)
        if own is not None:
            reason = f"its place was taken meanwhile by '{own}'"
            self._given_up += [GivenUp(route, reason) for route in recorded if route not in foreign]
        else:
            target = self._without_us(spot, standing, recorded)
            self._safeguard += target
            kept, ours = [route for route in foreign if route in target], tuple(_removals_of_ours(standing))
            back = [route for route in target if route in recorded]
            appended = [route for route in kept if route not in back]
            if appended and standing[0].protocol == OUR_PROTOCOL and kept != target == back + appended:
                # Before those that were appended behind ours meanwhile: to move them would lose the order of others
                # that come in the same instant. Ours goes with it, so that its refusal takes back what was put before.
                self._ways_back.append(WayBack((*self._before_ours(back, kept), *ours), (), tuple(recorded)))
                return
            arranged = self._arranged(kept, target)
            if arranged:
                self._ways_back.append(WayBack(tuple(arranged), ours, tuple(recorded)))
                return
        self.remove_ours(standing)

    def _before_ours(self, back: Sequence[ObservedRoute], kept: Sequence[ObservedRoute]) -> list[RouteChange]:
        """How to put these before ours; the kernel puts nothing first that stands there already."""
        removals = {route: RouteChange.remove(route) for route in back if route in kept}
        changes = list(removals.values())
        for route in reversed(back):
            changes.append(RouteChange.prepend(route.to_route()))
            if route in removals:
                self._moved.update((removals[route], changes[-1]))
            else:
                self._put_back[changes[-1]] = route
        return changes

    def _arranged(self, foreign: Sequence[ObservedRoute], target: Sequence[ObservedRoute]) -> list[RouteChange]:
        """How to make the other owners' routes of a place `target`, by appending."""
        changes: list[RouteChange] = []
        right = 0
        while right < min(len(foreign), len(target)) and foreign[right] == target[right]:
            right += 1
        for route in target[right:]:
            change = RouteChange.append(route.to_route())
            if route in foreign:
                moved = RouteChange.remove(route), change
                changes += moved
                self._moved.update(moved)
            else:
                changes.append(change)
                self._put_back[change] = route
        return changes

    def remove_stale(self, route: ObservedRoute) -> None:
        """Its owner takes it for replaced."""
        change = RouteChange.remove(route)
        self._stale[change] = route
        self._clearings.append(change)

    def remove_ours(self, standing: Iterable[ObservedRoute]) -> None:
        """Nothing of ours belongs here."""
        self._removals += _removals_of_ours(standing)

    def keep(self, recorded: Sequence[ObservedRoute]) -> None:
        """These stay on record."""
        self._safeguard += recorded
        self._records += recorded

    def summary(self) -> Reconciliation:
        return Reconciliation(
            # Removals the other way round: a rollback goes backwards, and then each finds what it stands on.
            changes=(*self._changes, *sorted(self._removals, key=_scope_of_removal)),
            ways_back=tuple(self._ways_back),
            clearings=tuple(self._clearings),
            displaced=self._displaced,
            prepended=self._prepended,
            hidden=self._hidden,
            put_back=self._put_back,
            moved=frozenset(self._moved),
            in_the_way=self._in_the_way,
            given_up=tuple(self._given_up),
            stale=self._stale,
            safeguard=tuple(self._safeguard),
            records=tuple(self._records),
        )


def _scope_of_removal(change: RouteChange) -> int:
    return change.before.scope if change.before is not None else 0


def _removals_of_ours(routes: Iterable[ObservedRoute]) -> list[RouteChange]:
    return [RouteChange.remove(route) for route in routes if route.protocol == OUR_PROTOCOL]
