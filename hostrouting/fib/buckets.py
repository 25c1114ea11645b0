"""The routes of one table to one network, and their changes: by a request, and by an event that tells of one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hostrouting.net.changes import is_deleted_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.fib.packed import Bucket
    from hostrouting.net.routes import ObservedRoute, Route

__all__ = ["after", "are_alike", "deleted", "fits", "inserted"]

#: Routes of one rank have one place, in which the first that is alive decides.
_rank: Final[Callable[[ObservedRoute], tuple[int, int]]] = attrgetter("tos", "metric")


def inserted(bucket: Bucket, route: ObservedRoute, *, last: bool) -> Bucket:
    """Return a bucket with one more route: the first of its tos and metric, or the last."""
    ranks = [(-other.tos, other.metric) for other in bucket]
    position = (bisect_right if last else bisect_left)(ranks, (-route.tos, route.metric))
    return (*bucket[:position], route, *bucket[position:])


def deleted(bucket: Bucket, named: Route | ObservedRoute) -> Bucket:
    """Return a bucket without the route that the kernel's deletion of `named` takes, which is the first that fits."""
    gone = next((route for route in bucket if is_deleted_by(named, route)), None)
    return bucket if gone is None else tuple(route for route in bucket if route is not gone)


def are_alike(bucket: Bucket, other: Bucket) -> bool:
    """Return True if two buckets hold the same routes in the same order, those with dead next hops told apart."""
    return bucket == other and all(
        [hop.dead for hop in one.nexthops] == [hop.dead for hop in another.nexthops]
        for one, another in zip(bucket, other, strict=True)
        if one.nexthops
    )


def fits(bucket: Bucket, verb: str, route: ObservedRoute) -> bool:
    """Return True if a bucket can have been as it is just before an event; only then the result of `after` is sure."""
    if not bucket:
        return verb == "add"
    is_there = any(other.fulfils(route) for other in bucket)
    if verb == "remove":
        return is_there
    standing = [other for other in bucket if _rank(other) == _rank(route)]
    if is_there or (verb == "add") == bool(standing):
        return False
    # A changed nexthop object replaces its routes wherever they stand.
    return not (verb == "replace" and route.nexthop_id and len(standing) > 1)


def after(bucket: Bucket, verb: str, route: ObservedRoute) -> Bucket:
    """Return a bucket after an event; if a reading has already shown the change, it stays as it is."""
    if not bucket:
        return () if verb == "remove" else (route,)
    others = tuple(other for other in bucket if not other.fulfils(route))
    if verb == "remove":
        return others
    if verb == "add":
        others = tuple(other for other in others if _rank(other) != _rank(route))
    elif verb == "replace":
        return _replaced(others, route)
    return inserted(others, route, last=verb == "append")


def _replaced(others: Bucket, route: ObservedRoute) -> Bucket:
    same = [position for position, other in enumerate(others) if _rank(other) == _rank(route)]
    # If a nexthop object changes, each of its routes is announced as a replacement, wherever the route stands.
    by_object = [position for position in same if route.nexthop_id and others[position].nexthop_id == route.nexthop_id]
    for position in (by_object or same)[:1]:
        return (*others[:position], route, *others[position + 1 :])
    return inserted(others, route, last=False)
