"""Suggest the fewest routes that resolve the findings of a proof: by the default gateway, as specific or more.

A route in the main table changes only decisions of the main table, and only those of less specific routes and of routes
to the same network, before which it is added. So each offending route of the main table is treated separately. The
suggestion is the smallest network around all addresses that the route decides inside the CIDR. Where the kernel's own
route has that place, which is never hidden, the two halves of the network are suggested. Addresses inside that a more
specific route decides are not affected.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.config.rules import destination
from hostrouting.fib.model import Fib, source_by
from hostrouting.net.addresses import IPV4, Address, format_cidr, format_ipv4, netmask
from hostrouting.net.default_route import default_routes
from hostrouting.net.routes import MAIN_TABLE, ObservedRoute
from hostrouting.route_overlap.announced import is_present
from hostrouting.route_overlap.report import SuggestedRoute

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hostrouting.net.links import Device
    from hostrouting.net.routes import Lookup
    from hostrouting.route_overlap.parts import AllowedDevices, Answer, DecidedPart, Node

_KERNEL: Final = 2
_MENDABLE_KINDS: Final = frozenset({"unicast", "blackhole", "unreachable", "prohibit"})


#: A network and its prefix length.
_Network: TypeAlias = "tuple[int, int]"


class _Way(NamedTuple):
    """The next hop of suggested routes, and the address from which the kernel then sends."""

    gateway: Address
    dev: str
    source: int | None


def suggestions(
    node: Node, bad: Sequence[Sequence[DecidedPart]], allowed: AllowedDevices
) -> list[list[SuggestedRoute]]:
    """Return routes for the bad parts of each CIDR, by destination; none that the main table cannot resolve."""
    links = node.links()
    way = _find_way(node, allowed, links)
    if way is None:
        return [[] for _ in bad]
    # No route without metric is added before the kernel's own one.
    own = (_KERNEL, MAIN_TABLE, 0, 0)
    kept = {route[:2] for route in node.routes if (route.protocol, route.table, route.tos, route.metric) == own}
    kept.add((0, 0))
    mender = _Mender(node, allowed, links, way, kept)
    return [mender.suggest(parts) if parts else [] for parts in bad]


def _find_way(node: Node, allowed: AllowedDevices, links: Sequence[Device]) -> _Way | None:
    """Return the first next hop of a default route whose gateway is on the link of an expected device."""
    model = Fib.of(links, node.routes, node.rules)
    for default, hop in ((route, hop) for route in default_routes(node.routes) for hop in route.hops):
        if hop.gateway is None or hop.gateway.family != IPV4 or not allowed.leads_out(hop.dev):
            continue
        # A route of a config is never `onlink`.
        if model.takes(hop._replace(onlink=False)):
            return _Way(hop.gateway, hop.dev, source_by(hop, default.scope, links))
    return None


@attrs.frozen
class _Mender:
    """Suggests routes for the bad parts of a CIDR."""

    _node: Node
    _allowed: AllowedDevices
    _links: Sequence[Device]
    _way: _Way
    #: The networks to which no route of a config can lead.
    _kept: Container[_Network]

    def suggest(self, bad: Sequence[DecidedPart]) -> list[SuggestedRoute]:
        by_offender: dict[ObservedRoute, list[tuple[int, int]]] = defaultdict(list)
        for one, offender in zip(bad, self._offenders(bad), strict=True):
            if offender is not None:
                by_offender[offender].append((one.part.first, one.part.last))
        found = []
        for offender in self._node.held_in_main(by_offender):
            networks = [one for one in _cover(by_offender[offender], self._kept) if _may_be_configured(one)]
            found += [(network, self._route(network, networks, offender)) for network in networks]
        return [route for _, route in sorted(found, key=itemgetter(0))]

    def _offenders(self, bad: Sequence[DecidedPart]) -> Iterator[ObservedRoute | None]:
        """Return for each part the route that a more specific one must precede; None if no such route helps."""
        new_answers: Sequence[Lookup | None] = [None] * len(bad)
        if self._node.by_source:
            # With the new route the kernel chooses another source, and a rule may select by that.
            destinations = [one.part.first for one in bad]
            new_answers = self._node.backend.lookup(destinations, sources=[self._way.source] * len(bad))
        for one, new_answer in zip(bad, new_answers, strict=True):
            yield self._offender(one, new_answer)

    def _offender(self, one: DecidedPart, new_answer: Lookup | None) -> ObservedRoute | None:
        # A rule decides before any table.
        offender = one.decider
        if not isinstance(offender, ObservedRoute) or offender.kind not in _MENDABLE_KINDS:
            return None
        then: Sequence[Answer] = one.part.answers
        if self._node.decider(one.part.plain, 0) == offender:
            then = [] if new_answer is None else [(new_answer, self._way.source or 0)]
        for answer, source in then:
            if not self._allowed.answer_is_fine(answer) and self._node.decider(answer, source) != offender:
                return None
        return offender

    def _route(self, network: _Network, networks: Sequence[_Network], offender: ObservedRoute) -> SuggestedRoute:
        takes_from = tuple(dev for dev in self._allowed.refused(offender) if is_present(dev))
        return SuggestedRoute(
            destination=format_cidr(*network),
            gateway=str(self._way.gateway),
            dev=self._way.dev,
            takes_from=takes_from,
            warning=self._warning(network, networks, offender, takes_from),
            offender=offender,
        )

    def _warning(
        self,
        network: _Network,
        networks: Sequence[_Network],
        offender: ObservedRoute,
        takes_from: Sequence[str],
    ) -> str | None:
        def lies_in_it(address: int) -> bool:
            return not (address ^ network[0]) & netmask(network[1])

        links = [link for link in self._links if link.name in takes_from]
        own = [
            (link.name, format_ipv4(address.local))
            for link in links
            for address in link.addresses
            if lies_in_it(address.local) or lies_in_it(address.peer)
        ]
        peers = [(link.name, format_ipv4(peer)) for link in links for peer in link.neighbours if lies_in_it(peer)]
        advice = "Only narrower expectedCidrs are safe, of addresses that the cluster alone uses"
        if offender.protocol == _KERNEL and sum(1 << 32 - length for _, length in networks) == 1 << (
            32 - offender.prefix_length
        ):
            owner = ", ".join(takes_from) or "the fabric"
            return (
                f"{offender.destination} is the connected network of {owner} as a whole: "
                f"its peers could no longer be reached by it. {advice}"
            )
        if own:
            name, address = own[0]
            return f"{name}'s own address {address} lies in it, so it would take peers of {name}, too. {advice}"
        if peers:
            name, peer_address = peers[0]
            return f"{name} talks to {peer_address}, which lies in it and would be taken from {name}. {advice}"
        return None


def _may_be_configured(network: _Network) -> bool:
    with suppress(ValueError):
        return bool(destination(format_cidr(*network)))
    return False


def _cover(ranges: Sequence[tuple[int, int]], kept: Container[_Network]) -> Iterator[_Network]:
    """Return the fewest networks around all (sorted) ranges, none of them one of `kept`.

    >>> list(_cover([(0x0A000005, 0x0A0000FF)], ())) == [(0x0A000000, 24)]
    True
    >>> list(_cover([(0x0A000000, 0x0A0000FF)], [(0x0A000000, 24)])) == [(0x0A000000, 25), (0x0A000080, 25)]
    True
    """
    first, last = ranges[0][0], ranges[-1][1]
    length = 32 - (first ^ last).bit_length()
    network = first & netmask(length), length
    if network not in kept:
        yield network
    elif length < 32:
        middle = network[0] | 1 << 31 - length
        yield from _cover([(low, min(high, middle - 1)) for low, high in ranges if low < middle], kept)
        yield from _cover([(max(low, middle), high) for low, high in ranges if high >= middle], kept)
