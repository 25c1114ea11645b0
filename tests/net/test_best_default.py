"""The default routes that the kernel prefers, and the devices through which they lead."""

import pytest

from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.links import Device
from hostrouting.net.outbound import candidates, devices_down, working_devs
from hostrouting.net.routes import (
    NextHop,
    ObservedRoute,
    best_default_devs,
    default_route,
    expected_outbound_dev,
)

ETH0 = ObservedRoute.parse("::/0", "eth0", "fe80::1", metric=1024, protocol=9)
IB0 = ObservedRoute.parse("::/0", "ib0", "fe80::2", metric=1024, protocol=9)
LOW = ((20, b"\3"),)
HIGH = ((20, b"\1"),)


@pytest.mark.parametrize(
    ("routes", "devs"),
    [
        ([], ()),
        ([ETH0, IB0], ("eth0", "ib0")),
        ([ETH0, IB0._replace(metric=512)], ("ib0",)),
        ([ETH0, IB0._replace(extra=HIGH)], ("ib0",)),
        ([ETH0._replace(extra=LOW), IB0], ("ib0",)),
        ([ETH0._replace(metric=1), IB0._replace(extra=HIGH)], ("eth0",)),
        # Only a route for all packets that sends them somewhere counts, and no dead next hop.
        ([ETH0._replace(kind="unreachable", dev="lo"), IB0], ("ib0",)),
        ([ETH0._replace(expires=-1), IB0], ("ib0",)),
        ([ETH0._replace(from_prefix=Prefix.parse("fd00::/8")), IB0], ("ib0",)),
        ([ETH0._replace(flags=1), IB0], ("ib0",)),
        (
            [
                ETH0._replace(
                    gateway=None, dev=None, nexthops=(NextHop(None, "eth0", dead=True), *IB0.hops)
                )
            ],
            ("ib0",),
        ),
    ],
)
def test_the_best_default_devices(routes: list[ObservedRoute], devs: tuple[str, ...]) -> None:
    """The best default routes are those of the lowest metric and then of the highest router
    preference; equal routes all count.
    """
    assert best_default_devs(routes) == devs


def test_ipv6_should_leave_by_one_device() -> None:
    """IPv6 is expected to leave through the device of IPv4's default route, or, if IPv4 has several or
    none, by the one device that all IPv6 routes share.
    """
    eth0 = ObservedRoute.parse("0.0.0.0/0", "eth0", "10.224.0.1")
    ib0 = ObservedRoute.parse("0.0.0.0/0", "ib0", "172.16.0.1")
    assert expected_outbound_dev([eth0], [IB0]) == ("eth0",)
    assert expected_outbound_dev([eth0, ib0], [IB0]) == ("ib0",)
    assert expected_outbound_dev([eth0, ib0], [ETH0, IB0]) == ()
    assert expected_outbound_dev([], [IB0]) == ("ib0",)
    assert expected_outbound_dev([], []) == ()


def test_the_default_route_that_decides() -> None:
    """A default route with a living next hop decides, although another of its next hops is dead; a
    route of dead ones alone is passed over.
    """
    dead = NextHop(None, "eth0", dead=True)
    all_dead, half_dead = (
        ObservedRoute(0, 0, nexthops=hops) for hops in ((dead, dead), (dead, NextHop(None, "ib0")))
    )
    assert default_route([all_dead]) is None
    assert default_route([all_dead, half_dead, ETH0]) == half_dead


def test_an_exit_without_a_gateway_works() -> None:
    """An exit whose route does not have a gateway, as by PPP, works if its device has a carrier."""
    route, link = ObservedRoute.parse("0.0.0.0/0", "ppp0"), Device("ppp0", 2, up=True)
    assert working_devs(("ppp0",), [link], [route]) == {IPV4: "ppp0"}
    assert working_devs(("ppp0",), [link._replace(carrier=False)], [route]) == {}


def test_of_two_exits_the_one_of_the_better_route_works() -> None:
    """The working exit of two is that of the better route, in whatever order the config names
    them.
    """
    links = [Device("eth0", 2, up=True), Device("ib0", 3, up=True)]
    routes = [IB0._replace(metric=2048), ETH0]
    assert working_devs(("ib0", "eth0"), links, routes) == {IPV6: "eth0"}


def test_a_device_of_a_bond_is_no_exit_of_its_own() -> None:
    """A device in a bond is not a candidate for an exit; the bond, which has the addresses, is."""
    bond = Device("bond0", 4, up=False, kind="bond")
    part = Device("eth0", 2, up=True, master="bond0")
    assert candidates((), [bond, part]) == [bond]
    assert devices_down((), [bond, part]) == (("bond0",), True)


@pytest.mark.parametrize(
    ("failed", "exits"), [("fe80::1", {}), ("fe80::3", {IPV6: "eth0"})], ids=["first", "second"]
)
def test_the_first_default_route_of_a_device_decides_if_its_exit_works(
    failed: str, exits: dict[int, str]
) -> None:
    """An exit fails with the gateway of its device's default route of the lowest metric; a failed
    gateway of a second route does not matter.
    """
    second = ETH0._replace(metric=2048, gateway=Address.parse("fe80::3"))
    links = [Device("eth0", 2, up=True, failed=(Address.parse(failed),))]
    assert working_devs(("eth0",), links, [ETH0, second]) == exits
