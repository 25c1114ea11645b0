"""The kernel's numbers in routes, and the names that `ip` prints for them."""

from __future__ import annotations

from typing import Final

#: The mark of ownership: every route that we install carries this protocol number, and no foreign route does.
OUR_PROTOCOL: Final = 142

MAIN_TABLE: Final = 254
LOCAL_TABLE: Final = 255

SCOPE_UNIVERSE: Final = 0
SCOPE_LINK: Final = 253
SCOPE_HOST: Final = 254

#: Route types by number, named as `ip route` names them.
KINDS: Final = (
    "unspec",
    "unicast",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "nat",
    "xresolve",
)
KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
#: Route types that decide an address without sending packets anywhere; they have neither gateway nor device.
DEVICELESS_KINDS: Final = frozenset({"blackhole", "unreachable", "prohibit", "throw"})

FLAG_DEAD: Final = 1
FLAG_ONLINK: Final = 4
FLAG_LINKDOWN: Final = 16

PROTOCOL_NAMES: Final = {
    1: "redirect",
    2: "kernel",
    3: "boot",
    4: "static",
    8: "gated",
    9: "ra",
    10: "mrt",
    11: "zebra",
    12: "bird",
    13: "dnrouted",
    14: "xorp",
    15: "ntk",
    16: "dhcp",
    18: "keepalived",
    42: "babel",
    186: "bgp",
    187: "isis",
    188: "ospf",
    189: "rip",
    192: "eigrp",
}
FLAG_NAMES: Final = ((FLAG_DEAD, "dead"), (FLAG_ONLINK, "onlink"), (FLAG_LINKDOWN, "linkdown"))
TABLE_NAMES: Final = {253: "default", 254: "main", 255: "local"}
SCOPE_NAMES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
