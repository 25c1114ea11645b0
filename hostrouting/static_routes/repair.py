"""Restore the static routes of a config as far as the node allows now: one repair of `Watch`.

A repair never waits, and a route that the kernel refuses now does not keep the others from their places.
`ConfigureStaticRoutes` is all or nothing instead: its caller gets the error.

`repair` compares all routes, `repair_places` those of a few places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.exceptions import HostFileError, LinkNotFoundError, RouteRejectedError
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import OUR_PROTOCOL, place
from hostrouting.static_routes.converge import Convergence
from hostrouting.static_routes.reconcile import held_in
from hostrouting.static_routes.resolve import place_of, resolve

if TYPE_CHECKING:
    import logging
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hostrouting.config import StaticRoute
    from hostrouting.host import Host, Route
    from hostrouting.net.routes import ObservedRoute, Place
    from phases import Context

__all__ = ["Repair", "repair", "repair_places"]


@attrs.frozen(kw_only=True)
class Repair:
    """The outcome of a repair."""

    #: The routes of the config that have a device and a gateway, by their place.
    wanted: Mapping[Place, Route] = attrs.field(factory=dict)
    #: The routes that cannot be in force now, with the reason.
    waiting: Mapping[str, str] = attrs.field(factory=dict)
    #: The foreign routes that came first in our places, and were displaced.
    displaced: tuple[ObservedRoute, ...] = ()
    #: The foreign routes that were left where a route of the config belongs.
    spared: tuple[ObservedRoute, ...] = ()
    #: The devices of the default routes, if one of these completes a route of the config.
    completed_by: frozenset[str] = frozenset()
    #: The displaced routes that cannot return to their places now, with the reason.
    unrestored: Mapping[str, str] = attrs.field(factory=dict)


def repair(
    ctx: Context,
    routes: Sequence[StaticRoute],
    host: Host,
    logger: logging.Logger,
    *,
    before: Repair | None = None,
    spare: Collection[Place] = (),
) -> Repair:
    """Make our routes those of a config, under the run lock; in the places `spare`, displace no foreign route.

    A route that lacks a default route, a device or an address waits: its place stays as it is, too. The displaced
    routes that the repair `before` could not restore either are not logged again.
    """
    observed = host.routes.routes()
    resolution = resolve(routes, observed)
    wanted = {place(route): route for route in resolution.routes}
    intruders = _intruders(observed, wanted)
    spared = {spot: foreign for spot, foreign in intruders.items() if spot in spare}
    waiting = {place_of(route): (str(route), reason) for route, reason in resolution.missing}
    known = {} if before is None else before.unrestored
    while True:
        desired = [route for spot, route in wanted.items() if spot not in waiting and spot not in spared]
        convergence = Convergence(host, logger, {*waiting, *spared}, known=known)
        try:
            convergence.run(ctx, desired)
        except (LinkNotFoundError, RouteRejectedError) as error:
            refused = _refused(error, desired)
            if not refused:
                raise
        except HostFileError as error:
            # Foreign routes are displaced only once they are on record; the other routes need no record.
            refused = {spot: str(error) for spot in intruders if spot not in waiting and spot not in spared}
            if not refused:
                raise
        else:
            return Repair(
                wanted=wanted,
                waiting=dict(waiting.values()),
                displaced=tuple(foreign for spot, foreign in intruders.items() if spot not in {*spared, *waiting}),
                spared=tuple(spared.values()),
                completed_by=_completed_by(routes, observed),
                unrestored=convergence.unrestored,
            )
        waiting |= {spot: (str(wanted[spot]), reason) for spot, reason in refused.items()}


def repair_places(
    ctx: Context,
    places: Collection[Place],
    last: Repair,
    host: Host,
    logger: logging.Logger,
    *,
    spare: Collection[Place],
) -> Repair:
    """Make our routes in these places those that `last` found to be wanted, all or none, under the run lock.

    A route that waits goes on to wait if the kernel refuses it again. `host` needs to show the routes of these places
    only.
    """
    wanted = {spot: last.wanted[spot] for spot in places if spot in last.wanted}
    intruders = _intruders(host.routes.routes(), wanted)
    spared = {spot: foreign for spot, foreign in intruders.items() if spot in spare}
    left = set(spared)
    while True:
        desired = [route for spot, route in wanted.items() if spot not in left]
        convergence = Convergence(host, logger, _Outside(places, left), known=last.unrestored)
        try:
            convergence.run(ctx, desired)
        except (LinkNotFoundError, RouteRejectedError) as error:
            refused = _refused(error, desired)
            if not refused or any(str(wanted[spot]) not in last.waiting for spot in refused):
                raise
            left |= refused.keys()
        else:
            break
    in_force = {str(route) for route in desired}
    return attrs.evolve(
        last,
        waiting={route: reason for route, reason in last.waiting.items() if route not in in_force},
        displaced=tuple(foreign for spot, foreign in intruders.items() if spot not in left),
        spared=(*(foreign for foreign in last.spared if place(foreign) not in places), *spared.values()),
        unrestored={**last.unrestored, **convergence.unrestored},
    )


@attrs.frozen
class _Outside:
    """All places but some of a few."""

    _places: Collection[Place]
    _but: Collection[Place]

    def __contains__(self, spot: object) -> bool:
        return spot not in self._places or spot in self._but


def _completed_by(routes: Iterable[StaticRoute], observed: Iterable[ObservedRoute]) -> frozenset[str]:
    if all(route.dev and route.gateway for route in routes):
        return frozenset()
    return frozenset(hop.dev for route in default_routes(observed) for hop in route.hops)


def _intruders(observed: Sequence[ObservedRoute], wanted: Collection[Place]) -> dict[Place, ObservedRoute]:
    """Return the foreign routes that decide in our places."""
    first = {spot: standing[0] for spot, standing in held_in(observed, wanted).items() if spot in wanted}
    return {spot: route for spot, route in first.items() if route.protocol != OUR_PROTOCOL}


def _refused(error: LinkNotFoundError | RouteRejectedError, desired: Sequence[Route]) -> dict[Place, str]:
    """Return the places of the refused routes, with the reasons; nothing if the other routes are not as before."""
    if isinstance(error, LinkNotFoundError):
        return {place(route): "there is no such device" for route in desired if route.dev == error.dev}
    if not error.rolled_back:
        return {}
    reasons = {change.partition(" -> ")[2] or change[2:]: reason for change, _, reason in error.refusals}
    return {place(route): reasons[str(route)] for route in desired if str(route) in reasons}
