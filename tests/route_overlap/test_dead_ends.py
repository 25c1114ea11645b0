"""Routes by a device without carrier, in the kernel: a run and a boot agree.

The flags of a route do not show the carrier: a route that was added later, or has an IPv6 gateway,
may have none.
"""

import json
from collections.abc import Iterator

import pytest
from support.kernel import needs_kernel
from support.patience import until_unplugged
from support.routers import ROUTER, WiredNode
from support.way_out_nodes import WayOutNode

from hostrouting.fleet import take_record
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.testing import FakeHost
from phases import Context

pytestmark = needs_kernel

IPV4 = "10.96.0.0/16"
IPV6 = "fd09::/64"
#: The addresses of e0, by family.
OWN = {IPV4: "10.1.0.1/16", IPV6: "fd00:1::1/64"}


def unplug(node: WiredNode, dev: str) -> None:
    """Take the carrier from a device, and wait until the kernel has updated its routes."""
    node.far.set_up(dev, up=False)
    until_unplugged(node, dev)


@pytest.fixture
def node() -> Iterator[WiredNode]:
    with WiredNode.made() as made:
        yield made


@pytest.fixture
def prover(node: WiredNode) -> WayOutNode:
    return WayOutNode(node)


def found(prover: WayOutNode, *cidrs: str, **section: object) -> list[tuple[str, str, str]]:
    """Return what the check finds."""
    report = prover.prove(*cidrs, **section)
    return [(finding.kind, finding.first, finding.last) for _, finding in report.findings]


@pytest.mark.parametrize("is_lost_before", [True, False])
@pytest.mark.parametrize(
    ("cidr", "route"),
    [
        (IPV4, "-4 route add default via 10.1.0.254 dev e0"),
        (IPV4, "-4 route add default via inet6 fe80::a dev e0"),
        (IPV4, "-4 route add default dev e0"),
        (IPV4, "-4 route add default nexthop dev e0 nexthop dev e0"),
        (IPV6, f"-6 route add default via {ROUTER} dev e0"),
        (IPV6, "-6 route add default dev e0"),
    ],
)
def test_a_route_by_a_device_without_carrier(
    node: WiredNode, prover: WayOutNode, cidr: str, route: str, is_lost_before: bool
) -> None:
    """A route by a device without carrier is a dead end, whenever the carrier was lost, and
    whatever flags the route has.
    """
    node.add_link("e0", carrier=not is_lost_before)
    node.ip("address add", OWN[cidr], "dev e0", *(["nodad"] if cidr == IPV6 else []))
    node.ip(route)
    if not is_lost_before:
        assert found(prover, cidr) == []
        unplug(node, "e0")
    [(kind, _, _)] = found(prover, cidr)
    assert kind == "dead-end"
    family = route.partition(" ")[0]
    has_flag = "linkdown" in node.ip(f"{family} route show default")
    assert has_flag != (is_lost_before and "inet6" in route)


@pytest.mark.parametrize("is_lost_before", [True, False])
def test_an_anycast_address_of_the_node(
    node: WiredNode, prover: WayOutNode, is_lost_before: bool
) -> None:
    """A router has the first address of its networks as an anycast address, which the node reaches
    without a carrier, like its own address.
    """
    node.add_link("e0", carrier=not is_lost_before)
    node.switch(all__forwarding=1)
    node.ip("address add fd00:1::1/64 dev e0 nodad")
    if is_lost_before:
        # The kernel adds it with the first carrier.
        node.ip("-6 route add anycast fd00:1:: dev e0 table local")
    else:
        node.wait_for_addresses()
        unplug(node, "e0")
    assert "anycast fd00:1:: dev e0" in node.ip("-6 route show table local")
    assert found(prover, "fd00:1::/128", expectedDevs=["e0"]) == []
    assert found(prover, "fd00:1::/126", expectedDevs=["e0"])[0] == (
        "dead-end",
        "fd00:1::2",
        "fd00:1::3",
    )
    # Packets that a rule selects by a mark stay on the node, too.
    node.ip("-6 rule add pref 50 fwmark 1 lookup local")
    assert prover.prove("fd00:1::/128", expectedDevs=["e0"]).notes == ()


def test_an_anycast_address_on_another_device(node: WiredNode, prover: WayOutNode) -> None:
    """An anycast address on another device is an overlap, with and without a carrier, unless the
    device is allowed.
    """
    node.add_links("e0", "e1")
    node.ip(f"-6 route add default via {ROUTER} dev e0")
    node.ip("-6 route add anycast fd09:: dev e1 table local")
    for _ in range(2):
        assert found(prover, "fd09::/127", expectedDevs=["e0"]) == [("overlap", "fd09::", "fd09::")]
        assert found(prover, "fd09::/127", expectedDevs=["e0"], allowedDevs=["e1"]) == []
        unplug(node, "e1")


@pytest.mark.parametrize("is_ignored", [True, False])
def test_an_equal_route_that_is_dead(node: WiredNode, prover: WayOutNode, is_ignored: bool) -> None:
    """An equal route by a device without carrier is an overlap, unless the kernel ignores such
    routes.
    """
    node.add_links("e0", "e1")
    node.switch(all__ignore_routes_with_linkdown=int(is_ignored))
    for dev in "e0", "e1":
        node.ip(f"-6 route append default dev {dev}")
    whole = "overlap", "fd09::", "fd09::ffff:ffff:ffff:ffff"
    assert found(prover, IPV6, expectedDevs=["e0"]) == [whole]
    unplug(node, "e1")
    assert ("dead linkdown" in node.ip("-6 route show default")) == is_ignored
    assert found(prover, IPV6, expectedDevs=["e0"]) == ([] if is_ignored else [whole])


@pytest.mark.parametrize("is_up", [True, False])
def test_a_next_hop_that_is_dead(node: WiredNode, prover: WayOutNode, is_up: bool) -> None:
    """A next hop by an expected device without carrier is a dead end; one whose device is down is
    passed over by the kernel.
    """
    node.add_links("e0", "e1")
    node.ip(f"route add {IPV4} nexthop dev e0 nexthop dev e1")
    assert found(prover, IPV4, expectedDevs=["e0", "e1"]) == []
    unplug(node, "e1") if is_up else node.set_up("e1", up=False)
    assert (" dead " in node.ip(f"route show {IPV4}")) != is_up
    whole = "dead-end", "10.96.0.0", "10.96.255.255"
    assert found(prover, IPV4, expectedDevs=["e0", "e1"]) == ([whole] if is_up else [])


def test_equal_routes_that_are_all_dead(node: WiredNode, prover: WayOutNode) -> None:
    """A route behind equal routes that the kernel passes over, as all lack a carrier, decides."""
    node.add_links("e0", "e1", "e2")
    node.switch(all__ignore_routes_with_linkdown=1)
    node.ip(f"-6 route add default via {ROUTER} dev e0")
    for dev in "e1", "e2":
        node.ip(f"-6 route append fd09::/64 dev {dev}")
        unplug(node, dev)
    assert found(prover, IPV6, expectedDevs=["e0"]) == []


def test_a_record_has_each_carrier(node: WiredNode) -> None:
    """A record marks a device without carrier, whatever the flags of its routes are, and leaves the
    mark out for others.
    """
    node.add_link("e0", carrier=False)
    node.ip("address add", OWN[IPV4], "dev e0")
    node.ip("-4 route add default via inet6 fe80::a dev e0")
    line = take_record(Context(), FakeHost(NetlinkBackend(netns=node.name))).to_line()
    carriers = {device["name"]: device.get("carrier") for device in json.loads(line)["devices"]}
    assert carriers == {"lo": None, "e0": False}
