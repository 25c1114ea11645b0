"""Neighbours and bridge stations: parsed from the kernel's dumps, and neighbours packed for it."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.host.netlink.frames import (
    Request,
    attribute,
    number_of,
    parsed,
    word,
)
from hostrouting.host.netlink.route_codec import device_of
from hostrouting.net.addresses import IPV4, IPV6, Address
from hostrouting.net.links import Neighbour, Station, neighbour_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "DELNEIGH",
    "KNOWN_NEIGHBOUR",
    "NEIGHBOURS",
    "NEWNEIGH",
    "STATIONS",
    "NeighbourTable",
    "pack_neighbour",
    "parse_neighbours",
    "parse_stations",
]

NEWNEIGH: Final = 28
DELNEIGH: Final = 29
_AF_BRIDGE: Final = 7

_ndmsg = struct.Struct("=BxxxiHBB")
# Requests for dumps; the family 0 asks for both.
NEIGHBOURS: Final = Request(30, _ndmsg.pack(0, 0, 0, 0, 0), "ip neighbour")
STATIONS: Final = Request(30, _ndmsg.pack(_AF_BRIDGE, 0, 0, 0, 0), "bridge fdb")

_NDA_DST, _NDA_LLADDR, _NDA_VLAN, _NDA_MASTER, _NDA_PROTOCOL, _NDA_FLAGS_EXT = 1, 2, 5, 9, 12, 15
_NUD_INCOMPLETE, _NUD_STALE, _NUD_FAILED, _NUD_NOARP, _NUD_PERMANENT = 0x1, 0x4, 0x20, 0x40, 0x80
#: Reachable, stale, delay, probe, permanent: there is a hardware address. The other states have none.
KNOWN_NEIGHBOUR: Final = 0x2 | 0x4 | 0x8 | 0x10 | 0x80
#: NTF_EXT_* flags are kept above the NTF_* flags, as the kernel does.
_EXT_SHIFT: Final = 8


class NeighbourTable(NamedTuple):
    """The neighbours with a hardware address, and the (address, device) of those without."""

    known: list[Neighbour]
    unresolved: set[tuple[str, str]]


def parse_neighbours(payloads: Iterable[bytes], names: Mapping[int, str]) -> NeighbourTable:
    """Return the neighbours of both families, sorted."""
    table = NeighbourTable([], set())
    for payload in payloads:
        (family, index, state, flags, _), fields = parsed(payload, _ndmsg)
        if family not in {IPV4, IPV6}:
            continue
        address, dev = socket.inet_ntop(family, fields[_NDA_DST]), device_of(index, names)
        if state & KNOWN_NEIGHBOUR and _NDA_LLADDR in fields:
            table.known.append(
                Neighbour(
                    address,
                    dev,
                    fields[_NDA_LLADDR].hex(":"),
                    permanent=bool(state & _NUD_PERMANENT),
                    flags=flags | number_of(fields.get(_NDA_FLAGS_EXT)) << _EXT_SHIFT,
                    protocol=number_of(fields.get(_NDA_PROTOCOL), size=1),
                )
            )
        elif not state or state & (_NUD_INCOMPLETE | _NUD_FAILED):
            table.unresolved.add((address, dev))
    table.known.sort(key=neighbour_order)
    return table


def pack_neighbour(neighbour: Neighbour, index: int) -> bytes:
    """Return the payload of a message that adds or removes the neighbour.

    A neighbour that the kernel had learned is added as `stale`: the kernel asks for it again before it relies on it.
    """
    address = Address.parse(neighbour.address)
    packed = _ndmsg.pack(
        address.family, index, _NUD_PERMANENT if neighbour.permanent else _NUD_STALE, neighbour.flags & 0xFF, 0
    )
    packed += attribute(_NDA_DST, address.packed)
    packed += attribute(_NDA_LLADDR, bytes.fromhex(neighbour.mac.replace(":", "")))
    if neighbour.protocol:
        packed += attribute(_NDA_PROTOCOL, bytes([neighbour.protocol]))
    if neighbour.flags >> _EXT_SHIFT:
        packed += attribute(_NDA_FLAGS_EXT, word.pack(neighbour.flags >> _EXT_SHIFT))
    return packed


def parse_stations(payloads: Iterable[bytes], names: Mapping[int, str], bridge: str) -> list[Station]:
    """Return the forwarding database of the bridge, sorted.

    Every device also shows the multicast addresses that it listens to; those have no master.
    """
    stations = []
    for payload in payloads:
        (_, index, state, _, _), fields = parsed(payload, _ndmsg)
        if _NDA_MASTER in fields and names.get(number_of(fields[_NDA_MASTER])) == bridge:
            stations.append(
                Station(
                    fields[_NDA_LLADDR].hex(":"),
                    device_of(index, names),
                    # A station that was added is `permanent` (taken for the node itself) or `static`.
                    permanent=bool(state & (_NUD_PERMANENT | _NUD_NOARP)),
                    vlan=number_of(fields.get(_NDA_VLAN), size=2),
                )
            )
    return sorted(stations)
