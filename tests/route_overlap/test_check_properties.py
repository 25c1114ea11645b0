"""The check against lookups of every single address in the kernel."""

from fnmatch import fnmatchcase
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from support import small_world
from support.egress_oracle import KernelOracle, wrong_of
from support.examples import FEW
from support.kernel import kernel_of, needs_kernel
from support.node_worlds import World, worlds
from support.overlap_answers import claimed
from support.routers import add_pod

from hostrouting import OverlapReport, prove_egress
from hostrouting.host import Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import parse_ipv4
from hostrouting.testing import KernelNode, MemoryBackend


def check_against_every_address(
    backend: NetlinkBackend, oracle: KernelOracle, world: World
) -> OverlapReport:
    """The check agrees, for each address, with the node's answer for that address alone."""
    report = prove_egress(backend, world.cidrs, allowed_devs=world.allowed)
    expected = oracle.expected()
    assert report.expected_devs == expected
    matching = {
        dev
        for dev in small_world.DEVICES
        if any(fnmatchcase(dev, pattern) for pattern in world.allowed)
    }
    dead_ends = oracle.without_carrier().intersection(expected)
    for cidr in report.cidrs:
        wrong = wrong_of(
            oracle,
            cidr.cidr,
            frozenset(expected) | matching if expected else frozenset(),
            dead_ends,
        )
        claims = claimed(report, cidr.cidr)
        if not expected:
            # Every address is a finding.
            assert len(claims) == 1 << 32 - int(cidr.cidr.partition("/")[2])
            claims = {
                at: (kind.replace("unknown-exit", "overlap"), devs)
                for at, (kind, devs) in claims.items()
            }
        assert claims.keys() == wrong.keys()
        assert all(claims[address] in wrong[address] for address in claims)
        # Maximal: where two findings touch, the answer changes.
        for one, other in pairwise(cidr.findings):
            touch = parse_ipv4(one.last) + 1 == parse_ipv4(other.first)
            assert not touch or (one.kind, one.devs, one.route) != (
                other.kind,
                other.devs,
                other.route,
            )
    return report


@given(world=worlds())
def test_suggested_routes_repair_the_findings(world: World) -> None:
    """A node with every suggested route in place does not have the findings against which they were
    suggested.
    """
    node = MemoryBackend()
    world.arrange(node)
    report = prove_egress(node, world.cidrs, allowed_devs=world.allowed)
    for route in report.suggested_routes:
        node.insert_route(
            Route.parse(route.destination, gateway=route.gateway, dev=route.dev), verb="prepend"
        )
    again = prove_egress(node, world.cidrs, allowed_devs=world.allowed)
    for before, after in zip(report.cidrs, again.cidrs, strict=True):
        assert len(after.findings) <= len(before.findings)
        for route in before.suggested_routes:
            assert set(route.takes_from).isdisjoint({"e0"} & set(report.expected_devs))
        if before.suggested_routes:
            assert after.findings != before.findings
            assert claimed(again, after.cidr).keys() < claimed(report, before.cidr).keys()
            assert not after.suggested_routes


@needs_kernel
@settings(max_examples=FEW, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(rare=True))
def test_in_the_kernel_the_proof_equals_a_lookup_of_every_address(world: World) -> None:
    """The kernel and the check over it give one answer, finding by finding."""
    with KernelNode.made() as node, KernelNode.made() as pods:
        world.arrange(node)
        add_pod(node, pods)
        check_against_every_address(kernel_of(node), KernelOracle(node), world)
