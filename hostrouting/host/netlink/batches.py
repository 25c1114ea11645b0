"""Batches of IPv4 routes, which the kernel removes by almost their full description, and of the things of a link."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.fib.model import resting
from hostrouting.fib.tables import Tables, inserted, key_of
from hostrouting.host.netlink.commit import Batch, Failure, LinkThing, slot, taken_by
from hostrouting.net.changes import is_deleted_by
from hostrouting.net.links import Neighbour, is_as_shown
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

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


def commit_links(
    transport: Transport[LinkThing],
    *,
    remove: Sequence[LinkThing],
    add: Sequence[LinkThing],
    devices: Collection[str],
) -> None:
    """Make all the changes, removals first, or none; see `LinkLayer.apply` for the errors.

    Everything is read first, so most refusals are known before anything is sent. For these things the kernel compares
    less than the full description of a removal, so only the reading shows which one it would remove.
    """
    things = [*remove, *add]
    if not things:
        return

    def describe(position: int) -> str:
        return f"{'-' if position < len(remove) else '+'} {things[position]}"

    kinds = {"neighbour" if isinstance(thing, Neighbour) else "route" for thing in things}
    before = [*transport.standing()]
    batch = Batch(transport, describe, " and ".join(sorted(kinds)), before)
    places = Places(before)
    failures: Failures = {}
    steps: list[Step[LinkThing]] = []
    for position, thing in enumerate(things):
        verb, answer_to = ("remove", places.remove) if position < len(remove) else ("add", places.add)
        answer = _unusable(thing, devices) or answer_to(thing)
        if isinstance(answer, Failure):
            failures[position] = answer
        else:
            steps.append((verb, answer, position))
    if failures:
        raise batch.rejection(failures)
    batch.commit(filter(None, (steps[: len(remove)], steps[len(remove) :])), verify=True)


class Places:
    """The neighbours and IPv6 routes of one reading, and how the kernel would answer to changes of them."""

    def __init__(self, things: Iterable[LinkThing]) -> None:
        self._held: dict[Hashable, list[LinkThing]] = defaultdict(list)
        for thing in things:
            self._held[slot(thing)].append(thing)

    def __iter__(self) -> Iterator[LinkThing]:
        return chain.from_iterable(self._held.values())

    def add(self, thing: LinkThing) -> LinkThing | Failure:
        """Add the thing, or return the reason why the kernel would refuse it."""
        here = self._held[slot(thing)]
        other = next((other for other in here if shares_place(thing, other)), None)
        if other is not None:
            return Failure(errno.EEXIST, f"its place is taken by '{other}'")
        here.append(thing)
        return thing

    def remove(self, thing: LinkThing) -> LinkThing | Failure:
        """Remove the thing and return it as it was read, or return the reason why the kernel would not remove it."""
        here = self._held[slot(thing)]
        gone = taken_by(thing, here, _is_deleted_by)
        if not isinstance(gone, Failure):
            here.remove(gone)
        return gone


def shares_place(thing: LinkThing, other: LinkThing) -> bool:
    """Return True if two things of one slot cannot exist at the same time.

    Routes of different devices can (every device has its `fe80::/64`), unless both have gateways: the kernel makes
    next hops of one route of those.
    """
    if isinstance(thing, Neighbour) or isinstance(other, Neighbour):
        return True
    return thing.dev == other.dev or (_has_gateway(thing) and _has_gateway(other))


def _has_gateway(route: ObservedRoute) -> bool:
    return route.gateway is not None or (route.dev is None and route.kind == "unicast")


def _is_deleted_by(named: LinkThing, standing: LinkThing) -> bool:
    """Return True if the kernel's deletion of `named` may take `standing`, which is of the same slot."""
    if isinstance(named, Neighbour) or isinstance(standing, Neighbour):
        return True
    same_owner = (named.dev, named.protocol) == (standing.dev, standing.protocol)
    return same_owner and named.gateway in {None, standing.gateway}


def _unusable(thing: LinkThing, devices: Collection[str]) -> Failure | None:
    if thing.dev is not None and thing.dev not in devices:
        return Failure(errno.ENODEV, f"there is no device {thing.dev}")
    if not is_as_shown(thing):
        # Once removed, it could not be restored; once added, it could not be found.
        return Failure(errno.EINVAL, "the kernel would make something else of it")
    return None
