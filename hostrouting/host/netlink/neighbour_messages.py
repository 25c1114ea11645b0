"""Devices, neighbours and bridge stations from the kernel's dumps, and neighbours packed for it."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.host.netlink.frames import (
    HEADER_LENGTH,
    Request,
    attribute,
    attributes,
    checked_length,
    number_of,
    word,
)
from hostrouting.host.netlink.link_messages import KNOWN_NEIGHBOUR, link_name
from hostrouting.host.netlink.route_reader import UnknownDeviceError
from hostrouting.net.links import Device, Neighbour, Station, neighbour_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEWNEIGH: Final = 28
DELNEIGH: Final = 29
_AF_BRIDGE: Final = 7

_ndmsg = struct.Struct("=BxxxiHBB")
# Requests for dumps; the family 0 asks for both.
NEIGHBOURS: Final = Request(30, _ndmsg.pack(0, 0, 0, 0, 0), "ip neighbour")
STATIONS: Final = Request(30, _ndmsg.pack(_AF_BRIDGE, 0, 0, 0, 0), "bridge fdb")
ADDRESSES: Final = Request(22, bytes(8), "ip address")

_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000
_IFLA_ADDRESS, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_INFO_KIND = 1, 10, 18, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR, _NDA_VLAN, _NDA_MASTER, _NDA_PROTOCOL, _NDA_FLAGS_EXT = 1, 2, 5, 9, 12, 15
_NUD_INCOMPLETE, _NUD_STALE, _NUD_FAILED, _NUD_NOARP, _NUD_PERMANENT = 0x1, 0x4, 0x20, 0x40, 0x80
#: NTF_EXT_* stand above the NTF_*, as in the kernel's own memory.
_EXT_SHIFT: Final = 8
#: Tunnels show their own IPv4 or IPv6 address where others have the hardware's.
_NO_HARDWARE: Final = (4, 16)


class NeighbourTable(NamedTuple):
    """The neighbours with a hardware address, and the (address, device) of those whose address nobody knows."""

    known: list[Neighbour]
    unresolved: set[tuple[str, str]]


def parse_devices(link_messages: Iterable[bytes], address_messages: Iterable[bytes]) -> list[Device]:
    """Devices in the order of their indexes, each with its addresses in the kernel's order."""
    addresses: dict[int, list[str]] = defaultdict(list)
    for message in address_messages:
        family, length, _, _, index = struct.unpack_from("=BBBBI", message, HEADER_LENGTH)
        fields = dict(attributes(message, HEADER_LENGTH + 8))
        # On a point-to-point link `address` is the other end's.
        address = fields.get(_IFA_LOCAL, fields.get(_IFA_ADDRESS))
        if address is not None and family in {socket.AF_INET, socket.AF_INET6}:
            most = 32 if family == socket.AF_INET else 128
            addresses[index].append(f"{socket.inet_ntop(family, address)}/{checked_length(length, most=most)}")
    messages = list(link_messages)
    names = {struct.unpack_from("=i", message, HEADER_LENGTH + 4)[0]: link_name(message) for message in messages}
    devices = []
    for message in messages:
        index, flags = struct.unpack_from("=iI", message, HEADER_LENGTH + 4)
        fields = dict(attributes(message, HEADER_LENGTH + 16))
        mac = fields.get(_IFLA_ADDRESS, b"")
        info = dict(attributes(fields.get(_IFLA_LINKINFO, b"")))
        devices.append(
            Device(
                name=names[index],
                ifindex=index,
                up=bool(flags & _IFF_UP),
                mac=mac.hex(":") if any(mac) and len(mac) not in _NO_HARDWARE else "",
                kind=info.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode(),
                master=names.get(number_of(fields.get(_IFLA_MASTER))),
                addresses=tuple(addresses[index]),
                carrier=bool(flags & _IFF_LOWER_UP),
            )
        )
    return sorted(devices, key=lambda device: device.ifindex)


def parse_neighbours(messages: Iterable[bytes], names: Mapping[int, str]) -> NeighbourTable:
    """Neighbours of both families, sorted."""
    table = NeighbourTable([], set())
    for message in messages:
        family, index, state, flags, _ = _ndmsg.unpack_from(message, HEADER_LENGTH)
        if family not in {socket.AF_INET, socket.AF_INET6}:
            continue
        fields = dict(attributes(message, HEADER_LENGTH + _ndmsg.size))
        address, dev = socket.inet_ntop(family, fields[_NDA_DST]), _name(names, index)
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
    """The payload of a message that adds or removes the neighbour.

    One that the kernel had learned is added as `stale`: known, and to be asked for again before it is relied on.
    """
    family = socket.AF_INET6 if ":" in neighbour.address else socket.AF_INET
    packed = _ndmsg.pack(
        family, index, _NUD_PERMANENT if neighbour.permanent else _NUD_STALE, neighbour.flags & 0xFF, 0
    )
    packed += attribute(_NDA_DST, socket.inet_pton(family, neighbour.address))
    packed += attribute(_NDA_LLADDR, bytes.fromhex(neighbour.mac.replace(":", "")))
    if neighbour.protocol:
        packed += attribute(_NDA_PROTOCOL, bytes([neighbour.protocol]))
    if neighbour.flags >> _EXT_SHIFT:
        packed += attribute(_NDA_FLAGS_EXT, word.pack(neighbour.flags >> _EXT_SHIFT))
    return packed


def parse_stations(messages: Iterable[bytes], names: Mapping[int, str], bridge: str) -> list[Station]:
    """What the bridge's own database holds, sorted.

    Every device also shows the multicast addresses that it listens to; those have no master.
    """
    stations = []
    for message in messages:
        _, index, state, _, _ = _ndmsg.unpack_from(message, HEADER_LENGTH)
        fields = dict(attributes(message, HEADER_LENGTH + _ndmsg.size))
        if _NDA_MASTER in fields and names.get(number_of(fields[_NDA_MASTER])) == bridge:
            stations.append(
                Station(
                    fields[_NDA_LLADDR].hex(":"),
                    _name(names, index),
                    # What somebody put there is `permanent` (taken for the node itself) or `static`.
                    permanent=bool(state & (_NUD_PERMANENT | _NUD_NOARP)),
                    vlan=number_of(fields.get(_NDA_VLAN), size=2),
                )
            )
    return sorted(stations)


def _name(names: Mapping[int, str], index: int) -> str:
    name = names.get(index)
    if name is None:
        raise UnknownDeviceError(index)
    return name
