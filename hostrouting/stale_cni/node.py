"""The machine: readings of it, with a verdict on each object; objects removed from it and restored.

Objects come back in place and in order, and never over another program's object. The log has the findings, and notes on
rules that may go unseen.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hostrouting.exceptions import PermissionDeniedError
from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.journal import object_to_mapping
from hostrouting.net.addresses import IPV4
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute, place
from hostrouting.stale_cni.azure_vnet import read_endpoints
from hostrouting.stale_cni.leftovers import Snapshot, pod_devices
from hostrouting.stale_cni.verdicts import identity, judge, questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostrouting.config import StaleCNIConfig
    from hostrouting.host import Device, EbtablesReading, Host, Station
    from hostrouting.journal import Restorable
    from hostrouting.stale_cni.verdicts import Verdict
    from phases import Context

__all__ = [
    "Observer",
    "Reading",
    "Restoration",
    "add",
    "by_sort",
    "fields_of",
    "observe",
    "remove",
    "still_there",
    "what_is_missing",
    "wrong_bridge",
]

#: More objects of unknown kind than this are only counted.
_MOST_SHOWN: Final = 10


class Reading(NamedTuple):
    """One reading of the machine, judged."""

    verdicts: tuple[Verdict, ...]
    ebtables: EbtablesReading
    #: For lack of privilege no pod was probed: objects of silent pods are `unknown`.
    may_not_ask: bool = False
    #: The pods' devices on which a probe is not heard, each with the reason.
    deaf: tuple[str, ...] = ()

    @property
    def stale(self) -> list[Verdict]:
        """The verdicts on stale objects."""
        return [verdict for verdict in self.verdicts if verdict.kind == "stale"]


def observe(ctx: Context, host: Host) -> tuple[Snapshot, EbtablesReading]:
    """Read the machine, without azure-vnet's own state and without probes."""
    # First the objects that may be stale, then the signs of life: nothing is seen of a pod that comes in between.
    reading = host.ebtables.read(ctx)
    routes = (*host.routes.routes(), *host.link_layer.routes())
    neighbours = tuple(host.link_layer.neighbours())
    ctx.check()
    devices = tuple(host.link_layer.devices())
    snapshot = Snapshot(
        rules=reading.rules,
        neighbours=neighbours,
        routes=routes,
        devices=devices,
        stations=_stations(host, devices),
    )
    return snapshot, reading


def _stations(host: Host, devices: Iterable[Device]) -> tuple[Station, ...]:
    """Return the forwarding databases of all bridges: a pod that any of them has heard is alive."""
    bridges = (device.name for device in devices if device.kind == "bridge")
    return tuple(station for bridge in bridges for station in host.link_layer.stations(bridge))


def wrong_bridge(host: Host, bridge: str) -> str | None:
    """Return why `staleCni.bridge` cannot be the bridge of this node's pods; None if it can."""
    devices = {device.name: device for device in host.link_layer.devices()}
    if bridge in devices:
        return None
    for pod in pod_devices(devices.values()):
        master = devices.get(pod.master or "")
        if master is not None and master.kind == "bridge":
            return f"there is no device {bridge}, but {pod.name} is a port of {master.name}"
    return None


class Observer:
    """Reads the machine any number of times, and logs each thing that it finds once."""

    def __init__(self, section: StaleCNIConfig, logger: logging.Logger) -> None:
        self._section = section
        self._logger = logger
        self._said: set[str] = set()
        self._shown = 0

    def read(self, ctx: Context, host: Host, *, may_guess: bool = False) -> Reading:
        """Read and judge once; with `may_guess`, a lack of privilege to probe pods is logged instead of raised."""
        ctx.check()
        snapshot, ebtables = observe(ctx, host)
        # Last, for the same reason as there.
        snapshot = attrs.evolve(snapshot, endpoints=read_endpoints(host.files))
        verdicts = self._judged(snapshot)
        may_not_ask = False
        # The node may know nothing of a pod that has been silent for long, and yet it answers.
        if asked := questions(snapshot, verdicts, bridge=self._section.bridge):
            try:
                answered = host.link_layer.answering(ctx, asked)
                # A bridge learns a pod's hardware address from its answer.
                snapshot = attrs.evolve(snapshot, answered=answered, stations=_stations(host, snapshot.devices))
            except PermissionDeniedError as error:
                if not may_guess:
                    raise
                self.say_once(logging.WARNING, f"{error}; pods that have been silent for long may be alive or gone")
                may_not_ask = True
                unasked = frozenset(device.name for device in pod_devices(snapshot.devices))
                snapshot = attrs.evolve(snapshot, unasked=unasked)
            verdicts = self._judged(snapshot)
        self._tell(verdicts, ebtables)
        return Reading(verdicts, ebtables, may_not_ask, _deaf(snapshot.devices))

    def say_once(self, level: int, line: str, **fields: object) -> None:
        """Log a line that was not logged before."""
        if line not in self._said:
            self._said.add(line)
            self._logger.log(level, "%s", line, extra=fields)

    def _judged(self, snapshot: Snapshot) -> tuple[Verdict, ...]:
        return judge(snapshot, pod_cidrs=self._section.pod_cidrs, bridge=self._section.bridge)

    def _tell(self, verdicts: Iterable[Verdict], ebtables: EbtablesReading) -> None:
        for note in ebtables.notes:
            # Most nodes lack one of the two backends.
            level = logging.INFO if ebtables.texts else logging.WARNING
            self.say_once(level, f"ebtables rules may go unseen: {note}", note=note)
        more = 0
        for verdict in verdicts:
            line = f"{verdict.object} is left alone: {verdict.reason}"
            if verdict.kind == "stale" or line in self._said:
                continue
            is_shown = verdict.kind == "unknown" and self._shown < _MOST_SHOWN
            self._shown += is_shown
            more += verdict.kind == "unknown" and not is_shown
            self.say_once(logging.WARNING if is_shown else logging.DEBUG, line, **fields_of(verdict))
        if more:
            self._logger.warning("and %d more are left alone (shown by -v)", more, extra={"unknown": more})


def fields_of(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as fields of a log record or a JSON object, with the `details` that the journal records."""
    return {**verdict._asdict(), "object": str(verdict.object), "details": object_to_mapping(verdict.object)}


def _deaf(devices: Iterable[Device]) -> tuple[str, ...]:
    deaf = (device for device in pod_devices(devices) if not (device.up and device.carrier))
    return tuple(f"{device.name} {'has no carrier' if device.up else 'is down'}" for device in deaf)


# --- removing and restoring


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
