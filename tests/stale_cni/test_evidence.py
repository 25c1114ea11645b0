"""Who is the node, which pods live, and what could not be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.stale_cni_snapshots import (
    BRIDGE,
    DEVICES,
    DNAT6_RULE,
    DNAT_RULE,
    MAC,
    OF_POD,
    OF_POD6,
    POD,
    POD6,
    REPLY_RULE,
    judged,
    neighbour,
    next_hop,
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

from hostrouting.addresses import parse_ipv4
from hostrouting.host import Device, NextHop, ObservedRoute, Station
from hostrouting.stale_cni import judge
from hostrouting.stale_cni.azure_vnet import Endpoint
from hostrouting.stale_cni.sweep import subject

if TYPE_CHECKING:
    from hostrouting.stale_cni.sweep import Leftover

# --- the node


def test_rules_of_the_node_are_never_touched() -> None:
    """The bridge's own rules and the one for the node's address are known, and kept."""
    verdicts = judge(snapshot(*rules_of(*NODE_RULES)), pod_cidrs=POD_CIDRS, bridge="azure0")
    assert [(v.kind, v.address, v.reason) for v in verdicts] == [
        ("node", None, "it stands for the node itself, and every pod on the bridge needs it"),
        ("node", NODE_ADDRESS, "10.240.0.4 is an address of the node itself, on azure0"),
        ("node", None, "it stands for the node itself, and every pod on the bridge needs it"),
    ]


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_addresses_of_the_node_are_never_touched(leftover: Leftover) -> None:
    """Whatever device has it: an address of the node is no pod's, be it inside podCidrs."""
    host = Device("cilium_host", 9, up=True, addresses=(f"{POD}/32", f"{POD6}/64"))
    kinds = [kind for kind, _ in judged(snapshot(leftover, devices=(*DEVICES, host)))]
    assert kinds == ["node"]


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_gateways_of_the_node_are_never_touched(leftover: Leftover) -> None:
    """In bridge mode pods and node share a subnet: its gateway lies inside podCidrs, and may stand there by hand."""
    default = route("0.0.0.0/0", "azure0", gateway=parse_ipv4(POD), scope=0)
    default6 = route6("::/0", "azure0", gateway=POD6)
    reasons = judged(snapshot(leftover, default, default6))
    assert [kind for kind, _ in reasons] == ["node"]
    assert reasons[0][1].endswith(" is a gateway of the node")


def test_gateways_among_several_next_hops_are_gateways() -> None:
    """A route with several next hops has several gateways."""
    several = ObservedRoute(0, 0, nexthops=(NextHop(parse_ipv4("10.240.0.1"), "azure0"), NextHop(parse_ipv4(POD), "a")))
    assert judged(snapshot(DNAT_RULE, several)) == [("node", f"{POD} is a gateway of the node")]


@pytest.mark.parametrize(
    "default",
    [
        ObservedRoute(0, 0, dev="eth0", extra=((18, b"\x02\0" + bytes([10, 240, 0, 9])),)),
        ObservedRoute(0, 0, nexthops=(NextHop(None, "eth0", extra=((18, b"\x02\0" + bytes([10, 240, 0, 9])),)),)),
        route6("::/0", None, extra=((9, next_hop(2) + next_hop(2, (18, b"\x02\0" + bytes([10, 240, 0, 9])))),)),
        route6("::/0", None, extra=((9, next_hop(2, (5, bytes([10, 240, 0, 9])))),)),
    ],
    ids=["via", "next hop via", "multipath via", "multipath"],
)
def test_gateways_in_attributes_are_gateways(default: Leftover) -> None:
    """Several next hops of IPv6 routes, and gateways of the other family, come as the kernel packed them."""
    assert judged(snapshot(neighbour(), default)) == [("node", f"{POD} is a gateway of the node")]


@pytest.mark.parametrize(
    "leftover", [DNAT_RULE, REPLY_RULE, neighbour(), neighbour(dev="azv1"), DNAT6_RULE], ids=subject
)
def test_what_has_a_hardware_address_of_the_node_is_never_touched(leftover: Leftover) -> None:
    """The node's own rule stays while DHCP has its address away for a moment: its hardware address is a device's."""
    uplink = Device("eth0", 2, up=True, mac=MAC)
    reason = f"{MAC} is a hardware address of the node itself, that of eth0"
    state = (Endpoint((POD, POD6), "azv1"),)
    assert judged(snapshot(leftover, devices=(*DEVICES, uplink))) == [("node", reason)]
    assert judged(snapshot(leftover, devices=(*DEVICES, uplink), endpoints=state)) == [("node", reason)]


# --- who lives


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
@pytest.mark.parametrize("device", ["azv1", ""])
def test_what_the_state_has_is_alive(leftover: Leftover, device: str) -> None:
    """An endpoint in azure-vnet's state protects its addresses if its device exists, or is not named."""
    evidence = snapshot(leftover, endpoints=(Endpoint((POD, POD6), device),))
    reason = f"azure-vnet's state has an endpoint with it{', on azv1' if device else ''}"
    assert judged(evidence) == [("live", reason)]


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_a_record_of_a_device_that_is_gone_protects_nothing(leftover: Leftover) -> None:
    """azure-vnet's state is left behind, too: an endpoint without its device is a dead record."""
    evidence = snapshot(leftover, endpoints=(Endpoint((POD, POD6), "azv7"),))
    assert judged(evidence) == [("stale", "azure-vnet's state has an endpoint with it, on azv7, which is gone")]


def test_one_live_record_outweighs_a_dead_one() -> None:
    """Of two endpoints with one address the one whose device exists decides, wherever it stands."""
    dead, live = Endpoint((POD,), "azv7"), Endpoint((POD,), "azv1")
    for endpoints in [(dead, live), (live, dead)]:
        assert [kind for kind, _ in judged(snapshot(DNAT_RULE, endpoints=endpoints))] == ["live"]


@pytest.mark.parametrize("leftover", [REPLY_RULE, DNAT_RULE, neighbour(), DNAT6_RULE, neighbour(POD6)], ids=subject)
def test_whose_hardware_address_is_learned_is_alive(leftover: Leftover) -> None:
    """A bridge that has learned the pod's own hardware address on a port has heard the pod."""
    evidence = snapshot(leftover, stations=(Station(MAC, "azv1"),))
    assert judged(evidence) == [("live", f"{MAC}, its hardware address, is learned on azv1")]


def test_what_is_alive_in_one_form_is_alive_in_all() -> None:
    """In tunnel mode only one of a pod's rules has its own hardware address; that saves the other, and the route."""
    rules = rules_of(arp_reply(POD, TUNNEL_MAC), dnat(POD, MAC))
    what = snapshot(*rules, route(dev="azure0"), stations=(Station(MAC, "azv1"),))
    assert [kind for kind, _ in judged(what)] == ["live"] * 3


def test_both_addresses_of_a_pod_are_saved_by_its_one_hardware_address() -> None:
    """A pod has an address in each family behind one hardware address."""
    what = snapshot(DNAT_RULE, DNAT6_RULE, stations=(Station(MAC, "azv1"),))
    assert [kind for kind, _ in judged(what)] == ["live", "live"]


@pytest.mark.parametrize(
    "station",
    [Station(MAC, "azure0"), Station(MAC, "azv1", permanent=True), Station("aa:bb:cc:00:00:08", "azv1")],
)
def test_only_what_a_port_has_learned_counts(station: Station) -> None:
    """The bridge's own entries, those that somebody put there, and other hardware addresses say nothing."""
    assert [kind for kind, _ in judged(snapshot(DNAT_RULE, stations=(station,)))] == ["stale"]


def test_a_hardware_address_of_several_pods_is_no_evidence() -> None:
    """What is learned says nothing about either address when both have it."""
    rules = rules_of(dnat(POD, MAC), dnat("10.240.0.10", MAC))
    assert [kind for kind, _ in judged(snapshot(*rules, stations=(Station(MAC, "azv1"),)))] == ["stale", "stale"]


def test_the_hardware_address_of_tunnel_mode_is_never_evidence() -> None:
    """Every pod has it in tunnel mode, and the fabric's router, too; also when one rule only is left."""
    rules = rules_of(dnat(POD, TUNNEL_MAC))
    assert [kind for kind, _ in judged(snapshot(*rules, stations=(Station(TUNNEL_MAC, "eth0"),)))] == ["stale"]


@pytest.mark.parametrize("dev", ["azv1", "lxc1", "azv7"])
def test_a_neighbour_that_the_kernel_learned_proves_nothing(dev: str) -> None:
    """It may have gone out of date long ago, on a pod's device, too: who lives there answers when asked."""
    assert [kind for kind, _ in judged(snapshot(DNAT_RULE, neighbour(dev=dev, permanent=False)))] == ["stale"]


@pytest.mark.parametrize("leftover", [REPLY_RULE, DNAT_RULE, neighbour(), DNAT6_RULE, neighbour(POD6)], ids=subject)
@pytest.mark.parametrize("device", ["azv1", ""])
def test_whose_hardware_address_the_state_has_is_alive(leftover: Leftover, device: str) -> None:
    """A record need not have all addresses of its pod, but it has the hardware address."""
    evidence = snapshot(leftover, endpoints=(Endpoint(("10.240.0.77",), device, MAC),))
    on = ", on azv1" if device else ""
    assert judged(evidence) == [("live", f"azure-vnet's state has an endpoint with {MAC}, its hardware address{on}")]


@pytest.mark.parametrize("endpoint", [Endpoint((), "azv7", MAC), Endpoint((), "azv1", ""), Endpoint((), "azv1", "a:b")])
def test_a_hardware_address_of_a_record_without_its_device_protects_nothing(endpoint: Endpoint) -> None:
    """Nor does another one, or none."""
    assert [kind for kind, _ in judged(snapshot(DNAT_RULE, endpoints=(endpoint,)))] == ["stale"]


def test_the_hardware_address_of_tunnel_mode_in_a_record_is_no_evidence() -> None:
    """Every record has it there."""
    rules = rules_of(dnat(POD, TUNNEL_MAC))
    assert [kind for kind, _ in judged(snapshot(*rules, endpoints=(Endpoint((), "azv1", TUNNEL_MAC),)))] == ["stale"]


def test_whose_hardware_address_any_bridge_has_learned_is_alive() -> None:
    """A bridge of another name than the config says has heard the pod all the same; its own entry says nothing."""
    bridges = (*DEVICES, BRIDGE._replace(name="azbr", addresses=()))
    what = snapshot(DNAT_RULE, devices=bridges, stations=(Station(MAC, "azvlive"),))
    assert judged(what) == [("live", f"{MAC}, its hardware address, is learned on azvlive")]
    itself = snapshot(DNAT_RULE, devices=bridges, stations=(Station(MAC, "azbr"),))
    assert [kind for kind, _ in judged(itself)] == ["stale"]


# --- who could not be asked

UNASKED = frozenset(["azv1"])
AZV2 = Device("azv2", 5, up=True, kind="veth", master="azure0")
NODE = (*DEVICES, AZV2)


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_what_a_device_may_have_that_could_not_be_asked_is_unknown(leftover: Leftover) -> None:
    """Whoever may not ask there takes nobody for gone."""
    address = POD6 if leftover in OF_POD6 else POD
    reason = f"whether a pod behind azv1 has {address} cannot be asked without CAP_NET_RAW"
    assert judged(snapshot(leftover, devices=NODE, unasked=UNASKED)) == [("unknown", reason)]


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        ({"endpoints": (Endpoint((POD,), "azv1"),)}, "live"),
        ({"answered": frozenset([("azv2", POD)])}, "live"),
        ({"stations": (Station(MAC, "azv2"),)}, "live"),
        ({"devices": (*NODE, Device("lo", 1, up=True, addresses=(f"{POD}/32",)))}, "node"),
    ],
)
def test_what_is_known_need_not_be_asked(evidence: dict[str, object], kind: str) -> None:
    """A device that was not asked hides nothing about an address of which something is known."""
    what = snapshot(DNAT_RULE, **{"devices": NODE, "unasked": UNASKED, **evidence})
    assert [found for found, _ in judged(what)] == [kind]


def test_several_devices_that_could_not_be_asked_are_counted() -> None:
    """The first is named; without privilege it is all of them."""
    reason = f"whether a pod behind azv1 has {POD} cannot be asked without CAP_NET_RAW"
    assert judged(snapshot(DNAT_RULE, unasked=frozenset(["azv2", "azv1"]))) == [
        ("unknown", f"{reason}, nor can 1 more")
    ]


def test_a_device_of_a_pod_that_is_known_hides_no_other() -> None:
    """What the state gives to one address is not where another is; but of the other family nothing is said there."""
    state = (Endpoint(("10.240.0.77",), "azv1"),)
    what = snapshot(DNAT_RULE, DNAT6_RULE, route(), route6(), unasked=UNASKED, endpoints=state)
    kinds = {(v.address, v.kind) for v in judge(what, pod_cidrs=POD_CIDRS, bridge="azure0")}
    assert kinds == {(POD, "stale"), (POD6, "unknown")}


@pytest.mark.parametrize("leftover", [route(dev="azv2"), neighbour(dev="azv2"), route6(dev="azv2")], ids=subject)
def test_what_is_on_one_device_does_not_hang_on_others(leftover: Leftover) -> None:
    """A route or neighbour on a pod's own device is about that device."""
    assert [kind for kind, _ in judged(snapshot(leftover, devices=NODE, unasked=UNASKED))] == ["stale"]


def test_what_is_on_a_device_that_went_away_is_unknown() -> None:
    """It was there when routes were read, and not when devices were: nobody could be asked there."""
    reason = "azv7 went away, or got another name, while all this was read"
    assert judged(snapshot(route(dev="azv7"))) == [("unknown", reason)]
