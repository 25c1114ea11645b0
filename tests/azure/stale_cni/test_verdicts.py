"""Verdicts: stale and unknown objects, the probes, and the agreement of several readings."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.printed import NO_ENDPOINT, OTHER_RULES
from support.stale_cni_snapshots import (
    AZV1,
    BRIDGE,
    DEVICES,
    DNAT_RULE,
    MAC,
    OF_POD,
    OF_POD6,
    OF_PODS,
    POD,
    POD6,
    REPLY_RULE,
    judged,
    neighbour,
    route,
    snapshot,
)
from support.stale_cni_worlds import NODE_RULES, POD_CIDRS, arp_reply, dnat, rules_of

from hostrouting.azure.stale_cni.azure_vnet import Endpoint
from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.azure.stale_cni.leftovers import Snapshot
from hostrouting.azure.stale_cni.verdicts import Verdict, agree, judge, to_probe
from hostrouting.host import Device, Station


@pytest.mark.parametrize("leftover", OF_PODS, ids=str)
def test_an_object_of_no_live_pod_is_stale(leftover: Restorable) -> None:
    """An object made for one pod is stale when nothing shows that the pod lives."""
    address = POD6 if leftover in OF_POD6 else POD
    assert judged(snapshot(leftover)) == [("stale", f"{NO_ENDPOINT}{address}")]


@pytest.mark.parametrize(
    "leftover",
    [
        *rules_of(arp_reply("10.241.0.9", MAC), dnat("10.241.0.9", MAC)),
        neighbour("10.241.0.9"),
        route("10.241.0.9/32"),
    ],
    ids=str,
)
def test_an_object_outside_pod_cidrs_is_unknown(leftover: Restorable) -> None:
    """An object for an address outside podCidrs is unknown, as the operator has not declared it a
    pod's.
    """
    assert judged(snapshot(leftover)) == [("unknown", "10.241.0.9 is outside podCidrs")]


def test_foreign_rules_are_unknown() -> None:
    """A rule that has none of azure-vnet's forms is reported as unknown, and not removed."""
    rules = rules_of("-A PREROUTING -p IPv4 --ip-dst 10.240.0.9 -j DROP", "-A OUTPUT -j ACCEPT")
    assert judged(snapshot(*rules)) == [("unknown", OTHER_RULES)] * 2


def test_the_bridge_is_the_one_that_the_config_names() -> None:
    """Neighbours on the bridge that the config names are judged, and not those on azure0."""
    there = neighbour(dev="azure1")
    elsewhere = neighbour()
    assert [
        v.object for v in judge(snapshot(there, elsewhere), pod_cidrs=POD_CIDRS, bridge="azure1")
    ] == [there]


def questions(what: Snapshot) -> list[tuple[str, str]]:
    return to_probe(what, judge(what, pod_cidrs=POD_CIDRS, bridge="azure0"), bridge="azure0")


@pytest.mark.parametrize("leftover", OF_PODS, ids=str)
def test_a_pod_that_answers_is_alive(leftover: Restorable) -> None:
    """An object whose address a silent pod answers for on its device is live."""
    address = POD6 if leftover in OF_POD6 else POD
    assert questions(snapshot(leftover)) == [("azv1", address)]
    what = snapshot(leftover, answered=frozenset([("azv1", address)]))
    assert judged(what) == [("live", f"{address} answers on azv1")]
    assert questions(what) == []


AZV2 = Device("azv2", 5, up=True, kind="veth", master="azure0")


@pytest.mark.parametrize("leftover", [DNAT_RULE, neighbour(), route(dev="azure0")], ids=str)
@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"devices": (BRIDGE, AZV1._replace(master=None), AZV2._replace(master="br1"))},
        {"endpoints": (Endpoint(("fd00:10:240::7",), "azv1"), Endpoint(("10.240.0.10",), "azv2"))},
        {
            "stations": (Station("aa:bb:cc:00:00:10", "azv1"),),
            "rules": (DNAT_RULE, *rules_of(dnat("10.240.0.10", MAC))),
        },
    ],
    ids=["on the bridge", "on another or none", "recorded", "heard"],
)
def test_every_device_of_a_pod_is_probed(leftover: Restorable, evidence: dict[str, object]) -> None:
    """Every device of a pod is probed for an address, whatever records, stations and bridges there
    are.
    """
    what = snapshot(leftover, **{"devices": (*DEVICES, AZV2), **evidence})
    assert [pair for pair in questions(what) if pair[1] == POD] == [("azv1", POD), ("azv2", POD)]


@pytest.mark.parametrize(
    "devices",
    [(BRIDGE,), (BRIDGE, AZV1._replace(up=False)), (BRIDGE, AZV1._replace(name="eth0"))],
    ids=["none", "down", "uplink"],
)
def test_only_devices_of_pods_are_probed(devices: tuple[Device, ...]) -> None:
    """The uplink is not probed, since the fabric answers for all, nor is a device that is down."""
    assert questions(snapshot(DNAT_RULE, neighbour(), devices=devices)) == []


def test_a_device_without_carrier_is_not_probed() -> None:
    """A device without carrier is up but receives nothing; only devices with one are probed."""
    deaf = AZV2._replace(name="azv3", carrier=False)
    assert ("azv3", POD) not in questions(snapshot(DNAT_RULE, devices=(*DEVICES, AZV2, deaf)))
    assert ("azv2", POD) in questions(snapshot(DNAT_RULE, devices=(*DEVICES, AZV2, deaf)))


def test_each_question_is_sent_once() -> None:
    """Each address is probed once on each device, however many objects it has; that of a route or
    neighbour with a pod's device is probed on that device only.
    """
    objects = (
        REPLY_RULE,
        DNAT_RULE,
        neighbour(),
        neighbour("10.241.0.9"),
        route("10.240.0.8/32", dev="azv2"),
    )
    what = snapshot(*objects, devices=(*DEVICES, AZV2))
    assert questions(what) == [("azv1", POD), ("azv2", POD), ("azv2", "10.240.0.8")]


def stale(*leftovers: Restorable) -> Sequence[Verdict]:
    return [Verdict(leftover, "stale", POD, "") for leftover in leftovers]


def test_objects_are_stale_only_if_all_readings_agree() -> None:
    """An object that came, went or was found alive between readings has changed, and is not
    deleted.
    """
    a, b, c, d = (neighbour(f"10.240.0.{number}") for number in range(10, 14))
    agreed, changed = agree([stale(a, b), stale(a, c, d)])
    assert [v.object for v in agreed] == [a]
    assert [v.object for v in changed] == [b, c, d]


def test_a_rule_that_moved_is_the_same_rule() -> None:
    """A rule that moved in its chain between readings is the same rule, at its last place."""
    before = rules_of("-A PREROUTING -j ACCEPT", dnat(POD, MAC))[1]
    after = before._replace(position=1)
    agreed, changed = agree([stale(before), stale(after)])
    assert [v.object for v in agreed] == [after]
    assert changed == []


def test_a_rule_of_which_one_of_two_is_gone_has_changed() -> None:
    """A rule of which one of two equal copies is gone in a later reading has changed, is named once,
    and is not deleted.
    """
    rule, again = rules_of(dnat(POD, MAC), dnat(POD, MAC))
    agreed, changed = agree([stale(rule, again), stale(rule)])
    assert agreed == []
    assert [v.object for v in changed] == [rule]


# Without the routes of azure0, the last ones: two routes in one place are unknown.
@given(
    st.permutations([*OF_POD[:-1], *OF_POD6[:-1], *rules_of(*NODE_RULES, "-A OUTPUT -j ACCEPT")])
)
def test_verdicts_do_not_depend_on_order(order: list[Restorable]) -> None:
    """Each object has the same verdict in any order of the objects."""
    evidence = {"endpoints": (Endpoint((POD6,), "azv1"),)}
    found = judge(snapshot(*order, **evidence), pod_cidrs=POD_CIDRS, bridge="azure0")
    assert {v.object for v in found if v.kind == "stale"} == set(OF_POD[:-1])
    assert {v.object for v in found if v.kind == "live"} == set(OF_POD6[:-1])
