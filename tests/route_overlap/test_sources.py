"""The parts of a check, and the sources that it looks up with: the kernel's at each edge."""

from bisect import bisect_right

import pytest
from support.egress_oracle import KernelOracle
from support.kernel import connect, kernel_of, needs_kernel

from hostrouting.host import Rule
from hostrouting.net.addresses import Prefix, parse_cidr
from hostrouting.route_overlap.answers import looked_up
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.testing import KernelNode

CIDR = "172.20.0.0/30"
#: Selects by a source that no device has: so the check looks at sources, and no rule changes an
#: answer.
RULE = Rule(100, table=100, source=parse_cidr("192.0.2.77/32"))


@needs_kernel
@pytest.mark.parametrize("loopback", [True, False])
def test_the_kernel_treats_addresses_differently_only_at_known_edges(loopback: bool) -> None:
    """The kernel routes each address around a power of two, a /8 or a known edge as the part of the
    check in which it is.
    """
    near = (
        {1 << bit for bit in range(33)}
        | {octet << 24 for octet in range(256)}
        | {0xE0000100, 0xA9FE0000, 0xFFFFFFFF}
    )
    destinations = sorted(
        {(edge + step) % (1 << 32) for edge in near for step in (-2, -1, 0, 1, 2)}
    )
    with KernelNode.made() as node:
        node.set_up("lo", up=loopback)
        connect(node, e0="10.1.0.1/16")
        node.ip("route append default via 10.1.0.200 dev e0")
        node.add_rule(RULE)
        [parts] = looked_up(RoutingSnapshot(kernel_of(node)), [Prefix.parse("0.0.0.0/0")]).parts
        oracle = KernelOracle(node)
        decided = oracle.decided([(address, None) for address in destinations])
        sources = oracle.sources(destinations, decided)
    firsts = [part.first for part in parts]
    for address, answer, chosen in zip(destinations, decided, sources, strict=True):
        part = parts[bisect_right(firsts, address) - 1]
        route = part.plain.route
        assert (answer.kind, answer.devs) == (
            (route.kind, route.devs) if route else ("blocked", ())
        ), part
        # A refused destination has no source.
        expected = {source for _, source in part.answers if source}
        assert not answer.devs or chosen == expected, part
