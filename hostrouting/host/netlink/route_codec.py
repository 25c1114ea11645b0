"""Route messages of both families: one route packed for the kernel, and one parsed from it.

A route message has this form, and the kernel writes it in this order:

    header(16) | rtmsg(12) TABLE(8) DST-header(4) | destination(4 or 16) | further attributes

The parts before and after the destination are the *signature* of a route: everything but its
network. In a big table nearly all routes share a few signatures, so `bulk` packs and
parses each of them once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import starmap
from typing import Any, Final

from hostrouting.host.netlink.frames import (
    Attributes,
    Request,
    address_of,
    attribute,
    attributes,
    checked_length,
    each_attribute,
    number_of,
    word,
)
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, address_bits
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    FLAG_DEAD,
    FLAG_LINKDOWN,
    FLAG_ONLINK,
    KIND_NUMBERS,
    KINDS,
    Encapsulation,
    NextHop,
    ObservedRoute,
    Route,
)

NEWROUTE = 24
DELROUTE = 25
GETROUTE = 26

rtmsg: struct.Struct = struct.Struct("=8BI")
ifinfomsg: struct.Struct = struct.Struct("=2xHiI4x")
_IFLA_IFNAME = 3
# An ifinfomsg that leaves out the statistics, which are most of a link's message.
_IFLA_EXT_MASK = 29
_SKIP_STATISTICS = 8
LINKS: Final = Request(
    18, bytes(16) + attribute(_IFLA_EXT_MASK, word.pack(_SKIP_STATISTICS)), "ip -d link"
)
_next_hop = struct.Struct("=HBBI")
RTA_DST = 1
RTA_SRC = 2
_RTA_OIF = 4
_RTA_GATEWAY = 5
_RTA_PRIORITY = 6
_RTA_PREFSRC = 7
_RTA_MULTIPATH = 9
_RTA_CACHEINFO = 12
RTA_TABLE = 15
_RTA_VIA = 18
_RTA_PREF = 20
_RTA_ENCAP_TYPE = 21
_RTA_ENCAP = 22
_RTA_EXPIRES = 23
RTA_UID = 25
_RTA_NH_ID = 30
#: Attributes that have a field, and those that only answers carry (requested source, incoming
#: device, cache info, mark, expiry, user). The rest are `extra`.
_NOT_EXTRA = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 16, 18, 21, 22, 23, 25, 30})
#: The kernel shows it for every IPv6 route without a high or low preference, so it need not be
#: carried.
_MEDIUM_PREFERENCE = (_RTA_PREF, b"\0")
#: The ticks in a second, whatever the kernel's HZ.
_TICKS = 100
#: A route that the kernel only caches.
_CLONED = 0x200
#: An answer to a lookup is the route that decides, and not one packet's path.
FIB_MATCH: Final = 0x2000
#: Stands in the byte of a table number that is too big for it; the attribute has the whole number.
_TABLE_COMPAT = 252
#: The bit of an attribute that holds attributes.
_NESTED = 0x8000

#: A route message before and after its destination, without the header.
Signature = tuple[bytes, bytes]
#: The flags of a route and its next hop that are kept; those of IPv6 have others, about a packet.
_KEPT_FLAGS = {IPV4: 0xFFFFFFFF, IPV6: FLAG_DEAD | FLAG_ONLINK | FLAG_LINKDOWN}
#: The networks of routes by their signature.
Echoes = dict[Signature, set[int]]
#: Device names by interface index, and the reverse.
Names = Mapping[int, str]
Indexes = Mapping[str, int]


class UnknownDeviceError(Exception):
    """A route names an interface index that is not in the dump of links: read both again."""


# --- to the kernel


def pack_signature(route: Route | ObservedRoute, indexes: Indexes) -> Signature:
    """Return the payload before and after the network, in the kernel's order.

    So the kernel shows a route later, byte for byte, as it was sent.
    """
    source = route.from_prefix
    before = rtmsg.pack(
        route.family,
        route.prefix_length,
        0 if source is None else source.length,
        route.tos,
        route.table if route.table < 256 else _TABLE_COMPAT,
        route.protocol,
        route.scope,
        KIND_NUMBERS[route.kind],
        FLAG_ONLINK if route.onlink else 0,
    )
    before += attribute(RTA_TABLE, word.pack(route.table))
    before += struct.pack("=HH", 4 + address_bits(route.family) // 8, RTA_DST)
    after = b""
    if source is not None:
        after += attribute(RTA_SRC, Address(route.family, source.network).packed)
    if isinstance(route, ObservedRoute) and route.expires:
        # A route that has ended and is not yet removed must not become one that never ends.
        after += attribute(_RTA_EXPIRES, word.pack(max(1, route.expires)))
    if route.metric:
        after += attribute(_RTA_PRIORITY, word.pack(route.metric))
    after += b"".join(starmap(attribute, route.extra))
    if route.source is not None:
        after += attribute(_RTA_PREFSRC, Address(route.family, route.source).packed)
    if route.nexthop_id:
        # A nexthop object names its own gateway and device; the kernel refuses a route that names
        # them again.
        return before, after + attribute(_RTA_NH_ID, word.pack(route.nexthop_id))
    after += _pack_gateway(route.gateway, route.family)
    dev = "lo" if route.family == IPV6 and route.kind in DEVICELESS_KINDS else route.dev
    if dev is not None:
        after += attribute(_RTA_OIF, word.pack(indexes[dev]))
    after += _pack_encapsulation(route.encapsulation)
    if route.nexthops:
        hops = [_pack_next_hop(hop, route.family, indexes) for hop in route.nexthops]
        after += attribute(_RTA_MULTIPATH, b"".join(hops))
    return before, after


def _pack_next_hop(hop: NextHop, family: int, indexes: Indexes) -> bytes:
    tail = b"".join(starmap(attribute, hop.extra))
    tail += _pack_gateway(hop.gateway, family) + _pack_encapsulation(hop.encapsulation)
    flags = FLAG_ONLINK if hop.onlink else 0
    return _next_hop.pack(8 + len(tail), flags, hop.weight - 1, indexes[hop.dev]) + tail


def _pack_gateway(gateway: Address | None, family: int) -> bytes:
    if gateway is None:
        return b""
    if gateway.family == family:
        return attribute(_RTA_GATEWAY, gateway.packed)
    return attribute(_RTA_VIA, struct.pack("=H", gateway.family) + gateway.packed)


def _pack_encapsulation(encapsulation: Encapsulation | None) -> bytes:
    if encapsulation is None:
        return b""
    kind = attribute(_RTA_ENCAP_TYPE, struct.pack("=H", encapsulation.kind))
    return kind + attribute(_RTA_ENCAP | _NESTED, encapsulation.payload)


# --- from the kernel


def is_kept(payload: bytes, family: int) -> bool:
    """Return True for a route of this family, unless it is one of IPv6 that the kernel only caches.

    A kernel without IPv6 (`ipv6.disable=1`) answers with its routes of all other families.
    """
    is_cached = family == IPV6 and rtmsg.unpack_from(payload)[-1] & _CLONED
    return payload[0] == family and not is_cached


def parse_route(payload: bytes, names: Names) -> ObservedRoute:
    """Return the route of one message, of a dump or of the answer to a lookup."""
    family, length, source_length, tos, small_table, protocol, scope, kind, flags = (
        rtmsg.unpack_from(payload)
    )
    if family not in _KEPT_FLAGS:
        raise ValueError(f"a route has the address family {family}")
    fields = attributes(payload, rtmsg.size)
    route = ObservedRoute(
        network=address_of(fields, RTA_DST, family) or 0,
        prefix_length=checked_length(length, family),
        dev=device_of(number_of(fields, _RTA_OIF), names) if _RTA_OIF in fields else None,
        metric=number_of(fields, _RTA_PRIORITY),
        table=number_of(fields, RTA_TABLE) or small_table,
        protocol=protocol,
        kind=KINDS[kind],
        scope=scope,
        source=address_of(fields, _RTA_PREFSRC, family),
        tos=tos,
        flags=flags & _KEPT_FLAGS[family],
        nexthops=tuple(_next_hops(fields.get(_RTA_MULTIPATH, b""), names, family)),
        nexthop_id=number_of(fields, _RTA_NH_ID),
        **_way(fields, family),
    )
    if family == IPV4:
        return route
    # The third word of `rta_cacheinfo` is the time that is left.
    [ticks] = struct.unpack_from("=8xi", fields.get(_RTA_CACHEINFO, bytes(12)))
    source = Prefix(
        IPV6, address_of(fields, RTA_SRC, IPV6) or 0, checked_length(source_length, IPV6)
    )
    return route._replace(
        # Routes that block are shown on the loopback device, whatever device they were made with.
        dev=None if route.kind in DEVICELESS_KINDS else route.dev,
        # The kernel does not order them: in an answer the one that it picked comes first.
        nexthops=tuple(sorted(route.nexthops, key=str)),
        family=IPV6,
        from_prefix=source if source_length else None,
        # Away from 0, which is never.
        expires=-(-ticks // _TICKS) if ticks > 0 else ticks // _TICKS,
    )


def device_of(index: int, names: Names) -> str:
    """Return the name of the device with this index; raise UnknownDeviceError if absent."""
    try:
        return names[index]
    except KeyError:
        raise UnknownDeviceError(f"no device has the index {index}") from None


#: The address of some bytes: one object for each gateway of a big table.
_address = lru_cache(4096)(Address.unpack)


def _way(fields: Attributes, family: int) -> dict[str, Any]:
    """Return the fields that routes of this family share with their next hops."""
    gateway = encapsulation = None
    if _RTA_VIA in fields:
        # The family comes first, but also follows from the length.
        gateway = _address(fields[_RTA_VIA][2:])
    elif _RTA_GATEWAY in fields:
        gateway = _address(fields[_RTA_GATEWAY])
        if gateway.family != family:
            raise ValueError(
                f"a gateway has the address family {gateway.family} instead of {family}"
            )
    if _RTA_ENCAP_TYPE in fields:
        kind = number_of(fields, _RTA_ENCAP_TYPE, size=2)
        encapsulation = Encapsulation(kind, fields.get(_RTA_ENCAP, b""))
    extra = tuple(
        item for item in fields.items() if item[0] not in _NOT_EXTRA and item != _MEDIUM_PREFERENCE
    )
    return {"gateway": gateway, "encapsulation": encapsulation, "extra": extra}


def _next_hops(payload: bytes, names: Names, family: int) -> Iterator[NextHop]:
    offset = 0
    end = len(payload)
    while offset < end:
        length, flags, hops, index = _next_hop.unpack_from(payload, offset)
        if not _next_hop.size <= length <= end - offset:
            raise ValueError(f"a next hop is {length} bytes long, but {end - offset} are left")
        fields = attributes(payload[offset : offset + length], _next_hop.size)
        offset += length + 3 & ~3
        yield NextHop(
            dev=device_of(index, names) if index else "",
            weight=hops + 1,
            onlink=bool(flags & FLAG_ONLINK),
            dead=bool(flags & FLAG_DEAD),
            **_way(fields, family),
        )


# --- the names of devices


def parse_names(links: Iterable[bytes]) -> dict[int, str]:
    """Return the device names by interface index."""
    return {ifinfomsg.unpack_from(payload)[1]: link_name(payload) for payload in links}


# Each dump of routes and each lookup reads the names.
@lru_cache(1024)
def link_name(link: bytes) -> str:
    """Return the name in a message about a link."""
    for number, payload in each_attribute(link, ifinfomsg.size):
        if number == _IFLA_IFNAME:
            return device_name(payload)
    raise ValueError("a link has no name")


def device_name(packed: bytes) -> str:
    """Return the name of a device."""
    # A name may hold any byte but a slash, a colon, white space and zero; bytes that are not UTF-8
    # must survive.
    return packed.rstrip(b"\0").decode(errors="surrogateescape")
