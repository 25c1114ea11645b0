"""IPv6 routes, lookups, addresses and packet classifiers: packed for the kernel, parsed from it."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink.frames import HEADER_LENGTH, Request, attribute, attributes, number_of, word
from hostrouting.host.netlink.route_reader import RouteReader
from hostrouting.host.netlink.route_writer import (
    GETROUTE,
    RTA_DST,
    RTA_SRC,
    RTA_TABLE,
    TABLE_COMPAT,
    pack_attributes,
    rtmsg,
)
from hostrouting.net.addresses import IPV6, Address
from hostrouting.net.route_text import KIND_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.net.routes import ObservedRoute

__all__ = [
    "ADDRESSES",
    "ROUTES",
    "filter_requests",
    "lookup_request",
    "pack_route",
    "parse_bpf_names",
    "parse_routes",
    "parse_usable_addresses",
    "parse_youngest",
    "preference",
]

_IPV6: Final = socket.AF_INET6
ROUTES: Final = Request(GETROUTE, rtmsg.pack(_IPV6, 0, 0, 0, 0, 0, 0, 0, 0), "ip -6 route show table all")
ADDRESSES: Final = Request(22, struct.pack("=BBBBI", _IPV6, 0, 0, 0, 0), "ip -6 address")

_RTA_PREF, _RTA_EXPIRES = 20, 23
#: The ticks in a second of what an address remembers, whatever the kernel's HZ.
_TICKS: Final = 100
_CLONED: Final = 0x200
_FIB_MATCH: Final = 0x2000
#: Ranks of router preferences but medium: high and low.
_PREFERENCES: Final = {b"\1": -1, b"\3": 1}

_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
#: Where `ifa_cacheinfo` has the time at which the address was added, in hundredths of a second since the boot.
_ADDED_AT: Final = 8
_OPTIMISTIC, _DADFAILED, _TENTATIVE = 0x04, 0x08, 0x40

_GETTFILTER: Final = 46
_TCA_KIND, _TCA_OPTIONS, _TCA_BPF_NAME = 1, 2, 7
#: Of the qdisc clsact: what comes in, and what goes out.
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3


def parse_routes(messages: Iterable[bytes], names: Mapping[int, str]) -> list[ObservedRoute]:
    """Return the routes of all tables in the kernel's order, without those that it only caches."""
    reader = RouteReader(names)
    return [reader.read(message) for message in filter(_is_ipv6, messages) if not _is_cached(message)]


def pack_route(route: ObservedRoute, indexes: Mapping[str, int]) -> bytes:
    """Return the payload of a message that adds or removes exactly this route."""
    source = route.from_prefix
    packed = rtmsg.pack(
        _IPV6,
        route.prefix_length,
        0 if source is None else source.length,
        0,
        route.table if route.table < 256 else TABLE_COMPAT,
        route.protocol,
        0,
        KIND_NUMBERS[route.kind],
        route.flags,
    )
    packed += attribute(RTA_TABLE, word.pack(route.table)) + attribute(RTA_DST, Address(IPV6, route.network).packed)
    if source is not None:
        packed += attribute(RTA_SRC, Address(IPV6, source.network).packed)
    if route.expires:
        packed += attribute(_RTA_EXPIRES, word.pack(route.expires))
    return packed + pack_attributes(route, indexes)


def preference(route: ObservedRoute) -> int:
    """Return the rank among routes of one metric that the router gave to its own; the lower is better."""
    return _PREFERENCES.get(dict(route.extra).get(_RTA_PREF, b""), 0)


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


def _address(packed: bytes | None) -> str | None:
    return None if packed is None else socket.inet_ntop(_IPV6, packed)
