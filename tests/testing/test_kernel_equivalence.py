"""The model in memory against the kernel: the same random life, compared after every step.

Short lives are in tests/fib/test_short_histories.py.
"""

from hypothesis import settings
from support.examples import FEW
from support.kernel import needs_kernel
from support.kernel_packets import decisions
from support.two_worlds import TwoWorlds, decided

from hostrouting.fib import Packet
from hostrouting.net.addresses import IPV6, parse_ipv4
from hostrouting.net.routes import NextHop, Route
from hostrouting.net.rules import Rule

pytestmark = needs_kernel

TestTwoWorlds = TwoWorlds.TestCase
TestTwoWorlds.settings = settings(settings.default, max_examples=FEW, stateful_step_count=30)


class TwoIpv6Worlds(TwoWorlds):
    """The same life in IPv6; the node forwards, so the states of neighbours decide nothing."""

    family = IPV6


TestTwoIpv6Worlds = TwoIpv6Worlds.TestCase
TestTwoIpv6Worlds.settings = TestTwoWorlds.settings


def test_an_inverted_l3mdev_rule_looks_up_main() -> None:
    """Without a VRF `l3mdev` selects no packet, so `not` selects all; the table that no VRF names
    is main.
    """
    worlds = TwoWorlds()
    worlds.begin()
    try:
        worlds.both(lambda world: world.insert_route(Route.parse("10.1.0.0/24", dev="e0")))
        worlds.both(lambda world: world.add_rule(Rule(100, l3mdev=True, inverted=True)))
        (main,) = (rule for rule in worlds.memory.rules() if rule.priority == 32766)
        worlds.both(lambda world: world.remove_rule(main))
        worlds.same_lookups()
        (answer,) = worlds.kernel.lookup([parse_ipv4("10.1.0.1")])
        assert answer.route is not None
    finally:
        worlds.teardown()


def test_a_packet_has_all_next_hops_of_its_route() -> None:
    """The model names each next hop with its weight, as the kernel does."""
    hops = (NextHop(None, "e0", weight=2), NextHop(None, "e0", weight=3))
    worlds = TwoWorlds()
    worlds.begin()
    try:
        worlds.both(
            lambda world: world.insert_route(
                Route(network=0, prefix_length=0, protocol=3, nexthops=hops)
            )
        )
        packet = Packet(
            parse_ipv4("10.0.0.1"), ip_protocol=6, source_port=1000, destination_port=53
        )
        shown_by_kernel = decisions(worlds.node, [packet])
        assert (
            shown_by_kernel
            == [decided(worlds.memory, packet)]
            == ["default nexthop dev e0 weight 2 nexthop dev e0 weight 3"]
        )
    finally:
        worlds.teardown()
