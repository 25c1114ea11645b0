"""Packets that rules select by more than their addresses: the model answers for them.

Few nodes have such rules.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from hostrouting.fib.model import Fib
from hostrouting.fib.rules import Packet, Policy
from hostrouting.fib.tables import Tables
from hostrouting.net.addresses import IPV4, Prefix
from hostrouting.net.routes import Lookup
from hostrouting.net.rules import Rule
from hostrouting.route_overlap.cidr_parts import CidrPart, cut, range_of
from hostrouting.route_overlap.judgement import DecidedPart

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.route_overlap.snapshot import RoutingSnapshot


def astray(
    node: RoutingSnapshot, cidrs: Sequence[Prefix], starts: Collection[int]
) -> Iterator[tuple[str, list[str], list[DecidedPart]]]:
    """Yield which packets rules select (in words), why their route is unknown, and misrouted parts.

    A lookup answers for unmarked packets that root sends on this node, and takes nothing but
    addresses. So here the model answers, which decides like the kernel
    (`tests/testing/test_kernel_equivalence.py`).

    For any packet, the first rule that selects it and has a route for it decides. So all rules with
    the same selectors are followed together as if they selected every packet, along with the rules
    that select only by address; the latter are also followed alone. The result does not depend on
    any choice of packets: if each of these routes is fine at an address, it is fine for every
    packet.

    Parts that begin at `starts` are left out because they already are findings. Only packets that
    leave the node count: a rule that refuses packets, or keeps them on the node, does so on
    purpose, and so does a program that binds its socket to a device.
    """
    doubted = _doubted(node, [part for part in _parts_of(node, cidrs) if part.first not in starts])
    if not doubted:
        return
    near = node.around(part.first for part in doubted)
    # An announced route comes after existing routes with the same metric.
    fib = Fib.of(node.links, sorted(near, key=lambda route: route.metric), node.rules)
    # Rules that select only by protocol are checked separately (`RoutingSnapshot.views`).
    special = (rule for rule in node.rules if not rule.is_by_protocol)
    followed = [rule.packets for rule in special if rule.inverted or not rule.oif]
    for packets in dict.fromkeys(["", *followed]):
        selecting = [rule for rule in node.rules if rule.goto or rule.packets in {"", packets}]
        way = attrs.evolve(fib, policy=Policy(map(_by_addresses, selecting)))
        unknown: set[str] = set()
        wrong: list[DecidedPart] = []
        for part in doubted:
            decision = way.decide(Packet(part.first, family=node.family))
            if decision.unknown:
                unknown.add(decision.unknown)
            route = node.joined(decision.route)
            if route is None or route.kind in {"local", "anycast"}:
                continue
            if node.allowed.refused(route):
                wrong.append(DecidedPart(part, Lookup(part.first, route), route))
        yield packets, sorted(unknown), wrong


def _parts_of(node: RoutingSnapshot, cidrs: Sequence[Prefix]) -> Iterator[CidrPart]:
    """Yield the parts of all CIDRs, without answers."""
    ranges = [*map(range_of, cidrs)]
    for firsts, (_, end) in zip(cut(node, ranges), ranges, strict=True):
        for first, following in pairwise([*firsts, end]):
            yield CidrPart(first, following - 1, ())


def _doubted(node: RoutingSnapshot, parts: Iterable[CidrPart]) -> list[CidrPart]:
    """Return the parts that a route through a refused device may decide; all others are fine."""
    devs = {route.dev for route in node.routes}
    refused = {dev for dev in devs if not node.allowed.allows(dev)}
    doubtful = Tables.of(
        route._replace(table=0, from_prefix=None) for route in node.routes if route.dev in refused
    )
    doubted: list[CidrPart] = []
    for part in parts:
        packet = Packet(part.first, family=node.family)
        if node.family == IPV4:
            route = doubtful.search((0,), packet, 0)
        else:
            route = doubtful.search_ipv6(0, packet)
        if route:
            doubted.append(part)
    return doubted


def _by_addresses(rule: Rule) -> Rule:
    """Return the rule without its selectors, except for the destination."""
    if not rule.packets:
        return rule
    if rule.goto or rule.l3mdev:
        return Rule(rule.priority, rule.packets, family=rule.family)
    return Rule(
        *rule[:5], destination=(0, 0) if rule.inverted else rule.destination, family=rule.family
    )
