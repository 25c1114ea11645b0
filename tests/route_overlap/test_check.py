"""The findings of a check, on a node whose ib0 shadows part of the cluster's addresses."""

from collections.abc import Callable, Sequence
from ipaddress import ip_network
from typing import Any
from unittest.mock import patch

import pytest
from support.kernel import uplink
from support.overlap_checks import prove, shapes
from support.printed import NARROWER

from hostrouting import explain_routing, prove_egress
from hostrouting.exceptions import BackendError
from hostrouting.host import IPV4, Address, Lookup, Rule
from hostrouting.net.addresses import parse_cidr
from hostrouting.route_overlap.report import CidrReport, Finding, SuggestedRoute
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.testing import FakeHost, MemoryBackend

IB = "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"


def test_a_shadowed_cidr_is_one_finding_with_the_route_that_shadows_it(node: MemoryBackend) -> None:
    """A finding has its kind, range, devices and deciding route, and the report the one route that
    repairs it.
    """
    finding = Finding(
        kind="overlap", first="172.16.8.0", last="172.16.11.255", devs=("ib0",), dev="ib0", route=IB
    )
    [offender] = [route for route in node.routes() if str(route) == IB]
    suggested = SuggestedRoute(
        destination="172.16.8.0/22",
        gateway="10.224.0.1",
        dev="eth0",
        takes_from=("ib0",),
        offender=offender,
    )
    assert prove(node, "172.16.8.0/22") == CidrReport(
        cidr="172.16.8.0/22", findings=(finding,), suggested_routes=(suggested,)
    )


def test_routes_near_an_address_are_those_that_may_decide_it(node: MemoryBackend) -> None:
    """The routes near an address include those shorter than 16 bits, whose network may begin far
    before it.
    """
    node.add_route("10.0.0.0/15", dev="ib0")
    near = RoutingSnapshot(node, IPV4).around([Address.parse("10.1.0.5").number])
    assert 15 in {route.prefix_length for route in near}


def test_a_known_neighbour_of_the_fabric_is_warned_of(node: MemoryBackend) -> None:
    """A suggested route that would take a peer with which the device talks has a warning; a peer
    elsewhere has none.
    """
    node.add_neighbour("ib0", "172.16.9.8")
    node.add_neighbour("ib0", "172.16.9.7")
    assert [
        (route.destination, route.warning)
        for route in prove(node, "172.16.8.0/22").suggested_routes
    ] == [
        (
            "172.16.8.0/22",
            (
                f"ib0 talks to 172.16.9.7, which is in it and could no longer be reached through ib0. {NARROWER}"
            ),
        )
    ]
    assert [route.warning for route in prove(node, "172.16.12.0/22").suggested_routes] == [None]


def test_without_default_route_the_way_of_each_address_is_reported(node: MemoryBackend) -> None:
    """Every address of a node without a default route is a finding, even one by a device of a CNI,
    as no device is expected.
    """
    node.delete_route(next(route for route in node.routes() if route.prefix_length == 0))
    node.add_link("cni0")
    node.add_route("10.96.0.0/25", dev="cni0")
    node.add_route("10.96.1.0/24", kind="blackhole")
    report = prove_egress(node, ["10.96.0.0/23", "172.16.1.4/31"])
    assert [shape for cidr in report.cidrs for shape in shapes(cidr)] == [
        ("unknown-exit", "10.96.0.0", "10.96.0.127", "cni0"),
        ("no-route", "10.96.0.128", "10.96.0.255", None),
        ("blocked", "10.96.1.0", "10.96.1.255", None),
        ("local", "172.16.1.4", "172.16.1.4", "ib0"),
        ("unknown-exit", "172.16.1.5", "172.16.1.5", "ib0"),
    ]


def test_a_host_stands_for_its_backend(node: MemoryBackend) -> None:
    """A check accepts a host in place of its backend, and an `ip_network` in place of its text."""
    host = FakeHost(node)
    cidrs = ["172.16.0.0/16"]
    assert prove_egress(host, [*map(ip_network, cidrs)]) == prove_egress(node, cidrs)
    assert explain_routing(host, cidrs) == explain_routing(node, cidrs)


def test_all_cidrs_are_one_question_to_the_kernel(node: MemoryBackend) -> None:
    """A thousand CIDRs take as many calls of lookup as one, even next to a rule by source."""
    cidrs = [f"10.{number // 256}.{number % 256}.0/24" for number in range(1_000)]
    node.add_rule(Rule(100, table=254, source=parse_cidr("10.224.0.4/32")))
    counts = []
    for expected in cidrs[:1], cidrs:
        with patch.object(node, "lookup", wraps=node.lookup) as lookup:
            report = prove_egress(node, expected)
        assert len(report.cidrs) == len(expected)
        counts.append(lookup.call_count)
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("answer", [iter, lambda answers: answers[:-1], lambda _: []])
def test_a_backend_that_leaves_answers_out_is_refused(
    answer: Callable[[list[Lookup]], Any],
) -> None:
    """A backend whose lookup does not return a list with each answer is an error that names it."""

    class Lazy(MemoryBackend):
        def lookup(self, destinations: Sequence[int], **options: Any) -> Any:
            return answer(super().lookup(destinations, **options))

    node = Lazy()
    uplink(node)
    with pytest.raises(BackendError, match=r"^Lazy\.lookup must return a list with each answer"):
        prove_egress(node, ["172.16.0.0/16"])
