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
from hostrouting.net.routes import Address, Link, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

# An ifinfomsg that asks for names and states, not for the statistics (which are most of a link's message).
_IFLA_EXT_MASK, _SKIP_STATISTICS = 29, 8
LINKS: Final = Request(18, bytes(16) + attribute(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS)), "ip -d link")
ADDRESSES: Final = Request(22, struct.pack("=BBBBI", AF_INET, 0, 0, 0, 0), "ip -4 address")
NEIGHBOURS: Final = Request(30, struct.pack("=BBHiHBB", AF_INET, 0, 0, 0, 0, 0, 0), "ip -4 neighbour")
RULES: Final = Request(34, struct.pack("=8BI", AF_INET, 0, 0, 0, 0, 0, 0, 0, 0), "ip -4 rule")

_IFF_UP, _IFF_LOOPBACK, _IFF_LOWER_UP = 0x1, 0x8, 0x10000
_IFLA_IFNAME: Final = 3
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = 1, 2, 4
_IFA_F_SECONDARY: Final = 0x1
_NDA_DST: Final = 1
#: Reachable, stale, delay, probe, permanent: there is a hardware address. The others were only asked for, or failed.
KNOWN_NEIGHBOUR: Final = 0x2 | 0x4 | 0x8 | 0x10 | 0x80

_FRA_DST, _FRA_SRC, _FRA_GOTO, _FRA_PRIORITY, _FRA_TABLE = 1, 2, 4, 6, 15
_FRA_SUPPRESS_IFGROUP, _FRA_SUPPRESS_PREFIXLEN, _FRA_PAD, _FRA_PROTOCOL = 13, 14, 18, 21
_RULE_INVERTED: Final = 0x2
RULE_ACTIONS: Final = {1: "lookup", 2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
_RULE_SELECTORS: Final = {
    3: "iif",
    10: "fwmark",
    11: "realms",
    12: "tun_id",
    16: "fwmark",
    17: "oif",
    19: "l3mdev",
    20: "uidrange",
    22: "ipproto",
    23: "sport",
    24: "dport",
    25: "dscp",
    # The masks of newer kernels select together with what they mask.
    28: "sport",
    29: "dport",
    30: "dscp",
}
#: What a rule carries that does not select, or that the fields of `Rule` already say.
_NO_SELECTORS: Final = frozenset(
    {
        _FRA_DST,
        _FRA_SRC,
        _FRA_GOTO,
        _FRA_PRIORITY,
        _FRA_TABLE,
        _FRA_SUPPRESS_IFGROUP,
        _FRA_SUPPRESS_PREFIXLEN,
        _FRA_PAD,
        _FRA_PROTOCOL,
    }
)


def parse_links(
    link_messages: Iterable[bytes], address_messages: Iterable[bytes], neighbour_messages: Iterable[bytes]
) -> list[Link]:
    """Links in the order of their indexes, each with its addresses in the kernel's order."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for message in neighbour_messages:
        _, _, _, index, state, _, _ = struct.unpack_from("=BBHiHBB", message, HEADER_LENGTH)
        neighbour = address_of(dict(attributes(message, HEADER_LENGTH + 12)).get(_NDA_DST))
        if neighbour is not None and state & KNOWN_NEIGHBOUR:
            neighbours[index].append(neighbour)
    addresses: dict[int, list[Address]] = defaultdict(list)
    for message in address_messages:
        index, address = _parse_address(message)
        addresses[index].append(address)
    links = []
    for message in link_messages:
        _, _, _, index, flags, _ = struct.unpack_from("=BBHiII", message, HEADER_LENGTH)
        links.append(
            Link(
                name=link_name(message),
                ifindex=index,
                up=bool(flags & _IFF_UP),
                carrier=bool(flags & _IFF_LOWER_UP),
                loopback=bool(flags & _IFF_LOOPBACK),
                addresses=tuple(addresses[index]),
                neighbours=tuple(sorted(neighbours[index])),
            )
        )
    return sorted(links, key=lambda link: link.ifindex)


def parse_names(link_messages: Iterable[bytes]) -> dict[int, str]:
    """Interface names by index."""
    return {struct.unpack_from("=i", message, HEADER_LENGTH + 4)[0]: link_name(message) for message in link_messages}


def link_name(message: bytes) -> str:
    """The interface name in a link's message."""
    # A name may hold any byte but a slash, a colon, white space and zero; what is not UTF-8 has to survive, too.
    for number, payload in attributes(message, HEADER_LENGTH + 16):
        if number == _IFLA_IFNAME:
            return payload.rstrip(b"\0").decode(errors="surrogateescape")
    raise ValueError("a link has no name")


def _parse_address(message: bytes) -> tuple[int, Address]:
    _, prefix_length, flags, scope, index = struct.unpack_from("=BBBBI", message, HEADER_LENGTH)
    fields = dict(attributes(message, HEADER_LENGTH + 8))
    peer = address_of(fields.get(_IFA_ADDRESS)) or 0
    local = address_of(fields.get(_IFA_LOCAL))
    return index, Address(
        local=peer if local is None else local,
        prefix_length=checked_length(prefix_length, most=32),
        peer=peer,
        broadcast=address_of(fields.get(_IFA_BROADCAST)),
        scope=scope,
        secondary=bool(flags & _IFA_F_SECONDARY),
    )


def parse_rules(messages: Iterable[bytes]) -> list[Rule]:
    """Policy rules in the order in which the kernel tries them."""
    return [_parse_rule(message) for message in messages]


def _parse_rule(message: bytes) -> Rule:
    _, to_length, from_length, tos, table, _, _, action, flags = struct.unpack_from("=8BI", message, HEADER_LENGTH)
    fields = dict(attributes(message, HEADER_LENGTH + 12))
    selectors = {_RULE_SELECTORS.get(number, f"attribute {number}") for number in fields if number not in _NO_SELECTORS}
    if tos:
        selectors.add("tos")
    return Rule(
        priority=number_of(fields.get(_FRA_PRIORITY)),
        action=RULE_ACTIONS.get(action, f"action {action}"),
        table=number_of(fields.get(_FRA_TABLE)) or table,
        source=(address_of(fields.get(_FRA_SRC)) or 0, checked_length(from_length, most=32)),
        destination=(address_of(fields.get(_FRA_DST)) or 0, checked_length(to_length, most=32)),
        inverted=bool(flags & _RULE_INVERTED),
        goto=number_of(fields[_FRA_GOTO]) if _FRA_GOTO in fields else None,
        other_selectors=tuple(sorted(selectors)),
    )
