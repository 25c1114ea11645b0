"""Routing tables as a value: the longest prefix decides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from hostrouting.net.changes import is_deleted_by
from hostrouting.net.routes import DEVICELESS_KINDS, FLAG_DEAD, ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hostrouting.net.routes import Route

#: The routes of one table to one network, as the kernel orders them: higher tos first, then the lower metric.
Bucket: TypeAlias = tuple[ObservedRoute, ...]
#: A table, a network and a prefix length.
Key: TypeAlias = tuple[int, int, int]
#: The key of the bucket to which a route belongs.
key_of: Final[Callable[[Route | ObservedRoute], Key]] = attrgetter("table", "network", "prefix_length")


class Tables:
    """The IPv4 routes of every table.

    Treat it as immutable: `with_buckets` returns a changed copy.
    """

    __slots__ = ("_buckets", "_lengths")

    def __init__(self, buckets: Mapping[Key, Bucket], lengths: Mapping[int, tuple[int, ...]]) -> None:
        self._buckets = buckets
        #: By table, the prefix lengths to try, longest first.
        self._lengths = lengths

    @classmethod
    def of(cls, routes: Iterable[ObservedRoute]) -> Tables:
        """Return tables that hold `routes`, which are in the order of a dump."""
        buckets: dict[Key, Bucket] = {}
        for route in routes:
            # By position, which is faster than by name: these lines meet every route of a full table.
            key = route[5], route[0], route[1]
            buckets[key] = (*buckets[key], route) if key in buckets else (route,)
        return cls(buckets, _with_lengths({}, buckets))

    def __iter__(self) -> Iterator[ObservedRoute]:
        """Yield every route, in the order of a dump."""
        keys = sorted(self._buckets, key=lambda key: (key[0], key[1], -key[2]))
        return chain.from_iterable(map(self.bucket, keys))

    def bucket(self, key: Key) -> Bucket:
        """Return the routes of one table to one network."""
        return self._buckets.get(key, ())

    def search(
        self, tables: tuple[int, ...], address: int, *, tos: int = 0, scope: int = 0, oif: str = ""
    ) -> ObservedRoute | None:
        """Return the route with the longest prefix that decides `address`, or None if the tables say nothing about it.

        Several `tables` are searched as one. `tos`, `scope` and `oif` narrow the search as in the kernel.
        """
        for length in self._lengths_of(tables):
            shift = 32 - length
            network = address >> shift << shift
            for table in tables:
                for route in self._buckets.get((table, network, length), ()):
                    if route.tos not in {0, tos} or route.scope < scope:
                        continue
                    if route.kind in DEVICELESS_KINDS or is_usable(route, oif):
                        return route
        return None

    def with_buckets(self, changes: Mapping[Key, Bucket]) -> Tables:
        """Return a copy in which these buckets are replaced; an empty one is gone."""
        lengths = self._lengths
        if any(length not in lengths.get(table, ()) for table, _, length in changes):
            lengths = _with_lengths(lengths, changes)
        return Tables({**self._buckets, **changes}, lengths)

    def _lengths_of(self, tables: tuple[int, ...]) -> Iterable[int]:
        if len(tables) == 1:
            return self._lengths.get(tables[0], ())
        return sorted({length for table in tables for length in self._lengths.get(table, ())}, reverse=True)


def _with_lengths(lengths: Mapping[int, tuple[int, ...]], buckets: Iterable[Key]) -> Mapping[int, tuple[int, ...]]:
    """Return the prefix lengths of each table, with those of new buckets."""
    found = {table: set(known) for table, known in lengths.items()}
    for table, _, length in buckets:
        found.setdefault(table, set()).add(length)
    return {table: tuple(sorted(known, reverse=True)) for table, known in found.items()}


def inserted(bucket: Bucket, route: ObservedRoute, *, last: bool) -> Bucket:
    """Return a bucket with one more route: the first of its tos and metric, or the last."""
    ranks = [(-other.tos, other.metric) for other in bucket]
    position = (bisect_right if last else bisect_left)(ranks, (-route.tos, route.metric))
    return (*bucket[:position], route, *bucket[position:])


def deleted(bucket: Bucket, named: Route | ObservedRoute) -> Bucket:
    """Return a bucket without the route that the kernel's deletion of `named` takes, which is the first that fits."""
    gone = next((route for route in bucket if is_deleted_by(named, route)), None)
    return bucket if gone is None else tuple(route for route in bucket if route is not gone)


def is_usable(route: ObservedRoute, oif: str = "") -> bool:
    """Return True if a packet can leave by one of the route's next hops (by the device `oif`, if given)."""
    if not route.nexthops:
        return not route.flags & FLAG_DEAD and oif in {"", route.dev}
    return any(not hop.dead and oif in {"", hop.dev} for hop in route.nexthops)
