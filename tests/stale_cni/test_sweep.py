"""Verdicts: what is stale, what is alive, what is the node's, and what is not understood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
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

from hostrouting.addresses import parse_cidr, parse_ipv4
from hostrouting.host import OUR_PROTOCOL, Device, IPv6Route, Neighbour, NextHop, ObservedRoute, Station
from hostrouting.stale_cni import Snapshot, Verdict, judge
from hostrouting.stale_cni.azure_vnet import Endpoint
from hostrouting.stale_cni.sweep import agree, questions, subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.stale_cni.sweep import Leftover

POD = "10.240.0.9"
POD6 = "fd00:10:240::9"
MAC = "aa:bb:cc:00:00:09"
LIVE_MAC = "aa:bb:cc:00:00:10"
BRIDGE = Device("azure0", 3, up=True, mac=NODE_MAC, kind="bridge", addresses=(f"{NODE_ADDRESS}/16",))
AZV1 = Device("azv1", 4, up=True, kind="veth", master="azure0")
DEVICES = (BRIDGE, AZV1)


def route(destination: str = f"{POD}/32", dev: str = "azv1", **fields: object) -> ObservedRoute:
    network, length = parse_cidr(destination)
    return ObservedRoute(network, length, dev=dev, **{"protocol": 3, "scope": 253, **fields})  # type: ignore[arg-type]


def route6(destination: str = f"{POD6}/128", dev: str = "azv1", **fields: object) -> IPv6Route:
    return IPv6Route(destination, dev, **{"protocol": 3, "metric": 1024, **fields})  # type: ignore[arg-type]


def neighbour(address: str = POD, dev: str = "azure0", mac: str = MAC, *, permanent: bool = True) -> Neighbour:
    return Neighbour(address, dev, mac, permanent)


def snapshot(*objects: Leftover, **evidence: object) -> Snapshot:
    """A node with these objects and nothing else, but for the evidence."""
    fields = {
        "neighbours": tuple(o for o in objects if isinstance(o, Neighbour)),
        "ipv4_routes": tuple(o for o in objects if isinstance(o, ObservedRoute)),
        "ipv6_routes": tuple(o for o in objects if isinstance(o, IPv6Route)),
        "rules": tuple(o for o in objects if not isinstance(o, Neighbour | ObservedRoute | IPv6Route)),
        "devices": DEVICES,
        **evidence,
    }
    return Snapshot(**fields)  # type: ignore[arg-type]


def judged(what: Snapshot, bridge: str = "azure0") -> list[tuple[str, str]]:
    return [(v.kind, v.reason) for v in judge(what, pod_cidrs=POD_CIDRS, bridge=bridge)]


REPLY_RULE, DNAT_RULE, REPLY6_RULE = rules_of(arp_reply(POD, MAC), dnat(POD, MAC), dnat(POD6, MAC))
OF_POD: list[Leftover] = [REPLY_RULE, DNAT_RULE, neighbour(), neighbour(dev="azv1"), route(), route(dev="azure0")]
OF_POD6: list[Leftover] = [REPLY6_RULE, neighbour(POD6), neighbour(POD6, "azv1"), route6()]


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_what_nobody_alive_has_is_stale(leftover: Leftover) -> None:
    """An object made for one pod is stale when nothing says that the pod lives."""
    address = POD6 if leftover in OF_POD6 else POD
    assert judged(snapshot(leftover)) == [("stale", f"no live endpoint of azure-vnet has {address}")]


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


@pytest.mark.parametrize("leftover", [REPLY_RULE, DNAT_RULE, neighbour(), REPLY6_RULE, neighbour(POD6)], ids=subject)
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
    what = snapshot(DNAT_RULE, REPLY6_RULE, stations=(Station(MAC, "azv1"),))
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


@pytest.mark.parametrize("leftover", OF_POD, ids=subject)
def test_who_answers_on_a_pod_device_is_alive(leftover: Leftover) -> None:
    """A neighbour that the kernel has learned on an azv device is a pod that answered."""
    learned = neighbour(dev="azv1", permanent=False)
    if leftover == neighbour(dev="azv1"):
        return  # the kernel has one entry for an address on a device
    assert judged(snapshot(leftover, learned)) == [("live", f"{POD} answers on azv1")]


@pytest.mark.parametrize("learned", [neighbour(dev="lxc1", permanent=False), neighbour(dev="azv7", permanent=False)])
def test_who_answers_elsewhere_has_taken_the_address(learned: Neighbour) -> None:
    """A neighbour on another CNI's device, or on one that is gone, is no pod of azure-vnet."""
    assert [kind for kind, _ in judged(snapshot(DNAT_RULE, learned))] == ["stale"]


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
    "leftover",
    [
        *rules_of(arp_reply("10.241.0.9", MAC), dnat("10.241.0.9", MAC)),
        neighbour("10.241.0.9"),
        route("10.241.0.9/32"),
    ],
    ids=subject,
)
def test_what_lies_outside_pod_cidrs_is_unknown(leftover: Leftover) -> None:
    """The operator has not said that these addresses were pods'."""
    assert judged(snapshot(leftover)) == [("unknown", "10.241.0.9 is outside podCidrs")]


def test_foreign_rules_are_unknown() -> None:
    """Whatever is not one of azure-vnet's forms is reported, and not touched."""
    rules = rules_of("-A PREROUTING -p IPv4 --ip-dst 10.240.0.9 -j DROP", "-A OUTPUT -j ACCEPT")
    assert judged(snapshot(*rules)) == [("unknown", "it is none of the rules that azure-vnet makes for a pod")] * 2


@pytest.mark.parametrize(
    "leftover",
    [
        neighbour(dev="eth1"),
        neighbour(permanent=False),
        route(dev="eth1"),
        route(dev="lxc1234"),
        route(f"{POD}/31".replace("9/31", "8/31")),
        route(protocol=2),
        route(protocol=OUR_PROTOCOL),
        route(table=100),
        route(kind="blackhole"),
        route(gateway=parse_ipv4("10.240.0.1"), scope=0),
        route(dev="azure0", protocol=16),
        route(dev="azure0", protocol=2),
        route6(dev="eth1"),
        route6(dev="azure0"),
        route6("fd00:10:240::/64"),
        route6(protocol=2),
        route6(protocol=OUR_PROTOCOL),
        route6(table=100),
        route6(gateway="fe80::1"),
        route6(expires=600),
        route6(from_prefix="fd00:1::/64"),
    ],
    ids=subject,
)
def test_what_is_not_to_one_pod_is_not_looked_at(leftover: Leftover) -> None:
    """Other devices and tables, networks, and routes of the kernel, of DHCP and of ours are none of our business."""
    assert judged(snapshot(leftover)) == []


def test_the_bridge_is_the_one_that_the_config_names() -> None:
    """On a node whose bridge has another name its neighbours are looked at, and not those of azure0."""
    there, elsewhere = neighbour(dev="azure1"), neighbour()
    assert [v.object for v in judge(snapshot(there, elsewhere), pod_cidrs=POD_CIDRS, bridge="azure1")] == [there]


def asked(what: Snapshot) -> list[tuple[str, str]]:
    return questions(what, judge(what, pod_cidrs=POD_CIDRS, bridge="azure0"), bridge="azure0")


@pytest.mark.parametrize("leftover", [*OF_POD, *OF_POD6], ids=subject)
def test_who_answers_when_asked_is_alive(leftover: Leftover) -> None:
    """Before anything is taken for stale the pods' devices are asked; what answers is a pod that was silent."""
    address = POD6 if leftover in OF_POD6 else POD
    assert asked(snapshot(leftover)) == [("azv1", address)]
    what = snapshot(leftover, answered=frozenset([("azv1", address)]))
    assert judged(what) == [("live", f"{address} answers on azv1")]
    assert asked(what) == []


@pytest.mark.parametrize("leftover", [DNAT_RULE, neighbour(), route(dev="azure0")], ids=subject)
@pytest.mark.parametrize(
    "evidence",
    [
        {"devices": (BRIDGE,)},
        {"devices": (BRIDGE, AZV1._replace(up=False))},
        {"devices": (BRIDGE, AZV1._replace(master=None))},
        {"devices": (BRIDGE, AZV1._replace(name="eth0"))},
        {"endpoints": (Endpoint(("10.240.0.10",), "azv1"),)},
    ],
)
def test_only_ports_behind_which_a_pod_may_be_unseen_are_asked(leftover: Leftover, evidence: dict[str, object]) -> None:
    """Not the uplink, where the fabric answers for everybody; not a port that the state gives to another pod."""
    assert asked(snapshot(leftover, **evidence)) == []


def test_a_port_that_was_heard_is_not_asked() -> None:
    """Who was heard there by a hardware address of its own is that pod; in tunnel mode it might be anybody."""
    other = rules_of(dnat("10.240.0.10", LIVE_MAC))
    assert asked(snapshot(DNAT_RULE, *other, stations=(Station(LIVE_MAC, "azv1"),))) == []
    rules = rules_of(dnat(POD, TUNNEL_MAC))
    assert asked(snapshot(*rules, stations=(Station(TUNNEL_MAC, "azv1"),))) == [("azv1", POD)]


def test_each_question_is_asked_once() -> None:
    """However many objects an address has left; and the device of a route is asked, be it no port."""
    what = snapshot(REPLY_RULE, DNAT_RULE, neighbour(), route(dev="azv7"), neighbour("10.241.0.9"))
    assert asked(what) == [("azv1", POD), ("azv7", POD)]


def verdicts(*leftovers: Leftover, kind: str = "stale") -> Sequence[Verdict]:
    return [Verdict(leftover, kind, POD, "") for leftover in leftovers]  # type: ignore[arg-type]


def test_readings_agree_on_what_is_stale_in_all_of_them() -> None:
    """What came, went or was found alive between readings has changed, and is nobody's to delete."""
    a, b, c, d = (neighbour(f"10.240.0.{number}") for number in range(10, 14))
    first = [*verdicts(a, b), *verdicts(c, kind="live")]
    second = [*verdicts(a, c, d), *verdicts(b, kind="live")]
    stale, changed = agree([first, second])
    assert ([v.object for v in stale], [v.object for v in changed]) == ([a], [b, c, d])


def test_a_rule_that_moved_is_the_same_rule() -> None:
    """Where a rule stands changes with those before it; the last reading says where it is now."""
    before = rules_of("-A PREROUTING -j ACCEPT", dnat(POD, MAC))[1]
    after = before._replace(position=1)
    assert [v.object for v in agree([verdicts(before), verdicts(after)]).stale] == [after]


def test_a_rule_that_came_a_second_time_has_changed() -> None:
    """Rules that are alike are counted: somebody who adds one more is at work."""
    rule, again = rules_of(dnat(POD, MAC), dnat(POD, MAC))
    stale, changed = agree([verdicts(rule), verdicts(rule, again)])
    assert (stale, [v.object for v in changed]) == ([], [rule])


@given(st.permutations([*OF_POD, *OF_POD6, *rules_of(*NODE_RULES, "-A OUTPUT -j ACCEPT")]))
def test_verdicts_do_not_depend_on_order(order: list[Leftover]) -> None:
    """In whatever order things are seen, each gets the same verdict."""
    evidence = {"endpoints": (Endpoint((POD6,), "azv1"),)}
    found = judge(snapshot(*order, **evidence), pod_cidrs=POD_CIDRS, bridge="azure0")
    assert {v.object for v in found if v.kind == "stale"} == set(OF_POD)
    assert {v.object for v in found if v.kind == "live"} == set(OF_POD6)
