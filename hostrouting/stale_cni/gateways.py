"""The gateways of a route, those included that stand in attributes which the ports carry as they are; pure."""

from __future__ import annotations

import struct
from socket import AF_INET, AF_INET6, inet_ntop
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink.frames import attributes
from hostrouting.net.addresses import format_ipv4
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.net.links import IPv6Route

__all__ = ["gateways_of", "next_hop_indexes"]

_GATEWAY, _MULTIPATH, _VIA = 5, 9, 18
#: rtnexthop: length, flags, weight - 1, the device's index.
_next_hop = struct.Struct("=HBBi")
_FAMILIES: Final = {4: AF_INET, 16: AF_INET6}


def gateways_of(route: ObservedRoute | IPv6Route) -> Iterator[str]:
    """Each gateway of the route, of its next hops, and of the other family.

    >>> list(gateways_of(ObservedRoute(0, 0, 0x0AF00001, "azure0")))
    ['10.240.0.1']
    """
    if isinstance(route, ObservedRoute):
        if route.gateway is not None:
            yield format_ipv4(route.gateway)
        for hop in route.nexthops:
            if hop.gateway is not None:
                yield format_ipv4(hop.gateway)
            if hop.extra:
                yield from _inside(hop.extra)
    elif route.gateway is not None:
        yield route.gateway
    if route.extra:
        yield from _inside(route.extra)


def next_hop_indexes(extra: Iterable[tuple[int, bytes]]) -> Iterator[int]:
    """The devices, by index, of several next hops in one attribute, which is how IPv6 routes have them."""
    for number, payload in extra:
        if number == _MULTIPATH:
            for index, _ in _next_hops(payload):
                yield index


def _inside(extra: Iterable[tuple[int, bytes]]) -> Iterator[str]:
    for number, payload in extra:
        if number == _MULTIPATH:
            for _, inner in _next_hops(payload):
                yield from _inside(attributes(inner))
        elif number == _GATEWAY:
            yield from _text(payload)
        elif number == _VIA:
            # The family stands before the address; but that shows in its length, too.
            yield from _text(payload[2:])


def _next_hops(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """(index of the device, attributes) of each."""
    offset = 0
    while offset + _next_hop.size <= len(payload):
        length, _, _, index = _next_hop.unpack_from(payload, offset)
        if length < _next_hop.size:
            return
        yield index, payload[offset + _next_hop.size : offset + length]
        offset += length + 3 & ~3


def _text(packed: bytes) -> Iterator[str]:
    family = _FAMILIES.get(len(packed))
    if family is not None:
        yield inet_ntop(family, packed)
