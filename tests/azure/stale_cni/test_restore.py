"""The removed objects that can be restored, and those that cannot."""

import pytest
from support.printed import TAKEN
from support.stale_cni_worlds import dnat, rules_of

from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.azure.stale_cni.leftovers import Snapshot, compare
from hostrouting.host import Device, Neighbour, ObservedRoute
from hostrouting.net.addresses import Prefix

MAC = "aa:bb:cc:00:00:09"
DEVICES = Device("azure0", 1, up=True), Device("azv1", 2, up=True)
NEIGHBOUR = Neighbour("10.240.0.9", "azure0", MAC, permanent=True)
ROUTE = ObservedRoute.parse("10.240.0.9/32", "azv1", protocol=3, scope=253)
ROUTE6 = ObservedRoute.parse("fd00::9/128", "azv1", metric=1024, protocol=3)
RULE, TWIN = rules_of(dnat("10.240.0.9", MAC), dnat("10.240.0.9", MAC))
ALL: list[Restorable] = [RULE, NEIGHBOUR, ROUTE, ROUTE6]


def test_present_objects_are_left_alone() -> None:
    """A second restore changes nothing, even if a rule has moved in its chain or the device has no
    carrier.
    """
    snapshot = Snapshot(
        rules=(RULE._replace(position=7),),
        neighbours=(NEIGHBOUR,),
        routes=(ROUTE._replace(flags=16), ROUTE6),
        devices=DEVICES,
    )
    assert compare(ALL, snapshot) == (ALL, [], {})


def test_of_rules_that_are_alike_as_many_come_back_as_are_missing() -> None:
    """The missing one of two equal rules is restored, and the present one is left alone."""
    assert compare([RULE, TWIN], Snapshot(rules=(RULE,))) == ([RULE], [TWIN], {})


@pytest.mark.parametrize("leftover", [NEIGHBOUR, ROUTE, ROUTE6], ids=str)
def test_an_object_without_its_device_is_given_up(leftover: Neighbour | ObservedRoute) -> None:
    """An object whose device is gone cannot be restored."""
    assert compare([leftover], Snapshot()) == (
        [],
        [],
        {leftover: f"the device {leftover.dev} is gone"},
    )


@pytest.mark.parametrize(
    ("leftover", "other"),
    [
        (NEIGHBOUR, NEIGHBOUR._replace(mac="02:00:00:00:00:01")),
        (NEIGHBOUR, NEIGHBOUR._replace(permanent=False)),
        (ROUTE, ROUTE._replace(dev="lxc1")),
        (ROUTE, ROUTE._replace(protocol=4)),
        (ROUTE6, ROUTE6._replace(protocol=4)),
    ],
    ids=str,
)
def test_a_place_that_was_taken_is_left_alone(
    leftover: Neighbour | ObservedRoute, other: Neighbour | ObservedRoute
) -> None:
    """An object whose place has another one now, as of a pod with the same address, cannot be
    restored.
    """
    snapshot = Snapshot(
        neighbours=(other,) if isinstance(other, Neighbour) else (),
        routes=(other,) if isinstance(other, ObservedRoute) else (),
        devices=DEVICES,
    )
    assert compare([leftover], snapshot) == (
        [],
        [],
        {leftover: f"{TAKEN}'{other}'"},
    )


ROUTE6_BESIDE = ROUTE6._replace(dev="azure0")


@pytest.mark.parametrize(
    ("leftover", "other"),
    [
        (ROUTE, ROUTE._replace(metric=100, dev="lxc1")),
        (ROUTE6, ROUTE6_BESIDE),
        # The kernel looks for the sender's prefix first.
        (ROUTE6, ROUTE6._replace(from_prefix=Prefix.parse("fd00:1::/64"))),
    ],
    ids=["another metric", "an IPv6 route of another device", "for some senders only"],
)
def test_a_route_beside_the_place_is_in_no_way(
    leftover: ObservedRoute, other: ObservedRoute
) -> None:
    """A route is restored beside one of another metric, device or source prefix that the kernel
    keeps apart.
    """
    snapshot = Snapshot(routes=(other,), devices=DEVICES)
    assert compare([leftover], snapshot) == ([], [leftover], {})


def test_all_objects_come_back_with_ipv6_routes_of_two_devices() -> None:
    """All objects are restored on a node that lacks them, with IPv6 routes of two devices to one
    address.
    """
    objects = [*ALL, ROUTE6_BESIDE]
    assert compare(objects, Snapshot(devices=DEVICES)) == ([], objects, {})


def test_of_ipv4_routes_in_one_place_only_the_first_comes_back() -> None:
    """The first of two IPv4 routes of one place is restored; the second cannot be, as a twin can be
    appended, but not added.
    """
    twin = ROUTE._replace(dev="azure0")
    found = compare([ROUTE, twin], Snapshot(devices=DEVICES))
    assert found == ([], [ROUTE], {twin: f"{TAKEN}'{ROUTE}'"})
