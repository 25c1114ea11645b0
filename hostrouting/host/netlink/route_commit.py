"""The commit of IPv4 routes, of which the kernel removes by almost their full description."""

from __future__ import annotations

import errno
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.host.netlink.commit import Batch, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hostrouting.host.netlink.commit import AnyRoute, Transport
    from hostrouting.net.changes import RouteChange

__all__ = ["check_devices", "commit_routes"]

_dev = attrgetter("dev")


def commit_routes(transport: Transport[AnyRoute], changes: Sequence[RouteChange], *, verify: bool) -> None:
    """Make all the changes or none; see `RouteBackend.apply` for the errors."""
    parts = _route_parts(changes)
    only_adds = all(verb == "add" for part in parts for verb in part.verbs)
    before = () if only_adds else [*transport.standing()]
    Batch(transport, lambda position: str(changes[position]), before=before).commit(parts, verify=verify)


def _route_parts(changes: Sequence[RouteChange]) -> list[Steps[AnyRoute]]:
    """Return the steps of the changes, in one or two parts.

    Removals that end a batch are sent only after everything before them has succeeded: a route that is never removed
    cannot fail to return, and keeps its place among its duplicates. The same holds for the removals of replacements.
    """
    if all(change.before is None for change in changes):
        added: list[AnyRoute] = [change.after for change in changes if change.after is not None]
        return [Steps([change.verb for change in changes], added, [*range(len(added))])] if added else []
    end = len(changes)
    while end and changes[end - 1].after is None:
        end -= 1
    first: Steps[AnyRoute] = Steps()
    last: Steps[AnyRoute] = Steps()
    for position, change in enumerate(changes):
        if change.after is not None:
            first.add(change.verb, change.after, position)
        if change.before is not None:
            ends = change.after is not None or position >= end
            (last if ends else first).add("remove", change.before, position)
    return [part for part in (first, last) if part.verbs]


def check_devices(changes: Sequence[RouteChange], names: Collection[str]) -> None:
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
