"""Events, parsed from the datagrams in which the kernel announces them, one in each."""

from __future__ import annotations

import struct
from typing import Final, Literal

from hostrouting.host.netlink.bulk import RouteReader
from hostrouting.host.netlink.device_codec import parse_address, parse_device
from hostrouting.host.netlink.frames import (
    EXCLUSIVE,
    HEADER_LENGTH,
    REPLACE,
    message_start,
    number_of,
    parsed,
)
from hostrouting.host.netlink.route_codec import NEWROUTE, Names, device_of
from hostrouting.host.netlink.rule_codec import parse_rule
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.events import (
    AddressEvent,
    DeviceEvent,
    NetworkEvent,
    NexthopEvent,
    RouteEvent,
    RuleEvent,
    SettingEvent,
)

#: The multicast groups by family: links, nexthop objects; addresses, routes, rules and settings of
#: each.
GROUPS: Final = {
    0: 0x8000_0001,
    IPV4: 0x10 | 0x40 | 0x80 | 0x80_0000,
    IPV6: 0x100 | 0x400 | 0x4_0000 | 0x100_0000,
}

_NEWLINK, _NEWADDR, _NEWRULE, _NEWNETCONF, _NEWNEXTHOP = 16, 20, 32, 80, 104
#: The families of each kind of message about something new; the number of its removal is one more.
#: Left out are links of the family AF_BRIDGE, whose removal means that a port left its bridge.
_FAMILIES = {
    _NEWLINK: (0,),
    **dict.fromkeys((_NEWADDR, NEWROUTE, _NEWRULE, _NEWNETCONF), (IPV4, IPV6)),
}
_nhmsg = struct.Struct("=8x")
_netconfmsg = struct.Struct("=4x")
_NHA_ID, _NETCONFA_FORWARDING, _NETCONFA_IGNORE_LINKDOWN = 1, 2, 6
_kind_and_family = struct.Struct("=4xH10xB").unpack_from

_Placing = Literal["add", "prepend", "append", "replace"]
#: NLM_F_REPLACE, EXCL, CREATE and APPEND. The kernel sets them by the place of the route, whatever
#: the request had.
_PLACING = 0xF00
_VERBS: dict[int, _Placing] = {
    0x600: "add",
    0x400: "prepend",
    0xC00: "append",
    0x100: "replace",
}


def is_event(datagram: bytes) -> bool:
    """Return True if `EventReader` has to see the datagram."""
    if len(datagram) <= HEADER_LENGTH:
        return False
    kind, family = _kind_and_family(datagram)
    # Nexthop objects are of any family: an IPv4 route may have an IPv6 gateway, and a group is of
    # neither.
    return bool(kind & ~1 == _NEWNEXTHOP or family in _FAMILIES.get(kind & ~1, ()))


class EventReader:
    """Parses events in their order; `names` are the names of devices by interface index."""

    def __init__(self, names: Names) -> None:
        self._names = dict(names)
        self._routes = RouteReader(self._names)

    def read(self, datagram: bytes) -> NetworkEvent | None:
        """Return the event of a datagram; None if it is of a setting that concerns no route."""
        length, kind, flags = message_start(datagram)
        if length != len(datagram):
            raise ValueError(f"an announcement is {length} bytes long, but {len(datagram)} came")
        new, is_gone = kind & ~1, bool(kind & 1)
        if new == NEWROUTE:
            verb = "remove" if is_gone else _placed(flags, family=datagram[HEADER_LENGTH])
            # Half of the time that a NamedTuple takes: a storm has ten thousand a second.
            return tuple.__new__(RouteEvent, (verb, self._routes.read_announced(datagram)))
        payload = datagram[HEADER_LENGTH:]
        if new == _NEWLINK:
            return self._link(payload, is_gone=is_gone)
        if new == _NEWADDR:
            index, address = parse_address(payload)
            return AddressEvent(
                "remove" if is_gone else "set", device_of(index, self._names), address
            )
        if new == _NEWRULE:
            return RuleEvent("remove" if is_gone else "add", parse_rule(payload))
        if new == _NEWNEXTHOP:
            _, fields = parsed(payload, _nhmsg)
            return NexthopEvent("remove" if is_gone else "set", number_of(fields, _NHA_ID))
        _, fields = parsed(payload, _netconfmsg)
        # A new device shows all its settings at once, and a removed one none.
        is_changed = _NETCONFA_IGNORE_LINKDOWN in fields and _NETCONFA_FORWARDING not in fields
        return SettingEvent("set", "ignore_routes_with_linkdown") if is_changed else None

    def _link(self, payload: bytes, *, is_gone: bool) -> DeviceEvent:
        device = parse_device(payload, self._names)
        before = self._names.get(device.ifindex, device.name)
        if is_gone or before != device.name:
            # It has the old name in its caches.
            self._routes = RouteReader(self._names)
        if is_gone:
            self._names.pop(device.ifindex, None)
            return DeviceEvent("remove", device)
        self._names[device.ifindex] = device.name
        return DeviceEvent("set", device, before if before != device.name else "")


def _placed(flags: int, *, family: int) -> _Placing:
    if family == IPV6:
        # The rest of the flags are those of the request.
        return "replace" if flags & REPLACE else "add" if flags & EXCLUSIVE else "append"
    try:
        return _VERBS[flags & _PLACING]
    except KeyError:
        raise ValueError(f"the flags {flags:#x} name no place of a new route") from None
