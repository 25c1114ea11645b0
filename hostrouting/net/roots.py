"""A few networks that contain others, so that `ip` lists few rows of a large table."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hostrouting.net.addresses import IPV4, IPV6, Prefix, address_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

#: ip reads a whole table for each root, and each row outside of the networks costs a script time.
_MOST = {IPV4: 8, IPV6: 2}


def roots_of(networks: Iterable[Prefix], family: int) -> list[str]:
    """Return a few sorted, disjoint networks that contain all of these of one family.

    >>> texts = ["10.0.0.0/24", "10.0.1.0/24", "10.0.0.4/30", "172.16.0.0/12", "fd00::/8"]
    >>> roots_of(map(Prefix.parse, texts), IPV4)
    ['10.0.0.0/23', '172.16.0.0/12']
    """
    # Overlapping and adjacent networks are one range.
    ranges: list[tuple[int, int]] = []
    for prefix in sorted(prefix for prefix in networks if prefix.family == family):
        if ranges and prefix.network <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(prefix.last, ranges[-1][1])
        else:
            ranges.append((prefix.network, prefix.last))
    roots = [_root(first, last) for first, last in ranges]
    while len(roots) > _MOST[family] or any(left[1] >= right[0] for left, right in pairwise(roots)):
        joined = [_root(left[0], max(left[1], right[1])) for left, right in pairwise(roots)]
        # Join overlapping ones first, then the pair with the smallest result.
        best = min(
            range(len(joined)),
            key=lambda i: (roots[i][1] < roots[i + 1][0], joined[i][1] - joined[i][0]),
        )
        roots[best : best + 2] = [joined[best]]
    bits = address_bits(family)
    return [str(Prefix(family, first, bits - (last - first).bit_length())) for first, last in roots]


def _root(first: int, last: int) -> tuple[int, int]:
    """Return the smallest network around a range."""
    free = (1 << (first ^ last).bit_length()) - 1
    return first & ~free, first | free
