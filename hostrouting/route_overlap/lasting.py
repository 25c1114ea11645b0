"""What lasts of IPv6: the routes that decide, and what is right only as long as something else stays as it is."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hostrouting.fib import UnknownDecisionError
from hostrouting.findings import NodeFinding
from hostrouting.net.addresses import format_address
from hostrouting.net.default_route import best_default_devs
from hostrouting.net.routes import RA_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.route_overlap.node import AllowedDevices, Node
    from hostrouting.route_overlap.parts import Part


def deciding_and_warnings(
    node: Node, looked: Sequence[Sequence[Part]], allowed: AllowedDevices
) -> tuple[tuple[ObservedRoute, ...], list[NodeFinding]]:
    """Return the IPv6 routes that decide, those to the networks of the sources among them, and the warnings."""
    sent = _sent(node, looked, allowed)
    deciding = dict.fromkeys([*_deciding(node, looked), *node.networks_of(sent)])
    return tuple(deciding), [*_warnings(node, sent, allowed)]


def _deciding(node: Node, looked: Iterable[Iterable[Part]]) -> Iterator[ObservedRoute]:
    """Yield the IPv6 routes that decide, and their equals, without those of the node itself."""
    for answers in (part.answers for parts in looked for part in parts):
        routes = (one.route for each in answers for one in node.candidates(*each))
        yield from (route for route in routes if route and route.kind == "unicast")


def _sent(node: Node, looked: Iterable[Iterable[Part]], allowed: AllowedDevices) -> dict[tuple[str, int], int]:
    """Return an expected address for each device and source by which the kernel sends as it should."""
    plain = [part.plain for parts in looked for part in parts if allowed.answer_is_fine(part.plain)]
    chosen: Sequence[Lookup] = ()
    # A model does not know it.
    with suppress(UnknownDecisionError):
        chosen = node.lookup([answer.destination for answer in plain], resolve=True)
    routes = [(answer.route, answer.destination) for answer in chosen]
    return {
        (route.dev, route.source): goal
        for route, goal in routes
        if route and route.kind == "unicast" and route.dev and route.source
    }


def _warnings(node: Node, sent: Mapping[tuple[str, int], int], allowed: AllowedDevices) -> Iterator[NodeFinding]:
    """Yield what is right with IPv6 only as long as something else stays as it is."""
    best = best_default_devs(node.defaults)
    for route in node.defaults:
        is_better = set(best).issuperset(route.devs) or not allowed.expected
        if route.protocol == RA_PROTOCOL and not is_better and allowed.refused(route):
            reason = "decides as soon as the better gateway fails: end it at its owner, or give it a router preference"
            yield NodeFinding("fallback-by-fabric", str(route), "is learned, and " + reason, "warning")
    for route in node.silent:
        reason = "its gateway does not answer, so the kernel passes over it for now: see the router, and the link to it"
        yield NodeFinding("silent-gateway", str(route), reason, "warning")
    held = {(link.name, own.local) for link in node.links() for own in link.addresses}
    for (dev, source), address in sent.items():
        if (dev, source) not in held:
            text, goal = (format_address(node.family, number) for number in (source, address))
            reason = f"is not of {dev}, by which the node sends from it to {goal}: give {dev} an address of its own"
            yield NodeFinding("foreign-source", text, reason, "warning")
