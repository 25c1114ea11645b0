"""Links, addresses and policy rules from the kernel's dumps: few of each, so parsed plainly."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink.frames import (
    AF_INET,
    HEADER_LENGTH,
    Request,
    address_of,
    attribute,
    attributes,
    checked_length,
    number_of,
)
from hostrouting.net.addresses import IPV4, IPV6, address_bits
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.rules import Range, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.net.routes import Extra

__all__ = [
    "ADDRESSES",
    "KNOWN_NEIGHBOUR",
    "LINKS",
    "NEIGHBOURS",
    "RULES",
    "RULE_ACTIONS",
    "link_name",
    "parse_devices",
    "parse_names",
    "parse_rules",
    "unknown_selectors",
]

# An ifinfomsg that asks for names and states, not for the statistics (which are most of a link's message).
_IFLA_EXT_MASK, _SKIP_STATISTICS = 29, 8
LINKS: Final = Request(18, bytes(16) + attribute(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS)), "ip -d link")
ADDRESSES: Final = Request(22, struct.pack("=BBBBI", AF_INET, 0, 0, 0, 0), "ip -4 address")
NEIGHBOURS: Final = Request(30, struct.pack("=BBHiHBB", AF_INET, 0, 0, 0, 0, 0, 0), "ip -4 neighbour")
RULES: Final = Request(34, struct.pack("=8BI", AF_INET, 0, 0, 0, 0, 0, 0, 0, 0), "ip -4 rule")

_IFF_UP, _IFF_LOOPBACK, _IFF_LOWER_UP = 0x1, 0x8, 0x10000
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_INFO_KIND = 1, 3, 10, 18, 1
_IFLA_GROUP: Final = 27
#: Tunnels show their own IPv4 or IPv6 address in place of a hardware address.
_NO_HARDWARE: Final = (4, 16)
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = 1, 2, 4
_IFA_F_SECONDARY: Final = 0x1
_NDA_DST: Final = 1
#: Reachable, stale, delay, probe, permanent: there is a hardware address. The others were only asked for, or failed.
KNOWN_NEIGHBOUR: Final = 0x2 | 0x4 | 0x8 | 0x10 | 0x80

_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_GOTO, _FRA_PRIORITY, _FRA_MARK, _FRA_TUN_ID = 1, 2, 3, 4, 6, 10, 12
_FRA_SUPPRESS_GROUP, _FRA_SUPPRESS_LENGTH, _FRA_TABLE, _FRA_MARK_MASK, _FRA_OIF = 13, 14, 15, 16, 17
_FRA_L3MDEV, _FRA_UIDS, _FRA_PROTOCOL, _FRA_IP_PROTOCOL, _FRA_SPORTS, _FRA_DPORTS = 19, 20, 21, 22, 23, 24
_KNOWN: Final = frozenset({*range(1, 5), 6, 10, *range(12, 25)})
_RULE_INVERTED: Final = 0x2
#: Stands for a suppressor that is off.
_NO_NUMBER: Final = 0xFFFFFFFF
RULE_ACTIONS: Final = {1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}


def parse_devices(
    link_messages: Iterable[bytes], address_messages: Iterable[bytes], neighbour_messages: Iterable[bytes] = ()
) -> list[Device]:
    """Return the devices in the order of their indexes, each with its addresses in the kernel's order."""
    neighbours = _parse_known_neighbours(neighbour_messages)
    addresses: dict[int, list[DeviceAddress]] = defaultdict(list)
    for message in address_messages:
        family, index = struct.unpack_from("=BxxxI", message, HEADER_LENGTH)
        if family in {IPV4, IPV6}:
            addresses[index].append(_parse_address(message))
    messages = list(link_messages)
    names = parse_names(messages)
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
                loopback=bool(flags & _IFF_LOOPBACK),
                neighbours=tuple(sorted(neighbours[index])),
                group=number_of(fields.get(_IFLA_GROUP)),
            )
        )
    return sorted(devices, key=lambda device: device.ifindex)


def _parse_known_neighbours(messages: Iterable[bytes]) -> dict[int, list[int]]:
    """Return the IPv4 neighbours that have a hardware address, by the index of their device."""
    known: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        index, state = struct.unpack_from("=4xiH", message, HEADER_LENGTH)
        neighbour = address_of(dict(attributes(message, HEADER_LENGTH + 12)).get(_NDA_DST))
        if neighbour is not None and state & KNOWN_NEIGHBOUR:
            known[index].append(neighbour)
    return known


def parse_names(link_messages: Iterable[bytes]) -> dict[int, str]:
    """Interface names by index."""
    return {struct.unpack_from("=i", message, HEADER_LENGTH + 4)[0]: link_name(message) for message in link_messages}


def link_name(message: bytes) -> str:
    """The interface name in a link's message."""
    for number, payload in attributes(message, HEADER_LENGTH + 16):
        if number == _IFLA_IFNAME:
            return _name(payload)
    raise ValueError("a link has no name")


def _parse_address(message: bytes) -> DeviceAddress:
    family, prefix_length, flags, scope = struct.unpack_from("=BBBB", message, HEADER_LENGTH)
    fields = dict(attributes(message, HEADER_LENGTH + 8))
    peer = address_of(fields.get(_IFA_ADDRESS), family)
    local = address_of(fields.get(_IFA_LOCAL), family)
    return DeviceAddress(
        local=(peer or 0) if local is None else local,
        prefix_length=checked_length(prefix_length, most=address_bits(family)),
        peer=(local or 0) if peer is None else peer,
        broadcast=address_of(fields.get(_IFA_BROADCAST), family),
        scope=scope,
        # The same bit marks a temporary IPv6 address.
        secondary=family == IPV4 and bool(flags & _IFA_F_SECONDARY),
        family=family,
    )


def parse_rules(messages: Iterable[bytes]) -> list[Rule]:
    """Return the policy rules in the order in which the kernel tries them."""
    return [_parse_rule(message) for message in messages]


def _parse_rule(message: bytes) -> Rule:
    family, to_length, from_length, tos, table, _, _, action, flags = struct.unpack_from("=8BI", message, HEADER_LENGTH)
    fields = dict(attributes(message, HEADER_LENGTH + 12))
    bits = address_bits(family)
    return Rule(
        priority=number_of(fields.get(_FRA_PRIORITY)),
        action=RULE_ACTIONS.get(action, f"action {action}"),
        table=number_of(fields.get(_FRA_TABLE)) or table,
        source=(address_of(fields.get(_FRA_SRC), family) or 0, checked_length(from_length, most=bits)),
        destination=(address_of(fields.get(_FRA_DST), family) or 0, checked_length(to_length, most=bits)),
        inverted=bool(flags & _RULE_INVERTED),
        goto=number_of(fields[_FRA_GOTO]) if _FRA_GOTO in fields else None,
        tos=tos,
        mark=number_of(fields.get(_FRA_MARK)),
        mark_mask=number_of(fields.get(_FRA_MARK_MASK)),
        iif=_name(fields.get(_FRA_IIF, b"")),
        oif=_name(fields.get(_FRA_OIF, b"")),
        ip_protocol=number_of(fields.get(_FRA_IP_PROTOCOL), size=1),
        source_ports=_range("=HH", fields.get(_FRA_SPORTS)),
        destination_ports=_range("=HH", fields.get(_FRA_DPORTS)),
        uids=_range("=II", fields.get(_FRA_UIDS)),
        tun_id=int.from_bytes(fields.get(_FRA_TUN_ID, b""), "big"),
        l3mdev=bool(number_of(fields.get(_FRA_L3MDEV), size=1)),
        suppress_prefix_length=_unless_off(fields.get(_FRA_SUPPRESS_LENGTH)),
        suppress_group=_unless_off(fields.get(_FRA_SUPPRESS_GROUP)),
        protocol=number_of(fields.get(_FRA_PROTOCOL), size=1),
        family=family,
        unknown=unknown_selectors(fields),
    )


def unknown_selectors(fields: Mapping[int, bytes]) -> Extra:
    """Return the attributes of a rule that we do not understand, and that may select."""
    return tuple(item for item in fields.items() if item[0] not in _KNOWN)


def _name(packed: bytes) -> str:
    # A name may hold any byte but a slash, a colon, white space and zero; bytes that are not UTF-8 must survive.
    return packed.rstrip(b"\0").decode(errors="surrogateescape")


def _range(layout: str, packed: bytes | None) -> Range | None:
    return None if packed is None else Range(*struct.unpack(layout, packed))


def _unless_off(packed: bytes | None) -> int | None:
    number = _NO_NUMBER if packed is None else number_of(packed)
    return None if number == _NO_NUMBER else number
