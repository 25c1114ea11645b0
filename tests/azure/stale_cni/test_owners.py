"""Addresses with a history: pods come and go, other pods get their addresses, and only dead entries
are stale.

The oracle has the history and not the code: an entry is dead if the pod that it was made for is.
Entries of a live pod must never be stale, whatever the node shows of it; entries of a dead one must
be, where the records describe all live pods in full.
"""

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st
from support.stale_cni_worlds import (
    NODE_ADDRESS,
    NODE_MAC,
    NODE_RULES,
    POD_CIDRS,
    TUNNEL_MAC,
    arp_reply,
    dnat,
    rules_of,
)

from hostrouting.azure.stale_cni.azure_vnet import Endpoint
from hostrouting.azure.stale_cni.leftovers import Judgement, Leftover, Snapshot, judge
from hostrouting.host import Device, DeviceAddress, EbtablesRule, Neighbour, Station

ADDRESSES = [f"10.240.0.{number}" for number in range(10, 14)]
DEVICES = [f"azv{number}" for number in range(1, 4)]
BRIDGE = Device(
    "azure0",
    3,
    up=True,
    mac=NODE_MAC,
    kind="bridge",
    addresses=(DeviceAddress.parse(f"{NODE_ADDRESS}/16"),),
)


class Pod(NamedTuple):
    """A pod, alive or not, and the entries that were made for it."""

    address: str
    mac: str
    device: str
    is_alive: bool
    #: "own": with its hardware address; "bare": without one; "none": a dead pod has no record.
    recorded: str
    #: True if its bridge has heard it of late.
    is_heard: bool
    is_up: bool
    entries: frozenset[str]
    #: True if it has an IPv6 address as well, which a bare record may lack.
    has_ipv6: bool = False

    def address6(self) -> str:
        return f"fd00:10:240::{self.address.rpartition('.')[2]}"

    def leftovers(self) -> list[Leftover]:
        rules = rules_of(arp_reply(self.address, self.mac), dnat(self.address, self.mac))
        neighbour = Neighbour(self.address, "azure0", self.mac, permanent=True)
        made: dict[str, Leftover] = {"reply": rules[0], "dnat": rules[1], "neighbour": neighbour}
        of_ipv6 = rules_of(dnat(self.address6(), self.mac)) if self.has_ipv6 else ()
        return [*(made[name] for name in sorted(self.entries)), *of_ipv6]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Pod], str | None]:
    """Pods, of which at most one lives with each address and on each device; and an address that
    the node has. A record of a live pod names its device.
    """
    pods: list[Pod] = []
    for number in range(draw(st.integers(1, 6))):
        address = draw(st.sampled_from(ADDRESSES))
        device = draw(st.sampled_from(DEVICES))
        has_owner = any(
            pod.is_alive and (pod.address == address or pod.device == device) for pod in pods
        )
        is_alive = not has_owner and draw(st.booleans())
        pods.append(
            Pod(
                address,
                f"aa:bb:cc:00:00:{number:02x}",
                device,
                is_alive=is_alive,
                recorded=draw(st.sampled_from(["own", "bare"] if is_alive else ["own", "none"])),
                is_heard=is_alive and draw(st.booleans()),
                is_up=draw(st.booleans()),
                entries=frozenset(draw(st.sets(st.sampled_from(["reply", "dnat", "neighbour"])))),
                has_ipv6=draw(st.booleans()),
            )
        )
    taken = {pod.address for pod in pods if pod.is_alive}
    free = [address for address in ADDRESSES if address not in taken]
    own = draw(st.none() | st.sampled_from(free)) if free else None
    return draw(st.permutations(pods)), own


def judged(pods: list[Pod], own: str | None) -> Judgement:
    """Return the verdicts on a node with this history."""
    living = [pod for pod in pods if pod.is_alive]
    veths = [
        Device(pod.device, 10 + number, up=pod.is_up, kind="veth", master="azure0")
        for number, pod in enumerate(living)
    ]
    router = []
    if own:
        addresses = (DeviceAddress.parse(f"{own}/32"),)
        router.append(Device("cilium_host", 9, up=True, addresses=addresses))
    entries = [leftover for pod in pods for leftover in pod.leftovers()]
    # The kernel has one neighbour for an address: that of the last pod.
    neighbours = {each.address: each for each in entries if isinstance(each, Neighbour)}
    snapshot = Snapshot(
        rules=(
            *rules_of(*NODE_RULES),
            *(each for each in entries if isinstance(each, EbtablesRule)),
        ),
        neighbours=tuple(neighbours.values()),
        devices=(BRIDGE, *veths, *router),
        stations=(
            Station(NODE_MAC, "azure0", permanent=True),
            *(Station(pod.mac, pod.device) for pod in living if pod.is_heard),
        ),
        endpoints=tuple(
            Endpoint((pod.address,), pod.device, pod.mac if pod.recorded == "own" else "")
            for pod in pods
            if pod.recorded != "none"
        ),
    )
    return judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0")


DEAD = Pod(
    "10.240.0.10",
    "aa:bb:cc:00:00:00",
    "azv1",
    is_alive=False,
    recorded="none",
    is_heard=False,
    is_up=True,
    entries=frozenset(["reply", "dnat", "neighbour"]),
)
LIVE = DEAD._replace(mac="aa:bb:cc:00:00:01", is_alive=True, recorded="own", has_ipv6=True)


@given(histories())
@example(([DEAD], "10.240.0.10"))
@example(([DEAD, LIVE], None))
@example(([LIVE._replace(recorded="bare")], None))
@example(([DEAD, LIVE._replace(address="10.240.0.11")], None))
def test_entries_of_live_pods_are_never_stale(history: tuple[list[Pod], str | None]) -> None:
    """No entry of a live pod is stale, whoever had its address and whatever old records there are;
    nor is a rule of the node. Those of dead pods are, if each live pod's record has its hardware
    address.
    """
    pods, own = history
    living = {pod.mac for pod in pods if pod.is_alive}
    is_described = all(pod.recorded == "own" for pod in pods if pod.is_alive)
    # A record whose device another pod has now counts: its pod may be there.
    outlived = {
        pod.mac
        for pod in pods
        if pod.recorded == "own"
        and any(pod.device == each.device for each in pods if each.is_alive)
    }
    verdicts, unnamed = judged(pods, own)
    assert unnamed == ()
    for verdict in verdicts:
        if verdict.object in rules_of(*NODE_RULES):
            assert verdict.kind == "node"
        elif mac_in(verdict.object) in living:
            assert verdict.kind in {"live", "unknown"}, verdict
        elif is_described and mac_in(verdict.object) not in outlived:
            assert verdict.kind == "stale", verdict


@given(histories(), st.integers(0, 5))
def test_without_a_record_of_one_live_pod_nothing_is_stale(
    history: tuple[list[Pod], str | None], index: int
) -> None:
    """While an azv* device is named by no record, nothing at all is stale."""
    pods, own = history
    stranger = LIVE._replace(device="azv9", address="10.240.0.99", recorded="none")
    with_stranger = [*pods[:index], stranger, *pods[index:]]
    verdicts, unnamed = judged(with_stranger, own)
    assert all(verdict.kind != "stale" for verdict in verdicts)
    assert unnamed in {(), ("azv9",)}
    assert unnamed or not any(each.kind == "stale" for each in judged(pods, own).verdicts)


@given(st.sets(st.sampled_from(ADDRESSES)), st.sets(st.sampled_from(ADDRESSES), min_size=1))
def test_in_tunnel_mode_exactly_recorded_addresses_stay(live: set[str], made: set[str]) -> None:
    """With one hardware address for all pods, an entry is live exactly if a record has its
    address.
    """
    devices = {address: f"azv{number}" for number, address in enumerate(sorted(live))}
    snapshot = Snapshot(
        rules=rules_of(*(arp_reply(address, TUNNEL_MAC) for address in sorted(made))),
        devices=(BRIDGE, *(Device(name, 9, up=True, kind="veth") for name in devices.values())),
        stations=(Station(TUNNEL_MAC, "eth0"),),
        endpoints=tuple(
            Endpoint((address, "fd00::1"), name, TUNNEL_MAC) for address, name in devices.items()
        ),
    )
    verdicts, _ = judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0")
    kinds = {verdict.address: verdict.kind for verdict in verdicts}
    assert kinds == {address: "live" if address in live else "stale" for address in made}


def mac_in(leftover: Leftover) -> str:
    """Return the hardware address of a pod in a rule or neighbour."""
    line = str(leftover)
    return next(word for word in line.split() if word.startswith("aa:bb:cc"))
