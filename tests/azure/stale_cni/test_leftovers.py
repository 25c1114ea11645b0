"""The objects that are examined, and those that azure-vnet cannot have made for a pod."""

from collections.abc import Callable

import pytest
from support.stale_cni_snapshots import POD, POD6, judged, kinds, neighbour, route, route6, snapshot

from hostrouting.azure.stale_cni.azure_vnet import Endpoint
from hostrouting.azure.stale_cni.journal import Restorable
from hostrouting.host import OUR_PROTOCOL, Address, NextHop

HOPS = NextHop(Address.parse("fe80::1"), "eth0"), NextHop(None, "azv1")


@pytest.mark.parametrize(
    "leftover",
    [
        neighbour(dev="eth1"),
        neighbour(permanent=False),
        route(dev="eth1"),
        route(dev="lxc1234"),
        *(made(protocol=protocol) for made in (route, route6) for protocol in (2, 9, OUR_PROTOCOL)),
        *(made(protocol=2, table=255, kind="local") for made in (route, route6)),
        *(
            made(dev="azure0", protocol=protocol)
            for made in (route, route6)
            for protocol in (2, 9, 16, OUR_PROTOCOL)
        ),
        *(made(dev="azure0", table=100) for made in (route, route6)),
        route("10.240.1.0/24", dev="azure0"),
        route("0.0.0.0/0", dev="azv1", gateway="10.240.0.1"),
        route("10.0.0.0/8"),
        route("10.241.0.0/24"),
        route("10.241.0.9/32", table=100),
        route(dev=None, kind="blackhole"),
        route6(dev="eth1"),
        route6("fd00:10:240::/64", dev="azure0"),
        route6("fd00::/16"),
        route6("::/0", gateway="fe80::1"),
        route6(dev="azure0", expires=600),
    ],
    ids=repr,
)
def test_objects_that_belong_to_no_pod_are_skipped(leftover: Restorable) -> None:
    """Objects of other devices, of other programs' protocols, of a network wider than that of the
    pods (10.240.0.0/16), or of addresses outside of it are skipped.
    """
    assert judged(snapshot(leftover)) == []


@pytest.mark.parametrize(
    ("leftover", "reason"),
    [
        (route(gateway="10.240.0.1", scope=0), "it has a gateway"),
        (route(gateway="fe80::1"), "it has a gateway"),
        (route("10.240.1.0/24"), "it is to a network, not to one address"),
        (route("10.240.0.0/16"), "it is to a network, not to one address"),
        (route(table=100), "it is in table 100"),
        (route(kind="throw"), "it is a route of the kind throw"),
        (
            route(dev=None, nexthops=(NextHop(None, "eth0"), NextHop(None, "azv1"))),
            "it has several next hops",
        ),
        (route6(gateway="fe80::1"), "it has a gateway"),
        (route6("fd00:10:240::/80"), "it is to a network, not to one address"),
        (route6(table=100), "it is in table 100"),
        (route6(expires=600), "it expires"),
        (route6(from_prefix="fd00:1::/64"), "it is only for packets from fd00:1::/64"),
        (route6(dev=None, nexthops=HOPS), "it has several next hops"),
        *(
            (found._replace(protocol=4), "it has the protocol 4, and azure-vnet sets none")
            for found in (neighbour(), neighbour(dev="azv1"), neighbour(POD6))
        ),
        *(
            (found._replace(flags=0x80), "it has the flags 0x80, and azure-vnet sets none")
            for found in (neighbour(), neighbour(dev="azv1"), neighbour(POD6))
        ),
    ],
    ids=repr,
)
def test_an_object_that_no_program_makes_for_a_pod_is_unknown(
    leftover: Restorable, reason: str
) -> None:
    """An object on a pod's device that azure-vnet does not make in this form is unknown, with its
    reason.
    """
    assert judged(snapshot(leftover)) == [("unknown", reason)]


@pytest.mark.parametrize("made", [route, route6])
def test_several_next_hops_on_other_devices_are_not_looked_at(
    made: Callable[..., Restorable],
) -> None:
    """A route whose next hops are all on other devices than a pod's is skipped."""
    assert judged(snapshot(made(dev=None, nexthops=(HOPS[0], HOPS[0])))) == []


@pytest.mark.parametrize(
    "leftover", [route(table=100), route6(expires=600), neighbour()._replace(protocol=4)], ids=str
)
def test_a_live_pod_is_the_first_reason(leftover: Restorable) -> None:
    """An odd object of a live pod is left alone because the pod lives."""
    what = snapshot(leftover, endpoints=(Endpoint((POD, POD6), "azv1"),))
    assert kinds(what) == ["live"]


@pytest.mark.parametrize("dev", ["azv1", "azure0"])
def test_a_second_route_in_one_place_is_unknown(dev: str) -> None:
    """A route that shares its place with another is unknown, as neither could be restored where it
    stood.
    """
    first = route(dev=dev)
    second = route(dev="eth0")
    assert judged(snapshot(first, second)) == [("unknown", "another route has the same place")]


@pytest.mark.parametrize("dev", ["azv1", "azure0"])
def test_a_route_that_robs_the_next_pod_of_its_address_goes(dev: str) -> None:
    """A stale route is swept although the new CNI's route to the same address has another metric,
    TOS or device.
    """
    assert kinds(snapshot(route(dev=dev), route(dev="lxc1", metric=10))) == ["stale"]
    assert kinds(snapshot(route6(dev=dev), route6(dev="lxc1"))) == ["stale"]
    assert kinds(snapshot(route(dev=dev), route(dev=dev)._replace(tos=16))) == ["stale"] * 2


@pytest.mark.parametrize(
    "other",
    [
        route(dev="eth0", table=100),
        route("10.240.0.9/32", dev="lo", table=255, kind="local", protocol=2),
        route("10.240.0.8/31", dev="eth0"),
        route6(dev="eth0"),
    ],
    ids=str,
)
def test_a_route_elsewhere_is_not_in_the_place(other: Restorable) -> None:
    """A route of another table, prefix or family does not share the place of a stale route."""
    assert kinds(snapshot(route(), other)) == ["stale"]


@pytest.mark.parametrize("protocol", [3, 4])
def test_routes_by_hand_to_one_address_on_the_bridge_are_of_pods(protocol: int) -> None:
    """A route to one address on the bridge with protocol `boot` or `static` counts as a pod's, in
    both families.
    """
    what = snapshot(route(dev="azure0", protocol=protocol), route6(dev="azure0", protocol=protocol))
    assert kinds(what) == ["stale", "stale"]
