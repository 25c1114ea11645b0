"""Find addresses that changes would move away from their device or from a gateway that answers.

Only next hops matter here, whatever the check says about the addresses: a router that answers is
worth more than an expected device.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.base.errors import BackendError
from hostrouting.net.addresses import IPV4, Address, Prefix
from hostrouting.net.routes import ObservedRoute
from hostrouting.route_overlap.cidr_parts import cut, range_of
from hostrouting.route_overlap.snapshot import RoutingSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.fib import Fib
    from hostrouting.host import Host
    from hostrouting.route_overlap.report import OverlapReport
    from phases import Context

#: A device and a gateway on it.
Hop: TypeAlias = "tuple[str, Address]"


class LostHop(NamedTuple):
    """Addresses that would get another next hop."""

    #: The first of them.
    address: Address
    before: Hop
    after: Hop
    #: True if the new gateway does not answer.
    is_silent: bool
    #: True if the check has no finding about them now.
    is_right: bool

    def __str__(self) -> str:
        before, after = (f"{gateway} dev {dev}" for dev, gateway in (self.before, self.after))
        if not self.is_silent:
            return f"{self.address} leaves through {before} now, and would leave through {after}"
        dev, gateway = self.before
        name = f"{dev} in expectedDevs of routeOverlap"
        if dev == self.after[0]:
            name = f"{gateway} as gateway of the static route"
        return (
            f"{self.address} would leave through {after}, which does not answer, unlike {before}, "
            f"which it uses now: check the router, or name {name}"
        )


def lost_hops(
    ctx: Context,
    host: Host,
    models: tuple[Fib, Fib],
    prefixes: Sequence[Prefix],
    check_before: Callable[[], OverlapReport],
) -> Iterator[LostHop]:
    """Yield the addresses of one family that lose a gateway that answers, or their correct device.

    `models` are the node before and after the changes; `check_before` returns the result before.
    """
    moves = _moves(models, prefixes)
    mute = _silent(ctx, host, {after for _, after in moves})
    losing = [move for move in moves if move[1] in mute or move[0][0] != move[1][0]]
    if not losing:
        return
    mute |= _silent(ctx, host, {before for before, _ in losing})
    bounds = [finding.bounds for _, finding in check_before().findings]
    for before, after in losing:
        address = moves[before, after]
        is_right = not any(first <= address.number <= last for first, last in bounds)
        may_mean_it = after not in mute and not is_right
        if before not in mute and not may_mean_it:
            yield LostHop(address, before, after, after in mute, is_right)


def _moves(models: tuple[Fib, Fib], prefixes: Sequence[Prefix]) -> dict[tuple[Hop, Hop], Address]:
    """Return the first address for each pair of a lost next hop and its replacement."""
    family = prefixes[0].family
    nodes = [RoutingSnapshot(model, family) for model in models]
    # Gateway, device and next hops, by position because it is faster.
    gateways = {(route[2], route[3], route[12]) for node in nodes for route in node.routes}
    if sum(bool(gateway or hops) for gateway, _, hops in gateways) < 2:
        return {}
    ranges = [*map(range_of, prefixes)]
    firsts = sorted({first for node in nodes for starts in cut(node, ranges) for first in starts})
    moves: dict[tuple[Hop, Hop], Address] = {}
    for old, new in zip(*(node.lookup(firsts) for node in nodes), strict=True):
        before, after = (_hops(answer.route) for answer in (old, new))
        for pair in product(before - after, after):
            moves.setdefault(pair, Address(family, old.destination))
    return moves


def _hops(route: ObservedRoute | None) -> set[Hop]:
    return {(hop.dev, hop.gateway) for hop in route.hops if hop.gateway} if route else set()


def _silent(ctx: Context, host: Host, hops: set[Hop]) -> set[Hop]:
    """Return the gateways that do not answer; IPv6 gateways are judged by their neighbour state."""
    links = {link.name: link for link in host.routes.links()}
    known = {hop for hop in hops if hop[0] in links}
    down = {hop for hop in known if not links[hop[0]].carrier}
    failed = {hop for hop in known if hop[1] in links[hop[0]].failed}
    asked = {hop for hop in known - down if hop[1].family == IPV4}
    # For a recorded node, only the recorded state of gateways is known.
    with suppress(BackendError):
        names = {(dev, str(gateway)): (dev, gateway) for dev, gateway in asked}
        mute = host.link_layer.silent(ctx, sorted(names)) if names else ()
        failed = failed - asked | {names[name] for name in mute}
    return down | failed
