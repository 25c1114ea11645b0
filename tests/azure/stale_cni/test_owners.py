"""Addresses with a history: pods come and go, other pods get their addresses, and only dead objects
are stale.

The oracle has the history and not the code: an object is dead if the pod that it was made for is.
"""

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from support.stale_cni_snapshots import BRIDGE
from support.stale_cni_worlds import (
    NODE_MAC,
    NODE_RULES,
    POD_CIDRS,
    TUNNEL_MAC,
    arp_reply,
    dnat,
    rules_of,
)

from hostrouting.azure.stale_cni.azure_vnet import Endpoint
from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.azure.stale_cni.leftovers import Snapshot
from hostrouting.azure.stale_cni.verdicts import Verdict, judge, to_probe
from hostrouting.host import Device, DeviceAddress, EbtablesRule, Neighbour, Station

ADDRESSES = [f"10.240.0.{number}" for number in range(10, 14)]
DEVICES = [f"azv{number}" for number in range(1, 4)]


class Pod(NamedTuple):
    """A pod, alive or not, and the objects that were made for it."""

    address: str
    mac: str
    device: str
    is_alive: bool
    #: The hardware address that azure-vnet's state has for it: tunnel mode's, its own, or none ("":
    #: not on record).
    recorded: str
    #: True if its bridge has heard it of late.
    is_heard: bool
    objects: frozenset[str]

    def leftovers(self) -> list[Restorable]:
        rules = rules_of(arp_reply(self.address, self.mac), dnat(self.address, self.mac))
        neighbour = Neighbour(self.address, "azure0", self.mac, permanent=True)
        made: dict[str, Restorable] = {"reply": rules[0], "dnat": rules[1], "neighbour": neighbour}
        return [made[name] for name in sorted(self.objects)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Pod], str | None]:
    """Pods, of which at most one lives with each address and on each device; and an address that
    the node has.

    azure-vnet has all its live pods on record, or its state went with it; records of dead pods may
    have been left.
    """
    pods: list[Pod] = []
    mode = draw(st.sampled_from(["", "own", "tunnel"]))
    for number in range(draw(st.integers(1, 6))):
        address = draw(st.sampled_from(ADDRESSES))
        device = draw(st.sampled_from(DEVICES))
        living = [pod for pod in pods if pod.is_alive]
        has_owner = any(pod.address == address or pod.device == device for pod in living)
        is_alive = not has_owner and draw(st.booleans())
        objects = draw(st.sets(st.sampled_from(["reply", "dnat", "neighbour"])))
        is_recorded = is_alive or draw(st.booleans())
        recorded = mode if is_recorded else ""
        heard = is_alive and draw(st.booleans())
        mac = f"aa:bb:cc:00:00:{number:02x}"
        pods.append(Pod(address, mac, device, is_alive, recorded, heard, frozenset(objects)))
    taken = {pod.address for pod in pods if pod.is_alive}
    free = [address for address in ADDRESSES if address not in taken]
    shuffled = draw(st.permutations(pods))
    if not free:
        return shuffled, None
    return shuffled, draw(st.none() | st.sampled_from(free))


def endpoint_of(pod: Pod) -> Endpoint:
    """Return the record of a pod in azure-vnet's state."""
    mac = pod.mac if pod.recorded == "own" else TUNNEL_MAC
    return Endpoint((pod.address,), pod.device, mac)


def node_of(pods: list[Pod], own: str | None) -> tuple[Snapshot, dict[str, set[str]]]:
    """Return the snapshot of a node with this history before any probe, and the addresses of each
    device.
    """
    living = [pod for pod in pods if pod.is_alive]
    veths = [
        Device(pod.device, 10 + number, up=True, kind="veth", master="azure0")
        for number, pod in enumerate(living)
    ]
    router = []
    if own:
        addresses = (DeviceAddress.parse(f"{own}/32"),)
        router.append(Device("cilium_host", 9, up=True, addresses=addresses))
    objects = [leftover for pod in pods for leftover in pod.leftovers()]
    rules = [each for each in objects if isinstance(each, EbtablesRule)]
    # The kernel has one neighbour for an address.
    neighbours = {each.address: each for each in objects if isinstance(each, Neighbour)}
    learned = [Station(pod.mac, pod.device) for pod in living if pod.is_heard]
    snapshot = Snapshot(
        rules=(*rules_of(*NODE_RULES), *rules),
        neighbours=tuple(neighbours.values()),
        devices=(BRIDGE, *veths, *router),
        stations=(Station(NODE_MAC, "azure0", permanent=True), *learned),
        endpoints=tuple(endpoint_of(pod) for pod in pods if pod.recorded),
    )
    return snapshot, {pod.device: {pod.address} for pod in living}


def judged(pods: list[Pod], own: str | None) -> tuple[Verdict, ...]:
    """Return the verdicts after all probes; a bridge learns from answers."""
    snapshot, answers = node_of(pods, own)
    verdicts = judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0")
    probed = to_probe(snapshot, verdicts, bridge="azure0")
    answered = frozenset(
        (device, address) for device, address in probed if address in answers[device]
    )
    macs = {pod.device: pod.mac for pod in pods if pod.is_alive}
    learned = tuple(Station(macs[device], device) for device, _ in answered)
    seen = Snapshot(
        rules=snapshot.rules,
        neighbours=snapshot.neighbours,
        devices=snapshot.devices,
        endpoints=snapshot.endpoints,
        stations=tuple({*snapshot.stations, *learned}),
        answered=answered,
    )
    return judge(seen, pod_cidrs=POD_CIDRS, bridge="azure0")


def mac_in(leftover: Restorable) -> str:
    """Return the hardware address of a pod in a rule or neighbour."""
    line = str(leftover)
    if isinstance(leftover, EbtablesRule):
        line = leftover.line
    return next(word for word in line.split() if word.startswith("aa:bb:cc"))


DEAD = Pod(
    "10.240.0.10",
    "aa:bb:cc:00:00:00",
    "azv1",
    False,
    "",
    False,
    frozenset(["reply", "dnat", "neighbour"]),
)
LIVE = DEAD._replace(mac="aa:bb:cc:00:00:01", is_alive=True)
BESIDE = LIVE._replace(address="10.240.0.11", recorded="tunnel")


@given(histories())
@example(([DEAD], "10.240.0.10"))
@example(([DEAD, LIVE], None))
@example(([DEAD, LIVE._replace(recorded="tunnel")], None))
@example(([DEAD._replace(recorded="tunnel"), BESIDE], None))
def test_only_objects_made_for_dead_pods_are_stale(history: tuple[list[Pod], str | None]) -> None:
    """Only objects that were made for dead pods are stale, whoever owns their address now, and
    whatever old records there are.
    """
    pods, own = history
    living = {pod.mac for pod in pods if pod.is_alive}
    for verdict in judged(pods, own):
        if verdict.object in rules_of(*NODE_RULES):
            assert verdict.kind == "node"
        elif mac_in(verdict.object) in living:
            assert verdict.kind == "live", verdict
        else:
            assert verdict.kind == "stale", verdict
