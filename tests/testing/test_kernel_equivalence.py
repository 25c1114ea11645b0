"""The model in memory against the kernel: the same random life, compared after every step.

Long lives are for the soak; `make test` has short ones in tests/fib/test_short_histories.py.
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from support.examples import FEW
from support.kernel import needs_kernel
from support.two_worlds import TwoWorlds, decided, decisions

from hostrouting.fib import Packet
from hostrouting.host import IPV6, NextHop, Route, Rule
from hostrouting.testing.contracts.routes import arrange, as_read, deciding

pytestmark = needs_kernel

TestTwoWorlds = pytest.mark.soak(TwoWorlds.TestCase)
TestTwoWorlds.settings = settings(settings.default, max_examples=FEW, stateful_step_count=30)


class TwoIpv6Worlds(TwoWorlds):
    """The same life in IPv6; the node forwards, so the states of neighbours decide nothing."""

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
    """Without a VRF `l3mdev` selects no packet, so `not` selects all; the table that no VRF names
    is main.
    """
    worlds.both(lambda world: arrange(world, "10.1.0.0/24 dev e0"))
    worlds.both(lambda world: world.add_rule(Rule(100, l3mdev=True, inverted=True)))
    _, _, main, _ = worlds.memory.rules()
    worlds.both(lambda world: world.remove_rule(main))
    worlds.same_lookups()
    assert deciding(worlds.kernel, "10.1.0.1") == as_read("10.1.0.0/24 dev e0 scope link")


def test_a_packet_has_all_next_hops_of_its_route(worlds: TwoWorlds) -> None:
    """The model names each next hop with its weight, as the kernel does."""
    hops = NextHop(None, "e0", weight=2), NextHop(None, "e0", weight=3)
    several = Route(network=0, prefix_length=0, protocol=3, nexthops=hops)
    worlds.both(lambda world: world.insert_route(several))
    packet = Packet(10 << 24 | 1, ip_protocol=6, source_port=1000, destination_port=53)
    of_kernel = decisions(worlds.node, [packet])
    of_memory = [decided(worlds.memory, packet)]
    assert of_kernel == of_memory == ["default nexthop dev e0 weight 2 nexthop dev e0 weight 3"]
