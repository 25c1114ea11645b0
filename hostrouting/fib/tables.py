"""Routing tables as a value: the longest prefix decides, and a changed copy shares all that did not change."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hostrouting.fib.buckets import are_alike
from hostrouting.fib.packed import Bucket, Key, Packed
from hostrouting.net.routes import DEVICELESS_KINDS, FLAG_DEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hostrouting.net.routes import ObservedRoute, Route

__all__ = ["Bucket", "Key", "Tables", "is_usable", "key_of"]

#: The key of the bucket to which a route belongs.
key_of: Final[Callable[[Route | ObservedRoute], Key]] = attrgetter("table", "network", "prefix_length")

#: A copy stores its changes apart from the shared routes until there are this many.
_MOST_CHANGES: Final = 1024


class Tables:
    """The IPv4 routes of every table.

    Treat it as immutable: `with_buckets` and `mapped` return changed copies.
    """

    __slots__ = ("_changes", "_lengths", "_shared")

    def __init__(
        self,
        shared: Packed,
        changes: Mapping[Key, Bucket],
        lengths: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._shared = shared
        #: The buckets that differ from the shared ones; an empty one is gone.
        self._changes = changes
        #: By table, the prefix lengths to try, longest first.
        self._lengths = lengths

    @classmethod
    def of(cls, routes: Iterable[ObservedRoute]) -> Tables:
        """Return tables that hold `routes`, which are in the order of a dump."""
        shared = Packed.of(routes)
        return cls(shared, {}, _with_lengths({}, shared))

    def __iter__(self) -> Iterator[ObservedRoute]:
        """Yield every route, in the order of a dump."""
        keys = sorted(self._keys(), key=lambda key: (key[0], key[1], -key[2]))
        return chain.from_iterable(map(self.bucket, keys))

    def bucket(self, key: Key) -> Bucket:
        """Return the routes of one table to one network."""
        return self._changes[key] if key in self._changes else self._shared.get(key)

    def search(
        self, tables: tuple[int, ...], address: int, *, tos: int = 0, scope: int = 0, oif: str = ""
    ) -> ObservedRoute | None:
        """Return the route with the longest prefix that decides `address`, or None if the tables say nothing about it.

        Several `tables` are searched as one. `tos`, `scope` and `oif` narrow the search as in the kernel.
        """
        shared, changes = self._shared, self._changes
        for length in self._lengths_of(tables):
            shift = 32 - length
            network = address >> shift << shift
            for table in tables:
                key = table, network, length
                for route in changes[key] if key in changes else shared.get(key):
                    if route.tos not in {0, tos} or route.scope < scope:
                        continue
                    if route.kind in DEVICELESS_KINDS or is_usable(route, oif):
                        return route
        return None

    def with_buckets(self, changes: Mapping[Key, Bucket]) -> Tables:
        """Return a copy in which these buckets are replaced; an empty one goes."""
        lengths = self._lengths
        if any(length not in lengths.get(table, ()) for table, _, length in changes):
            lengths = _with_lengths(lengths, changes)
        merged = {**self._changes, **changes}
        if len(merged) <= _MOST_CHANGES:
            return Tables(self._shared, merged, lengths)
        return Tables(self._shared.changed(merged), {}, lengths)

    def mapped(self, change: Callable[[ObservedRoute], ObservedRoute | None]) -> Tables:
        """Return a copy with every route replaced by the result of `change`; None removes it."""
        changes = {}
        for key in self._keys():
            bucket = self.bucket(key)
            changed = tuple(route for route in map(change, bucket) if route is not None)
            if len(changed) < len(bucket) or any(new is not old for new, old in zip(changed, bucket, strict=True)):
                changes[key] = changed
        return self.with_buckets(changes) if changes else self

    def differing(self, other: Tables) -> set[Key]:
        """Return the keys of the buckets that hold other routes than those of `other`, or the same in another order."""
        suspects = {*self._changes, *other._changes}
        if self._shared is not other._shared:
            suspects.update(self._shared.suspects(other._shared))
        return {key for key in suspects if not are_alike(self.bucket(key), other.bucket(key))}

    def use(self, dev: str) -> bool:
        """Return True if a route has a next hop by a device."""
        return any(dev in route.devs for key in self._keys() for route in self.bucket(key))

    def __len__(self) -> int:
        """Return the number of networks, or a little more: those that went since the last thousand changes count."""
        return len(self._shared) + len(self._changes)

    def _keys(self) -> Iterator[Key]:
        """Yield the keys of all buckets, in no order; some of these are empty."""
        yield from self._changes
        yield from (key for key in self._shared if key not in self._changes)

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


def is_usable(route: ObservedRoute, oif: str = "") -> bool:
    """Return True if a packet can leave by one of the route's next hops (by the device `oif`, if given)."""
    if not route.nexthops:
        return not route.flags & FLAG_DEAD and oif in {"", route.dev}
    return any(not hop.dead and oif in {"", hop.dev} for hop in route.nexthops)
