"""Devices, addresses and neighbours: parsed from dumps, and neighbours packed."""

from __future__ import annotations

import struct
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.host.netlink.frames import (
    Attributes,
    Request,
    address_of,
    attribute,
    attributes,
    checked_length,
    number_of,
    parsed,
)
from hostrouting.host.netlink.route_codec import Names, device_of, ifinfomsg, link_name, parse_names
from hostrouting.net.addresses import IPV4, IPV6, Address
from hostrouting.net.links import Device, DeviceAddress, Neighbour, Station, neighbour_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_ifaddrmsg = struct.Struct("=BBBBI")
ADDRESSES: Final = Request(22, bytes(8), "ip address")

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_LOWER_UP = 0x10000
_ARPHRD_INFINIBAND = 32
_IFLA_ADDRESS = 1
_IFLA_MASTER = 10
_IFLA_LINKINFO = 18
_IFLA_GROUP = 27
_IFLA_INFO_KIND = 1
#: Tunnels show their own IPv4 or IPv6 address in place of a hardware address.
_NO_HARDWARE = (4, 16)
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_BROADCAST = 4
_IFA_CACHEINFO = 6
#: The ticks in a second of the times in `ifa_cacheinfo`.
_TICKS = 100
_SECONDARY = 0x01
_OPTIMISTIC = 0x04
_DADFAILED = 0x08
_DEPRECATED = 0x20
_TENTATIVE = 0x40


def parse_devices(
    links: Iterable[bytes], addresses: Iterable[bytes], neighbours: Iterable[bytes] = ()
) -> list[Device]:
    """Return the devices by index, each with its addresses in the kernel's order.

    The arguments are payloads: messages without their headers.
    """
    known, failed = defaultdict(list), defaultdict(list)
    for entry in _entries(neighbours):
        if entry.is_known and entry.address.family == IPV4:
            known[entry.ifindex].append(entry.address.number)
        elif entry.state & _NUD_FAILED:
            failed[entry.ifindex].append(entry.address)
    own = defaultdict(list)
    for payload in addresses:
        if payload[0] in {IPV4, IPV6}:
            index, assigned = parse_address(payload)
            own[index].append(assigned)
    links = list(links)
    names = parse_names(links)
    devices = (parse_device(payload, names) for payload in links)
    return [
        device._replace(
            addresses=tuple(own[device.ifindex]),
            neighbours=tuple(sorted(known[device.ifindex])),
            failed=tuple(sorted(failed[device.ifindex])),
        )
        for device in sorted(devices, key=attrgetter("ifindex"))
    ]


def parse_device(payload: bytes, names: Names) -> Device:
    """Return a device without addresses and neighbours; `names` has the name of its master."""
    (link_type, index, flags), fields = parsed(payload, ifinfomsg)
    mac = fields.get(_IFLA_ADDRESS, b"")
    info = attributes(fields.get(_IFLA_LINKINFO, b""))
    return Device(
        name=link_name(payload),
        ifindex=index,
        up=bool(flags & _IFF_UP),
        mac=mac.hex(":") if any(mac) and len(mac) not in _NO_HARDWARE else "",
        kind=info.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode(),
        master=names.get(number_of(fields, _IFLA_MASTER)),
        carrier=bool(flags & _IFF_LOWER_UP),
        loopback=bool(flags & _IFF_LOOPBACK),
        infiniband=link_type == _ARPHRD_INFINIBAND,
        group=number_of(fields, _IFLA_GROUP),
    )


def parse_address(payload: bytes) -> tuple[int, DeviceAddress]:
    """Return the index of the device, and its address."""
    (family, prefix_length, flags, scope, index), fields = parsed(payload, _ifaddrmsg)
    peer = address_of(fields, _IFA_ADDRESS, family)
    local = address_of(fields, _IFA_LOCAL, family)
    return index, DeviceAddress(
        local=(peer or 0) if local is None else local,
        prefix_length=checked_length(prefix_length, family),
        peer=(local or 0) if peer is None else peer,
        broadcast=address_of(fields, _IFA_BROADCAST, family),
        scope=scope,
        # The same bit marks a temporary IPv6 address.
        secondary=family == IPV4 and bool(flags & _SECONDARY),
        family=family,
        # Optimistic addresses are tentative, too, and are used all the same.
        usable=not flags & _DADFAILED and flags & (_TENTATIVE | _OPTIMISTIC) != _TENTATIVE,
        deprecated=family == IPV6 and bool(flags & _DEPRECATED),
    )


def parse_youngest(addresses: Iterable[bytes], dev: int | None, now: float) -> float | None:
    """Return the age of the device's youngest IPv6 address; `now` is in seconds since the boot."""
    ages = []
    for payload in addresses:
        (family, *_, index), fields = parsed(payload, _ifaddrmsg)
        info = fields.get(_IFA_CACHEINFO)
        if (family, index) == (IPV6, dev) and info:
            # The third word is the time at which the address was added.
            (added,) = struct.unpack_from("=8xI", info)
            # The counter wraps every 497 days, and may be a tick ahead.
            age = (int(now * _TICKS) - added) % 2**32
            ages.append(age / _TICKS if age < 2**32 - _TICKS else 0.0)
    return min(ages, default=None)


DELNEIGH = 29
_AF_BRIDGE = 7

_ndmsg = struct.Struct("=BxxxiHBB")
# Requests for dumps; the family 0 stands for both.
NEIGHBOURS: Final = Request(30, bytes(_ndmsg.size), "ip neighbour")
STATIONS: Final = Request(30, _ndmsg.pack(_AF_BRIDGE, 0, 0, 0, 0), "bridge fdb")

_NDA_DST = 1
_NDA_LLADDR = 2
_NDA_MASTER = 9
_NDA_PROTOCOL = 12
_NDA_FLAGS_EXT = 15
_NUD_INCOMPLETE = 0x1
_NUD_FAILED = 0x20
_NUD_NOARP = 0x40
_NUD_PERMANENT = 0x80
#: Reachable, stale, delay, probe, permanent: only these states have a hardware address.
_NUD_KNOWN = 0x2 | 0x4 | 0x8 | 0x10 | 0x80
#: NTF_EXT_* flags are kept above the NTF_* flags, as the kernel does.
_EXT_SHIFT = 8


class NeighbourTable(NamedTuple):
    """The neighbours with a hardware address, and the (device, address) of those without."""

    known: list[Neighbour]
    unresolved: set[tuple[str, str]]


class _Entry(NamedTuple):
    """A neighbour as the kernel sends it."""

    ifindex: int
    address: Address
    state: int
    flags: int
    fields: Attributes

    @property
    def is_known(self) -> bool:
        """True for a neighbour with a hardware address."""
        return bool(self.state & _NUD_KNOWN) and _NDA_LLADDR in self.fields


def _entries(payloads: Iterable[bytes]) -> Iterator[_Entry]:
    """Yield the neighbours of both families."""
    for payload in payloads:
        (family, index, state, flags, _), fields = parsed(payload, _ndmsg)
        # The kernel moves what waits for a removed device to `blackhole_netdev`, whose index is 0;
        # in the first namespace of a machine that may stay for days.
        if family not in {IPV4, IPV6} or not index:
            continue
        number = address_of(fields, _NDA_DST, family)
        if number is None:
            raise ValueError("a neighbour has no address")
        yield _Entry(index, Address(family, number), state, flags, fields)


def parse_neighbours(payloads: Iterable[bytes], names: Names) -> NeighbourTable:
    """Return the neighbours of both families, sorted."""
    table = NeighbourTable([], set())
    for entry in _entries(payloads):
        address = str(entry.address)
        dev = device_of(entry.ifindex, names)
        if entry.is_known:
            table.known.append(
                Neighbour(
                    address,
                    dev,
                    entry.fields[_NDA_LLADDR].hex(":"),
                    permanent=bool(entry.state & _NUD_PERMANENT),
                    flags=entry.flags | number_of(entry.fields, _NDA_FLAGS_EXT) << _EXT_SHIFT,
                    protocol=number_of(entry.fields, _NDA_PROTOCOL, size=1),
                )
            )
        elif not entry.state or entry.state & (_NUD_INCOMPLETE | _NUD_FAILED):
            table.unresolved.add((dev, address))
    table.known.sort(key=neighbour_order)
    return table


def pack_neighbour(neighbour: Neighbour, index: int) -> bytes:
    """Return the payload of a message that removes the neighbour."""
    address = Address.parse(neighbour.address)
    return _ndmsg.pack(address.family, index, 0, 0, 0) + attribute(_NDA_DST, address.packed)


def parse_stations(payloads: Iterable[bytes], names: Names, bridge: str) -> list[Station]:
    """Return the forwarding database of the bridge, sorted.

    Every device also shows the multicast addresses that it listens to, without a master.
    """
    stations = []
    for payload in payloads:
        (_, index, state, _, _), fields = parsed(payload, _ndmsg)
        if _NDA_MASTER in fields and names.get(number_of(fields, _NDA_MASTER)) == bridge:
            stations.append(
                Station(
                    fields[_NDA_LLADDR].hex(":"),
                    device_of(index, names),
                    # A station that was added is `permanent` (taken for the node itself) or
                    # `static`.
                    permanent=bool(state & (_NUD_PERMANENT | _NUD_NOARP)),
                )
            )
    # A kernel that filters VLANs shows permanent ones for each VLAN of the port.
    return sorted({*stations})
