"""The machine: readings of it, with a verdict on each object; objects removed from it and restored.

Objects come back in place and in order, and never over another program's object. The log has the
findings, and notes on rules that may go unseen.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.azure.stale_cni.azure_vnet import read_endpoints
from hostrouting.azure.stale_cni.leftovers import Snapshot, pod_devices
from hostrouting.azure.stale_cni.verdicts import Verdict, judge, to_probe
from hostrouting.base.facts import Facts
from hostrouting.host.packets.ebtables_rules import EbtablesRule
from hostrouting.net.addresses import IPV6
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute, RouteChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.azure.stale_cni.journal import Restorable
    from hostrouting.config.siblings import StaleCNIConfig
    from hostrouting.host import Device, EbtablesReading, Host, Station
    from phases import Context

#: More objects of unknown kind than this are only counted.
_MOST_SHOWN = 10


class NodeReading(NamedTuple):
    """One reading of the machine, judged."""

    verdicts: tuple[Verdict, ...]
    ebtables: EbtablesReading
    snapshot: Snapshot

    @property
    def stale(self) -> list[Verdict]:
        """The verdicts on stale objects."""
        return [verdict for verdict in self.verdicts if verdict.kind == "stale"]

    @property
    def spared(self) -> list[Verdict]:
        """The verdicts on objects that are left alone."""
        return [verdict for verdict in self.verdicts if verdict.kind != "stale"]

    @property
    def down(self) -> list[str]:
        """The pods' devices that transmit no probes, each with the reason."""
        devices = pod_devices(self.snapshot.devices)
        down = (device for device in devices if not (device.up and device.carrier))
        return [f"{device.name} {'has no carrier' if device.up else 'is down'}" for device in down]


def observe(ctx: Context, host: Host) -> tuple[Snapshot, EbtablesReading]:
    """Read the machine, without azure-vnet's own state and without probes."""
    # First the objects that may be stale, then the signs of life: objects of a pod that comes in
    # between are not read.
    reading = host.ebtables.read(ctx)
    families = host.routes.families
    routes = tuple(route for family in families for route in host.routes.routes(family))
    neighbours = tuple(host.link_layer.neighbours())
    ctx.check()
    devices = tuple(host.routes.links())
    snapshot = Snapshot(
        rules=reading.rules,
        routes=routes,
        neighbours=neighbours,
        devices=devices,
        stations=_stations(host, devices),
    )
    return snapshot, reading


def _stations(host: Host, devices: Iterable[Device]) -> tuple[Station, ...]:
    """Return the forwarding databases of all bridges; a pod in any of them is alive."""
    bridges = (device.name for device in devices if device.kind == "bridge")
    return tuple(station for bridge in bridges for station in host.link_layer.stations(bridge))


def wrong_bridge(host: Host, bridge: str) -> str | None:
    """Return why `staleCni.bridge` cannot be the bridge of this node's pods; None if it can."""
    devices = {device.name: device for device in host.routes.links()}
    if bridge in devices:
        return None
    for pod in pod_devices(devices.values()):
        master = devices.get(pod.master or "")
        if master is not None and master.kind == "bridge":
            return (
                f"staleCni.bridge must name the bridge of azure-vnet's pods: {bridge} does not "
                f"exist, and {pod.name} is a port of {master.name}"
            )
    return None


class Observer:
    """Reads the machine any number of times, and logs each line once."""

    def __init__(self, section: StaleCNIConfig, host: Host, logger: logging.Logger) -> None:
        self._bridge = section.bridge
        self._host = host
        self._judge = partial(judge, pod_cidrs=section.pod_cidrs, bridge=section.bridge)
        self._logger = logger
        self._logged: set[str] = set()
        #: The lines on the objects of the last reading: those of a month would fill the memory.
        self._lines = Facts[str, None]()
        self._shown = 0

    def read(self, ctx: Context, *, probes: bool = True) -> NodeReading:
        """Read and judge once.

        Without `probes`, which take a second, more objects may look stale; with them, a lack of
        privilege to probe pods is raised.
        """
        ctx.check()
        host = self._host
        snapshot, ebtables = observe(ctx, host)
        # Last, for the same reason as there.
        snapshot = attrs.evolve(snapshot, endpoints=read_endpoints(host.files))
        verdicts = self._judge(snapshot)
        # A pod that has been silent for long may have left no sign on the node, and yet answer.
        if targets := to_probe(snapshot, verdicts, bridge=self._bridge) if probes else ():
            answered = host.link_layer.answering(ctx, targets)
            # A bridge learns a pod's hardware address from its answer.
            stations = _stations(host, snapshot.devices)
            snapshot = attrs.evolve(snapshot, answered=answered, stations=stations)
            verdicts = self._judge(snapshot)
        self._log(verdicts, ebtables)
        return NodeReading(verdicts, ebtables, snapshot)

    def log_once(self, level: int, line: str, **fields: object) -> None:
        """Log a line that was not logged before."""
        if line not in self._logged:
            self._logged.add(line)
            self._logger.log(level, "%s", line, extra=fields)

    def _log(self, verdicts: Iterable[Verdict], ebtables: EbtablesReading) -> None:
        for note in ebtables.notes:
            # Most nodes lack one of the two backends.
            level = logging.INFO if ebtables.texts else logging.WARNING
            self.log_once(level, f"ebtables rules may go unseen: {note}", note=note)
        more = 0
        lines = {
            f"{verdict.object} is left alone: {verdict.reason}": verdict
            for verdict in verdicts
            if verdict.kind != "stale"
        }
        self._lines = self._lines.after(dict.fromkeys(lines))
        for line in self._lines.new:
            verdict = lines[line]
            level = logging.DEBUG
            if verdict.kind == "unknown" and self._shown < _MOST_SHOWN:
                level = logging.WARNING
                self._shown += 1
            elif verdict.kind == "unknown":
                more += 1
            self._logger.log(level, "%s", line, extra=verdict.to_mapping())
        if more:
            line = "and %d more are left alone (shown by -v)"
            self._logger.warning(line, more, extra={"unknown": more})


# --- removing and restoring


class Sort(NamedTuple):
    """The objects that one port changes."""

    objects: Sequence[Restorable]
    remove: Callable[[], None]
    add: Callable[[], None]


def by_sort(ctx: Context, host: Host, objects: Sequence[Restorable]) -> list[Sort]:
    """Split the objects by the port that changes them, in the order in which they are removed."""
    rules = [leftover for leftover in objects if isinstance(leftover, EbtablesRule)]
    neighbours = [leftover for leftover in objects if isinstance(leftover, Neighbour)]
    routes = [leftover for leftover in objects if isinstance(leftover, ObservedRoute)]
    removals = [RouteChange.remove(route) for route in routes]
    # Each device may have its own IPv6 route to a destination.
    additions = [
        RouteChange(None, route.to_route(), "append" if route.family == IPV6 else "add")
        for route in routes
    ]
    sorts = [
        Sort(
            rules,
            lambda: host.ebtables.delete(ctx, rules),
            lambda: host.ebtables.insert(ctx, rules),
        ),
        Sort(
            neighbours,
            lambda: host.link_layer.change_neighbours("remove", neighbours),
            lambda: host.link_layer.change_neighbours("add", neighbours),
        ),
        Sort(routes, lambda: host.routes.apply(removals), lambda: host.routes.apply(additions)),
    ]
    return [sort for sort in sorts if sort.objects]
