"""Routes in little memory: those that differ in nothing but their network share all else.

A node has up to hundreds of thousands of routes, and few gateways. A route that is alone in its network costs some
hundred bytes here, and four hundred as a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Bucket", "Key", "Packed"]

#: The routes of one table to one network, as the kernel orders them: higher tos first, then the lower metric.
Bucket = tuple[ObservedRoute, ...]
#: A table, a network and a prefix length.
Key = tuple[int, int, int]
#: A table and a prefix length.
_Group = tuple[int, int]
#: All fields of a route but its network.
_Rest = tuple[Any, ...]

_NONE: Final[dict[int, _Rest]] = {}


class Packed:
    """Buckets by their keys. Treat it as immutable."""

    __slots__ = ("_groups", "_others")

    def __init__(self, groups: Mapping[_Group, Mapping[int, _Rest]], others: Mapping[Key, Bucket]) -> None:
        #: The networks with one route that has one next hop, or none.
        self._groups = groups
        #: All other networks.
        self._others = others

    @classmethod
    def of(cls, routes: Iterable[ObservedRoute]) -> Packed:
        """Pack routes that are in the order of a dump."""
        groups: dict[_Group, dict[int, _Rest]] = {}
        others: dict[Key, Bucket] = {}
        shared: dict[_Rest, _Rest] = {}
        for route in routes:
            # By position, because these lines meet every route of a full table.
            network, length, table, rest = route[0], route[1], route[5], route[1:]
            group = groups.get((table, length))
            if group is None:
                group = groups[table, length] = {}
            key = table, network, length
            if route[12] or key in others or network in group:
                alone = group.pop(network, None)
                before = others.get(key, ()) if alone is None else (_route(network, alone),)
                others[key] = (*before, route)
            else:
                # A new number: that of the dump lies among values whose memory goes back to the system.
                group[network + 0] = shared.setdefault(rest, rest)
        return cls(groups, others)

    def get(self, key: Key) -> Bucket:
        """Return a bucket, empty if there is none."""
        table, network, length = key
        rest = self._groups.get((table, length), _NONE).get(network)
        return self._others.get(key, ()) if rest is None else (_route(network, rest),)

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys, in no order."""
        for (table, length), group in self._groups.items():
            for network in group:
                yield table, network, length
        yield from self._others

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self._groups.values()))

    def changed(self, changes: Mapping[Key, Bucket]) -> Packed:
        """Return a copy in which these buckets are replaced; an empty one goes."""
        copied: dict[_Group, dict[int, _Rest]] = {}
        others = dict(self._others)
        shared: dict[_Rest, _Rest] = {}
        for key, bucket in changes.items():
            table, network, length = key
            if (table, length) not in copied:
                copied[table, length] = dict(self._groups.get((table, length), _NONE))
            copied[table, length].pop(network, None)
            others.pop(key, None)
            if len(bucket) == 1 and not bucket[0].nexthops:
                rest = bucket[0][1:]
                copied[table, length][network] = shared.setdefault(rest, rest)
            elif bucket:
                others[key] = bucket
        return Packed({**self._groups, **copied}, others)

    def suspects(self, other: Packed) -> Iterator[Key]:
        """Yield the keys whose buckets may differ; a comparison of next hops does not see which are dead."""
        for table, length in self._groups.keys() | other._groups.keys():
            mine, others = self._groups.get((table, length), _NONE), other._groups.get((table, length), _NONE)
            # At once, because nearly always nothing differs.
            if mine != others:
                networks = mine.keys() | others.keys()
                yield from ((table, one, length) for one in networks if mine.get(one) != others.get(one))
        yield from self._others.keys() | other._others.keys()


def _route(network: int, rest: _Rest) -> ObservedRoute:
    return tuple.__new__(ObservedRoute, (network, *rest))
