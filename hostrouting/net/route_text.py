"""What the kernel's numbers stand for, and how `ip route` would print a route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.net.addresses import format_ipv4

if TYPE_CHECKING:
    from hostrouting.net.routes import ObservedRoute, Route

#: The mark of ownership: every route that we install carries this protocol number, nothing else's does.
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
#: Types that decide an address without sending it anywhere; they have neither gateway nor device.
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
_FLAG_NAMES: Final = ((FLAG_DEAD, "dead"), (FLAG_ONLINK, "onlink"), (FLAG_LINKDOWN, "linkdown"))
TABLE_NAMES: Final = {253: "default", 254: "main", 255: "local"}
_SCOPE_NAMES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}


def format_route(route: Route | ObservedRoute, *, flags: int) -> str:
    """The route as `ip route show` prints it; the table is named unless it is main."""
    if route.prefix_length == 0:
        destination = "default"
    else:
        destination = route.destination if route.prefix_length < 32 else format_ipv4(route.network)
    table = TABLE_NAMES.get(route.table, str(route.table))
    protocol = PROTOCOL_NAMES.get(route.protocol, str(route.protocol))
    scope = _SCOPE_NAMES.get(route.scope, str(route.scope))
    words = [
        f"{route.kind} " if route.kind != "unicast" else "",
        destination,
        f" tos {route.tos:#04x}" if route.tos else "",
        f" via {format_ipv4(route.gateway)}" if route.gateway is not None else "",
        f" dev {route.dev}" if route.dev is not None else "",
        f" table {table}" if route.table != MAIN_TABLE else "",
        f" proto {protocol}" if protocol != "boot" else "",  # what ip leaves out, too
        f" scope {scope}" if route.scope != SCOPE_UNIVERSE else "",
        f" src {format_ipv4(route.source)}" if route.source is not None else "",
        f" metric {route.metric}" if route.metric else "",
        *(f" {word}" for flag, word in _FLAG_NAMES if flags & flag),
        *(f" {hop}" for hop in route.nexthops),
    ]
    return "".join(words)
