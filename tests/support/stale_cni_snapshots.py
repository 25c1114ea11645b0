"""Snapshots of nodes from which azure-vnet was removed: the objects of one pod, and little else."""

from typing import Any

from support.stale_cni_worlds import NODE_ADDRESS, NODE_MAC, POD_CIDRS, arp_reply, dnat, rules_of

from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.azure.stale_cni.leftovers import Snapshot
from hostrouting.azure.stale_cni.verdicts import judge
from hostrouting.host import Device, DeviceAddress, Neighbour, ObservedRoute

POD = "10.240.0.9"
POD6 = "fd00:10:240::9"
MAC = "aa:bb:cc:00:00:09"
BRIDGE = Device(
    "azure0",
    3,
    up=True,
    mac=NODE_MAC,
    kind="bridge",
    addresses=(DeviceAddress.parse(f"{NODE_ADDRESS}/16"),),
)
AZV1 = Device("azv1", 4, up=True, kind="veth", master="azure0")
DEVICES = (BRIDGE, AZV1)


def route(destination: str = f"{POD}/32", dev: str | None = "azv1", **fields: Any) -> ObservedRoute:
    """Return an IPv4 route as azure-vnet makes it, but for the fields."""
    return ObservedRoute.parse(destination, dev, **{"protocol": 3, "scope": 253, **fields})


def route6(
    destination: str = f"{POD6}/128", dev: str | None = "azv1", **fields: Any
) -> ObservedRoute:
    """Return an IPv6 route as azure-vnet makes it, but for the fields."""
    return ObservedRoute.parse(destination, dev, **{"protocol": 3, "metric": 1024, **fields})


def neighbour(
    address: str = POD, dev: str = "azure0", mac: str = MAC, *, permanent: bool = True
) -> Neighbour:
    """Return a neighbour as azure-vnet makes it, or the kernel."""
    return Neighbour(address, dev, mac, permanent)


def snapshot(*objects: Restorable, **evidence: object) -> Snapshot:
    """Return a node with these objects and nothing else, but for the evidence."""
    fields = {
        "neighbours": tuple(o for o in objects if isinstance(o, Neighbour)),
        "routes": tuple(o for o in objects if isinstance(o, ObservedRoute)),
        "rules": tuple(o for o in objects if not isinstance(o, Neighbour | ObservedRoute)),
        "devices": DEVICES,
        **evidence,
    }
    return Snapshot(**fields)  # type: ignore[arg-type]


def judged(what: Snapshot, bridge: str = "azure0") -> list[tuple[str, str]]:
    """Return the verdicts without their objects."""
    return [(v.kind, v.reason) for v in judge(what, pod_cidrs=POD_CIDRS, bridge=bridge)]


def kinds(what: Snapshot) -> list[str]:
    """Return the kinds of the verdicts."""
    return [kind for kind, _ in judged(what)]


REPLY_RULE, DNAT_RULE, DNAT6_RULE = rules_of(arp_reply(POD, MAC), dnat(POD, MAC), dnat(POD6, MAC))
OF_POD: list[Restorable] = [
    REPLY_RULE,
    DNAT_RULE,
    neighbour(),
    neighbour(dev="azv1"),
    route(),
    route(dev="azure0"),
]
OF_POD6: list[Restorable] = [
    DNAT6_RULE,
    neighbour(POD6),
    neighbour(POD6, "azv1"),
    route6(),
    route6(dev="azure0"),
]
OF_PODS = [*OF_POD, *OF_POD6]
