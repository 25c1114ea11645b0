"""Desired and observed -> the changes that lead from one to the other, in an order that the kernel accepts. Pure.

The kernel tells routes apart by their place: table, destination, type of service and metric. Several may hold one
place (by `ip route append`); then the first decides, and it is the first that a replacement replaces.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.host.routes import OUR_PROTOCOL, ObservedRoute, Route, RouteChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

__all__ = ["GivenUp", "Place", "Reconciliation", "place", "reconcile"]

_KERNEL: Final = 2
#: What upstream's `ip route replace` leaves behind, and what others who do by hand what we do are likely to write.
_UPSTREAM: Final = frozenset({3, 4})

Place = tuple[int, int, int, int, int]


class GivenUp(NamedTuple):
    """A displaced route that will not come back, and why."""

    route: ObservedRoute
    reason: str


@attrs.frozen(kw_only=True)
class Reconciliation:
    """What to change, and what that means for routes of others."""

    #: Adds and replacements first, on-link routes before the routes via them; then what comes back; then removals.
    changes: tuple[RouteChange, ...] = ()
    #: Changes that take away a route of somebody else.
    displaced: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Changes of a route like ours but for the mark, which it is given.
    adopted: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Changes that bring back what was displaced.
    put_back: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    #: Additions that the kernel will refuse, since a route of its own, which is never overwritten, holds the place.
    in_the_way: Mapping[RouteChange, ObservedRoute] = attrs.field(factory=dict)
    given_up: tuple[GivenUp, ...] = ()
    #: Of all that was ever displaced, what has yet to come back when the changes are made.
    records: tuple[ObservedRoute, ...] = ()


def place(route: Route | ObservedRoute) -> Place:
    """What the kernel tells routes apart by."""
    return route.table, route.network, route.prefix_length, route.tos, route.metric


def reconcile(
    desired: Sequence[Route],
    observed: Iterable[ObservedRoute],
    *,
    displaced: Iterable[ObservedRoute] = (),
    undecided: Collection[Place] = (),
) -> Reconciliation:
    """Compare; `displaced` are the routes that we took the place of earlier, `undecided` places are left as they are.

    >>> from hostrouting.host import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> [str(change) for change in reconcile([route], []).changes]
    ['+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142']
    """
    wanted = {place(route): route for route in sorted(desired, key=_nearest_first)}
    records = {place(route): route for route in displaced}
    held = _held(observed, [*wanted, *records])
    outcome = _Outcome(dict(records))
    for spot, route in wanted.items():
        outcome.settle(route, held.pop(spot, []))
    for record in sorted(records.values(), key=_nearest_first):
        spot = place(record)
        if spot not in wanted and spot not in undecided:
            outcome.bring_back(record, held.pop(spot, []))
    for spot, standing in held.items():
        if spot not in undecided:
            outcome.remove_ours(standing)
    return outcome.summary()


def _nearest_first(route: Route | ObservedRoute) -> int:
    """By scope: a local address before what is on a link, and that before what lies behind a gateway on the link."""
    return -route.scope


def _held(observed: Iterable[ObservedRoute], places: Iterable[Place]) -> dict[Place, list[ObservedRoute]]:
    """Who holds the places, and all places that we hold, each in the kernel's order."""
    networks = {(network, prefix_length) for _, network, prefix_length, _, _ in places}
    held: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in observed:
        # Out of a table of hundreds of thousands hardly any concern us.
        if route.protocol == OUR_PROTOCOL or (route.network, route.prefix_length) in networks:
            held[place(route)].append(route)
    return dict(held)


class _Outcome:
    """Collects what is decided place by place."""

    def __init__(self, records: dict[Place, ObservedRoute]) -> None:
        self._records = records
        self._changes: list[RouteChange] = []
        self._removals: list[RouteChange] = []
        self._displaced: dict[RouteChange, ObservedRoute] = {}
        self._adopted: dict[RouteChange, ObservedRoute] = {}
        self._put_back: dict[RouteChange, ObservedRoute] = {}
        self._in_the_way: dict[RouteChange, ObservedRoute] = {}
        self._given_up: list[GivenUp] = []

    def settle(self, route: Route, standing: Sequence[ObservedRoute]) -> None:
        """The place is to be held by `route`."""
        own = next((other for other in standing if other.protocol == _KERNEL), None)
        if own is not None:
            # Asked for all the same, as an addition that cannot overwrite: so it is refused together with whatever
            # else the kernel refuses, and whoever reads the error sees all of it at once.
            change = RouteChange.add(route)
            self._in_the_way[change] = own
            self._changes.append(change)
        elif not standing:
            self._changes.append(RouteChange.add(route))
        else:
            self._take(standing[0], standing[1:], route)

    def _take(self, first: ObservedRoute, others: Sequence[ObservedRoute], route: Route) -> None:
        # The kernel refuses to make the first what stands behind it already, so that has to go before.
        self._changes += _removals_of_ours(others)
        if first.fulfils(route):
            return
        change = RouteChange.replace(first, route)
        self._changes.append(change)
        if first.protocol == OUR_PROTOCOL:
            return
        if first.protocol in _UPSTREAM and first._replace(protocol=OUR_PROTOCOL).fulfils(route):
            self._adopted[change] = first
        else:
            self._displaced[change] = first
            self._records[place(first)] = first

    def bring_back(self, record: ObservedRoute, standing: Sequence[ObservedRoute]) -> None:
        """The place is ours no longer, and was `record`'s before."""
        del self._records[place(record)]
        foreign = [route for route in standing if route.protocol != OUR_PROTOCOL]
        taken_by = next((route for route in foreign if route.protocol == _KERNEL), None)
        if foreign and foreign[0] is standing[0]:
            taken_by = foreign[0]
        if any(route.fulfils(record) for route in foreign):
            self.remove_ours(standing)
        elif taken_by is not None:
            self._given_up.append(GivenUp(record, f"its place was taken meanwhile by '{taken_by}'"))
            self.remove_ours(standing)
        elif standing:
            self._changes += _removals_of_ours(standing[1:])
            self._put_back[RouteChange.replace(standing[0], record.to_route())] = record
        else:
            self._put_back[RouteChange.add(record.to_route())] = record

    def remove_ours(self, standing: Iterable[ObservedRoute]) -> None:
        """Nothing of ours belongs here."""
        self._removals += _removals_of_ours(standing)

    def summary(self) -> Reconciliation:
        return Reconciliation(
            # Removals the other way round: a rollback goes backwards, and then each finds what it stands on.
            changes=(*self._changes, *self._put_back, *sorted(self._removals, key=_scope_of_removal)),
            displaced=self._displaced,
            adopted=self._adopted,
            put_back=self._put_back,
            in_the_way=self._in_the_way,
            given_up=tuple(self._given_up),
            records=tuple(self._records.values()),
        )


def _scope_of_removal(change: RouteChange) -> int:
    return change.before.scope if change.before is not None else 0


def _removals_of_ours(routes: Iterable[ObservedRoute]) -> Iterator[RouteChange]:
    return (RouteChange.remove(route) for route in routes if route.protocol == OUR_PROTOCOL)
