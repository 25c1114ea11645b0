"""Addresses that changes would lead away from their device, or from a gateway that answers.

They count by their next hops, whatever the proof says of them: a router that answers is worth more
than a device that is expected. Where only the default route names the device that is expected, that
may have moved, and a route of hostrouting by another device may still be right.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.exceptions import BackendError
from hostrouting.net.addresses import IPV4, Address
from hostrouting.net.routes import OUR_PROTOCOL, NextHop
from hostrouting.route_overlap.parts import cut
from hostrouting.route_overlap.snapshot import RoutingSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.fib import Fib
    from hostrouting.host import Host
    from hostrouting.route_overlap import OverlapReport
    from phases import Context

_Hop: TypeAlias = "tuple[str, Address | None]"


class LostHop(NamedTuple):
    """Addresses that would leave by another gateway."""

    #: The first of them.
    address: Address
    before: NextHop
    after: NextHop
    #: True if a route of hostrouting leads them there now.
    is_ours: bool
    #: True if the gateway that they would get does not answer.
    is_silent: bool = False
    #: True if the proof has no finding about them.
    is_right: bool = False

    def __str__(self) -> str:
        before, after = (f"{hop.gateway} dev {hop.dev}" for hop in (self.before, self.after))
        if not self.is_silent:
            return f"{self.address} leaves by {before}, and would by {after}"
        return (
            f"{self.address} would leave by {after}, which does not answer, and {before}, by which "
            f"it leaves now, does: see the router, or name {self.before.dev} in expectedDevs of "
            "routeOverlap"
        )


def moved(cidrs: Sequence[str], family: int, was: Fib, model: Fib) -> Iterator[LostHop]:
    """Yield the next hops that a model lacks, each with each that it has instead."""
    nodes = RoutingSnapshot(was, family), RoutingSnapshot(model, family)
    gateways = {
        (route.dev, route.gateway, route.nexthops) for node in nodes for route in node.routes
    }
    if len(gateways) < 2:
        return
    firsts = sorted({first for node in nodes for starts, _ in cut(node, cidrs) for first in starts})
    known: set[tuple[_Hop, _Hop]] = set()
    for old, new in zip(*(node.lookup(firsts) for node in nodes), strict=True):
        if old.route is None or new.route is None or old.route == new.route:
            continue
        kept = {_pair(hop) for hop in new.route.hops}
        for before in old.route.hops:
            for after in new.route.hops:
                pairs = _pair(before), _pair(after)
                if before.gateway and after.gateway and pairs[0] not in kept and pairs not in known:
                    known.add(pairs)
                    is_ours = old.route.protocol == OUR_PROTOCOL
                    yield LostHop(Address(family, old.destination), before, after, is_ours)


def lost_hops(
    ctx: Context, host: Host, moves: Sequence[LostHop], report: OverlapReport, *, is_named: bool
) -> Iterator[LostHop]:
    """Yield the moves that lose a gateway that answers, or the device of a right address.

    `report` is the proof before. Unless the expected device `is_named`, by the config or a pin,
    that of a route of hostrouting counts as right.
    """
    wrong = [finding.bounds for _, finding in report.findings]
    mute = silent(ctx, host, (move.after for move in moves))
    leaving = [
        move for move in moves if _pair(move.after) in mute or move.before.dev != move.after.dev
    ]
    mute |= silent(ctx, host, (move.before for move in leaving))
    for move in leaving:
        if _pair(move.before) in mute:
            continue
        number = move.address.number
        is_right = not any(first <= number <= last for first, last in wrong)
        is_silent = _pair(move.after) in mute
        if is_silent or is_right or (move.is_ours and not is_named):
            yield move._replace(is_silent=is_silent, is_right=is_right)


def silent(ctx: Context, host: Host, hops: Iterable[NextHop]) -> set[_Hop]:
    """Return those of the gateways that do not answer; of IPv6 those that the kernel gave up."""
    links = {link.name: link for link in host.routes.links()}
    named = {_pair(hop) for hop in hops if hop.dev in links}
    down = {(dev, gateway) for dev, gateway in named if not links[dev].carrier}
    failed = {(dev, gateway) for dev, gateway in named if gateway in links[dev].failed}
    asked = {(dev, str(each)): (dev, each) for dev, each in named if each and each.family == IPV4}
    # A recorded node has the state of its gateways alone.
    with suppress(BackendError):
        mute = (
            {asked[pair] for pair in host.link_layer.silent(ctx, sorted(asked))} if asked else set()
        )
        return down | mute | failed.difference(asked.values())
    return down | failed


def _pair(hop: NextHop) -> _Hop:
    return hop.dev, hop.gateway
