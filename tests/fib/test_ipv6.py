"""The model of IPv6, where a history does not reach; the state machine of both families compares it
with the kernel.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from support.egress_oracle import answers_of_kernel
from support.ipv6_decisions import Decision, each_decision, two_links
from support.kernel import kernel_of, needs_kernel
from support.printed import NO_GROUP
from support.routers import WiredNode

from hostrouting.fib import Fib, Packet, UnknownDecisionError
from hostrouting.host import (
    IPV6,
    Address,
    Device,
    Lookup,
    NextHop,
    ObservedRoute,
    RouteBackend,
    Rule,
)
from hostrouting.net.rules import FIRST_RULES
from hostrouting.testing import KernelNode

ETH0 = Device("eth0", 2, up=True)
IB0 = Device("ib0", 3, up=True, group=5)
SOMEWHERE = Address.parse("2001:db8::1").number


def default(dev: str, **fields: Any) -> ObservedRoute:
    return ObservedRoute.parse(
        "::/0", dev, f"fe80::{len(dev)}", protocol=9, **{"metric": 1024, **fields}
    )


def test_families_do_not_meet() -> None:
    """Each family of a model has its own default route and its own rules."""
    routes = [ObservedRoute.parse("0.0.0.0/0", "eth0"), default("ib0")]
    fib = Fib.of(
        [ETH0, IB0], routes, [Rule(1, action="prohibit", destination=(1, 32)), *FIRST_RULES]
    )
    assert [fib.routes(), fib.routes(IPV6)] == [[route] for route in routes]
    assert [len(fib.rules()), len(fib.rules(IPV6))] == [4, 2]
    assert [fib.lookup([1])[0].errno, fib.lookup([1], family=IPV6)[0].route] == [13, routes[1]]


@pytest.mark.parametrize(("length", "errno"), [(0, 13), (64, 0)])
def test_a_prefix_selects_no_packet_without_source(length: int, errno: int) -> None:
    """A rule with a source prefix selects only packets with a source, even if the prefix contains
    `::`; a rule for every source selects each packet.
    """
    rule = Rule(1, action="prohibit", source=(0, length), family=IPV6)
    fib = Fib.of([ETH0], [default("eth0")], [rule, *FIRST_RULES])
    assert (fib.lookup([SOMEWHERE], family=IPV6)[0].errno or 0) == errno


def test_rules_have_no_source_of_a_gateway() -> None:
    """The gateway of a route for one source is looked up without a source, as in the kernel."""
    hop = NextHop(Address.parse("fd00:1::1"), "eth0")
    routes = [
        ObservedRoute.parse("fd00:1::/64", "eth0", metric=256, protocol=2),
        ObservedRoute.parse("fd00:1::/64", "eth0", "fe80::1", metric=1024, table=88),
    ]
    source = Address.parse("fd00:1::4").number
    rules = [Rule(10, table=88, source=(source, 128), family=IPV6), *FIRST_RULES]
    assert Fib.of([ETH0, IB0], routes, rules).accepts(hop, table=99, source=source)
    # A rule for the packets of no VRF does not have a table, which means main.
    rules = [Rule(10, l3mdev=True, inverted=True, family=IPV6)]
    assert Fib.of([ETH0, IB0], routes, rules).accepts(hop, table=99)


@pytest.fixture(scope="module")
def links() -> Iterator[WiredNode]:
    with two_links() as made:
        yield made


@needs_kernel
@each_decision
def test_the_model_decides_as_the_kernel(links: WiredNode, decision: Decision) -> None:
    """The kernel decides as the table of facts states, and so does a model of the kernel's routes
    and rules.
    """
    questions = [f"route get fibmatch {question}" for question in decision.answers]
    with decision.arranged(links):
        of_kernel = answers_of_kernel(links.name, "-6", questions)
        kernel = kernel_of(links)
        model = Fib.of(kernel.links(), kernel.routes(IPV6), kernel.rules(IPV6))
    shown = [
        "local" if answer.get("type") == "local" else answer.get("dev", "") for answer in of_kernel
    ]
    assert shown == [*decision.answers.values()]
    decided = {question: _by(model, question) for question in decision.answers}
    assert decided == decision.answers


def _by(model: Fib, question: str) -> str:
    """Return `local`, or the device of the deciding route; empty if there is none."""
    destination, *words = question.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    source = Address.parse(given.get("from", "::")).number
    iif, oif = given.get("iif", "lo"), given.get("oif", "")
    packet = Packet(Address.parse(destination).number, source, iif=iif, oif=oif, family=IPV6)
    route = model.decide(packet).route
    if route is None:
        return ""
    return "local" if route.kind == "local" else "".join(route.devs)


def test_a_route_that_has_ended_is_passed_over() -> None:
    """A route whose remaining time is below zero is passed over, although the kernel still shows
    the route.
    """
    ended, later = default("eth0", expires=-3), default("ib0", metric=2000)
    assert Fib.of([], [ended, later]).decide(Packet(SOMEWHERE, family=IPV6)).route == later


@needs_kernel
def test_among_higher_metrics_the_preference_decides() -> None:
    """Routes of higher metrics are compared as if they had one metric, if no route of the lowest
    metric is usable.
    """
    default_by = "route add default via fe80::1 dev"
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_link("ib0")
        node.ip(f"-6 {default_by} eth0 metric 1")
        node.ip(f"-6 {default_by} ib0 metric 2 pref low")
        node.ip(f"-6 {default_by} ib0 metric 3 pref high")
        kernel = kernel_of(node)
        model = Fib.of(kernel.links(), kernel.routes(IPV6), kernel.rules(IPV6))
        answer = node.ip("-6 route get 2001:db8::1 oif ib0")
    decided = model.decide(Packet(SOMEWHERE, oif="ib0", family=IPV6)).route
    assert decided is not None
    assert " metric 3 " in answer
    assert decided.metric == 3


@needs_kernel
@pytest.mark.parametrize(("gateway", "metric"), [("fe80::1", 1), ("fe80::7", 9)])
def test_a_route_is_passed_over_once_all_its_gateways_failed(gateway: str, metric: int) -> None:
    """A route with several gateways is used while one of them is reachable, and passed over once
    all have failed.
    """
    with KernelNode.made() as node:
        for dev in "eth0", "ib0":
            node.add_link(dev)
            node.ip(f"-6 neigh add fe80::7 dev {dev} nud failed")
        node.ip("-6 neigh add fe80::1 dev ib0 lladdr 02:00:00:00:00:01 nud permanent")
        several = f"nexthop via fe80::7 dev eth0 nexthop via {gateway} dev ib0"
        node.ip(f"-6 route add default metric 1 {several}")
        node.ip("-6 route add default metric 9 via fe80::1 dev ib0")
        kernel = kernel_of(node)
        answers = [*kernel.lookup([SOMEWHERE], family=IPV6), *_modelled(kernel)]
    assert [answer.route and answer.route.metric for answer in answers] == [metric, metric]


@needs_kernel
def test_a_rule_selects_by_the_upper_bits_of_the_traffic_class() -> None:
    """An IPv6 rule with a tos compares the upper three bits of the traffic class, too: one of 0xa0
    selects packets of this class, and leaves those of class 0, in the kernel and in the model.
    """
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.add_link("ib0")
        node.ip("-6 route add default dev eth0")
        node.ip("-6 route add default dev ib0 table 88")
        node.ip("-6 rule add tos 0xa0 table 88 priority 9")
        kernel = kernel_of(node)
        model = Fib.of(kernel.links(), kernel.routes(IPV6), kernel.rules(IPV6))
        for tos, dev in (0xA0, "ib0"), (0, "eth0"):
            decided = model.decide(Packet(SOMEWHERE, tos=tos, family=IPV6)).route
            assert decided is not None
            assert decided.devs == (dev,)
            assert f" dev {dev} " in node.ip(f"-6 route get 2001:db8::1 tos {tos:#04x}")


def test_the_source_is_not_modelled() -> None:
    """An IPv6 lookup with `resolve` is undecided unless the route names its source."""
    fib = Fib.of([ETH0], [default("eth0")])
    with pytest.raises(UnknownDecisionError, match="source"):
        fib.lookup([SOMEWHERE], resolve=True, family=IPV6)
    [answer] = Fib.of([ETH0], [default("eth0", source="::7")]).lookup(
        [SOMEWHERE], resolve=True, family=IPV6
    )
    assert answer.route is not None
    assert answer.route.source == 7
    assert answer.route.prefix_length == 128


def test_a_rule_against_the_group_of_one_next_hop() -> None:
    """A rule that suppresses a device group leaves a route over several devices undecided, since
    the kernel picks a next hop by a hash first.
    """
    hops = tuple(NextHop(Address.parse("fe80::1"), dev) for dev in ("eth0", "ib0"))
    routes = [ObservedRoute.parse("::/0", metric=1)._replace(nexthops=hops)]
    fib = Fib.of([ETH0, IB0], routes, [Rule(1, table=254, suppress_group=5, family=IPV6)])
    unknown = fib.decide(Packet(SOMEWHERE, family=IPV6)).unknown
    assert unknown == f"{NO_GROUP}eth0 or ib0"


@needs_kernel
@pytest.mark.parametrize("is_first", [True, False])
def test_a_nexthop_object_that_is_a_black_hole_ends_the_search(is_first: bool) -> None:
    """A black hole of a nexthop object decides over an equal route by a reachable gateway, in
    either order, and yields to a route of a lower metric.
    """
    commands = ["route append default nhid 10", "route append default via fe80::1 dev eth0"]
    with KernelNode.made() as node:
        node.add_link("eth0")
        node.ip("-6 neigh add fe80::1 dev eth0 lladdr 02:00:00:00:00:01 nud permanent")
        node.ip("-6 nexthop add id 10 blackhole")
        for command in commands if is_first else reversed(commands):
            node.ip(f"-6 {command}")
        kernel = kernel_of(node)
        equal = (kernel.lookup([SOMEWHERE], family=IPV6), _modelled(kernel))
        node.ip("-6 route append default via fe80::1 dev eth0 metric 1000")
        lower = (kernel.lookup([SOMEWHERE], family=IPV6), _modelled(kernel))
    assert [[answer.errno for answer in answers] for answers in equal] == [[22], [22]]
    assert [answer.route and answer.route.dev for [answer] in lower] == ["eth0", "eth0"]


def _modelled(kernel: RouteBackend) -> list[Lookup]:
    fib = Fib.of(kernel.links(), kernel.routes(IPV6), kernel.rules(IPV6))
    pairs = ((dev.name, gateway) for dev in kernel.links() for gateway in dev.failed)
    return attrs.evolve(fib, failed=frozenset(pairs)).lookup([SOMEWHERE], family=IPV6)
