"""IPv6 routes, lookups, addresses and packet classifiers: packed for the kernel, parsed from it."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink.frames import (
    HEADER_LENGTH,
    Request,
    attribute,
    attributes,
    checked_length,
    next_hops,
    number_of,
    word,
)
from hostrouting.host.netlink.route_reader import UnknownDeviceError
from hostrouting.host.netlink.route_writer import (
    GETROUTE,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_NH_ID,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_SRC,
    RTA_TABLE,
    rtmsg,
)
from hostrouting.net.links import IPv6Route
from hostrouting.net.route_text import DEVICELESS_KINDS, FLAG_ONLINK, KIND_NUMBERS, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_IPV6: Final = socket.AF_INET6
ROUTES: Final = Request(GETROUTE, rtmsg.pack(_IPV6, 0, 0, 0, 0, 0, 0, 0, 0), "ip -6 route show table all")
ADDRESSES: Final = Request(22, struct.pack("=BBBBI", _IPV6, 0, 0, 0, 0), "ip -6 address")

_RTA_CACHEINFO, _RTA_PREF, _RTA_EXPIRES = 12, 20, 23
#: Fields of `IPv6Route`, and what only answers carry (incoming device, cache info, user). All else is its `extra`.
_NOT_EXTRA: Final = frozenset(
    {RTA_DST, RTA_SRC, 3, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, _RTA_CACHEINFO, RTA_TABLE, _RTA_EXPIRES, 25}
)
#: Where `rta_cacheinfo` has the time that is left, and how many of its ticks are a second, whatever the kernel's HZ.
_EXPIRES_AT: Final = 8
_TICKS: Final = 100
_CLONED: Final = 0x200
_DEAD: Final = 0x1
_FIB_MATCH: Final = 0x2000
#: The byte of a table's number that is too big for it; the attribute has it whole.
_TABLE_COMPAT: Final = 252
#: Shown of every route that nobody gave another one, so we need not carry it.
_MEDIUM_PREFERENCE: Final = (_RTA_PREF, b"\0")
#: Ranks of the others: high and low.
_PREFERENCES: Final = {b"\1": -1, b"\3": 1}

_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
#: Where `ifa_cacheinfo` has the time at which the address was added, in hundredths of a second since the boot.
_ADDED_AT: Final = 8
_OPTIMISTIC, _DADFAILED, _TENTATIVE = 0x04, 0x08, 0x40

_GETTFILTER: Final = 46
_TCA_KIND, _TCA_OPTIONS, _TCA_BPF_NAME = 1, 2, 7
#: Of the qdisc clsact: what comes in, and what goes out.
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3


def parse_routes(messages: Iterable[bytes], names: Mapping[int, str]) -> list[IPv6Route]:
    """Routes of all tables in the kernel's order, without those that it only caches."""
    return [parse_route(message, names) for message in filter(_is_ipv6, messages) if not _is_cached(message)]


def parse_route(message: bytes, names: Mapping[int, str]) -> IPv6Route:
    """One route, of a dump or of the answer to a lookup."""
    _, length, source_length, _, table, protocol, _, kind, flags = rtmsg.unpack_from(message, HEADER_LENGTH)
    fields = dict(attributes(message, HEADER_LENGTH + rtmsg.size))
    return IPv6Route(
        destination=_prefix(fields.get(RTA_DST), length),
        # Those that block are shown on the loopback device, whatever they were made with.
        dev=None
        if KINDS[kind] in DEVICELESS_KINDS or RTA_OIF not in fields
        else _device(number_of(fields[RTA_OIF]), names),
        gateway=_address(fields.get(RTA_GATEWAY)),
        metric=number_of(fields.get(RTA_PRIORITY)),
        table=number_of(fields.get(RTA_TABLE)) or table,
        protocol=protocol,
        kind=KINDS[kind],
        source=_address(fields.get(RTA_PREFSRC)),
        # The other flags say how the link is doing.
        flags=flags & FLAG_ONLINK,
        extra=tuple(
            (number, payload)
            for number, payload in fields.items()
            if number not in _NOT_EXTRA and (number, payload) != _MEDIUM_PREFERENCE
        ),
        from_prefix=_prefix(fields.get(RTA_SRC), source_length) if source_length else None,
        expires=_expiry(fields.get(_RTA_CACHEINFO)),
    )


def pack_route(route: IPv6Route, indexes: Mapping[str, int]) -> bytes:
    """The payload of a message that adds or removes exactly this route."""
    network, _, length = route.destination.partition("/")
    source, _, source_length = (route.from_prefix or "").partition("/")
    packed = rtmsg.pack(
        _IPV6,
        int(length),
        int(source_length or 0),
        0,
        route.table if route.table < 256 else _TABLE_COMPAT,
        route.protocol,
        0,
        KIND_NUMBERS[route.kind],
        route.flags,
    )
    packed += attribute(RTA_TABLE, word.pack(route.table)) + attribute(RTA_DST, socket.inet_pton(_IPV6, network))
    if source:
        packed += attribute(RTA_SRC, socket.inet_pton(_IPV6, source))
    if route.metric:
        packed += attribute(RTA_PRIORITY, word.pack(route.metric))
    if route.source is not None:
        packed += attribute(RTA_PREFSRC, socket.inet_pton(_IPV6, route.source))
    if route.expires:
        packed += attribute(_RTA_EXPIRES, word.pack(route.expires))
    # A nexthop object names its own gateways and devices; naming them again is refused.
    has_object = any(number == RTA_NH_ID for number, _ in route.extra)
    for number, payload in route.extra:
        if not (has_object and number == RTA_MULTIPATH):
            packed += attribute(number, payload)
    if has_object:
        return packed
    if route.gateway is not None:
        packed += attribute(RTA_GATEWAY, socket.inet_pton(_IPV6, route.gateway))
    dev = "lo" if route.kind in DEVICELESS_KINDS else route.dev
    return packed + attribute(RTA_OIF, word.pack(indexes[dev])) if dev is not None else packed


def preference(route: IPv6Route) -> int:
    """The rank among routes of one metric that the router gave to its own; the lower is better."""
    return _PREFERENCES.get(dict(route.extra).get(_RTA_PREF, b""), 0)


def devices(route: IPv6Route, names: Mapping[int, str]) -> tuple[str, ...]:
    """The devices of all its next hops that are alive, in their order."""
    hops = dict(route.extra).get(RTA_MULTIPATH)
    if hops is not None:
        return tuple(_device(index, names) for flags, _, index, _ in next_hops(hops) if not flags & _DEAD)
    return (route.dev,) if route.dev is not None else ()


def lookup_request(address: str, *, fib_match: bool) -> Request:
    """Ask for the route that decides the address (`fib_match`), or for the one way that a packet would take."""
    flags = _FIB_MATCH if fib_match else 0
    packed = rtmsg.pack(_IPV6, 128, 0, 0, 0, 0, 0, 0, flags)
    packed += attribute(RTA_DST, socket.inet_pton(_IPV6, address))
    return Request(GETROUTE, packed, f"ip -6 route get{' fibmatch' if fib_match else ''} {address}")


def parse_usable_addresses(messages: Iterable[bytes], dev: int) -> tuple[str, ...]:
    """The addresses of global scope on the device of that index that the node may send from."""
    usable = []
    for message in filter(_is_ipv6, messages):
        _, _, flags, scope, index = struct.unpack_from("=BBBBI", message, HEADER_LENGTH)
        fields = dict(attributes(message, HEADER_LENGTH + 8))
        flags |= number_of(fields.get(_IFA_FLAGS))
        # Optimistic ones are tentative, too, and used all the same.
        waits = flags & _TENTATIVE and not flags & _OPTIMISTIC
        address = _address(fields.get(_IFA_LOCAL, fields.get(_IFA_ADDRESS)))
        if index == dev and scope == 0 and address and not waits and not flags & _DADFAILED:
            usable.append(address)
    return tuple(usable)


def parse_youngest(messages: Iterable[bytes], dev: int, now: float) -> float | None:
    """The age in seconds of the youngest address on the device of that index, `now` seconds after the boot."""
    ages = []
    for message in filter(_is_ipv6, messages):
        (index,) = struct.unpack_from("=I", message, HEADER_LENGTH + 4)
        info = dict(attributes(message, HEADER_LENGTH + 8)).get(_IFA_CACHEINFO)
        if index == dev and info:
            (added,) = struct.unpack_from("=I", info, _ADDED_AT)
            # It begins anew every 497 days; and may be a tick ahead.
            age = (int(now * _TICKS) - added) % 2**32
            ages.append(age / _TICKS if age < 2**32 - _TICKS else 0.0)
    return min(ages, default=None)


def filter_requests(index: int, dev: str) -> list[Request]:
    """Ask for the packet filters of the device: those for what comes in, and those for what goes out."""
    return [
        Request(_GETTFILTER, struct.pack("=BxxxiIII", 0, index, 0, parent, 0), f"tc filter show dev {dev} {direction}")
        for parent, direction in ((_INGRESS, "ingress"), (_EGRESS, "egress"))
    ]


def parse_bpf_names(messages: Iterable[bytes]) -> set[str]:
    """The names of the BPF programmes among packet filters, as whoever attached them wrote them."""
    names = set()
    for message in messages:
        fields = dict(attributes(message, HEADER_LENGTH + 20))
        if fields.get(_TCA_KIND) == b"bpf\0":
            # A filter is shown twice: its priority by itself, without options, and each of its handles.
            name = dict(attributes(fields.get(_TCA_OPTIONS, b""))).get(_TCA_BPF_NAME)
            if name:
                names.add(name.rstrip(b"\0").decode(errors="replace"))
    return names


def _is_ipv6(message: bytes) -> bool:
    """A kernel without IPv6 (`ipv6.disable=1`) answers a question for it with what it has of all other families."""
    return message[HEADER_LENGTH] == _IPV6


def _is_cached(message: bytes) -> bool:
    flags: int = rtmsg.unpack_from(message, HEADER_LENGTH)[-1]
    return bool(flags & _CLONED)


def _expiry(cache_info: bytes | None) -> int:
    if cache_info is None:
        return 0
    (ticks,) = struct.unpack_from("=i", cache_info, _EXPIRES_AT)
    # One that is over and not yet swept away must not become one without end.
    return max(1, -(-ticks // _TICKS)) if ticks else 0


def _device(index: int, names: Mapping[int, str]) -> str:
    name = names.get(index)
    if name is None:
        raise UnknownDeviceError(index)
    return name


def _prefix(network: bytes | None, length: int) -> str:
    return f"{_address(bytes(16) if network is None else network)}/{checked_length(length, most=128)}"


def _address(packed: bytes | None) -> str | None:
    return None if packed is None else socket.inet_ntop(_IPV6, packed)
