"""The source of packets for each next hop: the proof looks up with it, and the kernel sends from
it.
"""

from bisect import bisect_right
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.egress_oracle import KernelOracle
from support.examples import FEW
from support.kernel import connect, kernel_of, needs_kernel

from hostrouting import BackendError
from hostrouting.host import Address, NextHop, Route, Rule
from hostrouting.host.ports import Routing
from hostrouting.net.addresses import Prefix, parse_cidr, parse_ipv4
from hostrouting.route_overlap.parts import CidrPart, looked_up
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.testing import KernelNode


def parts_of(backend: Routing, cidr: str) -> list[CidrPart]:
    """Return every part into which the proof cuts a CIDR, fine or not."""
    [parts] = looked_up(RoutingSnapshot(backend), [Prefix.parse(cidr)]).parts
    return parts


CIDR = "172.20.0.0/30"
#: Selects by a source that no device has: so the proof looks at sources, and no rule changes an
#: answer.
RULE = Rule(100, table=100, source=parse_cidr("192.0.2.77/32"))
_GATEWAYS = "10.1.0.200", "10.2.0.200", "10.2.5.200", "10.3.0.2", "192.0.2.9"
_addresses = st.builds(
    "address add {} scope {} dev {}".format,
    st.sampled_from(
        [
            "10.1.0.1/16",
            "10.1.0.2/16",
            "10.2.5.1/24",
            "10.2.0.1/16",
            "10.3.0.1 peer 10.3.0.2/32",
            "10.9.0.1/32",
        ]
    ),
    st.sampled_from(["global", "global", "global", "link", "host"]),
    small_world.devices(),
)
_hops = st.builds(
    NextHop,
    gateway=st.none() | st.sampled_from(_GATEWAYS).map(Address.parse),
    dev=small_world.devices(),
    weight=st.integers(1, 2),
    onlink=st.booleans(),
    extra=st.just(()),
    dead=st.just(value=False),
).map(lambda hop: hop._replace(onlink=hop.gateway is not None and hop.onlink))


def sources_of(part: CidrPart) -> set[int]:
    return {source for _, source in part.answers if source}


@st.composite
def _routes(draw: st.DrawFn) -> Route:
    hops = draw(st.lists(_hops, min_size=2, max_size=3))
    source = draw(st.none() | st.none() | st.just("10.1.0.1"))
    scope = draw(st.sampled_from([0, 0, 0, 253]))
    return Route.parse("172.20.0.0/16", nexthops=tuple(hops), source=source, scope=scope)


@needs_kernel
@settings(max_examples=FEW, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_addresses, max_size=5), _routes(), st.none() | st.none() | small_world.devices())
def test_in_the_kernel_they_are_those_of_the_flows(
    commands: list[str], route: Route, down: str | None
) -> None:
    """Ninety flows meet every next hop that lives, and have no source between them that the proof
    left out.
    """
    first = parse_ipv4("172.20.0.0")
    with KernelNode.made() as node:
        for dev in small_world.DEVICES:
            node.add_link(dev)
        for command in commands:
            with suppress(BackendError):
                node.ip(command)
        node.add_rule(RULE)
        with suppress(BackendError):
            node.insert_route(route)
        if down:
            node.set_up(down, up=False)
        oracle = KernelOracle(node)
        chosen = oracle.sources([first], oracle.decided([(first, None)]))
        assert [sources_of(part) for part in parts_of(kernel_of(node), CIDR)] == chosen


@needs_kernel
@pytest.mark.parametrize("loopback", [True, False])
def test_the_kernel_treats_addresses_differently_only_at_known_edges(loopback: bool) -> None:
    """Around every power of two, every /8 and every edge, kernels answer as the part does that the
    address is in.
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
        parts = parts_of(kernel_of(node), "0.0.0.0/0")
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
        assert not answer.devs or chosen == sources_of(part), part
