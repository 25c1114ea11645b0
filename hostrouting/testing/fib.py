"""A model of the kernel's IPv4 tables: what may be inserted, what is found, what dies with its device.

Written from the kernel's observed behaviour and held to it by a state machine that drives both
(`tests/testing/test_kernel_equivalence.py`). It models what our tasks write or must read, no more:
no nexthop objects, no encapsulation, no rules on marks or ports.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from hostrouting.net.addresses import netmask
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    FLAG_DEAD,
    FLAG_LINKDOWN,
    FLAG_ONLINK,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    ObservedRoute,
    signature,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.net.addresses import Address
    from hostrouting.net.routes import Route

_SCOPE_NOWHERE: Final = 255
#: What a lookup answers for routes that send nothing; `throw` only ends the search in its table.
_ERRORS: Final = {
    "blackhole": errno.EINVAL,
    "unreachable": errno.EHOSTUNREACH,
    "prohibit": errno.EACCES,
    "throw": errno.EAGAIN,
}


class Refused(Exception):  # noqa: N818 - it is the kernel's answer, not our error; MemoryBackend translates it
    """The kernel's no: an errno, and its sentence where it has one."""

    def __init__(self, number: int, sentence: str = "") -> None:
        self.errno = number
        self.reason = f"{sentence} ({os.strerror(number)})" if sentence else os.strerror(number)
        super().__init__(self.reason)


class Device(Protocol):
    """What the tables must know of a device."""

    name: str
    up: bool

    @property
    def carrier(self) -> bool:  # noqa: D102 - as Link has it
        ...


class FindGateway(Protocol):
    """Asks the policy rules (and `table` before them) whether a gateway is on the link of `dev`."""

    def __call__(self, gateway: int, *, table: int, scope: int, dev: str) -> Found:  # noqa: D102 - said above
        ...


@attrs.define(eq=False)
class _Leg:
    """A next hop as the kernel keeps it; `scope` is how far away what lies behind it is."""

    dev: str
    gateway: int | None
    scope: int
    onlink: bool = False
    dead: bool = False


@attrs.define(eq=False)
class Entry:
    """One route in a table, with the state of its legs."""

    route: ObservedRoute
    legs: list[_Leg]

    def is_alike(self, other: Entry) -> bool:
        """Whether the kernel takes both for one: a gateway that has become an address of the node's own is another."""
        return signature(self.route) == signature(other.route) and self._distances() == other._distances()

    def _distances(self) -> list[int]:
        return [leg.scope for leg in self.legs]

    def is_dead(self) -> bool:
        """Whether every leg is dead, which is when the kernel drops the route."""
        return bool(self.legs) and all(leg.dead for leg in self.legs)


@attrs.frozen
class Found:
    """A lookup's result: the entry that decides, or the errno (EAGAIN: this table has no opinion)."""

    entry: Entry | None
    errno: int = 0


class Fib:
    """All tables of one namespace. Devices are looked up through `device`, which raises KeyError."""

    def __init__(self, device: Callable[[str], Device]) -> None:
        self._device = device
        self._entries: dict[int, dict[tuple[int, int], list[Entry]]] = defaultdict(dict)
        #: Until the first rule is added, the local and the main table are one trie inside the kernel, so that
        #: a longer prefix in main beats a shorter one in local.
        self.merged = True

    # --- reading

    def routes(self) -> list[ObservedRoute]:
        """Every route, in the order of a dump."""
        rows = []
        for table in sorted(self._entries):
            # Shorter prefixes of one network come last; of one prefix, the order is that of insertion.
            for key in sorted(self._entries[table], key=lambda key: (key[0], -key[1])):
                rows += [self.observed(entry) for entry in self._entries[table][key]]
        return rows

    def entries(self) -> Iterator[Entry]:
        """Every route of every table."""
        for table in self._entries.values():
            for bucket in table.values():
                yield from bucket

    def observed(self, entry: Entry) -> ObservedRoute:
        """The route as a dump shows it, with the state of its links."""
        flags = entry.route.flags
        if len(entry.legs) == 1:
            leg = entry.legs[0]
            flags |= FLAG_DEAD if leg.dead else 0
            # Local routes keep no state of their link.
            down = leg.scope != _SCOPE_NOWHERE and not self._device(leg.dev).carrier
            flags |= FLAG_LINKDOWN if down and self._device(leg.dev).up else 0
        if not entry.route.nexthops:
            return entry.route._replace(flags=flags)
        hops = zip(entry.route.nexthops, entry.legs, strict=True)
        return entry.route._replace(flags=flags, nexthops=tuple(hop._replace(dead=leg.dead) for hop, leg in hops))

    def search(self, table: int, address: int, *, scope: int = 0, dev: str | None = None) -> Found:
        """The longest prefix of `table` that has something to say about `address`.

        `scope` and `dev` narrow the search, as when the kernel asks whether a gateway is on the link.
        """
        one_trie = self.merged and table in {LOCAL_TABLE, MAIN_TABLE}
        tables = (LOCAL_TABLE, MAIN_TABLE) if one_trie else (table,)
        for length in range(32, -1, -1):
            network = address & netmask(length)
            for number in tables:
                for entry in self._entries[number].get((network, length), ()):
                    if entry.route.tos or entry.route.scope < scope:
                        continue
                    if entry.route.kind in _ERRORS:
                        return Found(None, _ERRORS[entry.route.kind])
                    if any(not leg.dead and dev in {None, leg.dev} for leg in entry.legs):
                        return Found(entry)
        return Found(None, errno.EAGAIN)

    # --- writing

    def insert(
        self,
        route: Route | ObservedRoute,
        *,
        find_gateway: FindGateway,
        is_local: Callable[[int, int], bool],
        exclusive: bool = False,
        replace: bool = False,
        append: bool = False,
    ) -> None:
        """Add or replace a route as the kernel would with these flags; `Refused` when it would not.

        `is_local(address, table)` says whether a source address is the node's own.
        """
        entry = Entry(_resting(route), self._legs(route, find_gateway))
        if route.source is not None and not (
            (route.kind == "local" and route.source == route.network) or is_local(route.source, route.table)
        ):
            raise Refused(errno.EINVAL, "Invalid prefsrc address")
        bucket = self._entries[route.table].setdefault((route.network, route.prefix_length), [])
        same_place = [other for other in bucket if (other.route.tos, other.route.metric) == (route.tos, route.metric)]
        if same_place:
            identical = [other for other in same_place if other.is_alike(entry)]
            if exclusive or (identical and not (replace and identical[0] is same_place[0])):
                raise Refused(errno.EEXIST)
            if replace:
                if not identical:
                    bucket[bucket.index(same_place[0])] = entry
                return
        bucket.insert(self._position(bucket, same_place, route, append=append), entry)

    @staticmethod
    def _position(bucket: list[Entry], same_place: list[Entry], route: Route | ObservedRoute, *, append: bool) -> int:
        if same_place:
            return bucket.index(same_place[-1]) + 1 if append else bucket.index(same_place[0])
        for position, other in enumerate(bucket):
            # A higher type of service comes first, then the lower metric.
            if (-other.route.tos, other.route.metric) > (-route.tos, route.metric):
                return position
        return len(bucket)

    def delete(self, route: Route | ObservedRoute) -> None:
        """Remove the first route that fits; ESRCH where none does. A metric of 0 fits any."""
        bucket = self._entries[route.table].get((route.network, route.prefix_length), [])
        for entry in bucket:
            there = entry.route
            if (
                there.tos == route.tos
                and there.kind == route.kind
                and there.scope == route.scope
                and route.metric in {0, there.metric}
                and route.source in {None, there.source}
                and route.protocol in {0, there.protocol}
                and _legs_fit(route, entry)
            ):
                bucket.remove(entry)
                self._drop_empty(route.table)
                return
        raise Refused(errno.ESRCH)

    def flush(self, condemned: Callable[[Entry], bool]) -> None:
        """Drop every route that `condemned` says is gone; the kernel tells nobody."""
        for number, table in self._entries.items():
            for key in list(table):
                table[key] = [entry for entry in table[key] if not condemned(entry)]
            self._drop_empty(number)

    def _drop_empty(self, number: int) -> None:
        table = self._entries[number]
        for key in [key for key, bucket in table.items() if not bucket]:
            del table[key]

    # --- legs

    def _legs(self, route: Route | ObservedRoute, find_gateway: FindGateway) -> list[_Leg]:
        if route.kind in DEVICELESS_KINDS:
            return []
        if route.scope == SCOPE_HOST:
            return [self._host_leg(route)]
        if route.nexthops:
            return [self._leg(_number(hop.gateway), hop.dev, hop.onlink, route, find_gateway) for hop in route.nexthops]
        assert route.dev is not None
        return [self._leg(_number(route.gateway), route.dev, route.onlink, route, find_gateway)]

    def _host_leg(self, route: Route | ObservedRoute) -> _Leg:
        if route.nexthops:
            raise Refused(errno.EINVAL, "Route with host scope can not have multiple nexthops")
        if route.gateway is not None:
            raise Refused(errno.EINVAL, "Route with host scope can not have a gateway")
        assert route.dev is not None
        self._known(route.dev)
        return _Leg(route.dev, None, _SCOPE_NOWHERE)

    def _leg(
        self,
        gateway: int | None,
        dev: str,
        onlink: bool,
        route: Route | ObservedRoute,
        find_gateway: FindGateway,
    ) -> _Leg:
        device = self._known(dev)
        if gateway is None:
            if not device.up:
                raise Refused(errno.ENETDOWN, "Device for nexthop is not up")
            return _Leg(dev, None, SCOPE_HOST)
        if onlink:
            return self._onlink_leg(gateway, device, route.scope)
        found = find_gateway(gateway, table=route.table, scope=max(route.scope + 1, SCOPE_LINK), dev=dev)
        if found.entry is None:
            # EAGAIN is how a table says that it has nothing; what reaches the caller is 'network unreachable'.
            raise Refused(
                errno.ENETUNREACH if found.errno == errno.EAGAIN else found.errno, "Nexthop has invalid gateway"
            )
        if found.entry.route.kind not in {"unicast", "local"}:
            raise Refused(errno.EINVAL, "Nexthop has invalid gateway")
        if not device.up:
            raise Refused(errno.ENETDOWN)
        return _Leg(dev, gateway, found.entry.route.scope)

    def _onlink_leg(self, gateway: int, device: Device, scope: int) -> _Leg:
        if scope >= SCOPE_LINK:
            raise Refused(errno.EINVAL, "Nexthop has invalid scope")
        if not device.up:
            raise Refused(errno.ENETDOWN, "Nexthop device is not up")
        local = self.search(LOCAL_TABLE, gateway)
        if local.entry is not None and local.entry.route.kind != "unicast":
            raise Refused(errno.EINVAL, "Nexthop has invalid gateway")
        return _Leg(device.name, gateway, SCOPE_LINK, onlink=True)

    def _known(self, dev: str) -> Device:
        try:
            return self._device(dev)
        except KeyError:
            raise Refused(errno.ENODEV) from None

    def kill_legs(self, dev: str, *, all_scopes: bool) -> None:
        """Routes whose last leg was on `dev` go; a link that merely goes down leaves its local addresses' routes."""
        for entry in self.entries():
            for leg in entry.legs:
                if leg.dev == dev and (all_scopes or leg.scope != _SCOPE_NOWHERE):
                    leg.dead = True
        self.flush(Entry.is_dead)

    def forget_source(self, address: int) -> None:
        """Routes in the main table that send from an address go with it; those of other tables stay."""
        self.flush(lambda entry: entry.route.source == address and entry.route.table == MAIN_TABLE)

    def revive_legs(self, dev: str) -> None:
        """The legs of multipath routes that outlived their device being down carry again."""
        for entry in self.entries():
            for leg in entry.legs:
                if leg.dev == dev:
                    leg.dead = False


def _resting(route: Route | ObservedRoute) -> ObservedRoute:
    """The route as a dump would show it on a healthy link."""
    fields = {name: getattr(route, name) for name in ObservedRoute._fields if hasattr(route, name)}
    fields.pop("flags", None)
    return ObservedRoute(**fields, flags=FLAG_ONLINK if route.onlink else 0)


def _legs_fit(route: Route | ObservedRoute, entry: Entry) -> bool:
    """Whether what a deletion says of its legs fits; what it leaves out fits any."""
    if route.nexthops:
        wanted = [(_number(hop.gateway), hop.dev) for hop in route.nexthops]
        return wanted == [(leg.gateway, leg.dev) for leg in entry.legs]
    if route.dev is None and route.gateway is None:
        return True
    return bool(entry.legs) and (
        route.dev in {None, entry.legs[0].dev}
        and (route.gateway is None or route.gateway.number == entry.legs[0].gateway)
    )


def _number(gateway: Address | None) -> int | None:
    return None if gateway is None else gateway.number


def same_subnet(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two (address, prefix length) have one length and one network."""
    return first[1] == second[1] and not (first[0] ^ second[0]) & netmask(first[1])
