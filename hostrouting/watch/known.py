"""The routes in the places of a config, as one reading and the events after it tell.

The kernel shows all routes of a node or none, and 500,000 of them take seconds. But it announces each change of a
route, so the routes of a few places are known without another reading: `NearRoutes` are as true as a dump at that
moment. Changes that it does not announce go with an event of a device or an address; then everything is read.

A repair changes the node at once, so an event that does not fit the routes of its place leaves the place in doubt.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from hostrouting.exceptions import BackendError
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.routes import OUR_PROTOCOL, place, resting
from hostrouting.static_routes.reconcile import held_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from hostrouting.fib.tables import Bucket
    from hostrouting.host import ObservedRoute, RouteBackend, RouteChange, RouteEvent
    from hostrouting.net.routes import Place
    from phases import Context


@attrs.define(eq=False)
class KnownRoutes:
    """The routes in the places of a config, and in all places that have one of our routes.

    `catch_up` lets `hear` have all events of the kernel by now.
    """

    backend: RouteBackend
    catch_up: Callable[[], None]
    _places: Collection[Place] = ()
    _held: dict[Place, Bucket] = attrs.field(factory=dict)
    #: The families of which all places are known; another one is to be read anew.
    _families: set[int] = attrs.field(factory=set)
    #: Places in which events and reading do not fit together.
    _doubtful: set[Place] = attrs.field(factory=set)
    #: An event that comes while the routes are read may be in the reading, or not.
    _is_reading: bool = False
    #: The devices and source addresses of the routes so far: the kernel removes routes together with these.
    devices: set[str] = attrs.field(factory=set)
    sources: set[int] = attrs.field(factory=set)
    #: Their nexthop objects: routes go with these, too.
    objects: set[int] = attrs.field(factory=set)

    def forget(self, places: Collection[Place] | None = None) -> None:
        """Forget all routes; with `places`, those are the places of the config from now on."""
        self._held.clear()
        self._families.clear()
        if places is not None:
            self._places = places

    def read(self, family: int = IPV4) -> list[ObservedRoute]:
        """Read the routes of every table, and know them."""
        self.catch_up()
        self._is_reading = True
        try:
            observed = self.backend.routes(family)
            held = held_in(observed, (spot for spot in self._places if spot[1] == family))
            self._held = {spot: routes for spot, routes in self._held.items() if spot[1] != family}
            self._held |= {spot: tuple(routes) for spot, routes in held.items()}
            self._families.add(family)
            self._doubtful = {spot for spot in self._doubtful if spot[1] != family}
            self.devices.clear()
            self.sources.clear()
            self.objects.clear()
            self._note(self._all())
            self.catch_up()
        finally:
            self._is_reading = False
        return observed

    def hear(self, event: RouteEvent) -> Place | None:
        """Take note of an event; return its place, if that is of the config or has one of our routes."""
        spot = place(event.route)
        held = self._held
        if spot not in self._places and spot not in held and event.route.protocol != OUR_PROTOCOL:
            return None
        standing, route = held.get(spot, ()), resting(event.route)
        if self._is_reading or spot[1] not in self._families or not fits(standing, event.verb, route):
            self._doubtful.add(spot)
            return spot
        held[spot] = after(standing, event.verb, route)
        self._note(held[spot])
        if not held[spot]:
            del held[spot]
        return spot

    def at(self, spot: Place) -> Bucket | None:
        """Return the routes of a place in their order; None if they are not known."""
        is_known = spot[1] in self._families and spot not in self._doubtful
        return self._held.get(spot, ()) if is_known else None

    def confirmed_by(self, ours: Iterable[ObservedRoute]) -> bool:
        """Return True if these are all of our routes, place by place in their order."""
        return bool(self._families) and not self._doubtful and _ours(ours) == _ours(self._all())

    def _all(self) -> Iterator[ObservedRoute]:
        return chain.from_iterable(self._held.values())

    def _note(self, routes: Iterable[ObservedRoute]) -> None:
        for route in routes:
            self.devices.update(route.devs)
            if route.source is not None:
                self.sources.add(route.source)
            if route.nexthop_id:
                self.objects.add(route.nexthop_id)


class _Reading:
    """The part of a `RouteBackend` that the views leave as it is."""

    def __init__(self, known: KnownRoutes) -> None:
        self._known, backend = known, known.backend
        self.families = backend.families
        self.links, self.rules = backend.links, backend.rules
        self.routes_of, self.lookup = backend.routes_of, backend.lookup


class WholeRoutes(_Reading):
    """The backend itself; the routes that it reads are known from then on.

    A signal that cancels the context ends a reading at once, but never one between two changes of a repair.
    """

    def __init__(self, known: KnownRoutes, ctx: Context) -> None:
        super().__init__(known)
        self._ctx = ctx
        self._has_changed = False

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """Return the routes of every table."""
        with nullcontext() if self._has_changed else self._ctx.interruptible():
            return self._known.read(family)

    def apply(
        self,
        changes: Sequence[RouteChange],
        *,
        verify: bool = True,
        standing: Sequence[ObservedRoute] | None = None,
    ) -> None:
        """See `RouteBackend.apply`."""
        self._has_changed = True
        self._known.backend.apply(changes, verify=verify, standing=standing)


class NearRoutes(_Reading):
    """A backend that shows the routes of a few places only, and reads none of them."""

    def __init__(self, known: KnownRoutes, places: Collection[Place]) -> None:
        super().__init__(known)
        self._places = places
        # A repair asks for no others.
        self.families = tuple(spot[1] for spot in places)

    def routes(self, family: int | None = IPV4) -> list[ObservedRoute]:
        """Return the routes in the places, as the events so far tell; BackendError says that they are not known."""
        self._known.catch_up()
        found: list[ObservedRoute] = []
        for spot in self._places:
            here = self._known.at(spot) if family in {None, spot[1]} else ()
            if here is None:
                raise BackendError("the events do not tell which routes there are, so all are to be read")
            found += here
        return found

    def apply(
        self,
        changes: Sequence[RouteChange],
        *,
        verify: bool = True,  # noqa: ARG002 - the next event tells of a change that did not last
        standing: Sequence[ObservedRoute] | None = None,  # noqa: ARG002
    ) -> None:
        """See `RouteBackend.apply`: the kernel refuses a change that does not fit the routes of this moment."""
        self._known.backend.apply(changes, verify=False, standing=self.routes(None))


def _ours(routes: Iterable[ObservedRoute]) -> dict[Place, list[ObservedRoute]]:
    found: defaultdict[Place, list[ObservedRoute]] = defaultdict(list)
    for route in routes:
        if route.protocol == OUR_PROTOCOL:
            found[place(route)].append(resting(route))
    return found


def fits(standing: Bucket, verb: str, route: ObservedRoute) -> bool:
    """Return True if a place can have held these routes just before an event; only then `after` is sure."""
    if not standing:
        return verb == "add"
    is_there = any(other.fulfils(route) for other in standing)
    if verb == "remove":
        return is_there
    if route.family == IPV6 and (verb == "append" or len(standing) > 1):
        # The event tells neither its position nor which one it replaces, and it may be a next hop more of another.
        return False
    # A changed nexthop object replaces its routes wherever they stand.
    is_anywhere = verb == "replace" and route.nexthop_id and len(standing) > 1
    return verb != "add" and not is_there and not is_anywhere


def after(standing: Bucket, verb: str, route: ObservedRoute) -> Bucket:
    """Return the routes of a place after an event that fits them."""
    if verb == "remove":
        return tuple(other for other in standing if not other.fulfils(route))
    if verb == "append":
        return (*standing, route)
    return (route, *(standing[1:] if verb == "replace" else standing))
