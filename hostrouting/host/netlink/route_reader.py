"""Route messages from the kernel, parsed by hand: dumps and lookup answers by the hundred thousand.

The reverse of `route_writer`, by the same observation: what stands before and behind the destination
repeats, so it is parsed once and then looked up by its bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink.frames import (
    DUMP_INTERRUPTED,
    HEADER_LENGTH,
    address_of,
    attributes,
    checked_length,
    checked_message_length,
    error_of,
    is_end_of_dump,
    message_start,
    next_hops,
    number_of,
)
from hostrouting.host.netlink.route_writer import (
    BEHIND_DST,
    DST_HEADER,
    NEWROUTE,
    RTA_DST,
    RTA_ENCAP,
    RTA_ENCAP_TYPE,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_NH_ID,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_SRC,
    RTA_TABLE,
    RTA_VIA,
    rtmsg,
)
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    FLAG_DEAD,
    FLAG_ONLINK,
    KINDS,
    Encapsulation,
    NextHop,
    ObservedRoute,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostrouting.host.netlink.route_writer import Signature
    from hostrouting.net.routes import Extra

__all__ = [
    "RouteReader",
    "UnknownDeviceError",
    "encapsulation_of",
    "gateway_of",
    "strike_seen",
]

#: Attributes that have a field, and those that only answers carry (source asked for, incoming device, cache info, mark,
#: expiry, user). All others are `extra`.
_ANSWER_ONLY: Final = frozenset({2, 3, 12, 16, 23, 25})
_NOT_EXTRA: Final = _ANSWER_ONLY | {
    RTA_DST,
    RTA_OIF,
    RTA_GATEWAY,
    RTA_PRIORITY,
    RTA_PREFSRC,
    RTA_MULTIPATH,
    RTA_TABLE,
    RTA_VIA,
    RTA_ENCAP_TYPE,
    RTA_ENCAP,
    RTA_NH_ID,
}
#: The kernel shows it of every IPv6 route that has no other preference, so we need not carry it.
_MEDIUM_PREFERENCE: Final = (20, b"\0")

_RTA_CACHEINFO: Final = 12
#: The position in `rta_cacheinfo` of the time that is left, and its ticks in a second, whatever the kernel's HZ.
_EXPIRES_AT: Final = 8
_TICKS: Final = 100

_TABLE_HEADER: Final = struct.pack("=HH", 8, RTA_TABLE)
#: How many routes in a row must have one signature before a stretch is tried, and how long the first one is.
_ALIKE_ENOUGH: Final = 2
_SHORTEST_STRETCH: Final = 16


class UnknownDeviceError(Exception):
    """A route names an interface index that the link dump before it did not have: read both again."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"no device has the index {index}")


class RouteReader:
    """Makes `ObservedRoute` values of route messages; `names` maps interface indexes to names."""

    #: Kept of each kind; a table with more different ones (every route its own metric, say) starts over.
    _MOST_SIGNATURES: Final = 4096

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        #: By the bytes before and behind the destination: all fields of an ObservedRoute but `network`.
        self._signatures: dict[Signature, tuple[object, ...]] = {}
        self._fixed: dict[bytes, _Fixed] = {}
        self._variable: dict[bytes, _Variable] = {}
        #: Routes of messages without destination by all their bytes: the default route answers many lookups.
        self._whole: dict[bytes, ObservedRoute] = {}

    def read_dump(self, buffer: memoryview, sink: list[ObservedRoute]) -> bool:
        """Append the routes of one receive to `sink`; True when the dump is complete.

        OSError is the kernel's refusal; InterruptedError says that the table changed meanwhile.
        """
        append, new, signatures = sink.append, tuple.__new__, self._signatures
        for alike, message, networks in _runs(buffer):
            if alike is None:
                if is_end_of_dump(message):
                    return True
                append(self._read_whole(message))
                continue
            suffix = signatures.get(alike) or self._learn(alike)
            if len(networks) == 1:
                append(new(ObservedRoute, (networks[0], *suffix)))
            else:
                sink += map(new, repeat(ObservedRoute), zip(networks, *map(repeat, suffix), strict=False))
        return False

    def read_answers(self, buffer: memoryview) -> list[ObservedRoute | int]:
        """The route, or the errno, of each lookup's answer; the answers stand one behind the other in `buffer`."""
        answers: list[ObservedRoute | int] = []
        new = tuple.__new__
        for alike, message, networks in _runs(buffer):
            if alike is None:
                is_route = message_start(message)[1] == NEWROUTE
                answers.append(self._read_whole(message) if is_route else _refusal(message))
                continue
            suffix = self._signatures.get(alike) or self._learn(alike)
            answers += map(new, repeat(ObservedRoute), zip(networks, *map(repeat, suffix), strict=False))
        return answers

    def _learn(self, alike: Signature) -> tuple[object, ...]:
        """What a signature says: each of its halves is parsed once, however many ways they are combined."""
        before, behind = alike
        fixed = self._fixed.get(before)
        if fixed is None:
            if before[12:16] != _TABLE_HEADER:
                raise ValueError("a route does not begin with its table")
            fixed = self._fixed[before] = _parse_fixed(before, number_of(before[16:20]))
        variable = self._variable.get(behind)
        if variable is None:
            variable = self._variable[behind] = self._parse_variable(dict(attributes(behind)))
        suffix = _compose(0, fixed, variable)[1:]
        if len(self._signatures) >= self._MOST_SIGNATURES:
            for cache in self._signatures, self._fixed, self._variable:
                cache.clear()
        self._signatures[alike] = suffix
        return suffix

    def _read_whole(self, message: memoryview) -> ObservedRoute:
        _, message_kind, _ = message_start(message)
        if message_kind != NEWROUTE:
            raise ValueError(f"a message has the type {message_kind}, and is no route")
        payload = bytes(message[HEADER_LENGTH:])
        if payload not in self._whole:
            if len(self._whole) >= self._MOST_SIGNATURES:
                self._whole.clear()
            fields = dict(attributes(payload, 12))
            fixed = _parse_fixed(payload, number_of(fields.get(RTA_TABLE)))
            network = address_of(fields.get(RTA_DST)) or 0
            self._whole[payload] = _compose(network, fixed, self._parse_variable(fields))
        return self._whole[payload]

    def read(self, message: bytes) -> ObservedRoute:
        """Return the IPv6 route of one message, of a dump or of the answer to a lookup."""
        payload = message[HEADER_LENGTH:]
        fields = dict(attributes(payload, rtmsg.size))
        fixed = _parse_fixed(payload, number_of(fields.get(RTA_TABLE)), family=IPV6)
        route = _compose(address_of(fields.get(RTA_DST), IPV6) or 0, fixed, self._parse_variable(fields, IPV6))
        source_length = checked_length(payload[2], most=128)
        return route._replace(
            # Those that block are shown on the loopback device, whatever device they were made with.
            dev=None if route.kind in DEVICELESS_KINDS else route.dev,
            # The other flags are the state of the link.
            flags=route.flags & FLAG_ONLINK,
            family=IPV6,
            from_prefix=Prefix(IPV6, address_of(fields.get(RTA_SRC), IPV6) or 0, source_length)
            if source_length
            else None,
            expires=_expiry(fields.get(_RTA_CACHEINFO)),
        )

    def _parse_variable(self, fields: Mapping[int, bytes], family: int = IPV4) -> _Variable:
        return (
            gateway_of(fields, family),
            self._device(number_of(fields.get(RTA_OIF))),
            number_of(fields.get(RTA_PRIORITY)),
            address_of(fields.get(RTA_PREFSRC), family),
            tuple(self._next_hops(fields[RTA_MULTIPATH], family)) if RTA_MULTIPATH in fields else (),
            _extra(fields),
            number_of(fields.get(RTA_NH_ID)),
            encapsulation_of(fields),
        )

    def _next_hops(self, payload: bytes, family: int) -> Iterator[NextHop]:
        for flags, hops, index, packed in next_hops(payload):
            fields = dict(attributes(packed))
            yield NextHop(
                gateway=gateway_of(fields, family),
                dev=self._device(index) or "",
                weight=hops + 1,
                onlink=bool(flags & FLAG_ONLINK),
                extra=_extra(fields),
                encapsulation=encapsulation_of(fields),
                dead=bool(flags & FLAG_DEAD),
            )

    def _device(self, index: int) -> str | None:
        if index == 0:
            return None
        try:
            return self._names[index]
        except KeyError:
            raise UnknownDeviceError(index) from None


_Fixed = tuple[int, int, int, str, int, int, int]
_Variable = tuple[Address | None, str | None, int, int | None, tuple[NextHop, ...], "Extra", int, Encapsulation | None]


def _parse_fixed(payload: bytes, table: int, *, family: int = IPV4) -> _Fixed:
    """Return the fields in the fixed part of a route message."""
    found, length, _, tos, small_table, protocol, scope, kind, flags = rtmsg.unpack_from(payload)
    if found != family:
        raise ValueError(f"a route has the address family {found} instead of {family}")
    return (
        checked_length(length, most=address_bits(family)),
        table or small_table,
        protocol,
        KINDS[kind],
        scope,
        tos,
        flags,
    )


def _compose(network: int, fixed: _Fixed, variable: _Variable) -> ObservedRoute:
    length, table, protocol, kind, scope, tos, flags = fixed
    gateway, dev, metric, source, nexthops, extra, nexthop_id, encapsulation = variable
    route = ObservedRoute(network, length, gateway, dev, metric, table, protocol, kind, scope, source, tos, flags)
    return route._replace(nexthops=nexthops, extra=extra, nexthop_id=nexthop_id, encapsulation=encapsulation)


@lru_cache(maxsize=4096)
def _address(packed: bytes) -> Address:
    """Return the address of these bytes: one object for each gateway of a big table."""
    return Address.unpack(packed)


def gateway_of(fields: Mapping[int, bytes], family: int) -> Address | None:
    """Return the gateway among the attributes of a route or next hop of this family."""
    if RTA_VIA in fields:
        # The family comes first; the length tells it, too.
        return _address(fields[RTA_VIA][2:])
    if RTA_GATEWAY not in fields:
        return None
    gateway = _address(fields[RTA_GATEWAY])
    if gateway.family != family:
        raise ValueError(f"a gateway has the address family {gateway.family} instead of {family}")
    return gateway


def encapsulation_of(fields: Mapping[int, bytes]) -> Encapsulation | None:
    """Return the encapsulation among the attributes of a route or next hop."""
    if RTA_ENCAP_TYPE not in fields:
        return None
    return Encapsulation(number_of(fields[RTA_ENCAP_TYPE], size=2), fields.get(RTA_ENCAP, b""))


def _expiry(cache_info: bytes | None) -> int:
    if cache_info is None:
        return 0
    (ticks,) = struct.unpack_from("=i", cache_info, _EXPIRES_AT)
    # A route that has ended and is not yet removed must not become one that never ends.
    return max(1, -(-ticks // _TICKS)) if ticks else 0


def _refusal(message: memoryview) -> int:
    number, _ = error_of(bytes(message))
    if not number:
        raise ValueError("a question was acknowledged, and not answered")
    return number


def strike_seen(buffer: memoryview, echoes: dict[Signature, set[int]]) -> bool:
    """Take the networks of every route of one receive from `echoes`; True when the dump is complete."""
    for alike, message, networks in _runs(buffer):
        if alike is None:
            if is_end_of_dump(message):
                return True
        elif alike in echoes:
            echoes[alike].difference_update(networks)
    return False


def _runs(buffer: memoryview) -> Iterator[tuple[Signature | None, memoryview, Sequence[int]]]:
    """The messages in `buffer`: routes by signature, with their networks; all others one by one, without signature.

    Where two routes in a row have the same signature, more probably do. Then a whole stretch of messages is compared at
    once, as long as that goes well with a longer one each time.
    """
    unpackers: dict[int, Callable[[memoryview, int], tuple[bytes, int, bytes]]] = {}
    last: Signature | None = None
    count, stretch = 0, _SHORTEST_STRETCH
    offset, end = 0, len(buffer)
    while offset < end:
        length, kind, flags = message_start(buffer, offset)
        if kind != NEWROUTE or length < BEHIND_DST or flags & DUMP_INTERRUPTED:
            yield None, buffer[offset : offset + checked_message_length(length, left=end - offset)], ()
            offset += length + 3 & ~3
            continue
        if length not in unpackers:
            if length % 4:
                raise ValueError(f"a route is {length} bytes long, to which padded attributes never add up")
            unpackers[length] = struct.Struct(f">16x24sI{length - BEHIND_DST}s").unpack_from
        before, network, behind = unpackers[length](buffer, offset)
        alike = before, behind
        if alike != last:
            if not before.endswith(DST_HEADER):
                yield None, buffer[offset : offset + length], ()
                offset += length
                continue
            last, count = alike, 0
        count += 1
        if count > _ALIKE_ENOUGH:
            run = buffer[offset : offset + min(stretch, (end - offset) // length) * length]
            networks = _only_networks_differ(run, length)
            if networks is not None:
                yield alike, run, networks
                offset += len(run)
                stretch *= 2
                continue
            count, stretch = 0, _SHORTEST_STRETCH
        yield alike, buffer, (network,)
        offset += length


def _only_networks_differ(run: memoryview, length: int) -> Sequence[int] | None:
    """The networks of a stretch of messages that are the same but for these; None if they are not.

    A stretch that repeats its first message, with the networks of this one, is this one.
    """
    words = run.cast("I")[BEHIND_DST // 4 - 1 :: length // 4]
    repeated = bytearray(bytes(run[:length]) * (len(run) // length))
    memoryview(repeated).cast("I")[BEHIND_DST // 4 - 1 :: length // 4] = words
    if repeated != run:
        return None
    networks = array("I", words.tobytes())
    if sys.byteorder == "little":
        networks.byteswap()
    return networks


def _extra(fields: Mapping[int, bytes]) -> Extra:
    return tuple(item for item in fields.items() if item[0] not in _NOT_EXTRA and item != _MEDIUM_PREFERENCE)
