"""The parts of a range of addresses.

With longest-prefix matching, the deciding route can change only where a route, or the selector of a
policy rule, begins or ends. So a range is divided there, and the answer for one address of a part
holds for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import IPV4, IPV6, Prefix, address_bits, mask_of
from hostrouting.net.routes import Lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.route_overlap.snapshot import RoutingSnapshot, SourcedLookup

#: The first addresses of the ranges that the kernel treats specially (multicast, for example), and
#: of the ranges after them.
SPECIAL_EDGES: Final[dict[int, tuple[int, ...]]] = {
    IPV4: (1, 224 << 24, 240 << 24, 0xFFFFFFFF),
    IPV6: (1, 2, 0xFE80 << 112, 0xFEC0 << 112, 0xFF << 120),
}


class CidrPart(NamedTuple):
    """Addresses from `first` to `last`, which all get the same answers.

    The last answer is the one without a source. If a rule or route selects by source, it comes
    after the answers for each source from which packets may then come. A connection gets the first
    answer.
    """

    first: int
    last: int
    answers: tuple[SourcedLookup, ...]

    @property
    def plain(self) -> Lookup:
        """The answer without a source."""
        return self.answers[-1][0]


def cut(node: RoutingSnapshot, ranges: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the first address of each part of a range, which ends before its second address."""
    family = node.family
    bits = address_bits(family)
    # The numbers of addresses, by prefix length.
    sizes = [1 << bits - length for length in range(bits + 1)]
    unsorted = [*SPECIAL_EDGES[family]]
    for rule in node.selecting:
        # Sources count as well: the node may send from one of its addresses to that address.
        for network, length in (rule.destination, rule.source):
            first = network & mask_of(family, length)
            unsorted += [first, first + sizes[length]]
    begin = min((first for first, _ in ranges), default=0)
    stop = max((end for _, end in ranges), default=0)
    # By position, which is faster than by name: these lines read every route of a full table. Dumps
    # are ordered by network, so nearly every edge is the beginning of the next route; the other
    # edges are sorted in afterwards. A route that begins outside of a range ends outside of it, or
    # where another route begins.
    edges: list[int] = []
    latest = end = -1
    for route in [route for route in node.routes if begin <= route[0] < stop]:
        start = route[0]
        if start > latest:
            edges.append(start)
            latest = start
        elif start < latest:
            unsorted.append(start)  # of another table
        if start != end:
            unsorted.append(end)
        end = start + sizes[route[1]]
    edges += {*unsorted, end}.difference(edges)
    edges.sort()
    for first, end in ranges:
        yield [first, *edges[bisect_right(edges, first) : bisect_left(edges, end)]]


def range_of(cidr: Prefix) -> tuple[int, int]:
    """Return the first address of a CIDR, and the first one after it."""
    return cidr.masked.network, cidr.last + 1
