"""The proof of IPv6, and of both families, agrees with an oracle that looks up address by
address.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain

import pytest
from hypothesis import given, settings
from support.examples import FEW
from support.ipv6_decisions import Decision, each_decision, two_links
from support.ipv6_oracle import IPv6Oracle, Way
from support.ipv6_worlds import DEVICES, IPv6World, arranged, ipv6_worlds, mixed_worlds
from support.kernel import kernel_of, needs_kernel
from support.overlap_proofs import told_alike
from support.routers import WiredNode

from hostrouting import OverlapReport, explain_routing, prove_egress
from hostrouting.fib import Fib, UnknownDecisionError

pytestmark = needs_kernel


def proven(
    node: WiredNode, cidrs: Sequence[str], *patterns: str, exits: Sequence[str] | None = ("e0",)
) -> OverlapReport:
    return prove_egress(kernel_of(node), cidrs, allowed_devs=patterns, expected_devs=exits)


def disagreements(
    node: WiredNode, world: IPv6World, report: OverlapReport
) -> list[tuple[str, set[Way], bool]]:
    fine = {
        dev
        for dev in DEVICES
        if dev == "e0" or any(fnmatchcase(dev, pattern) for pattern in world.allowed)
    }
    oracle = IPv6Oracle(node.name)
    found = []
    for one in report.cidrs:
        if ":" not in one.cidr:
            continue
        ranges = [finding.bounds for finding in one.findings]
        places = oracle.places(one.cidr)
        for place, ways in zip(places, oracle.all_ways(places), strict=True):
            wrong = {way for way in ways if not way.devs or not fine.issuperset(way.devs)}
            claimed = any(first <= place <= last for first, last in ranges)
            # Of an address of the node on several links, the oracle has one.
            is_own = any(way.kind in {"local", "anycast"} for way in ways)
            if claimed != bool(wrong) and not (claimed and is_own):
                found.append((str(ipaddress.IPv6Address(place)), ways, claimed))
    return found


@pytest.fixture(scope="module")
def links() -> Iterator[WiredNode]:
    with two_links() as made:
        yield made


@each_decision
def test_proof_and_oracle_decide_as_the_kernel(links: WiredNode, decision: Decision) -> None:
    """Both find the device that the kernel takes, or those of all routes that are equal to it."""
    with decision.arranged(links):
        for question, answer in decision.answers.items():
            address, *words = question.split()
            devs = decision.equal or (() if answer in {"", "local"} else (answer,))
            if "oif" in words:
                continue
            [way] = IPv6Oracle(links.name).ways(
                [int(ipaddress.IPv6Address(address))], [words[1] if words else None]
            )
            assert (way.devs if way.kind == "unicast" else ()) == devs
            if words or answer == "local":
                continue
            [[part]] = [each.parts for each in explain_routing(kernel_of(links), [address])]
            assert part.devs == devs
            report = proven(links, [f"{address}/128"], exits=devs or ["e0"])
            assert report.ok == bool(devs)


@settings(max_examples=FEW)
@given(ipv6_worlds())
def test_the_proof_agrees_with_the_kernel(world: IPv6World) -> None:
    """It finds a fault at each address that may leave by another device, and nowhere else; so does
    that of a model.
    """
    with arranged(world) as node:
        report = proven(node, world.cidrs, *world.allowed)
        assert not disagreements(node, world, report), report
        backend = kernel_of(node)
        routes = chain.from_iterable(map(backend.routes, backend.families))
        rules = chain.from_iterable(map(backend.rules, backend.families))
        with suppress(UnknownDecisionError):
            model = Fib.of(backend.links(), routes, rules)
            modelled = prove_egress(
                model, world.cidrs, allowed_devs=world.allowed, expected_devs=["e0"]
            )
            assert told_alike(modelled.cidrs) == told_alike(report.cidrs)


@settings(max_examples=FEW)
@given(mixed_worlds())
def test_both_families_are_proven_as_each_alone(world: IPv6World) -> None:
    """A mixed proof has the findings of both, in its order, and IPv6 agrees with the kernel."""
    with arranged(world) as node:
        report = proven(node, world.cidrs, *world.allowed)
        assert not disagreements(node, world, report), report
        assert [one.cidr for one in report.cidrs] == [
            str(ipaddress.ip_network(cidr)) for cidr in world.cidrs
        ]
        for one in report.cidrs:
            [alone] = proven(node, [one.cidr], *world.allowed).cidrs
            assert alone == one
