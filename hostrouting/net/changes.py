"""The steps of a batch of route changes, which is applied in full or rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from hostrouting.net.addresses import IPV6
from hostrouting.net.routes import NextHop, ObservedRoute, Route, place

if TYPE_CHECKING:
    from collections.abc import Iterable


#: A next hop, or a route that has just one.
Hop: TypeAlias = "Route | ObservedRoute | NextHop"


@attrs.frozen
class RouteChange:
    """One step of a batch: `before` must be there now, and `after` is there afterwards.

    An addition has no `before`, a removal no `after`. A change with both adds `after`, and then
    removes `before`, so that no packet finds the place empty. Where that removal would take
    `after`, too, it comes first, and both steps come after all other changes of the batch. So a
    route can be moved within its place: both are the same. No change overwrites a route: the kernel
    would overwrite the first route of the place, and by then that may be a foreign one.

    Two IPv6 routes by gateways that share a place become one multipath route, so such a route is
    only added to an empty place. No IPv6 route is prepended, and a replacement of one removes
    first.

    >>> from hostrouting.net.routes import Route
    >>> str(RouteChange.add(Route.parse("172.16.1.0/24", dev="eth0")))
    '+ 172.16.1.0/24 dev eth0 proto 142 scope link'
    """

    before: ObservedRoute | None
    after: Route | None
    #: How `after` is installed: `add`, `prepend` or `append`, see the methods of these names.
    verb: str = "add"

    def __attrs_post_init__(self) -> None:
        if self.before is None and self.after is None:
            raise ValueError("a change has neither 'before' nor 'after'; give one of them")
        if self.after is not None and self.after.family == IPV6 and self.verb != "add":
            if self.verb == "prepend":
                raise ValueError(
                    f"'{self.after}' cannot be prepended: a new IPv6 route is the last of its place"
                )
            if may_merge(self.after):
                raise ValueError(
                    f"'{self.after}' can only be added to an empty place: the kernel merges such routes"
                )
        if (
            self.before is not None
            and self.after is not None
            and place(self.before) != place(self.after)
        ):
            raise ValueError(
                f"'{self.after}' cannot replace '{self.before}': destination, tos, metric and table must be the same; "
                f"add the first, then remove the second"
            )

    @classmethod
    def add(cls, route: Route) -> RouteChange:
        """Install `route`; refused (EEXIST) if its place has a route."""
        return cls(None, route)

    @classmethod
    def prepend(cls, route: Route) -> RouteChange:
        """Install `route` ahead of others of its place, so that it decides; refused (EEXIST) only if it exists."""
        return cls(None, route, "prepend")

    @classmethod
    def append(cls, route: Route) -> RouteChange:
        """Install `route` after others of its place; refused (EEXIST) only if it exists."""
        return cls(None, route, "append")

    @classmethod
    def remove(cls, route: ObservedRoute) -> RouteChange:
        """Remove exactly `route`; refused (ESRCH) if it does not exist."""
        return cls(route, None)

    @classmethod
    def replace(cls, before: ObservedRoute, after: Route) -> RouteChange:
        """Install `after` ahead of others of its place (of IPv6 there must be none), and remove exactly `before`."""
        return cls(before, after, "add" if after.family == IPV6 else "prepend")

    @property
    def route(self) -> Route | ObservedRoute:
        """The route that is there afterwards, or that of a removal."""
        return self.after or self.before  # type: ignore[return-value]  # one is there

    @property
    def removes_first(self) -> bool:
        """True if `before` is removed before `after` is added: a deletion would fit both."""
        if self.before is None or self.after is None:
            return False
        return self.after.family == IPV6 or is_deleted_by(self.before, self.after)

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.after}"
        if self.after is None:
            return f"- {self.before}"
        return f"~ {self.before} -> {self.after}"


def families_of(changes: Iterable[RouteChange]) -> list[int]:
    """Return the address families of the routes, each once."""
    return sorted({change.route.family for change in changes})


def is_deleted_by(named: Route | ObservedRoute, standing: Route | ObservedRoute) -> bool:
    """Return True if the kernel's deletion of `named` takes `standing`, if that is the first that fits.

    A field that a deletion does not have fits any value: a metric or protocol of 0, and a source
    address, gateway or attribute that is absent. Next hops are compared one by one: a single one
    fits a route with several of which it is the first, and several fit a route with fewer of which
    they are the first.

    Of IPv6 routes only the place, the protocol and the next hop are compared, if one is named: it
    fits a route with several, and any fits a route by a nexthop object. A deletion of a route with
    several names none.
    """
    if place(named)[:-1] != place(standing)[:-1] or named.metric not in {0, standing.metric}:
        return False
    if named.protocol not in {0, standing.protocol}:
        return False
    if named.family == IPV6:
        if named.nexthop_id or standing.nexthop_id:
            return bool(standing.nexthop_id) and named.nexthop_id in {0, standing.nexthop_id}
        return bool(named.nexthops) or any(
            # Routes that block are on the loopback device.
            named.gateway in {None, hop.gateway} and (named.dev or "lo") == (hop.dev or "lo")
            for hop in standing.nexthops or (standing,)
        )
    return (
        (named.kind, named.scope) == (standing.kind, standing.scope)
        and named.source in {None, standing.source}
        and (
            named.nexthop_id == standing.nexthop_id
            if named.nexthop_id
            else _hops_fit(named, standing)
        )
        and named.encapsulation in {None, standing.encapsulation}
        and _extra_fits(named, standing)
    )


def is_merged(route: ObservedRoute) -> bool:
    """Return True for a route that the kernel made of several: hostrouting adds no IPv6 route by several next hops.

    It shows the protocol of one next hop only.
    """
    return route.family == IPV6 and bool(route.nexthops) and not route.nexthop_id


def may_merge(route: Route | ObservedRoute) -> bool:
    """Return True if the kernel may make one multipath route of an IPv6 route and another by a gateway."""
    return not route.nexthop_id and any(
        hop.gateway is not None for hop in route.nexthops or (route,)
    )


def _hops_fit(named: Route | ObservedRoute, standing: Route | ObservedRoute) -> bool:
    hops = standing.nexthops or (standing,)
    if not named.nexthops:
        return _hop_fits(named, hops[0])
    pairs = zip(named.nexthops, hops, strict=False)
    return len(named.nexthops) >= len(hops) and all(
        _hop_fits(*pair) and _extra_fits(*pair) for pair in pairs
    )


def _hop_fits(named: Hop, standing: Hop) -> bool:
    return named.gateway in {None, standing.gateway} and named.dev in {None, standing.dev}


def _extra_fits(named: Hop, standing: Hop) -> bool:
    return set(named.extra) <= set(standing.extra)
