"""The values of the route port: a desired route cannot be wrong, and a change describes itself."""

import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from support import small_world
from support.kernel import kernel_of, needs_kernel

from hostrouting.host import IPV4, IPV6, Address, NextHop, ObservedRoute, Route, RouteChange, Rule
from hostrouting.net.routes import Encapsulation, is_deleted_by
from hostrouting.net.rules import lost_rules
from hostrouting.testing import KernelNode

NINE: dict[str, Any] = {"network": 9 << 24, "prefix_length": 8, "dev": "eth0"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix_length": 33}, "prefix_length 33 is not from 0 to 32"),
        ({"network": 1 << 32}, "network 4294967296 is not an IPv4 address"),
        ({"network": 9 << 24 | 5}, "9.0.0.5/8 has host bits, the network is 9.0.0.0/8"),
        ({"metric": -1}, "metric -1 is not from 0 to 4294967295"),
        ({"table": 0}, "table 0 is not from 1 to 4294967295"),
        ({"protocol": 256}, "protocol 256 is not from 0 to 255"),
        (
            {"kind": "blakchole"},
            "kind 'blakchole' is not one of unicast, local, broadcast, anycast, multicast, blackhole, unreachable, prohibit, throw, nat, xresolve",
        ),
        ({"dev": None}, "9.0.0.0/8 needs a 'dev', because it is a unicast route"),
        (
            {"nexthops": (NextHop(None, "eth0"), NextHop(None, "eth1"))},
            "9.0.0.0/8 has next hops; leave out its 'dev' and 'gateway'",
        ),
    ],
)
def test_a_wrong_route_cannot_be_made(fields: dict[str, Any], message: str) -> None:
    """A route with a wrong field is refused, and the error names the value and the rule."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Route(**{**NINE, **fields})


def test_the_least_metric_depends_on_the_family() -> None:
    """An IPv6 route needs a metric of at least 1, since the kernel would replace 0 by 1024; an IPv4
    route may lack one.
    """
    assert str(Route(**NINE)) == "9.0.0.0/8 dev eth0 proto 142 scope link"
    assert str(Route(**NINE, metric=1)) == "9.0.0.0/8 dev eth0 proto 142 scope link metric 1"
    six = {**NINE, "network": 0xFD << 120, "family": IPV6}
    with pytest.raises(ValueError, match=r"^metric 0 is not from 1 to 4294967295$"):
        Route(**six)
    assert str(Route(**six, metric=1)) == "fd00::/8 dev eth0 proto 142 metric 1"


@given(small_world.routes())
def test_an_observed_route_can_be_added_again(route: Route) -> None:
    """An observed route becomes the desired route from which it was made, in any state of its
    links.
    """
    fields = {name: getattr(route, name) for name in ObservedRoute._fields if hasattr(route, name)}
    observed = ObservedRoute(**fields, flags=(4 if route.onlink else 0) | 16)
    assert observed.fulfils(route)
    assert observed.to_route() == route


def test_a_route_that_blocks_has_no_next_hop() -> None:
    """A route that blocks has neither a next hop nor a device."""
    assert ObservedRoute.parse("9.0.0.0/8", kind="blackhole").hops == ()


def test_the_packets_of_a_rule_in_words() -> None:
    """A rule describes its packets without their destination, unless it is inverted."""
    rule = Rule(70, mark=1, mark_mask=3, source=(10 << 24, 8), destination=(9 << 24, 8))
    assert rule.packets == "packets with mark 0x1/0x3, from 10.0.0.0/8"
    assert rule._replace(inverted=True).packets == (
        "packets other than those with mark 0x1/0x3, from 10.0.0.0/8, to 9.0.0.0/8"
    )


def test_a_node_without_rules_of_ipv6_has_lost_none() -> None:
    """A node without IPv6 rules has lost none of the built-in ones, as its kernel does not have the family
    or searches both tables; a node without IPv4 rules has lost two.
    """
    assert [len(lost_rules([], family)) for family in (IPV4, IPV6)] == [2, 0]


def test_a_change_needs_something_to_change() -> None:
    """A change without a route before and after is refused."""
    with pytest.raises(ValueError, match="a change has neither 'before' nor 'after'"):
        RouteChange(None, None)


def test_a_replacement_stays_in_its_place() -> None:
    """A replacement by a route of another metric is refused, and the error advises to add the first
    and remove the second.
    """
    before = ObservedRoute(9 << 24, 8, dev="eth0", scope=253)
    with pytest.raises(ValueError, match="add the first, then remove the second"):
        RouteChange.replace(before, Route(**NINE, metric=5))


def test_changes_read_as_a_plan_does() -> None:
    """A change is printed with `+` for an addition, `-` for a removal, and `~` for a
    replacement.
    """
    before = ObservedRoute(9 << 24, 8, dev="ib0", scope=253)
    assert [str(c) for c in (RouteChange.add(Route(**NINE)), RouteChange.remove(before))] == [
        "+ 9.0.0.0/8 dev eth0 proto 142 scope link",
        "- 9.0.0.0/8 dev ib0 proto 0 scope link",
    ]
    assert str(RouteChange.replace(before, Route(**NINE))) == (
        "~ 9.0.0.0/8 dev ib0 proto 0 scope link -> 9.0.0.0/8 dev eth0 proto 142 scope link"
    )


def test_a_deletion_fits_a_route_with_more_attributes() -> None:
    """A deletion fits a route that has all attributes of the deletion, whatever further ones the
    route has.
    """
    mtu = (8, b"\5")
    window = (3, b"\7")
    bare, one, both = (
        ObservedRoute(9 << 24, 8, dev="eth0", protocol=142, extra=extra)
        for extra in ((), (mtu,), (window, mtu))
    )
    assert [is_deleted_by(named, one) for named in (bare, one, both)] == [True, True, False]
    assert [is_deleted_by(named, both) for named in (bare, one, both)] == [True, True, True]
    tunnel = one._replace(encapsulation=Encapsulation(2, b""))
    assert [is_deleted_by(tunnel, present) for present in (one, tunnel)] == [False, True]
    # The devices of a nexthop object may have changed.
    assert is_deleted_by(one._replace(nexthop_id=7), both._replace(nexthop_id=7, dev="eth1"))


def test_a_deletion_that_fits_both_comes_first() -> None:
    """A replacement by a route that the same deletion would remove is deleted and then added."""
    gateway = Address.parse("10.224.0.1")
    present = ObservedRoute(9 << 24, 8, gateway=gateway, dev="eth0", protocol=142)
    alike = Route(network=9 << 24, prefix_length=8, gateway=gateway, dev="eth0", onlink=True)
    elsewhere = attrs.evolve(alike, dev="eth1")
    assert [RouteChange.replace(present, new).removes_first for new in (alike, elsewhere)] == [
        True,
        False,
    ]


@needs_kernel
def test_a_route_by_gateways_of_both_families_has_the_words_of_ip() -> None:
    """A route by a gateway of another family is printed as `ip` prints it, with the family of the
    gateway.
    """
    routes = [
        Route.parse("9.0.0.0/8", gateway="fe80::1", dev="e0", protocol=4),
        Route.parse(
            "8.0.0.0/8",
            nexthops=(
                NextHop(Address.parse("fe80::1"), "e0"),
                NextHop(Address.parse("10.224.0.1"), "e1"),
            ),
            protocol=4,
        ),
    ]
    with KernelNode.made() as node:
        for dev in "e0", "e1":
            node.add_link(dev)
        node.add_address("e1", "10.224.0.4/16")
        for route in routes:
            node.insert_route(route)
        lines = node.ip("-4 -o route show proto static").splitlines()
        of_kernel = [each for each in kernel_of(node).routes() if each.protocol == 4]
    # With -o a backslash stands for the end of a line; the protocol is the filter, and left out.
    shown = [" ".join(line.replace("\\", " ").split()) for line in lines]
    assert shown == [
        "8.0.0.0/8 nexthop via inet6 fe80::1 dev e0 weight 1 nexthop via 10.224.0.1 dev e1 weight 1",
        "9.0.0.0/8 via inet6 fe80::1 dev e0",
    ]
    assert [str(each).replace(" proto static", "") for each in of_kernel] == shown
