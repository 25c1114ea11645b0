"""The completion of configured routes from the default routes."""

import pytest
from support.static_route_scripts import static_route

from hostrouting import StaticRoute
from hostrouting.host import IPV6, Address, NextHop, ObservedRoute
from hostrouting.net.routes import FLAG_DEAD
from hostrouting.static_routes.reconcile import resolve

GATEWAY = Address.parse("10.224.0.1")
OTHER = Address.parse("10.224.0.2")

ETH0 = ObservedRoute(0, 0, gateway=GATEWAY, dev="eth0", metric=100, protocol=16)
ETH1 = ObservedRoute(0, 0, gateway=OTHER, dev="eth1", metric=200, protocol=16)
ROUTER = ETH0._replace(gateway=Address.parse("fe80::1"), metric=1024, family=IPV6)


def resolved(route: StaticRoute, *observed: ObservedRoute) -> list[str]:
    """Complete a route, and none that does not have its gateway."""
    return list(map(str, resolve([static_route("10.8.0.0/16 dev x"), route], observed).routes))


def reasons(route: StaticRoute, *observed: ObservedRoute) -> list[str]:
    return [reason for _, reason in resolve([route], observed).missing]


BOTH = StaticRoute(destination="172.16.1.0/24")
SEVERAL = ObservedRoute(
    0, 0, nexthops=(NextHop(OTHER, "eth1"), NextHop(GATEWAY, "eth0", onlink=True))
)
DEAD_FIRST = ObservedRoute(
    0, 0, nexthops=(NextHop(OTHER, "eth1", dead=True), NextHop(GATEWAY, "eth0"))
)
ALL_DEAD = ObservedRoute(
    0, 0, nexthops=(NextHop(OTHER, "eth1", dead=True), NextHop(OTHER, "eth2", dead=True))
)
OWN_ROUTE = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.1", protocol=142)


@pytest.mark.parametrize(
    ("route", "defaults", "completed"),
    [
        # Both come from the default route of the lowest metric, which the kernel shows first.
        (BOTH, (ETH0, ETH1), "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"),
        # A device that is given has its own gateway; a gateway that is given is on the link of the
        # first device.
        (
            static_route("172.16.1.0/24 dev eth1"),
            (ETH0, ETH1),
            "172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142",
        ),
        (
            static_route("172.16.1.0/24 via 10.224.0.9"),
            (ETH0, ETH1),
            "172.16.1.0/24 via 10.224.0.9 dev eth0 proto 142",
        ),
        (
            static_route("172.16.1.0/24 via 172.18.1.1 dev x metric 7"),
            (),
            "172.16.1.0/24 via 172.18.1.1 dev x proto 142 metric 7",
        ),
        # Of several next hops the first in the kernel's order; an `onlink` gateway needs the same
        # word in ours.
        (BOTH, (SEVERAL,), "172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142"),
        (
            static_route("172.16.1.0/24 dev eth0"),
            (SEVERAL,),
            "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142 onlink",
        ),
        (BOTH, (ETH0._replace(flags=4),), "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142 onlink"),
        # All destinations of `default dev ppp0` are on the link, and so is the own route.
        (
            BOTH,
            (ObservedRoute(0, 0, dev="ppp0", scope=253),),
            "172.16.1.0/24 dev ppp0 proto 142 scope link",
        ),
        # A gateway of another family.
        (
            BOTH,
            (ETH0._replace(gateway=Address.parse("fe80::1")),),
            "172.16.1.0/24 via inet6 fe80::1 dev eth0 proto 142",
        ),
        (
            static_route("172.16.1.0/24 via fd00::9"),
            (ETH0,),
            "172.16.1.0/24 via inet6 fd00::9 dev eth0 proto 142",
        ),
        # IPv6 leaves through the device of IPv4, whatever a router of a fabric advertises.
        (
            StaticRoute(destination="fd00:9::/48"),
            (ETH0, ROUTER._replace(dev="ib0", metric=50), ROUTER),
            "fd00:9::/48 via fe80::1 dev eth0 proto 142 metric 1",
        ),
        # A dead next hop names no device, be it one of several or the only one; but a named device
        # has its gateway.
        (
            BOTH,
            (ETH1._replace(metric=1, flags=FLAG_DEAD), ETH0),
            "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
        ),
        (BOTH, (DEAD_FIRST,), "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"),
        (
            static_route("172.16.1.0/24 dev eth1"),
            (DEAD_FIRST,),
            "172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142",
        ),
        (BOTH, (ALL_DEAD, ETH0), "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"),
    ],
)
def test_what_the_config_leaves_open(
    route: StaticRoute, defaults: tuple[ObservedRoute, ...], completed: str
) -> None:
    """The gateway and the device that a route leaves open come from the default route that the
    kernel uses.
    """
    assert resolved(route, *defaults) == [completed]


class TestMissing:
    @pytest.mark.parametrize(
        "default",
        [
            ETH0._replace(table=100),
            ETH0._replace(protocol=142),
            ETH0._replace(tos=8),
            ETH0._replace(kind="unreachable", dev=None, gateway=None),
            ETH0._replace(network=0x0A000000, prefix_length=8),
            ALL_DEAD,
        ],
    )
    def test_routes_that_are_not_default_routes(self, default: ObservedRoute) -> None:
        """A route is completed only by an unmarked unicast default route of table main for all
        packets.
        """
        assert reasons(BOTH, default) == ["table main has no IPv4 default route"]

    @pytest.mark.parametrize(
        ("route", "standing", "is_kept"),
        [
            (BOTH, OWN_ROUTE, True),
            (static_route("172.16.1.0/24 dev eth0"), OWN_ROUTE, True),
            (static_route("172.16.1.0/24 via 10.224.0.1"), OWN_ROUTE, True),
            (static_route("172.16.1.0/24 via 10.224.0.9"), OWN_ROUTE, False),
            (static_route("172.16.1.0/24 dev ib0"), OWN_ROUTE, False),
            (static_route("172.16.1.0/24 metric 7"), OWN_ROUTE, False),
            (BOTH, OWN_ROUTE._replace(protocol=4), False),
            (BOTH, OWN_ROUTE._replace(nexthop_id=5), False),
            (BOTH, OWN_ROUTE._replace(kind="blackhole", gateway=None, dev=None), False),
            (
                BOTH,
                OWN_ROUTE._replace(gateway=None, dev=None, nexthops=(NextHop(None, "eth0"),) * 2),
                False,
            ),
        ],
    )
    def test_an_own_route_that_stands_needs_no_default_route(
        self, route: StaticRoute, standing: ObservedRoute, is_kept: bool
    ) -> None:
        """An own route that stands and fits the config, in what the config names, stays without a
        default route.
        """
        assert resolved(route, standing) == [str(standing)] * is_kept
        assert len(reasons(route, standing)) == (not is_kept)
