"""Take a snapshot of the machine and judge its entries."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.azure.stale_cni.azure_vnet import read_endpoints
from hostrouting.azure.stale_cni.leftovers import Leftover, Snapshot, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.config.optional import StaleCNIConfig
    from hostrouting.host import EbtablesSnapshot, Host, Neighbour, ObservedRoute
    from phases import Context


class NodeSnapshot(NamedTuple):
    """The judged entries of the machine."""

    verdicts: tuple[Verdict, ...]
    #: See `Judgement`.
    unrecorded: tuple[str, ...]
    ebtables: EbtablesSnapshot
    neighbours: tuple[Neighbour, ...]

    @property
    def stale(self) -> list[Verdict]:
        """The verdicts on stale entries."""
        return [verdict for verdict in self.verdicts if verdict.kind == "stale"]

    @property
    def spared(self) -> list[Verdict]:
        """The verdicts on entries that are left alone."""
        return [verdict for verdict in self.verdicts if verdict.kind != "stale"]

    @property
    def doubt(self) -> str | None:
        """Why entries that look stale cannot be removed; None if they can."""
        if not self.unrecorded:
            return None
        return (
            f"no record of azure-vnet or CNS names {', '.join(self.unrecorded)}, so the entries of "
            "its pod are unknown; move the pod to another node, or delete the device if there is "
            "no pod"
        )


def read_node(ctx: Context, section: StaleCNIConfig, host: Host) -> NodeSnapshot:
    """Take a snapshot and judge it; raise StaleCNIError if a record cannot be read."""
    ctx.check()
    # First the entries that may be stale, then the signs of life, so that entries for a pod that is
    # created in between are not among them.
    ebtables = host.ebtables.read(ctx)
    neighbours = tuple(host.link_layer.neighbours())
    ctx.check()
    routes = [*chain.from_iterable(map(host.routes.routes, host.routes.families))]
    devices = tuple(host.routes.links())
    bridges = [device.name for device in devices if device.kind == "bridge"]
    snapshot = Snapshot(
        rules=ebtables.rules,
        neighbours=neighbours,
        devices=devices,
        stations=tuple(chain.from_iterable(map(host.link_layer.stations, bridges))),
        gateways=_gateways(routes),
        uplinks=frozenset(dev for route in routes if not route.prefix_length for dev in route.devs),
        endpoints=read_endpoints(host.files),
    )
    judgement = judge(snapshot, pod_cidrs=section.pod_cidrs, bridge=section.bridge)
    return NodeSnapshot(*judgement, ebtables, neighbours)


def present(ctx: Context, host: Host) -> list[Leftover]:
    """Return the rules and neighbours of the machine."""
    return [*host.ebtables.read(ctx).rules, *host.link_layer.neighbours()]


def _gateways(routes: Iterable[ObservedRoute]) -> frozenset[str]:
    # In bridge mode, pods and node share a subnet, so the gateway is in podCidrs.
    gateways = {route.gateway for route in routes}
    gateways |= {hop.gateway for route in routes for hop in route.nexthops}
    return frozenset(str(gateway) for gateway in gateways if gateway is not None)
