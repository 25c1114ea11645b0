"""The commit of IPv4 routes, of which the kernel removes by almost their full description."""

from __future__ import annotations

import errno
from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.fib.buckets import inserted
from hostrouting.fib.model import resting
from hostrouting.fib.tables import Tables, key_of
from hostrouting.host.netlink.commit import Batch, Failure, taken_by
from hostrouting.net.changes import is_deleted_by
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hostrouting.fib.tables import Bucket, Key
    from hostrouting.host.netlink.commit import AnyRoute, Step, Transport
    from hostrouting.net.changes import RouteChange

__all__ = ["commit_routes"]

_dev = attrgetter("dev")


def commit_routes(
    transport: Transport[AnyRoute],
    changes: Sequence[RouteChange],
    *,
    devices: Collection[str],
    verify: bool,
    standing: Sequence[ObservedRoute] | None = None,
) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for the errors and for `standing`."""
    _check_devices(changes, devices)
    parts = _route_parts(changes)
    only_adds = all(change.before is None and change.verb == "add" for change in changes)
    known = transport.standing() if standing is None and not only_adds else standing
    before: Sequence[AnyRoute] = () if known is None else [*known]
    batch = Batch(transport, lambda position: str(changes[position]), before=before)
    failures = _wrong_removals(changes, parts, before)
    if failures:
        raise batch.rejection(failures)
    batch.commit(parts, verify=verify)


def _wrong_removals(
    changes: Sequence[RouteChange], parts: Iterable[Sequence[Step[AnyRoute]]], before: Iterable[AnyRoute]
) -> dict[int, Failure]:
    """Return the removals of routes that do not exist, or instead of which the kernel would take another one."""
    buckets = _crowded(changes, before)
    failures: dict[int, Failure] = {}
    # In the order in which the steps are sent.
    for verb, route, position in chain.from_iterable(parts) if buckets else ():
        key = key_of(route)
        if key not in buckets:
            continue
        if verb != "remove":
            buckets[key] = inserted(buckets[key], resting(route), last=verb == "append")
            continue
        gone = taken_by(route, buckets[key], is_deleted_by)
        if isinstance(gone, Failure):
            failures[position] = gone
        buckets[key] = tuple(other for other in buckets[key] if other is not gone)
    return failures


def _crowded(changes: Sequence[RouteChange], before: Iterable[AnyRoute]) -> dict[Key, Bucket]:
    """Return the routes to each destination but those where, as usual, one change removes the one route."""
    if all(change.before is None for change in changes):
        return {}
    keys = [key_of(change.before or change.after) for change in changes]  # type: ignore[arg-type]  # one is there
    counts = Counter(keys)
    near = [route for route in before if key_of(route) in counts]
    tables = Tables.of(route for route in near if isinstance(route, ObservedRoute))
    return {
        key: tables.bucket(key)
        for key, change in zip(keys, changes, strict=True)
        if counts[key] > 1 or tables.bucket(key) != (change.before,)
    }


def _route_parts(changes: Sequence[RouteChange]) -> list[list[Step[AnyRoute]]]:
    """Return the steps of the changes, in one or two parts.

    Removals that end a batch are sent only after everything before them has succeeded: a route that is never removed
    cannot fail to return, and keeps its place among its duplicates. The same holds for the removals of replacements.
    """
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    first: list[Step[AnyRoute]] = []
    last: list[Step[AnyRoute]] = []
    for position, change in enumerate(changes):
        if change.after is not None:
            first.append((change.verb, change.after, position))
        if change.before is not None:
            ends = change.after is not None or position >= end
            (last if ends else first).append(("remove", change.before, position))
    return [part for part in (first, last) if part]


def _check_devices(changes: Sequence[RouteChange], names: Collection[str]) -> None:
    """Raise LinkNotFoundError for every device that does not exist, before anything is sent."""
    routes: list[AnyRoute] = [change.after for change in changes if change.after is not None]
    routes += [change.before for change in changes if change.before is not None]
    used = set(map(_dev, routes))
    if None in used:
        # The devices of a multipath route are those of its next hops; a blackhole has none.
        used |= {hop.dev for route in routes if route.dev is None for hop in route.nexthops}
        used.discard(None)
    missing = sorted(used.difference(names))
    if missing:
        raise LinkNotFoundError(
            f"no such device: {', '.join(missing)}; nothing was changed. The node has {', '.join(names)}",
            dev=missing[0],
            errno=errno.ENODEV,
        )
