"""Removing objects from a node, and restoring them: in place and in order, and never over another program's object."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV4
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute, place
from hostrouting.stale_cni.verdicts import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostrouting.host import Host
    from hostrouting.journal import Restorable
    from hostrouting.stale_cni.leftovers import Snapshot
    from phases import Context

__all__ = ["Restoration", "add", "by_sort", "remove", "still_there", "what_is_missing"]


class Restoration(NamedTuple):
    """The objects that are missing and can be restored, and those that cannot."""

    missing: tuple[Restorable, ...]
    #: Each with the reason.
    lost: tuple[tuple[Restorable, str], ...]


def what_is_missing(objects: Iterable[Restorable], snapshot: Snapshot) -> Restoration:
    """Compare removed objects with the state of the node; those that are there are neither missing nor lost."""
    standing = _Standing(snapshot)
    missing: list[Restorable] = []
    lost: list[tuple[Restorable, str]] = []
    for each in objects:
        if standing.has(each):
            continue
        obstacle = standing.obstacle(each)
        if obstacle is None:
            missing.append(each)
            if not isinstance(each, EbtablesRule):
                standing.add(each)
        else:
            lost.append((each, obstacle))
    return Restoration(tuple(missing), tuple(lost))


def still_there(objects: Iterable[Restorable], snapshot: Snapshot) -> list[Restorable]:
    """Return those of the objects that are on the node."""
    return list(filter(_Standing(snapshot).has, objects))


def remove(
    ctx: Context,
    host: Host,
    objects: Iterable[Restorable],
    done: list[Restorable],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Remove the objects, each sort completely or not at all; add to `done` those that are certainly gone."""
    routes, others, rules = by_sort(objects)
    if rules:
        host.ebtables.delete(ctx, rules, progress=progress)
        done += rules
    if others:
        host.link_layer.apply(remove=others)
        done += others
    if routes:
        host.routes.apply([RouteChange.remove(route) for route in routes])
        done += routes


def add(
    ctx: Context,
    host: Host,
    objects: Iterable[Restorable],
    done: list[Restorable],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Add the objects in the opposite order of `remove`, each sort completely or not at all; add them to `done`."""
    routes, others, rules = by_sort(objects)
    if routes:
        host.routes.apply([RouteChange.add(route.to_route()) for route in routes])
        done += routes
    if others:
        host.link_layer.apply(add=others)
        done += others
    if rules:
        # In ascending order, so that each rule finds those before it in their places.
        ordered = sorted(rules, key=lambda rule: (rule.backend, rule.chain, rule.position))
        host.ebtables.insert(ctx, ordered, progress=progress)
        done += rules


def by_sort(
    objects: Iterable[Restorable],
) -> tuple[list[ObservedRoute], list[Neighbour | ObservedRoute], list[EbtablesRule]]:
    """Split the objects by the port that changes them: IPv4 routes, the link layer's, and ebtables rules."""
    routes: list[ObservedRoute] = []
    others: list[Neighbour | ObservedRoute] = []
    rules: list[EbtablesRule] = []
    for each in objects:
        if isinstance(each, ObservedRoute) and each.family == IPV4:
            routes.append(each)
        elif isinstance(each, EbtablesRule):
            rules.append(each)
        else:
            others.append(each)
    return routes, others, rules


class _Standing:
    """The objects on the node by their places; each identical rule is counted once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._objects: defaultdict[object, list[Restorable]] = defaultdict(list)
        for objects in snapshot.rules, snapshot.neighbours, snapshot.routes:
            for each in objects:
                self.add(each)
        self._devices = {device.name for device in snapshot.devices}

    def add(self, each: Restorable) -> None:
        self._objects[_place(each)].append(each)

    def has(self, wanted: Restorable) -> bool:
        here = self._objects.get(_place(wanted), [])
        if isinstance(wanted, EbtablesRule):
            return bool(here and here.pop())
        if isinstance(wanted, ObservedRoute):
            return any(isinstance(other, ObservedRoute) and other.fulfils(wanted) for other in here)
        return wanted in here

    def obstacle(self, wanted: Restorable) -> str | None:
        """Return why the object cannot be restored; None if it can."""
        if isinstance(wanted, EbtablesRule):
            return None
        if wanted.dev not in self._devices:
            return f"there is no device {wanted.dev} any more"
        others = self._objects.get(_place(wanted), [])
        other = next((other for other in others if _excludes(wanted, other)), None)
        return None if other is None else f"its place was taken meanwhile by '{other}'"


def _excludes(wanted: Restorable, other: Restorable) -> bool:
    """Return True if two objects of one place cannot coexist."""
    if isinstance(wanted, ObservedRoute) and isinstance(other, ObservedRoute) and wanted.family != IPV4:
        # Every device may have its own, but routes with gateways become next hops of one route.
        return wanted.dev == other.dev or bool(wanted.gateways and other.gateways)
    return True


def _place(each: Restorable) -> object:
    if isinstance(each, EbtablesRule):
        return identity(each)
    return (each.address, each.dev) if isinstance(each, Neighbour) else place(each)
