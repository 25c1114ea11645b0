"""Policy rules of both families, parsed from the kernel's dumps."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from hostrouting.host.netlink.frames import (
    Attributes,
    Request,
    address_of,
    checked_length,
    number_of,
    parsed,
)
from hostrouting.host.netlink.route_codec import device_name
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.rules import Range, Rule

_fib_rule = struct.Struct("=8BI")
#: By the family.
RULES: Final = {
    family: Request(
        34, bytes([family, *bytes(_fib_rule.size - 1)]), f"ip -{4 if family == IPV4 else 6} rule"
    )
    for family in (IPV4, IPV6)
}

_FRA_DST = 1
_FRA_SRC = 2
_FRA_IIF = 3
_FRA_GOTO = 4
_FRA_PRIORITY = 6
_FRA_MARK = 10
_FRA_TUN_ID = 12
_FRA_SUPPRESS_GROUP = 13
_FRA_SUPPRESS_LENGTH = 14
_FRA_TABLE = 15
_FRA_MARK_MASK = 16
_FRA_OIF = 17
_FRA_L3MDEV = 19
_FRA_UIDS = 20
_FRA_PROTOCOL = 21
_FRA_IP_PROTOCOL = 22
_FRA_SPORTS = 23
_FRA_DPORTS = 24
_FRA_DSCP = 25
#: It marks packets for accounting, and selects none.
_FRA_REALMS = 11
#: The rest are attributes that hostrouting does not understand, and that may select.
KNOWN: Final = frozenset({*range(1, 5), 6, 10, _FRA_REALMS, *range(12, 26)})
_RULE_INVERTED = 0x2
#: Stands for a suppressor that is off.
_NO_NUMBER = 0xFFFFFFFF
RULE_ACTIONS: Final = {
    1: "lookup",
    2: "goto",
    3: "nop",
    6: "blackhole",
    7: "unreachable",
    8: "prohibit",
}


# A check reads the rules twice.
@lru_cache(256)
def parse_rule(payload: bytes) -> Rule:
    """Return the policy rule of one message."""
    (family, to_length, from_length, tos, table, _, _, action, flags), fields = parsed(
        payload, _fib_rule
    )
    return Rule(
        priority=number_of(fields, _FRA_PRIORITY),
        action=RULE_ACTIONS.get(action, f"action {action}"),
        table=number_of(fields, _FRA_TABLE) or table,
        source=(address_of(fields, _FRA_SRC, family) or 0, checked_length(from_length, family)),
        destination=(address_of(fields, _FRA_DST, family) or 0, checked_length(to_length, family)),
        inverted=bool(flags & _RULE_INVERTED),
        goto=number_of(fields, _FRA_GOTO) if _FRA_GOTO in fields else None,
        tos=tos,
        mark=number_of(fields, _FRA_MARK),
        mark_mask=number_of(fields, _FRA_MARK_MASK),
        iif=device_name(fields.get(_FRA_IIF, b"")),
        oif=device_name(fields.get(_FRA_OIF, b"")),
        ip_protocol=number_of(fields, _FRA_IP_PROTOCOL, size=1),
        source_ports=_range("=HH", fields.get(_FRA_SPORTS)),
        destination_ports=_range("=HH", fields.get(_FRA_DPORTS)),
        uids=_range("=II", fields.get(_FRA_UIDS)),
        tun_id=int.from_bytes(fields.get(_FRA_TUN_ID, b""), "big"),
        l3mdev=bool(number_of(fields, _FRA_L3MDEV, size=1)),
        suppress_prefix_length=_unless_off(fields, _FRA_SUPPRESS_LENGTH),
        suppress_group=_unless_off(fields, _FRA_SUPPRESS_GROUP),
        protocol=number_of(fields, _FRA_PROTOCOL, size=1),
        family=family,
        dscp=number_of(fields, _FRA_DSCP, size=1) if _FRA_DSCP in fields else None,
        unknown=tuple(item for item in fields.items() if item[0] not in KNOWN),
    )


def _range(layout: str, packed: bytes | None) -> Range | None:
    return None if packed is None else Range(*struct.unpack(layout, packed))


def _unless_off(fields: Attributes, attribute: int) -> int | None:
    number = number_of(fields, attribute) if attribute in fields else _NO_NUMBER
    return None if number == _NO_NUMBER else number
