"""The commit of neighbours and IPv6 routes, of which the kernel removes by less than their full description.

So the places that a batch touches are read first: a removal that would take another thing is refused before anything
is sent.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from hostrouting.host.netlink.commit import Batch, Failure, LinkThing, slot, taken_by
from hostrouting.net.links import Neighbour, is_as_shown

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

    from hostrouting.host.netlink.commit import Step, Transport
    from hostrouting.net.routes import ObservedRoute

__all__ = [
    "Places",
    "commit_links",
]


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
    failures: dict[int, Failure] = {}
    removals: list[Step[LinkThing]] = []
    additions: list[Step[LinkThing]] = []
    for position, thing in enumerate(things):
        part, verb = (removals, "remove") if position < len(remove) else (additions, "add")
        step = _unusable(thing, devices) or (places.add(thing) if part is additions else places.remove(thing))
        if isinstance(step, Failure):
            failures[position] = step
        else:
            part.append((verb, step, position))
    if failures:
        raise batch.rejection(failures)
    batch.commit([part for part in (removals, additions) if part], verify=True)


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
