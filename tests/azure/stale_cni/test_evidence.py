"""Evidence about objects: the node, the pods that live, and devices that are gone."""

from collections.abc import Sequence

import pytest
from support.printed import LEARNED
from support.stale_cni_snapshots import (
    DEVICES,
    DNAT6_RULE,
    DNAT_RULE,
    MAC,
    OF_POD6,
    OF_PODS,
    POD,
    POD6,
    REPLY_RULE,
    judged,
    kinds,
    neighbour,
    route,
    route6,
    snapshot,
)
from support.stale_cni_worlds import (
    NODE_ADDRESS,
    NODE_RULES,
    POD_CIDRS,
    TUNNEL_MAC,
    arp_reply,
    dnat,
    rules_of,
)

from hostrouting.azure.stale_cni.azure_vnet import Endpoint
from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.azure.stale_cni.verdicts import judge
from hostrouting.host import (
    Address,
    Device,
    DeviceAddress,
    EbtablesRule,
    Neighbour,
    NextHop,
    Station,
)

# --- the node


each_leftover = pytest.mark.parametrize("leftover", OF_PODS, ids=str)


def test_rules_of_the_node_are_never_touched() -> None:
    """The bridge's own rules and the rule for the node's address are recognised and kept."""
    verdicts = judge(snapshot(*rules_of(*NODE_RULES)), pod_cidrs=POD_CIDRS, bridge="azure0")
    assert [(v.kind, v.address, v.reason) for v in verdicts] == [
        ("node", None, "it serves the node itself, and every pod on the bridge needs it"),
        ("node", NODE_ADDRESS, "10.240.0.4 is an address of the node itself, on azure0"),
        ("node", None, "it serves the node itself, and every pod on the bridge needs it"),
    ]


ROUTER = Device(
    "cilium_host",
    9,
    up=True,
    addresses=(DeviceAddress.parse(f"{POD}/32"), DeviceAddress.parse(f"{POD6}/64")),
)


@each_leftover
def test_an_object_of_no_pod_is_stale_though_the_node_has_its_address(leftover: Restorable) -> None:
    """A rule or neighbour whose hardware address nobody has is stale, although Cilium's router has
    its IP address from the pods' pool; a route is decided by the address.
    """
    ((kind, reason),) = judged(snapshot(leftover, devices=(*DEVICES, ROUTER)))
    address = POD6 if leftover in OF_POD6 else POD
    own = f"{address} is an address of the node itself, on cilium_host"
    if isinstance(leftover, EbtablesRule | Neighbour):
        assert kind == "stale"
        assert reason == f"no device and no pod has {MAC}, to which it leads; {own}"
    else:
        assert kind == "node"
        assert reason == own


def test_tunnel_mode_makes_rules_for_the_node_where_its_uplink_has_the_address() -> None:
    """In tunnel mode, where all have one hardware address, a rule for an address of the bridge or
    the uplink is the node's, and one for another address a pod's.
    """
    rules = rules_of(arp_reply(NODE_ADDRESS, TUNNEL_MAC), arp_reply(POD, TUNNEL_MAC))
    reason = f"it was made for a pod, and {POD} is an address of the node itself, on cilium_host"
    pods = route("10.240.1.0/24", "cilium_host")
    assert judged(snapshot(*rules, pods, devices=(*DEVICES, ROUTER))) == [
        ("node", f"{NODE_ADDRESS} is an address of the node itself, on azure0"),
        ("stale", reason),
    ]
    uplink = Device("eth0", 2, up=True, addresses=(DeviceAddress.parse(f"{POD}/16"),))
    default = route("0.0.0.0/0", "eth0", gateway="10.240.0.1", scope=0)
    assert kinds(snapshot(rules[1], default, devices=(*DEVICES, uplink))) == ["node"]


@pytest.mark.parametrize("dev", ["azure0", "azv1"])
def test_neighbours_of_ip_masq_agent_are_never_touched(dev: str) -> None:
    """Neighbours of ip-masq-agent, which are for other nodes, are kept."""
    reason = f"ip-masq-agent adds neighbours with {TUNNEL_MAC} for other nodes"
    assert judged(snapshot(neighbour(dev=dev, mac=TUNNEL_MAC))) == [("node", reason)]


@each_leftover
def test_gateways_of_the_node_are_never_touched(leftover: Restorable) -> None:
    """An object for a gateway of the node is kept, although the gateway lies in podCidrs, as in
    bridge mode, where pods and node share a subnet.
    """
    default = route("0.0.0.0/0", "azure0", gateway=POD, scope=0)
    default6 = route6("::/0", "azure0", gateway=POD6)
    reasons = judged(snapshot(leftover, default, default6))
    assert [kind for kind, _ in reasons] == ["node"]
    assert reasons[0][1].endswith(" is a gateway of the node")


def hop(gateway: str, dev: str) -> NextHop:
    return NextHop(Address.parse(gateway), dev)


@pytest.mark.parametrize(
    "default",
    [
        route("0.0.0.0/0", None, nexthops=(hop("10.240.0.1", "azure0"), hop(POD, "eth0"))),
        route6("::/0", None, nexthops=(hop("fe80::1", "eth0"), hop(POD, "eth0"))),
        route6("::/0", "eth0", gateway=POD),
    ],
)
def test_every_gateway_of_a_route_is_a_gateway(default: Restorable) -> None:
    """Each gateway of a route is a gateway of the node, also of several next hops or of another
    family.
    """
    assert judged(snapshot(neighbour(), default)) == [("node", f"{POD} is a gateway of the node")]


@pytest.mark.parametrize(
    "leftover", [DNAT_RULE, REPLY_RULE, neighbour(), neighbour(dev="azv1"), DNAT6_RULE], ids=str
)
def test_an_object_with_a_hardware_address_of_the_node_is_kept(leftover: Restorable) -> None:
    """An object with a hardware address of the node's devices is kept, even while DHCP has taken
    the IP address away, or if azure-vnet's state has an endpoint with it.
    """
    uplink = Device("eth0", 2, up=True, mac=MAC)
    reason = f"{MAC} is a hardware address of the node itself, that of eth0"
    state = (Endpoint((POD, POD6), "azv1"),)
    assert judged(snapshot(leftover, devices=(*DEVICES, uplink))) == [("node", reason)]
    assert judged(snapshot(leftover, devices=(*DEVICES, uplink), endpoints=state)) == [
        ("node", reason)
    ]


# --- live pods

IN_STATE = "azure-vnet's state has an endpoint with"
HAVE_MAC: list[Restorable] = [REPLY_RULE, DNAT_RULE, neighbour(), DNAT6_RULE, neighbour(POD6)]
#: What is read of a pod: objects that it is about, their verdict and its reason.
OF_A_POD: list[tuple[Sequence[Restorable], dict[str, object], str, str]] = [
    # The state protects the addresses of a pod if its device exists, or is not named.
    (OF_PODS, {"endpoints": (Endpoint((POD, POD6), "azv1"),)}, "live", f"{IN_STATE} it, on azv1"),
    (OF_PODS, {"endpoints": (Endpoint((POD, POD6), ""),)}, "live", f"{IN_STATE} it"),
    # azure-vnet leaves its state, too: an endpoint without its device is a dead record.
    (
        OF_PODS,
        {"endpoints": (Endpoint((POD, POD6), "azv7"),)},
        "stale",
        f"{IN_STATE} it, on azv7, which is gone",
    ),
    # A bridge that has learned the pod's own hardware address on a port has heard the pod.
    (
        HAVE_MAC,
        {"stations": (Station(MAC, "azv1"),)},
        "live",
        f"{MAC}{LEARNED}",
    ),
    # A record need not have all addresses of its pod, but it has the hardware address.
    (
        HAVE_MAC,
        {"endpoints": (Endpoint(("10.240.0.77",), "azv1", MAC),)},
        "live",
        f"{IN_STATE} {MAC}, its hardware address, on azv1",
    ),
    (
        HAVE_MAC,
        {"endpoints": (Endpoint(("10.240.0.77",), "", MAC),)},
        "live",
        f"{IN_STATE} {MAC}, its hardware address",
    ),
]


@pytest.mark.parametrize(
    ("leftover", "evidence", "kind", "reason"),
    [(leftover, *rest) for leftovers, *rest in OF_A_POD for leftover in leftovers],
    ids=str,
)
def test_what_is_read_of_a_pod_decides(
    leftover: Restorable, evidence: dict[str, object], kind: str, reason: str
) -> None:
    """An object of a pod is judged by azure-vnet's state and by the stations of bridges, for its
    address and for its hardware address.
    """
    assert judged(snapshot(leftover, **evidence)) == [(kind, reason)]


@pytest.mark.parametrize(
    "evidence",
    [
        # The bridge's own entries, those that a program added, and other hardware addresses.
        {"stations": (Station(MAC, "azure0"),)},
        {"stations": (Station(MAC, "azv1", permanent=True),)},
        {"stations": (Station("aa:bb:cc:00:00:08", "azv1"),)},
        # A neighbour that the kernel learned may have gone out of date long ago, on a pod's device,
        # too: a live pod answers a probe.
        *(
            {"neighbours": (neighbour(dev=dev, permanent=False),)}
            for dev in ("azv1", "lxc1", "azv7")
        ),
        # The hardware address of a record without its device, another one, or none.
        {"endpoints": (Endpoint((), "azv7", MAC),)},
        {"endpoints": (Endpoint((), "azv1", ""),)},
        {"endpoints": (Endpoint((), "azv1", "a:b"),)},
    ],
    ids=str,
)
def test_what_proves_no_pod(evidence: dict[str, object]) -> None:
    """A rule stays stale in spite of stations, neighbours and records that do not prove a live
    pod.
    """
    assert kinds(snapshot(DNAT_RULE, **evidence)) == ["stale"]


def test_a_pod_alive_in_one_form_is_alive_in_all() -> None:
    """All objects of a pod are live if a bridge has heard the hardware address of one of its rules,
    as in tunnel mode only one rule has the pod's own.
    """
    rules = rules_of(arp_reply(POD, TUNNEL_MAC), dnat(POD, MAC))
    what = snapshot(*rules, route(dev="azure0"), stations=(Station(MAC, "azv1"),))
    assert kinds(what) == ["live"] * 3


def test_a_hardware_address_of_several_pods_is_not_evidence() -> None:
    """A learned hardware address proves nothing about either address when both have it."""
    rules = rules_of(dnat(POD, MAC), dnat("10.240.0.10", MAC))
    assert kinds(snapshot(*rules, stations=(Station(MAC, "azv1"),))) == ["stale", "stale"]


def test_the_hardware_address_of_tunnel_mode_is_never_evidence() -> None:
    """The hardware address of tunnel mode, which every pod and the fabric's router have, is not
    evidence of a live pod.
    """
    rules = rules_of(dnat(POD, TUNNEL_MAC))
    assert kinds(snapshot(*rules, stations=(Station(TUNNEL_MAC, "eth0"),))) == ["stale"]


# --- an address that has another owner now

NEW_MAC = "0a:00:00:00:00:09"
DEAD_AND_OWN = rules_of(
    dnat(POD, MAC), arp_reply(POD, MAC), dnat(POD, NEW_MAC), arp_reply(POD, NEW_MAC)
)


@pytest.mark.parametrize(
    "evidence",
    [
        {"endpoints": (Endpoint((POD,), "azv1"),)},
        {"endpoints": (Endpoint((POD,), "azv1", TUNNEL_MAC),)},
        {"endpoints": (Endpoint((POD,), ""),), "stations": (Station(TUNNEL_MAC, "azv1"),)},
        {"answered": frozenset([("azv1", POD)])},
    ],
)
def test_of_a_pod_whose_hardware_address_is_not_known_nothing_is_stale(
    evidence: dict[str, object],
) -> None:
    """No object of an address is stale while it is unknown which of two hardware addresses the live
    pod has.
    """
    assert kinds(snapshot(*DEAD_AND_OWN, **evidence)) == ["live"] * 4


@pytest.mark.parametrize(
    "evidence",
    [
        {"stations": (Station(MAC, "azv1"), Station(NEW_MAC, "azv1"))},
        {
            "stations": (Station(NEW_MAC, "azv1"),),
            "endpoints": (Endpoint(("10.240.0.77",), "azv1", MAC),),
        },
        {"stations": (Station(NEW_MAC, "azv2"),), "answered": frozenset([("azv1", "10.240.0.77")])},
    ],
    ids=["heard", "recorded", "may have it"],
)
def test_a_hardware_address_that_another_pod_has_or_may_have_is_kept(
    evidence: dict[str, object],
) -> None:
    """An object with a hardware address that another pod has, or may have, is kept."""
    other = rules_of(dnat("10.240.0.77", MAC))
    verdicts = kinds(snapshot(*DEAD_AND_OWN, *other, **evidence))
    assert verdicts[:2] == ["live", "live"]


DEAD_RECORD = Endpoint((POD, POD6), "azv1", MAC)
LIVE_RECORD = Endpoint(("10.240.0.77",), "azv1", NEW_MAC)


@each_leftover
@pytest.mark.parametrize("endpoints", [(DEAD_RECORD, LIVE_RECORD), (LIVE_RECORD, DEAD_RECORD)])
@pytest.mark.parametrize(
    "evidence",
    [{"stations": (Station(NEW_MAC, "azv1"),)}, {"answered": frozenset([("azv1", "10.240.0.77")])}],
    ids=["heard", "answered"],
)
def test_a_record_whose_device_is_another_pods_now_protects_nothing(
    leftover: Restorable, endpoints: tuple[Endpoint, ...], evidence: dict[str, object]
) -> None:
    """A record whose device another pod has now does not protect an object, as azure-vnet reuses
    the names of devices.
    """
    what = snapshot(leftover, endpoints=endpoints, **evidence)
    assert judged(what) == [
        ("stale", "azure-vnet's state has an endpoint with it, on azv1, which is another pod's now")
    ]


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"stations": (Station(NEW_MAC, "azv2"),)},
        {"stations": (Station(TUNNEL_MAC, "azv1"),)},
        {"answered": frozenset([("azv2", "10.240.0.77")])},
        {"stations": (Station(NEW_MAC, "azv1"),), "answered": frozenset([("azv1", POD)])},
    ],
    ids=["nothing", "elsewhere", "tunnel", "answers elsewhere", "both"],
)
def test_of_two_records_of_one_device_both_protect_until_one_is_known(
    evidence: dict[str, object],
) -> None:
    """Both of two records of one device protect their objects until one pod is found on that
    device.
    """
    what = snapshot(route(), endpoints=(DEAD_RECORD, LIVE_RECORD), **evidence)
    assert kinds(what) == ["live"]


def test_two_records_of_one_pod_are_one() -> None:
    """Records with an address or a hardware address in common are of one pod: the objects of all
    three are live, since the bridge has heard their hardware address.
    """
    records = (
        Endpoint((POD,), "azv1"),
        Endpoint((POD, POD6), "azv1", MAC),
        Endpoint(("10.240.0.77",), "azv1", MAC),
    )
    what = snapshot(*OF_POD6, endpoints=records, stations=(Station(MAC, "azv1"),))
    assert {kind for kind, _ in judged(what)} == {"live"}


# --- devices that are gone


def test_objects_on_a_removed_device_are_unknown() -> None:
    """An object on a device that vanished while all was read is unknown, as the device could not be
    probed.
    """
    reason = "azv7 was removed or renamed while all this was read"
    assert judged(snapshot(route(dev="azv7"))) == [("unknown", reason)]
