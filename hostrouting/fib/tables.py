"""Routing tables as a value, with longest-prefix match."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from hostrouting.fib.rules import LOOPBACK, TOS_BITS, Packet
from hostrouting.net.addresses import IPV4, IPV6, Address, mask_of
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    FLAG_DEAD,
    LOCAL_TABLE,
    MAIN_TABLE,
    ObservedRoute,
    Route,
    is_deleted_by,
    preference,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping


#: The kernel searches these two as one until a rule is changed.
MERGED_TABLES: Final = LOCAL_TABLE, MAIN_TABLE
#: The routes of one table to one network, in the kernel's order: by descending tos, then by metric.
Bucket: TypeAlias = tuple[ObservedRoute, ...]
#: A family, a table, a network and a prefix length.
Key: TypeAlias = tuple[int, int, int, int]
#: The key of the bucket to which a route belongs.
key_of: Final[Callable[[Route | ObservedRoute], Key]] = attrgetter(
    "family", "table", "network", "prefix_length"
)


@attrs.frozen(eq=False, repr=False)
class Tables:
    """The routes of every table, of both families.

    Treat it as immutable: `with_buckets` returns a changed copy.
    """

    _buckets: Mapping[Key, Bucket]
    #: By family and tables that are searched as one, the prefix lengths to try, longest first.
    _lengths: Mapping[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, routes: Iterable[ObservedRoute]) -> Tables:
        """Return tables with these routes, which are in the order of a dump."""
        buckets: dict[Key, Bucket] = {}
        for route in routes:
            # By position, which is faster: these lines run for each route of a full table.
            key = route[16], route[5], route[0], route[1]
            buckets[key] = (*buckets[key], route) if key in buckets else (route,)
        return cls(buckets, _with_lengths({}, buckets))

    def routes(self, family: int = IPV4) -> Iterator[ObservedRoute]:
        """Yield every route of a family, in the order of a dump."""
        keys = [key for key in self._buckets if key[0] == family]
        keys.sort(key=itemgetter(3), reverse=True)
        keys.sort(key=itemgetter(1, 2))
        return chain.from_iterable(map(self._buckets.__getitem__, keys))

    def bucket(self, key: Key) -> Bucket:
        """Return the routes of one table to one network."""
        return self._buckets.get(key, ())

    def usable_beside(self, route: ObservedRoute) -> list[ObservedRoute]:
        """Return the usable routes in the same table to the same network."""
        return [other for other in self.bucket(key_of(route)) if is_usable(other, "")]

    def search(self, tables: tuple[int, ...], packet: Packet, scope: int) -> ObservedRoute | None:
        """Return the route with the longest prefix for an IPv4 packet, or None.

        Several `tables` are searched as if they were one. `scope` restricts the search.
        """
        tos = packet.tos & TOS_BITS
        for length in self._lengths.get((IPV4, *tables), ()):
            network = packet.destination & mask_of(IPV4, length)
            for table in tables:
                for route in self._buckets.get((IPV4, table, network, length), ()):
                    if route.tos not in {0, tos} or route.scope < scope:
                        continue
                    if route.kind in DEVICELESS_KINDS or is_usable(route, packet.oif):
                        return route
        return None

    def search_ipv6(
        self, table: int, packet: Packet, failed: Collection[tuple[str, Address | None]] = ()
    ) -> ObservedRoute | None:
        """Return the route of a table that an IPv6 packet takes, or None.

        Routes whose next hops have all `failed` are skipped.

        If a network has routes for source prefixes, but none of them contains the packet's source,
        its routes for any source are skipped as well, unless a longer prefix was searched before
        without finding a usable route.
        """
        source = Address(IPV6, packet.source)
        is_under_way = False
        for length in self._lengths.get((IPV6, table), ()):
            network = packet.destination & mask_of(IPV6, length)
            bucket = self.bucket((IPV6, table, network, length))
            by_source: dict[int, list[ObservedRoute]] = {}
            for route in bucket:
                if route.from_prefix is None:
                    by_source.setdefault(0, []).append(route)
                elif route.from_prefix.covers(source):
                    by_source.setdefault(route.from_prefix.length, []).append(route)
            # Default routes do not hide each other.
            may_hide = length and not is_under_way and not any(by_source)
            if may_hide and any(route.from_prefix for route in bucket):
                continue
            is_under_way = is_under_way or bool(bucket)
            for _, routes in sorted(by_source.items(), reverse=True):
                kept = [route for route in routes if not _has_failed(route, failed)]
                if kept and (best := _best(kept, packet)):
                    return best
        return None

    def with_buckets(self, changes: Mapping[Key, Bucket]) -> Tables:
        """Return a copy with these buckets replaced."""
        return Tables({**self._buckets, **changes}, _with_lengths(self._lengths, changes))


def _with_lengths(
    lengths: Mapping[tuple[int, ...], tuple[int, ...]], buckets: Iterable[Key]
) -> Mapping[tuple[int, ...], tuple[int, ...]]:
    """Return the prefix lengths of each table, including those of new buckets."""
    by_tables = {tables: set(known) for tables, known in lengths.items()}
    # The set is small: a full table has few different prefix lengths.
    for family, table, length in set(map(itemgetter(0, 1, 3), buckets)):
        by_tables.setdefault((family, table), set()).add(length)
        if table in MERGED_TABLES:
            by_tables.setdefault((family, *MERGED_TABLES), set()).add(length)
    return {tables: tuple(sorted(known, reverse=True)) for tables, known in by_tables.items()}


def _has_failed(route: ObservedRoute, failed: Collection[tuple[str, Address | None]]) -> bool:
    hops = route.hops if failed else ()
    return bool(hops) and all((hop.dev, hop.gateway) in failed for hop in hops)


def _best(routes: list[ObservedRoute], packet: Packet) -> ObservedRoute | None:
    """Return the route that the kernel uses for one IPv6 network; `routes` are sorted by metric.

    Among routes of the lowest metric, the highest router preference wins, then the packet's device,
    then the order. If none of them is usable, all others are treated as equal. A nexthop object
    that is a blackhole always wins.
    """
    oif = packet.iif if packet.iif not in {LOOPBACK, ""} else packet.oif
    number = packet.destination
    # A packet to a multicast, link-local or loopback address leaves only through its own device.
    is_of_a_link = number >> 120 == 0xFF or number == 1 or Address(IPV6, number).is_link_local
    is_bound = (not (packet.iif and packet.source) and oif == packet.oif) or is_of_a_link
    bound_to = oif if is_bound else ""
    usable = [route for route in routes if route.expires >= 0 and is_usable(route, bound_to)]
    first = [route for route in usable if route.metric == routes[0].metric] or usable
    ends = (route for route in first if route.kind == "blackhole" and route.nexthop_id)
    best = max(first, key=lambda route: (preference(route), is_usable(route, oif)), default=None)
    return next(ends, best)


def inserted(bucket: Bucket, route: ObservedRoute, *, last: bool) -> Bucket:
    """Return a bucket with a route added first or last of its tos and metric (IPv6: last)."""
    ranks = [(-present.tos, present.metric) for present in bucket]
    bisect = bisect_right if last or route.family == IPV6 else bisect_left
    position = bisect(ranks, (-route.tos, route.metric))
    return (*bucket[:position], route, *bucket[position:])


def deleted(bucket: Bucket, named: Route | ObservedRoute) -> tuple[ObservedRoute | None, Bucket]:
    """Return the route that the kernel deletes for `named`, and the routes that are left."""
    first = next((route for route in bucket if is_deleted_by(named, route)), None)
    return first, tuple(route for route in bucket if route is not first)


def is_usable(route: ObservedRoute, oif: str) -> bool:
    """Return True if a packet can use a next hop of the route (through `oif`, if given)."""
    if not route.nexthops:
        return not route.flags & FLAG_DEAD and oif in {"", route.dev}
    return any(not hop.dead and oif in {"", hop.dev} for hop in route.nexthops)
