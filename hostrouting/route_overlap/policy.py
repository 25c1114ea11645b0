"""Packets that rules select by more than addresses: where the model says that they leave. Few nodes have such rules."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from hostrouting.fib.model import Fib
from hostrouting.fib.rules import Packet, Policy
from hostrouting.fib.tables import Tables
from hostrouting.net.addresses import IPV4, address_bits
from hostrouting.net.routes import Lookup
from hostrouting.net.rules import Rule
from hostrouting.route_overlap.parts import DecidedPart, Part, cut

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hostrouting.route_overlap.node import AllowedDevices, Node


def astray(
    node: Node, cidrs: Sequence[str], allowed: AllowedDevices, found: Collection[int]
) -> Iterator[tuple[str, Iterable[str], list[DecidedPart]]]:
    """Yield in words which packets rules select, the reasons why their way is unknown, and the parts where it is wrong.

    A lookup is for packets of root that have no mark and come in by no device. Its port asks by addresses alone, so
    here the model answers, which decides as the kernel does (`tests/testing/test_kernel_equivalence.py`).

    Whatever a packet is, the first rule that selects it and has a route for it decides. So all rules with the same
    selectors are followed together, as if they selected every packet, with the rules by addresses alone; those are
    followed by themselves, too. So nothing depends on a choice of packets: if all these ways are fine at an address,
    each packet's way is.

    Parts that begin in `found` are left out. Only packets that leave count: a rule that refuses packets, or keeps them
    on the node, does so on purpose. So does a program that binds its socket to a device.
    """
    parts = [
        Part(first, following - 1, ())
        for starts, end in cut(node, cidrs)
        for first, following in pairwise([*starts, end])
        if first not in found
    ]
    # Where there is none of these, each way is fine. By position, as in `cut`.
    packet = Packet(0, family=node.family)
    doubtful = Tables.of(route._replace(table=0, from_prefix=None) for route in node.routes if not allowed[route[3]])
    asked = [
        part
        for part in parts
        if (
            doubtful.search((0,), part.first)
            if node.family == IPV4
            else doubtful.search_ipv6(0, packet._replace(destination=part.first))
        )
    ]
    if not asked:
        return
    shift = address_bits(node.family) - 16
    around = {part.first >> shift for part in asked}
    near = (route for route in node.routes if route[0] >> shift in around or route[1] < 16)
    # An announced route follows the others of its metric.
    fib = Fib.of(node.backend.links(), sorted(near, key=lambda route: route.metric), node.rules)
    for packets in dict.fromkeys(["", *(rule.packets for rule in node.rules if rule.inverted or not rule.oif)]):
        followed = (_by_addresses(rule) for rule in node.rules if rule.goto or rule.packets in {"", packets})
        way = attrs.evolve(fib, policy=Policy(followed))
        decisions = [(part, way.decide(packet._replace(destination=part.first))) for part in asked]
        wrong = [
            DecidedPart(part, Lookup(part.first, route), route)
            for part, one in decisions
            if (route := one.route) and route.kind not in {"local", "anycast"} and allowed.refused(route)
        ]
        yield packets, sorted({one.unknown for _, one in decisions} - {""}), wrong


def _by_addresses(rule: Rule) -> Rule:
    """Return a rule that selects all packets that go where this one selects some; an unknown one if that misleads."""
    if not rule.packets:
        return rule
    if rule.goto or rule.l3mdev:
        return Rule(rule.priority, rule.packets, family=rule.family)
    return Rule(*rule[:5], destination=(0, 0) if rule.inverted else rule.destination, family=rule.family)
