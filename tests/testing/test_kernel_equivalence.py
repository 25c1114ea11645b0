"""The model in memory against the kernel: the same random life, compared after every step.

Long lives are for the soak; `make test` has short ones in tests/fib/test_short_histories.py.
"""

from collections.abc import Callable, Iterator
from functools import partial

import attrs
import pytest
from hypothesis import settings
from support.examples import FEW
from support.kernel import needs_kernel
from support.two_worlds import TwoWorlds, decided, decisions

from hostrouting.exceptions import BackendError
from hostrouting.fib import Packet, UnknownDecisionError
from hostrouting.host import IPV6, Address, NextHop, Route, Rule
from hostrouting.testing import Node
from hostrouting.testing.contracts.routes import arrange, as_read, competing_routes, deciding
from hostrouting.testing.route_texts import route

pytestmark = needs_kernel

TestTwoWorlds = pytest.mark.soak(TwoWorlds.TestCase)
TestTwoWorlds.settings = settings(settings.default, max_examples=FEW, stateful_step_count=30)


class TwoIpv6Worlds(TwoWorlds):
    """The same random life in IPv6, on a node that forwards, so that the states of neighbours
    decide nothing.
    """

    family = IPV6


TestTwoIpv6Worlds = pytest.mark.soak(TwoIpv6Worlds.TestCase)
TestTwoIpv6Worlds.settings = TestTwoWorlds.settings


@pytest.fixture
def worlds() -> Iterator[TwoWorlds]:
    worlds = TwoWorlds()
    worlds.begin()
    yield worlds
    worlds.teardown()


def test_an_inverted_l3mdev_rule_looks_up_main(worlds: TwoWorlds) -> None:
    """An inverted l3mdev rule on a node without a VRF selects all packets and looks up table main,
    in the kernel and in the model.
    """
    worlds.both(lambda world: arrange(world, "10.1.0.0/24 dev e0"))
    worlds.both(lambda world: world.add_rule(Rule(100, l3mdev=True, inverted=True)))
    _, _, main, _ = worlds.memory.rules()
    worlds.both(lambda world: world.remove_rule(main))
    worlds.same_lookups()
    assert deciding(worlds.kernel, "10.1.0.1") == as_read("10.1.0.0/24 dev e0 scope link")


def test_a_packet_has_all_next_hops_of_its_route(worlds: TwoWorlds) -> None:
    """A packet of a route with several next hops is answered with each of them and its weight, in
    the kernel and in the model.
    """
    hops = NextHop(None, "e0", weight=2), NextHop(None, "e0", weight=3)
    several = Route(network=0, prefix_length=0, protocol=3, nexthops=hops)
    worlds.both(lambda world: world.insert_route(several))
    packet = Packet(10 << 24 | 1, ip_protocol=6, source_port=1000, destination_port=53)
    of_kernel = decisions(worlds.node, [packet])
    of_memory = [decided(worlds.memory, packet)]
    assert of_kernel == of_memory == ["default nexthop dev e0 weight 2 nexthop dev e0 weight 3"]


@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.add_address("e0", "10.1.0.1/24"),
        lambda world: world.add_address("e0", "fd00:1::1/64"),
        lambda world: world.add_rule(Rule(100, action="goto", goto=200)),
        lambda world: arrange(world, "fd00:9::/48 via fd00:1::7 dev e0 metric 1"),
    ],
    ids=["address", "address of IPv6", "rule", "route of IPv6"],
)
def test_the_second_of_two_that_are_the_same_is_refused(
    worlds: TwoWorlds, act: Callable[[Node], None]
) -> None:
    """The second of two equal addresses, rules or routes is refused in the kernel and in the
    model.
    """
    worlds.both(lambda world: world.add_address("e0", "fd00:1::2/64"))
    worlds.both(act)
    with pytest.raises(BackendError):
        act(worlds.memory)
    with pytest.raises(BackendError):
        act(worlds.node)
    worlds.same_routes()


def test_a_gateway_of_ipv6_is_looked_up_by_the_rules(worlds: TwoWorlds) -> None:
    """An IPv6 route is refused if its gateway is not on a link, because a rule prohibits the
    gateway or no table has it.
    """
    worlds.both(lambda world: world.add_address("e0", "fd00:1::1/64"))
    by_gateway = route("fd00:9::/48 via fd00:7::7 dev e0 metric 1")
    for world in worlds.memory, worlds.node:
        with pytest.raises(BackendError):
            world.insert_route(by_gateway)
    prohibited = Rule(10, action="prohibit", family=IPV6)
    worlds.both(lambda world: world.add_rule(prohibited))
    for world in worlds.memory, worlds.node:
        with pytest.raises(BackendError):
            world.insert_route(by_gateway)


def test_a_replacement_of_ipv6_takes_the_first_of_its_place(worlds: TwoWorlds) -> None:
    """A replacement of an IPv6 route takes the first of its place, in the kernel and in the
    model.
    """
    for dev in "e0", "e1":
        worlds.both(partial(_insert, f"fd00:9::/48 dev {dev} metric 1", "append"))
    worlds.both(partial(_insert, "fd00:9::/48 dev e0 proto static metric 1", "replace"))
    worlds.family = IPV6
    worlds.same_routes()


def test_what_the_model_does_not_know_of_next_hops(worlds: TwoWorlds) -> None:
    """The model refuses to decide which of several next hops a deletion takes, and how a route
    continues without one device.
    """
    hops = tuple(NextHop(Address.parse("fe80::7"), dev) for dev in ("e0", "e1"))
    several = attrs.evolve(route("fd00:9::/48 dev e0 metric 1"), dev=None, nexthops=hops)
    worlds.memory.insert_route(several)
    with pytest.raises(UnknownDecisionError, match="which next hop"):
        worlds.memory.delete_route(route("fd00:9::/48 via fe80::7 dev e0 metric 1"))
    with pytest.raises(UnknownDecisionError, match="continues without e0"):
        worlds.memory.set_up("e0", up=False)


def test_a_route_of_ipv6_that_two_programs_made_is_deleted_at_once(worlds: TwoWorlds) -> None:
    """The deletion of an IPv6 route that two programs made removes the next hops of both, though
    one that names next hops would find only those of the first program.
    """
    worlds.node.add_address("e0", "fd00:1::1/64")
    for wanted in "fd00:1::7 dev e0 proto static", "fd00:1::8 dev e0 proto dhcp":
        _insert(f"fd00:9::/32 via {wanted} metric 1", "append", worlds.node)
    [merged] = competing_routes(worlds.kernel, IPV6)
    worlds.node.delete_route(merged)
    assert competing_routes(worlds.kernel, IPV6) == []


def test_routes_of_ipv6_come_and_go_with_their_address_and_their_device(worlds: TwoWorlds) -> None:
    """IPv6 routes come and go with their address and their device, alike in the kernel and in the
    model.
    """
    worlds.family = IPV6
    worlds.both(lambda world: world.add_address("e0", "fd00:1::1/64"))
    worlds.same_routes()
    worlds.both(partial(_insert, "fd00:9::/48 dev e0 metric 1", "add"))
    worlds.both(lambda world: world.remove_address("e0", "fd00:1::1/64"))
    worlds.same_routes()
    worlds.both(lambda world: world.set_up("e0", up=False))
    worlds.same_routes()


def test_a_rule_leads_no_way_back(worlds: TwoWorlds) -> None:
    """A rule with a `goto` to an earlier rule is refused in the kernel and in the model."""
    for world in worlds.memory, worlds.node:
        with pytest.raises(BackendError):
            world.add_rule(Rule(100, action="goto", goto=50))


def test_a_rule_selects_packets_by_their_mark(worlds: TwoWorlds) -> None:
    """A rule that forbids a mark leaves packets with another mark alone, in the kernel and in the
    model.
    """
    worlds.both(lambda world: arrange(world, "10.1.0.0/24 dev e0"))
    worlds.both(lambda world: world.add_rule(Rule(100, action="prohibit", mark=5, mark_mask=7)))
    plain = Packet(10 << 24 | 1 << 16 | 1, ip_protocol=6, source_port=1000, destination_port=53)
    packets = [plain._replace(mark=mark) for mark in (4, 5, 13)]
    of_memory = [decided(worlds.memory, packet) for packet in packets]
    assert decisions(worlds.node, packets) == of_memory
    assert of_memory == ["10.1.0.0/24 dev e0 scope link", *["Permission denied"] * 2]


def _insert(text: str, verb: str, world: Node) -> None:
    world.insert_route(route(text), verb=verb)
