"""Batches of routes, which the kernel removes by almost their full description."""

from __future__ import annotations

import errno
import os
from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.fib.tables import Bucket, Key, Tables, inserted, key_of
from hostrouting.host.netlink.commit import (
    AnyRoute,
    Batch,
    Failure,
    Failures,
    Step,
    Steps,
    Transport,
    identity,
)
from hostrouting.net.changes import RouteChange, is_deleted_by, is_merged
from hostrouting.net.routes import ObservedRoute, resting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def commit_routes(
    transport: Transport,
    changes: Sequence[RouteChange],
    *,
    devices: Collection[str],
    verify: bool,
) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for the errors."""
    _check_devices(changes, devices)
    parts = _route_parts(changes)
    only_adds = all(change.before is None and change.verb == "add" for change in changes)
    before: Sequence[AnyRoute] = () if only_adds else [*transport.present()]
    batch = Batch(transport, changes, before)
    if failures := _wrong_removals(changes, parts, before):
        raise batch.rejection(failures)
    batch.commit(parts, verify=verify)


def _wrong_removals(
    changes: Sequence[RouteChange], parts: Iterable[Steps], before: Iterable[AnyRoute]
) -> Failures:
    """Return the removals of absent routes, or for which the kernel would take another route."""
    buckets = _crowded(changes, before)
    failures: Failures = {}
    # In the order in which the steps are sent.
    for verb, route, position in chain.from_iterable(parts) if buckets else ():
        key = key_of(route)
        if key not in buckets:
            continue
        if verb != "remove":
            buckets[key] = inserted(buckets[key], resting(route), last=verb == "append")
            continue
        bucket = buckets[key]
        # The kernel shows the protocol of one next hop; another program may have merged one of any
        # protocol with it.
        for first in bucket:
            own = first._replace(protocol=route.protocol) if is_merged(first) else first
            if is_deleted_by(route, own):
                break
        else:
            hint = f", but there is '{bucket[0]}'" if bucket else ""
            failures[position] = Failure(errno.ESRCH, f"{os.strerror(errno.ESRCH)}{hint}")
            continue
        if identity(first) != identity(route):
            failures[position] = Failure(errno.ESRCH, f"the kernel would remove '{first}' instead")
        else:
            buckets[key] = tuple(kept for kept in bucket if kept is not first)
    return failures


def _crowded(changes: Sequence[RouteChange], before: Iterable[AnyRoute]) -> dict[Key, Bucket]:
    """Return the routes to each destination that has more than a single removal of one route."""
    if all(change.before is None for change in changes):
        return {}
    keys = [key_of(change.route) for change in changes]
    counts = Counter(keys)
    tables = Tables.of(
        route for route in before if isinstance(route, ObservedRoute) and key_of(route) in counts
    )
    return {
        key: tables.bucket(key)
        for key, change in zip(keys, changes, strict=True)
        if counts[key] > 1 or tables.bucket(key) != (change.before,)
    }


def _route_parts(changes: Sequence[RouteChange]) -> list[list[Step]]:
    """Return the steps of the changes, in up to three parts.

    A part is sent only after everything before it has succeeded. The removals that end a batch, and
    those of replacements, are the second part: a route that is never removed cannot fail to return,
    and keeps its place among its duplicates. Changes that remove first are the third: nothing is
    moved if anything else is refused.
    """
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    parts: list[list[Step]] = [[], [], []]
    first, second, third = parts
    for position, change in enumerate(changes):
        moves = change.removes_first
        if moves and change.before is not None:
            third.append(("remove", change.before, position))
        if change.after is not None:
            (third if moves else first).append((change.verb, change.after, position))
        if change.before is not None and not moves:
            ends = change.after is not None or position >= end
            (second if ends else first).append(("remove", change.before, position))
    return [part for part in parts if part]


def _check_devices(changes: Sequence[RouteChange], names: Collection[str]) -> None:
    """Raise LinkNotFoundError for every device that does not exist, before anything is sent."""
    routes: list[AnyRoute] = [change.after for change in changes if change.after is not None]
    routes += [change.before for change in changes if change.before is not None]
    used = set(map(attrgetter("dev"), routes))
    if None in used:
        # The devices of a multipath route are those of its next hops; a blackhole has none.
        used |= {hop.dev for route in routes if route.dev is None for hop in route.nexthops}
        used.discard(None)
    missing = sorted(used.difference(names))
    if missing:
        raise LinkNotFoundError(
            f"no such device: {', '.join(missing)}; nothing was changed. "
            f"The node has {', '.join(names)}",
            dev=missing[0],
            errno=errno.ENODEV,
        )
