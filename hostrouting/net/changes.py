"""The steps of a batch of route changes, which is applied in full or rolled back."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from hostrouting.net.addresses import IPV6
from hostrouting.net.routes import NextHop, ObservedRoute, Route, place

#: A next hop, or a route that has just one.
Hop: TypeAlias = "Route | ObservedRoute | NextHop"


@attrs.frozen
class RouteChange:
    """One step of a batch: `before` must exist now, and `after` exists afterwards.

    An addition lacks `before`, a removal lacks `after`. A change with both adds `after`, and then
    removes `before`, so that no packet finds the place empty. If that removal would also fit
    `after`, it comes first, and both steps come after all other changes of the batch. A route is
    moved within its place if both are the same. No change overwrites a route: the kernel would
    overwrite the first route of the place, which may be a foreign one by then.

    Two IPv6 routes by gateways that share a place become one multipath route, so such a route is
    only added to an empty place. An IPv6 route is never prepended, and its replacement removes
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
        if self.after is None:
            return
        if self.after.family == IPV6 and self.verb == "prepend":
            raise ValueError(
                f"'{self.after}' cannot be prepended: a new IPv6 route is the last of its place"
            )
        if self.after.family == IPV6 and self.verb == "append" and may_merge(self.after):
            raise ValueError(
                f"'{self.after}' can only be added to an empty place: the kernel merges such routes"
            )
        if self.before is not None and place(self.before) != place(self.after):
            raise ValueError(
                f"'{self.after}' cannot replace '{self.before}': destination, tos, metric and "
                "table must be the same; add the first, then remove the second"
            )

    @classmethod
    def add(cls, route: Route) -> RouteChange:
        """Install `route`; refused (EEXIST) if its place has a route."""
        return cls(None, route)

    @classmethod
    def prepend(cls, route: Route) -> RouteChange:
        """Install `route` ahead of others of its place; refused (EEXIST) only if it exists."""
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
        """Install `after` first in its place (IPv6: alone), and remove exactly `before`."""
        return cls(before, after, "add" if after.family == IPV6 else "prepend")

    @property
    def route(self) -> Route | ObservedRoute:
        """The route that exists afterwards, or that of a removal."""
        return self.after or self.before  # type: ignore[return-value]  # one is not None

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


def is_deleted_by(named: Route | ObservedRoute, present: Route | ObservedRoute) -> bool:
    """Return True if the kernel's deletion of `named` fits `present`; it takes the first that fits.

    A field that a deletion lacks fits any value: a metric or protocol of 0, and an absent source
    address, gateway or attribute. Next hops are compared one by one: a single one fits a route with
    several of which it is the first, and several fit a route with fewer of which they are the
    first.

    Of IPv6 routes only the place, the protocol and a given next hop are compared: it fits a route
    with several, and any fits a route by a nexthop object. A deletion of a route with several names
    none.
    """
    if place(named)[:-1] != place(present)[:-1] or named.metric not in {0, present.metric}:
        return False
    if named.protocol not in {0, present.protocol}:
        return False
    if named.family == IPV6:
        if named.nexthop_id or present.nexthop_id:
            return bool(present.nexthop_id) and named.nexthop_id in {0, present.nexthop_id}
        return bool(named.nexthops) or any(
            # Routes that block are on the loopback device.
            named.gateway in {None, hop.gateway} and (named.dev or "lo") == (hop.dev or "lo")
            for hop in present.nexthops or (present,)
        )
    if (named.kind, named.scope) != (present.kind, present.scope):
        return False
    if named.nexthop_id not in {0, present.nexthop_id}:
        return False
    return (
        named.source in {None, present.source}
        and (named.nexthop_id != 0 or _hops_fit(named, present))
        and named.encapsulation in {None, present.encapsulation}
        and _extra_fits(named, present)
    )


def is_merged(route: ObservedRoute) -> bool:
    """Return True for an IPv6 route that the kernel made of several.

    hostrouting never adds one by several next hops. Such a route has the protocol of one of them.
    """
    return route.family == IPV6 and bool(route.nexthops) and not route.nexthop_id


def may_merge(route: Route | ObservedRoute) -> bool:
    """Return True if the kernel may merge an IPv6 route with another by a gateway (multipath)."""
    hops = route.nexthops or (route,)
    return not route.nexthop_id and any(hop.gateway is not None for hop in hops)


def _hops_fit(named: Route | ObservedRoute, present: Route | ObservedRoute) -> bool:
    hops = present.nexthops or (present,)
    if not named.nexthops:
        return _hop_fits(named, hops[0])
    if len(named.nexthops) < len(hops):
        return False
    pairs = zip(named.nexthops, hops, strict=False)
    return all(_hop_fits(*pair) and _extra_fits(*pair) for pair in pairs)


def _hop_fits(named: Hop, present: Hop) -> bool:
    return named.gateway in {None, present.gateway} and named.dev in {None, present.dev}


def _extra_fits(named: Hop, present: Hop) -> bool:
    return set(named.extra) <= set(present.extra)
