"""A few networks that contain others, so that `ip` lists few rows of a large table."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hostrouting.net.addresses import IPV4, IPV6, Prefix, address_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

#: For each root ip reads a whole table, and each row outside of the networks costs a script time.
_MOST: Final = {IPV4: 8, IPV6: 2}


def roots_of(networks: Iterable[Prefix], family: int) -> list[str]:
    """Return a few networks that contain all of these of one family and little else, sorted; none overlaps another.

    >>> texts = ["10.0.0.0/24", "10.0.1.0/24", "10.0.0.4/30", "172.16.0.0/12", "fd00::/8"]
    >>> roots_of(map(Prefix.parse, texts), IPV4)
    ['10.0.0.0/23', '172.16.0.0/12']
    """
    roots = [_root(first, last) for first, last in _merged(each for each in networks if each.family == family)]
    while len(roots) > _MOST[family] or any(one[1] >= other[0] for one, other in pairwise(roots)):
        joined = [_root(one[0], max(one[1], other[1])) for one, other in pairwise(roots)]
        # Join adjacent ones first, else those that are the smallest together.
        best = min(range(len(joined)), key=lambda i: (roots[i][1] < roots[i + 1][0], joined[i][1] - joined[i][0]))
        roots[best : best + 2] = [joined[best]]
    bits = address_bits(family)
    return [str(Prefix(family, first, bits - (last - first).bit_length())) for first, last in roots]


def _merged(prefixes: Iterable[Prefix]) -> list[tuple[int, int]]:
    """Return the ranges of networks as (first, last), sorted; overlapping and adjacent ones are merged."""
    merged: list[tuple[int, int]] = []
    for prefix in sorted(prefixes):
        if merged and prefix.network <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(prefix.last, merged[-1][1])
        else:
            merged.append((prefix.network, prefix.last))
    return merged


def _root(first: int, last: int) -> tuple[int, int]:
    """Return the smallest network around a range."""
    free = (1 << (first ^ last).bit_length()) - 1
    return first & ~free, first | free
