"""Putting back what a sweep took away: in place and in order, and never over what somebody else has put there."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute, place
from hostrouting.stale_cni.sweep import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.host import Host
    from hostrouting.stale_cni.sweep import Leftover, Snapshot
    from phases import Context

__all__ = ["GivenUp", "Restoration", "add_back", "by_sort", "remove", "still_there", "what_comes_back"]


class GivenUp(NamedTuple):
    """An object that is not put back, and why."""

    object: Leftover
    reason: str


class Restoration(NamedTuple):
    """What is missing and can come back, and what cannot."""

    missing: tuple[Leftover, ...]
    given_up: tuple[GivenUp, ...]


def what_comes_back(objects: Iterable[Leftover], snapshot: Snapshot) -> Restoration:
    """Compare what was taken away with what is there now; what is there already is neither missing nor given up."""
    standing = _Standing(snapshot)
    missing: list[Leftover] = []
    given_up: list[GivenUp] = []
    for leftover in objects:
        if standing.has(leftover):
            continue
        obstacle = standing.obstacle(leftover)
        if obstacle is None:
            missing.append(leftover)
            standing.take(leftover)
        else:
            given_up.append(GivenUp(leftover, obstacle))
    return Restoration(tuple(missing), tuple(given_up))


def still_there(objects: Iterable[Leftover], snapshot: Snapshot) -> list[Leftover]:
    """Which of the objects are on the node."""
    standing = _Standing(snapshot)
    return [leftover for leftover in objects if standing.has(leftover)]


def add_back(
    ctx: Context,
    host: Host,
    objects: Sequence[Leftover],
    done: list[Leftover],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Add them, in the opposite order of `remove`: each sort all or none; what is there is added to `done`."""
    routes, others, rules = by_sort(objects)
    if routes:
        host.routes.apply([RouteChange.add(route.to_route()) for route in routes])
        done += routes
    if others:
        host.link_layer.apply(add=others)
        done += others
    if rules:
        # In ascending order, so that each finds those before it in their places.
        ordered = sorted(rules, key=lambda rule: (rule.backend, rule.chain, rule.position))
        host.ebtables.insert(ctx, ordered, progress=progress)
        done += rules


def remove(
    ctx: Context,
    host: Host,
    objects: Sequence[Leftover],
    done: list[Leftover],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Remove them: each sort all or none; what is gone for certain is added to `done` as it goes."""
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


def by_sort(
    objects: Iterable[Leftover],
) -> tuple[list[ObservedRoute], list[Neighbour | ObservedRoute], list[EbtablesRule]]:
    """Apart by who is asked to change them: IPv4 routes, what the link layer has, and ebtables rules."""
    routes: list[ObservedRoute] = []
    others: list[Neighbour | ObservedRoute] = []
    rules: list[EbtablesRule] = []
    for leftover in objects:
        if isinstance(leftover, EbtablesRule):
            rules.append(leftover)
        elif isinstance(leftover, ObservedRoute) and leftover.family == IPV4:
            routes.append(leftover)
        else:
            others.append(leftover)
    return routes, others, rules


class _Standing:
    """What is on the node now, by the places that objects take."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._rules = Counter(identity(rule) for rule in snapshot.rules)
        self._others: defaultdict[tuple[object, ...], list[Leftover]] = defaultdict(list)
        for neighbour in snapshot.neighbours:
            self._others[_place(neighbour)].append(neighbour)
        for route in (*snapshot.ipv4_routes, *snapshot.ipv6_routes):
            self._others[_place(route)].append(route)
        self._devices = {device.name for device in snapshot.devices}

    def has(self, leftover: Leftover) -> bool:
        """Whether it is there; of rules that are alike, as many as there are."""
        if isinstance(leftover, EbtablesRule):
            key = identity(leftover)
            self._rules[key] -= 1
            return self._rules[key] >= 0
        others = self._others.get(_place(leftover), [])
        if isinstance(leftover, ObservedRoute):
            # Whatever state its device is in.
            return any(isinstance(other, ObservedRoute) and other.fulfils(leftover) for other in others)
        return leftover in others

    def obstacle(self, leftover: Leftover) -> str | None:
        """Why it cannot come back; None if it can."""
        if isinstance(leftover, EbtablesRule):
            return None
        if leftover.dev not in self._devices:
            return f"there is no device {leftover.dev} any more"
        others = self._others.get(_place(leftover), [])
        other = next((other for other in others if _excludes(leftover, other)), None)
        return None if other is None else f"its place was taken meanwhile by '{other}'"

    def take(self, leftover: Leftover) -> None:
        """It comes back, so its place is taken: an appended twin cannot be added once more."""
        if not isinstance(leftover, EbtablesRule):
            self._others[_place(leftover)].append(leftover)


def _excludes(leftover: Leftover, other: Leftover) -> bool:
    """Whether two objects of one place cannot stand beside each other."""
    if isinstance(leftover, ObservedRoute) and isinstance(other, ObservedRoute) and leftover.family == IPV6:
        # Every device may have its own, but of those with gateways the kernel makes one with two next hops.
        return leftover.dev == other.dev or (leftover.gateway is not None and other.gateway is not None)
    return True


def _place(leftover: Neighbour | ObservedRoute) -> tuple[object, ...]:
    """What the kernel tells objects of one sort apart by."""
    return (leftover.address, leftover.dev) if isinstance(leftover, Neighbour) else place(leftover)
