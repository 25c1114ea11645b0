"""Decisions about IPv6 routes that a namespace seldom shows: a mutation of each survived all other
tests.
"""

from typing import Any

import pytest
from support.printed import GIVE_ROUTER

from hostrouting.host import Device, DeviceAddress, ObservedRoute, Route
from hostrouting.net.addresses import Address, Prefix
from hostrouting.net.routes import OUR_PROTOCOL, NextHop
from hostrouting.static_routes.entries import hindrances
from hostrouting.static_routes.reconcile import reconcile
from hostrouting.static_routes.refusals import own_gateways
from hostrouting.static_routes.undo import changes_between, changes_to_undo

PLACE = "fd00:9::/48"
ROUTER = "fe80::1"


def held(
    destination: str = PLACE, dev: str = "eth0", gateway: str | None = "fd00:1::7", **more: Any
) -> ObservedRoute:
    return ObservedRoute.parse(
        destination, dev, gateway, **{"metric": 1, "protocol": OUR_PROTOCOL, **more}
    )


def wanted(destination: str = PLACE, dev: str = "eth0", gateway: str | None = "fd00:1::7") -> Route:
    return Route.parse(destination, gateway=gateway, dev=dev, metric=1)


def test_a_foreign_route_before_an_own_one_is_in_the_way() -> None:
    """An own route behind a foreign one of the same place is not in force, and the foreign route is
    in the way.
    """
    foreign = held(gateway=None, dev="ib0", protocol=4)
    made = reconcile([wanted()], [foreign, held()])
    assert [*made.in_the_way.values()] == [foreign]
    assert not reconcile([wanted()], [held(), foreign]).changes


def test_a_route_by_a_nexthop_object_is_not_merged() -> None:
    """An own route by a nexthop object is removed, as the kernel does not merge it with others."""
    hops = tuple(NextHop(held(gateway=f"fd00:1::{at}").gateway, "eth0") for at in (7, 8))
    several = held(gateway=None)._replace(dev=None, nexthops=hops)
    assert reconcile([], [several]).merged == [several]
    by_object = several._replace(nexthop_id=5)
    assert [change.before for change in reconcile([], [by_object]).changes] == [by_object]


def test_a_link_outlives_the_routes_over_it() -> None:
    """A route over a gateway is added after the route to the gateway, and removed before it, also
    in an undo.
    """
    link, over = now = [held("fd00:5::/64", gateway=None), held(gateway="fd00:5::1")]
    added = reconcile([over.to_route(), link.to_route()], []).changes
    assert [change.after for change in added] == [link.to_route(), over.to_route()]
    undo, _ = changes_to_undo(changes_between([], now), now)
    for changes in reconcile([], now).changes, undo:
        assert [change.before for change in changes] == [over, link]


@pytest.mark.parametrize(
    ("route", "addresses", "refusal"),
    [
        (wanted(gateway=ROUTER), (), None),
        (wanted(gateway=None), (), None),
        (wanted("10.9.0.0/16", gateway="fd00:1::7"), ("fd00:1::4/64",), None),
        (
            wanted("10.9.0.0/16", gateway="fd00:9::7"),
            ("10.1.0.4/16", "fd00:1::4/64"),
            "the gateway fd00:9::7 is not on a network of eth0",
        ),
        (wanted("10.9.0.0/16", gateway="169.254.0.1"), ("169.254.0.4/16",), None),
        (wanted(), ("fe80::4/64",), "has no IPv6 address"),
        (wanted(), ("10.1.0.4/16",), "has no IPv6 address"),
        (wanted(), ("fd00:2::4/64",), "is not on a network of eth0"),
    ],
)
def test_a_refusal_is_foreseen_where_it_is_certain(
    route: Route, addresses: tuple[str, ...], refusal: str | None
) -> None:
    """A gateway is foreseen as refused only if the device does not have a network with it, of the gateway's
    own family. An IPv6 link-local one needs no address, and an IPv4 address of any scope serves.
    """
    own = tuple(
        DeviceAddress.parse(text)._replace(scope=253 if text.startswith(("fe80", "169")) else 0)
        for text in addresses
    )
    device = Device("eth0", 2, up=True, addresses=own)
    connected = [
        ObservedRoute(*Prefix.parse(str(one)).masked[1:], dev="eth0", protocol=2, family=one.family)
        for one in own
    ]
    reasons = [
        each.reason for _, each in hindrances(reconcile([route], connected), {"eth0": device})
    ]
    assert len(reasons) == bool(refusal)
    assert all(str(refusal) in reason for reason in reasons)


def test_a_link_local_address_of_the_node_may_be_a_gateway() -> None:
    """A link-local address of the node may be a gateway, as it may be the router's on another link;
    a global one may not.
    """
    addresses = (
        DeviceAddress.parse("fe80::1/64")._replace(scope=253),
        DeviceAddress.parse("2001:db8::4/64"),
    )
    refused = own_gateways([Device("eth1", 3, up=True, addresses=addresses)])
    assert refused == {
        Address.parse("2001:db8::4"): f"is an address of this node, on eth1; {GIVE_ROUTER}"
    }


def test_an_undo_restores_one_own_route_of_a_place() -> None:
    """An undo restores the first own route of a place: the second one is what a killed run left."""
    first = held(gateway=None, dev="ib0")
    second = held(gateway=None)
    assert changes_to_undo(changes_between([first, second], [first]), [first]) == ([], [])
    [back], notes = changes_to_undo(changes_between([first, second], []), [])
    assert back.after == first.to_route()
    assert notes == []
