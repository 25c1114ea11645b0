"""Proofs of models, for decisions that the worlds of a kernel show too seldom, mostly about IPv6: a
mutation of each survived.
"""

import pytest
from support.overlap_checks import check_cidrs
from support.static_route_scripts import static_route

from hostrouting import OverlapReport, prove_egress
from hostrouting.fib import Fib, UnknownDecisionError
from hostrouting.host import Device, DeviceAddress, NextHop, ObservedRoute, Rule
from hostrouting.net.addresses import IPV6, Prefix
from hostrouting.net.routes import FLAG_DEAD, LOCAL_TABLE
from hostrouting.net.rules import FIRST_RULES
from hostrouting.route_overlap.fabric import Fabric
from hostrouting.route_overlap.report import SuggestedRoute

CIDR, OWN, OLD = "fd00:5::/48", "fd00:1::4", "fd00:1::5"
WAY = ObservedRoute.parse("::/0", "eth0", "fe80::1", metric=1024, protocol=4)
LEARNED = ObservedRoute.parse("::/0", "ib0", "fe80::2", metric=1024, protocol=9)


def proven(
    *routes: ObservedRoute, rules: tuple[Rule, ...] = (), deprecated: bool = False
) -> OverlapReport:
    addresses = [DeviceAddress.parse(f"{address}/64") for address in (OWN, OLD)]
    held = (
        addresses[0],
        addresses[1]._replace(deprecated=deprecated),
        DeviceAddress.parse("fe80::4/64"),
    )
    links = [Device("eth0", 2, up=True, addresses=held), Device("ib0", 3, up=True)]
    connected = [
        ObservedRoute.parse(cidr, "eth0", metric=256, protocol=2)
        for cidr in ("fd00:1::/64", "fe80::/64")
    ]
    model = Fib.of(
        links, sorted([*connected, *routes], key=lambda route: route.metric), [*rules, *FIRST_RULES]
    )
    return prove_egress(model, [CIDR], expected_devs=["eth0"])


def devs(report: OverlapReport) -> list[str | None]:
    return [finding.dev for _, finding in report.findings]


def test_an_expired_route_is_not_an_equal_one() -> None:
    """An equal route by another device is an overlap, unless the route has expired, though it then
    stays in the kernel's dumps for a while.
    """
    assert devs(proven(WAY._replace(protocol=9), LEARNED)) == ["ib0"]
    assert devs(proven(WAY._replace(protocol=9), LEARNED._replace(expires=-1))) == []


def test_no_program_sends_from_a_deprecated_address() -> None:
    """A rule by an address of the device is an overlap, unless the address is deprecated, so that
    new connections do not use it.
    """
    rules = (Rule(70, table=88, source=Prefix.parse(f"{OLD}/128")[1:], family=IPV6),)
    astray = LEARNED._replace(table=88)
    assert devs(proven(WAY, astray, rules=rules)) == ["ib0"]
    assert devs(proven(WAY, astray, rules=rules, deprecated=True)) == []


def test_a_default_that_decides_is_not_a_fallback() -> None:
    """A better default route through the fabric is an overlap without a further warning; a worse one is
    the warning of a fallback.
    """
    better = proven(WAY, LEARNED._replace(metric=512))
    assert (devs(better), [note.kind for note in better.notes]) == (["ib0"], [])
    worse = proven(WAY, LEARNED._replace(metric=2048))
    assert (devs(worse), [note.kind for note in worse.notes]) == ([], ["fallback-by-fabric"])


def test_a_learned_default_alone_ends_at_its_owner() -> None:
    """Only a learned default route has a step about router advertisements."""
    learned = LEARNED._replace(metric=512)
    longer = learned._replace(network=0xFD << 120, prefix_length=8)
    for route in learned, learned._replace(protocol=4), longer:
        assert ("IPv6AcceptRA" in proven(WAY, route).steps) is (route is learned)


def test_no_route_in_main_helps_against_a_rule_for_our_source() -> None:
    """No route of table main is suggested where a rule for the source of the way leads astray, as a
    connection has that source.
    """
    rules = (Rule(70, table=88, source=Prefix.parse(f"{OWN}/128")[1:], family=IPV6),)
    [report] = proven(WAY, LEARNED._replace(table=88), rules=rules).cidrs
    assert (report.suggested_routes, report.needs_another_route) == ((), False)


def test_a_route_in_a_held_place_makes_nothing_needless() -> None:
    """A configured IPv6 route is replaced by suggested halves, unless its metric is that of the
    offender, where the kernel would refuse it.
    """
    for metric, needless in (1, []), (2, [CIDR]):
        offender = ObservedRoute.parse(CIDR, "ib0", metric=metric, protocol=4)
        suggested = SuggestedRoute(
            destination="fd00:5::/49", gateway="fe80::1", dev="eth0", offender=offender
        )
        configured = {Prefix.parse(CIDR): [static_route(f"{CIDR} via fe80::1 dev eth0")]}
        assert [*suggested.needless_with(configured)] == needless


def test_a_default_for_one_source_hides_no_other() -> None:
    """A route with `from` hides those of its destination without one, except default routes."""
    origin = Prefix.parse("fd00:7::/64")
    assert devs(proven(WAY, LEARNED._replace(from_prefix=origin))) == []
    [(_, finding)] = proven(
        *(
            one._replace(network=0xFD << 120, prefix_length=8)
            for one in (WAY, LEARNED._replace(from_prefix=origin))
        )
    ).findings
    assert finding.kind == "no-route"


def test_a_route_for_one_source_would_hide_a_suggestion() -> None:
    """A route with `from` in the place of a suggestion has two halves suggested, as it would hide
    the whole.
    """
    offender = ObservedRoute.parse(CIDR, "ib0", "fe80::2", metric=1024, protocol=4)
    by_source = offender._replace(from_prefix=Prefix.parse("fd00:1::/64"))
    alone = proven(WAY, offender).suggested_routes
    assert [route.destination for route in alone] == [CIDR]
    beside = proven(WAY, offender, by_source).suggested_routes
    assert [route.destination for route in beside] == ["fd00:5::/49", "fd00:5:0:8000::/49"]


@pytest.mark.parametrize(
    "route",
    [
        ObservedRoute.parse(CIDR, "lo", kind="local", table=LOCAL_TABLE, protocol=4),
        WAY._replace(nexthops=(NextHop(WAY.gateway, "eth0"), NextHop(WAY.gateway, "ib0"))),
    ],
)
def test_the_source_is_the_choice_of_the_kernel(route: ObservedRoute) -> None:
    """A source that only the kernel can choose, as for a network of the node or by next hops
    without an address, is unknown to the model.
    """
    by_source = WAY._replace(from_prefix=Prefix.parse("fd00:7::/64"))
    with pytest.raises(UnknownDecisionError, match="source"):
        proven(by_source, route)


@pytest.mark.parametrize("is_up", [True, False])
@pytest.mark.parametrize(("own", "kinds"), [("172.16.1.4/16", ["announced"]), ("10.8.0.4/16", [])])
def test_a_listed_fabric_brings_its_own_devices(own: str, kinds: list[str], is_up: bool) -> None:
    """A device without carrier or that is down brings all its networks if it has an address in a
    listed one; any other device stays as it is.
    """
    held = (DeviceAddress.parse(own), DeviceAddress.parse("172.18.1.4/16"))
    links = [Device("eth0", 2, up=True), Device("ib0", 3, up=is_up, addresses=held)]
    default = ObservedRoute.parse("0.0.0.0/0", "eth0", protocol=4)
    dead = ObservedRoute.parse("172.18.0.0/16", "ib0", protocol=2)._replace(flags=FLAG_DEAD)
    model = Fib.of(links, [dead, default] if is_up else [default], FIRST_RULES)
    listed = Fabric(networks=("172.16.0.0/16",), source="routeOverlap.fabric")
    report = check_cidrs(model, ["172.18.8.0/22"], fabric=listed)
    assert [finding.kind for _, finding in report.findings] == kinds
