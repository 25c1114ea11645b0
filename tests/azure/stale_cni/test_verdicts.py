"""Verdicts on single entries: whose they are, and what is unclear and so left alone.

If one of these fails, a cleanup removes what the node or a pod needs.
"""

from typing import Any

import pytest
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
from hostrouting.azure.stale_cni.leftovers import Leftover, Snapshot, judge
from hostrouting.host import Device, DeviceAddress, EbtablesRule, Neighbour, Station

POD, POD6, MAC = "10.240.0.9", "fd00:10:240::9", "aa:bb:cc:00:00:09"
OTHER, OTHER_MAC = "10.240.0.77", "aa:bb:cc:00:00:77"


def device(name: str, *addresses: str, **fields: Any) -> Device:
    own = tuple(map(DeviceAddress.parse, addresses))
    return Device(name, 9, **{"up": True, "addresses": own, **fields})


BRIDGE = device("azure0", f"{NODE_ADDRESS}/16", mac=NODE_MAC, kind="bridge")
AZV1 = device("azv1", kind="veth", master="azure0")
ROUTER = device("cilium_host", f"{POD}/32", f"{POD6}/64")
REPLY, DNAT, DNAT6 = rules_of(arp_reply(POD, MAC), dnat(POD, MAC), dnat(POD6, MAC))
NEIGHBOUR = Neighbour(POD, "azure0", MAC, permanent=True)
NEIGHBOUR6 = NEIGHBOUR._replace(address=POD6)
OF_POD: list[Leftover] = [REPLY, DNAT, NEIGHBOUR, NEIGHBOUR._replace(dev="azv1")]
OF_POD6: list[Leftover] = [DNAT6, NEIGHBOUR6]
#: A record of azv1's pod that describes another pod in full.
KNOWN = Endpoint((OTHER,), "azv1", OTHER_MAC)


def kinds(*entries: Leftover, devices: tuple[Device, ...] = (BRIDGE,), **fields: Any) -> list[str]:
    """Return the kinds of the verdicts on a node with these entries."""
    snapshot = Snapshot(
        rules=tuple(each for each in entries if isinstance(each, EbtablesRule)),
        neighbours=tuple(each for each in entries if isinstance(each, Neighbour)),
        devices=devices,
        **fields,
    )
    return [verdict.kind for verdict in judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0")[0]]


each_entry = pytest.mark.parametrize("entry", [*OF_POD, *OF_POD6], ids=str)


# --- dead pods


@each_entry
@pytest.mark.parametrize(
    "node",
    [
        {},
        {"endpoints": (Endpoint((POD, POD6), "azv1", MAC),)},
        {"devices": (BRIDGE, ROUTER)},
        {"devices": (BRIDGE, device("lxc1", kind="veth"), device("cali1", kind="veth"))},
        {"devices": (BRIDGE, AZV1), "endpoints": (KNOWN,)},
        {"devices": (BRIDGE, AZV1), "endpoints": (Endpoint((POD, POD6), "azv1", OTHER_MAC),)},
        {"stations": (Station(MAC, "azure0"), Station(MAC, "azv1", permanent=True))},
    ],
    ids=[
        "no pod at all",
        "its device is gone",
        "the node's router has the address",
        "pods of other CNIs",
        "another pod is recorded",
        "another pod has the address",
        "no port has learned it",
    ],
)
def test_an_entry_whose_hardware_address_nobody_has_is_stale(
    entry: Leftover, node: dict[str, Any]
) -> None:
    """An entry is stale if no device, live record or bridge port has its hardware address, although
    its address may be in use.
    """
    assert kinds(entry, **node) == ["stale"]


# --- live pods


@each_entry
@pytest.mark.parametrize(
    "node",
    [
        {"endpoints": (Endpoint((POD, POD6)),)},
        {"endpoints": (Endpoint((OTHER,), "", MAC),)},
        {"devices": (BRIDGE, AZV1), "endpoints": (Endpoint((POD, POD6), "azv1"),)},
        {"devices": (BRIDGE, AZV1), "endpoints": (Endpoint((OTHER,), "azv1", MAC),)},
        {
            "devices": (BRIDGE, AZV1._replace(up=False, carrier=False)),
            "endpoints": (Endpoint((POD, POD6), "azv1", MAC),),
        },
        {"devices": (BRIDGE, AZV1), "endpoints": (KNOWN,), "stations": (Station(MAC, "azv1"),)},
        {"devices": (BRIDGE,), "stations": (Station(MAC, "veth1"),)},
    ],
    ids=[
        "a record without a device",
        "its hardware address, without a device",
        "a record without hardware address",
        "its hardware address",
        "its device is down",
        "learned",
        "learned on another device",
    ],
)
def test_an_entry_of_a_live_pod_is_live(entry: Leftover, node: dict[str, Any]) -> None:
    """An entry is live if its address or hardware address belongs to a record whose device exists
    or that names none, or if a bridge has learned its hardware address on a port.
    """
    assert kinds(entry, **node) == ["live"]


def test_a_hardware_address_of_two_pods_is_no_evidence() -> None:
    """A hardware address that the records of two devices share decides nothing: the address does."""
    shared: dict[str, Any] = {
        "devices": (BRIDGE, AZV1, AZV1._replace(name="azv2")),
        "endpoints": (
            Endpoint((POD, POD6), "azv1", MAC),
            Endpoint((OTHER, "fd00:10:240::77"), "azv2", MAC),
        ),
    }
    assert kinds(DNAT, *rules_of(dnat("10.240.0.8", MAC)), **shared) == ["live", "stale"]


def test_a_hardware_address_in_entries_of_several_pods_does_not_decide() -> None:
    """Where entries give one hardware address to several addresses, as tunnel mode does, a live
    record's address protects its entry.
    """
    virtual = "12:34:56:78:9a:00"
    rules = rules_of(arp_reply(OTHER, virtual), arp_reply("10.240.0.8", virtual))
    node: dict[str, Any] = {"devices": (BRIDGE, AZV1), "endpoints": (KNOWN,)}
    assert kinds(*rules, **node) == ["live", "stale"]
    assert kinds(rules[0], **node) == ["stale"]


# --- the node


def test_rules_of_the_node_stay() -> None:
    """The bridge's own rules and the rule for the node's address are the node's."""
    assert kinds(*rules_of(*NODE_RULES)) == ["node"] * 3


@each_entry
@pytest.mark.parametrize(
    "node",
    [
        {"gateways": frozenset([POD, POD6])},
        {"devices": (BRIDGE, device("eth0", mac=MAC))},
        {"devices": (BRIDGE, device("eth0", f"{POD}/16", f"{POD6}/64", master="azure0"))},
        {
            "devices": (BRIDGE, device("eth0", f"{POD}/16", f"{POD6}/64")),
            "uplinks": frozenset(["eth0"]),
        },
    ],
    ids=["a gateway", "a hardware address", "a port of the bridge", "an uplink"],
)
def test_entries_of_the_node_stay(entry: Leftover, node: dict[str, Any]) -> None:
    """An entry for a gateway, for an address on an uplink, or with a hardware address of a device
    stays, though the address is inside podCidrs.
    """
    assert kinds(entry, **node) == ["node"]


def test_in_tunnel_mode_an_address_of_the_node_protects_its_rule() -> None:
    """In tunnel mode, where the hardware address does not tell, a rule for any address of the node
    stays.
    """
    assert kinds(*rules_of(arp_reply(POD, TUNNEL_MAC)), devices=(BRIDGE, ROUTER)) == ["node"]


@pytest.mark.parametrize("dev", ["azure0", "azv1"])
def test_neighbours_of_ip_masq_agent_stay(dev: str) -> None:
    """Neighbours of ip-masq-agent, which are for other nodes, stay."""
    entry = NEIGHBOUR._replace(dev=dev, mac=TUNNEL_MAC)
    assert kinds(entry) == ["node"]


# --- what is unclear


@pytest.mark.parametrize(
    "entry",
    [
        NEIGHBOUR._replace(protocol=77),
        NEIGHBOUR._replace(flags=0x80),
        *rules_of(dnat("10.241.0.9", MAC), "-A PREROUTING -j DROP", f"{dnat(POD, MAC)} -s {MAC}"),
        NEIGHBOUR._replace(address="10.241.0.9"),
    ],
    ids=str,
)
def test_entries_that_azure_vnet_does_not_make_are_unknown(entry: Leftover) -> None:
    """A neighbour with a protocol or flags, any other rule, and an address outside podCidrs are
    unknown.
    """
    assert kinds(entry) == ["unknown"]


@pytest.mark.parametrize(
    "entry", [NEIGHBOUR._replace(permanent=False), NEIGHBOUR._replace(dev="eth0")]
)
def test_other_neighbours_are_not_considered(entry: Leftover) -> None:
    """A neighbour that the kernel learned, or on another device than the bridge and azv*, has no
    verdict.
    """
    assert kinds(entry) == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Endpoint((OTHER,), "azv1"), ["stale", "unknown"]),
        (Endpoint((OTHER,), "azv1", TUNNEL_MAC), ["stale", "unknown"]),
        (Endpoint((OTHER,), "azv1", OTHER_MAC), ["stale", "stale"]),
        (Endpoint(("fd00:10:240::77",), "azv1"), ["unknown", "stale"]),
        (Endpoint((), "azv1"), ["unknown", "unknown"]),
        (Endpoint((), ""), ["unknown", "unknown"]),
        (Endpoint((), "azv9"), ["stale", "stale"]),
        (Endpoint((), "azv1", OTHER_MAC), ["stale", "stale"]),
    ],
)
def test_a_record_without_hardware_address_accounts_for_its_families(
    record: Endpoint, expected: list[str]
) -> None:
    """Entries of a family that a live record without hardware address does not list are unknown:
    they may be of its pod.
    """
    devices = (BRIDGE, AZV1) if record.host_device == "azv1" else (BRIDGE,)
    assert kinds(DNAT, DNAT6, devices=devices, endpoints=(record,)) == expected


def test_in_tunnel_mode_a_record_accounts_for_its_families_alone() -> None:
    """An entry with tunnel mode's hardware address is unknown if it may be of a pod whose record
    has its own hardware address but no address of the family.
    """
    records = (Endpoint(("fd00:10:240::77",), "azv1", OTHER_MAC),)
    [rule] = rules_of(arp_reply(POD, TUNNEL_MAC))
    assert kinds(rule, devices=(BRIDGE, AZV1), endpoints=records) == ["unknown"]


@pytest.mark.parametrize("up", [True, False])
def test_a_device_that_no_record_names_makes_everything_unknown(*, up: bool) -> None:
    """While no record names an azv* device, up or down, nothing is stale, and the device is named;
    live entries and those of the node keep their verdicts.
    """
    node = device(OTHER, f"{POD}/16", mac=NODE_MAC)
    snapshot = Snapshot(
        rules=(DNAT, *rules_of(dnat(OTHER, OTHER_MAC), *NODE_RULES)),
        devices=(BRIDGE, node, AZV1, device("azv7", up=up)),
        endpoints=(KNOWN,),
    )
    verdicts, unrecorded = judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0")
    assert [verdict.kind for verdict in verdicts] == ["unknown", "live", "node", "node", "node"]
    assert "azv7" in verdicts[0].reason
    assert unrecorded == ("azv7",)


def test_a_device_that_no_record_names_is_no_trouble_without_leftovers() -> None:
    """A node whose entries are all live has no doubt, whatever devices there are."""
    snapshot = Snapshot(rules=rules_of(*NODE_RULES), devices=(BRIDGE, device("azv7")))
    assert judge(snapshot, pod_cidrs=POD_CIDRS, bridge="azure0").unrecorded == ()
