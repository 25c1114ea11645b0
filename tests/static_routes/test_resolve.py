"""Routes of the config are completed from the default routes."""

import attrs
import pytest

from hostrouting.config import StaticRoute
from hostrouting.host import NextHop, ObservedRoute, Route
from hostrouting.net.addresses import Address
from hostrouting.net.default_route import default_route
from hostrouting.net.routes import FLAG_DEAD
from hostrouting.static_routes import resolve

GATEWAY = Address.parse("10.224.0.1")
OTHER = Address.parse("10.224.0.2")

ETH0 = ObservedRoute(0, 0, gateway=GATEWAY, dev="eth0", metric=100, protocol=16)
ETH1 = ObservedRoute(0, 0, gateway=OTHER, dev="eth1", metric=200, protocol=16)


def resolved(route: StaticRoute, *observed: ObservedRoute) -> list[str]:
    return list(map(str, resolve([route], observed).routes))


def reasons(route: StaticRoute, *observed: ObservedRoute) -> list[str]:
    return [reason for _, reason in resolve([route], observed).missing]


BOTH = StaticRoute(destination="172.16.1.0/24")
OURS = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.1", protocol=142)


class TestFound:
    def test_a_complete_route_needs_no_default_route(self) -> None:
        """A complete route is taken as it is."""
        route = StaticRoute(destination="172.16.1.0/24", gateway="172.18.1.1", dev="eth0", metric=7)
        assert resolved(route) == ["172.16.1.0/24 via 172.18.1.1 dev eth0 proto 142 metric 7"]

    def test_device_and_gateway(self) -> None:
        """Both come from the default route of the lowest metric, which the kernel shows first."""
        assert resolved(BOTH, ETH0, ETH1) == ["172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"]

    def test_the_gateway_of_the_device(self) -> None:
        """A device that is given has its own default gateway."""
        route = StaticRoute(destination="172.16.1.0/24", dev="eth1")
        assert resolved(route, ETH0, ETH1) == ["172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142"]

    def test_the_device_for_a_gateway(self) -> None:
        """A gateway that is given is reached by the default route's device."""
        route = StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.9")
        assert resolved(route, ETH0, ETH1) == ["172.16.1.0/24 via 10.224.0.9 dev eth0 proto 142"]

    def test_of_several_next_hops_the_first(self) -> None:
        """An ECMP default route counts by the kernel's order."""
        both = ObservedRoute(0, 0, nexthops=(NextHop(OTHER, "eth1"), NextHop(GATEWAY, "eth0", onlink=True)))
        assert resolved(BOTH, both) == ["172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142"]
        route = StaticRoute(destination="172.16.1.0/24", dev="eth0")
        assert resolved(route, both) == ["172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142 onlink"]

    def test_a_link_without_gateway(self) -> None:
        """All destinations of `default dev ppp0` are on the link, and so is ours."""
        ppp0 = ObservedRoute(0, 0, dev="ppp0", scope=253)
        assert resolved(BOTH, ppp0) == ["172.16.1.0/24 dev ppp0 proto 142 scope link"]

    def test_a_gateway_that_is_taken_to_be_on_the_link(self) -> None:
        """An `onlink` default gateway needs the same word in our route."""
        onlink = ETH0._replace(flags=4)
        assert resolve([BOTH], [onlink]).routes == (
            Route(network=0xAC100100, prefix_length=24, gateway=GATEWAY, dev="eth0", onlink=True),
        )


class TestMissing:
    @pytest.mark.parametrize(
        "default",
        [
            ETH0._replace(table=100),
            ETH0._replace(protocol=142),
            ETH0._replace(tos=8),
            ETH0._replace(kind="unreachable", dev=None, gateway=None),
            ETH0._replace(network=0x0A000000, prefix_length=8),
        ],
        ids=["other table", "ours", "type of service", "unreachable", "no default"],
    )
    def test_routes_that_are_no_default_route(self, default: ObservedRoute) -> None:
        """Only an unmarked unicast default route of table main, for all packets, is one to go by."""
        assert reasons(BOTH, default) == ["table main has no IPv4 default route"]

    @pytest.mark.parametrize(
        ("route", "standing", "is_kept"),
        [
            (BOTH, OURS, True),
            (StaticRoute(destination="172.16.1.0/24", dev="eth0"), OURS, True),
            (StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1"), OURS, True),
            (StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.9"), OURS, False),
            (StaticRoute(destination="172.16.1.0/24", dev="ib0"), OURS, False),
            (StaticRoute(destination="172.16.1.0/24", metric=7), OURS, False),
            (BOTH, OURS._replace(protocol=4), False),
            (BOTH, OURS._replace(kind="blackhole", gateway=None, dev=None), False),
            (BOTH, OURS._replace(gateway=None, dev=None, nexthops=(NextHop(None, "eth0"),) * 2), False),
        ],
    )
    def test_ours_that_stands_needs_no_default_route(
        self, route: StaticRoute, standing: ObservedRoute, is_kept: bool
    ) -> None:
        """It is what the config asks for, with any device or gateway where that names none; another route is not."""
        assert resolved(route, standing) == [str(standing)] * is_kept
        assert len(reasons(route, standing)) == (not is_kept)

    def test_a_device_without_default_route(self) -> None:
        """A device that no default route leaves by has no gateway."""
        route = StaticRoute(destination="172.16.1.0/24", dev="ib0")
        assert reasons(route, ETH0) == ["no IPv4 default route leaves by ib0, so it has no gateway there"]

    def test_a_gateway_of_the_other_family(self) -> None:
        """`default via inet6 fe80::1 dev eth0` completes IPv4, and so does a gateway of the config, by its device."""
        inet6 = ETH0._replace(gateway=Address.parse("fe80::1"))
        assert resolved(BOTH, inet6) == ["172.16.1.0/24 via inet6 fe80::1 dev eth0 proto 142"]
        named = attrs.evolve(BOTH, gateway="fd00::9")
        assert resolved(named, ETH0) == ["172.16.1.0/24 via inet6 fd00::9 dev eth0 proto 142"]

    def test_the_others_are_complete(self) -> None:
        """Routes that can be completed are, and each reason for the others is given once."""
        routes = [
            StaticRoute(destination="172.16.1.0/24", dev="ib0"),
            StaticRoute(destination="172.16.2.0/24", dev="ib0"),
            BOTH,
        ]
        resolution = resolve(routes, [ETH0])
        assert len(resolution.routes) == 1
        assert [missing.route for missing in resolution.missing] == routes[:2]
        assert resolution.reasons == "no IPv4 default route leaves by ib0, so it has no gateway there"


def test_a_dead_next_hop_names_no_device() -> None:
    """As the kernel does not use it, be it one of several or the only one of its route."""
    dead = ObservedRoute(0, 0, gateway=OTHER, dev="ib1", metric=1, flags=FLAG_DEAD)
    several = ObservedRoute(0, 0, metric=2, nexthops=(NextHop(OTHER, "ib0", dead=True), NextHop(GATEWAY, "eth0")))
    assert resolved(BOTH, dead, several) == ["172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"]
    assert default_route([dead, several]) == several


def test_a_default_route_without_a_live_next_hop_is_none() -> None:
    """The kernel passes over a multipath route of which every next hop is dead, and takes the next one."""
    legs = (NextHop(OTHER, "eth1", dead=True), NextHop(OTHER, "eth2", dead=True))
    all_dead = ObservedRoute(0, 0, nexthops=legs)
    assert default_route([all_dead, ETH0]) == ETH0
    assert default_route([all_dead]) is None
    assert resolved(BOTH, all_dead, ETH0) == ["172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"]
    assert reasons(BOTH, all_dead) == ["table main has no IPv4 default route"]


def test_a_device_that_is_named_has_the_gateway_of_its_dead_next_hop() -> None:
    """The kernel decides about a route over a device that is down; its gateway is known."""
    legs = (NextHop(OTHER, "eth1", dead=True), NextHop(GATEWAY, "eth0"))
    both = ObservedRoute(0, 0, nexthops=legs)
    route = StaticRoute(destination="172.16.1.0/24", dev="eth1")
    assert resolved(route, both) == ["172.16.1.0/24 via 10.224.0.2 dev eth1 proto 142"]
