"""Batches of routes, which the kernel removes by almost their full description, and of neighbours."""

from __future__ import annotations

import errno
import os
from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.fib.tables import Tables, inserted, key_of
from hostrouting.host.netlink.commit import Batch, Failure, identity, slot
from hostrouting.net.changes import is_deleted_by, is_merged
from hostrouting.net.links import Neighbour, is_as_shown
from hostrouting.net.routes import ObservedRoute, resting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.fib.tables import Bucket, Key
    from hostrouting.host.netlink.commit import AnyRoute, Failures, Step, Steps, Transport
    from hostrouting.net.changes import RouteChange

_dev = attrgetter("dev")


def commit_routes(
    transport: Transport[AnyRoute],
    changes: Sequence[RouteChange],
    *,
    devices: Collection[str],
    verify: bool,
) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for the errors."""
    _check_devices(changes, devices)
    parts = _route_parts(changes)
    only_adds = all(change.before is None and change.verb == "add" for change in changes)
    before: Sequence[AnyRoute] = () if only_adds else [*transport.standing()]
    batch = Batch(transport, lambda position: str(changes[position]), before=before)
    failures = _wrong_removals(changes, parts, before)
    if failures:
        raise batch.rejection(failures)
    batch.commit(parts, verify=verify)


def _wrong_removals(
    changes: Sequence[RouteChange], parts: Iterable[Steps[AnyRoute]], before: Iterable[AnyRoute]
) -> Failures:
    """Return the removals of routes that do not exist, or instead of which the kernel would take another one."""
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
        here = buckets[key]
        # The kernel shows the protocol of one next hop; another program may have merged one of any protocol with it.
        owned = ((each._replace(protocol=route.protocol) if is_merged(each) else each) for each in here)
        first = next((each for each, own in zip(here, owned, strict=True) if is_deleted_by(route, own)), None)
        if first is None:
            other = f", but there is '{here[0]}'" if here else ""
            failures[position] = Failure(errno.ESRCH, f"{os.strerror(errno.ESRCH)}{other}")
        elif identity(first) != identity(route):
            failures[position] = Failure(errno.ESRCH, f"the kernel would remove '{first}' instead")
        else:
            buckets[key] = tuple(other for other in here if other is not first)
    return failures


def _crowded(changes: Sequence[RouteChange], before: Iterable[AnyRoute]) -> dict[Key, Bucket]:
    """Return the routes to each destination but those where, as usual, one change removes the one route."""
    if all(change.before is None for change in changes):
        return {}
    keys = [key_of(change.route) for change in changes]
    counts = Counter(keys)
    near = [route for route in before if key_of(route) in counts]
    tables = Tables.of(route for route in near if isinstance(route, ObservedRoute))
    return {
        key: tables.bucket(key)
        for key, change in zip(keys, changes, strict=True)
        if counts[key] > 1 or tables.bucket(key) != (change.before,)
    }


def _route_parts(changes: Sequence[RouteChange]) -> list[list[Step[AnyRoute]]]:
    """Return the steps of the changes, in up to three parts.

    A part is sent only after everything before it has succeeded. The removals that end a batch, and those of
    replacements, are the second part: a route that is never removed cannot fail to return, and keeps its place among
    its duplicates. Changes that remove first are the third: nothing is moved if anything else is refused.
    """
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    parts: list[list[Step[AnyRoute]]] = [[], [], []]
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


def commit_neighbours(
    transport: Transport[Neighbour],
    *,
    remove: Sequence[Neighbour],
    add: Sequence[Neighbour],
    devices: Collection[str],
) -> None:
    """Make all the changes, removals first, or none; see `LinkLayer.apply` for the errors.

    Everything is read first, so most refusals are known before anything is sent: the kernel removes by address and
    device alone.
    """
    both = [*remove, *add]
    if not both:
        return

    def describe(position: int) -> str:
        return f"{'-' if position < len(remove) else '+'} {both[position]}"

    before = [*transport.standing()]
    batch = Batch(transport, describe, "neighbour", before)
    table = Neighbours(before)
    failures: Failures = {}
    steps: list[Step[Neighbour]] = []
    for position, one in enumerate(both):
        verb = "remove" if position < len(remove) else "add"
        failure = _unusable(one, devices) or table.take(verb, one)
        if failure is None:
            steps.append((verb, one, position))
        else:
            failures[position] = failure
    if failures:
        raise batch.rejection(failures)
    batch.commit(filter(None, (steps[: len(remove)], steps[len(remove) :])), verify=True)


class Neighbours:
    """The neighbours of one reading, and how the kernel would answer to changes of them."""

    def __init__(self, known: Iterable[Neighbour]) -> None:
        self._held = {slot(one): one for one in known}

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self._held.values())

    def take(self, verb: str, one: Neighbour) -> Failure | None:
        """Remove or add a neighbour, or return the reason why the kernel would not."""
        standing = self._held.get(slot(one))
        if verb == "remove" and standing == one:
            del self._held[slot(one)]
        elif verb == "remove":
            instead = f"the kernel would remove '{standing}' instead"
            return Failure(errno.ENOENT, os.strerror(errno.ENOENT) if standing is None else instead)
        elif standing is not None:
            return Failure(errno.EEXIST, f"its place is taken by '{standing}'")
        else:
            self._held[slot(one)] = one
        return None


def _unusable(one: Neighbour, devices: Collection[str]) -> Failure | None:
    if one.dev not in devices:
        return Failure(errno.ENODEV, f"there is no device {one.dev}")
    if not is_as_shown(one):
        # Once removed, it could not be restored; once added, it could not be found.
        return Failure(errno.EINVAL, "the kernel would make something else of it")
    return None
