"""A backend over the pyroute2 `IPRoute` or `NetNS` that an agent already holds.

It is simple instead of fast: one request for each route, and pyroute2 does all the packing and parsing. So it is also
the second opinion against which the tests compare the packed messages.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.commit import Failure, OneByOne
from hostrouting.host.netlink.device_codec import KNOWN_NEIGHBOUR
from hostrouting.host.netlink.frames import HEADER_LENGTH, attributes, next_hops, number_of
from hostrouting.host.netlink.route_codec import encapsulation_of, gateway_of
from hostrouting.host.netlink.route_commit import check_devices, commit_routes
from hostrouting.host.netlink.rule_codec import RULE_ACTIONS, unknown_selectors
from hostrouting.net.addresses import IPV4, Address, format_ipv4, parse_ipv4
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import FLAG_DEAD, FLAG_ONLINK, KIND_NUMBERS, KINDS, Lookup, NextHop, ObservedRoute
from hostrouting.net.rules import Range, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostrouting.net.changes import RouteChange
    from hostrouting.net.routes import Extra, Route

__all__ = [
    "Pyroute2Backend",
]

_AF_INET: Final = 2
#: Message types and flags by verb. `IPRoute.route` has no command for `prepend`, whose only flag is CREATE.
_REQUESTS: Final = {"add": (24, 0x605), "prepend": (24, 0x405), "append": (24, 0xC05), "remove": (25, 0x5)}
_LOOKUP_TABLE, _FIB_MATCH = 0x1000, 0x2000
_GETROUTE, _REQUEST, _ACK = 26, 1, 4
#: Attributes of a route by number: those with a field in `ObservedRoute`, those of answers only, and those that are
#: kept in `extra` and that pyroute2 can send again.
_OWN_FIELDS: Final = frozenset({1, 4, 5, 6, 7, 9, 15, 18, 21, 22, 30})
_ANSWER_ONLY: Final = frozenset({2, 3, 12, 16, 23, 25})
_METRICS, _MULTIPATH, _FLOW, _NH_ID = 8, 9, 11, 30
#: The length of a hardware address as text.
_ETHERNET: Final = len("02:00:00:00:00:01")
#: The metric that is a name; the others are numbers.
_CONGESTION_CONTROL: Final = 16
#: In place of a table number that exceeds a byte; the attribute has the number.
_TABLE_COMPAT: Final = 252


class Pyroute2Backend:
    """A `RouteBackend` over `ipr`, which belongs to the caller: it is neither configured nor closed here.

    >>> from pyroute2 import IPRoute
    >>> with IPRoute() as ipr:
    ...     Pyroute2Backend(ipr).links()[0].name
    'lo'
    """

    def __init__(self, ipr: Any) -> None:
        self._ipr = ipr
        # The socket belongs to the caller: one request at a time.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._ipr).__name__})"

    def links(self) -> list[Device]:
        """Return every device with its addresses."""
        with self._translated():
            names = self._names()
            addresses = [(message["index"], _address(message)) for message in self._ipr.get_addr(family=_AF_INET)]
            neighbours = [
                (message["ifindex"], parse_ipv4(message.get_attr("NDA_DST")))
                for message in self._ipr.get_neighbours(family=_AF_INET)
                if message["state"] & KNOWN_NEIGHBOUR and message.get_attr("NDA_DST")
            ]
            links = [
                Device(
                    name=message.get_attr("IFLA_IFNAME"),
                    ifindex=message["index"],
                    up=bool(message["flags"] & 0x1),
                    mac=_mac(message.get_attr("IFLA_ADDRESS") or ""),
                    kind=_kind(message.get_attr("IFLA_LINKINFO")),
                    master=names.get(message.get_attr("IFLA_MASTER")),
                    carrier=bool(message["flags"] & 0x10000),
                    loopback=bool(message["flags"] & 0x8),
                    addresses=tuple(address for index, address in addresses if index == message["index"]),
                    neighbours=tuple(sorted(peer for index, peer in neighbours if index == message["index"])),
                    group=message.get_attr("IFLA_GROUP") or 0,
                )
                for message in self._ipr.get_links()
            ]
        return sorted(links, key=lambda link: link.ifindex)

    def routes(self) -> list[ObservedRoute]:
        """Return the routes of every table."""
        with self._translated():
            names = self._names()
            return [_observed(message, names) for message in self._ipr.get_routes(family=_AF_INET)]

    def rules(self) -> list[Rule]:
        """Return the policy rules in the kernel's order."""
        with self._translated():
            return [_rule(message) for message in self._ipr.get_rules(family=_AF_INET)]

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Ask which route decides each destination."""
        if sources is not None and len(sources) != len(destinations):
            raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations: give one for each, or none")
        flags = _LOOKUP_TABLE if resolve else _LOOKUP_TABLE | _FIB_MATCH
        with self._translated():
            names = self._names()
            return [
                self._ask(destination, source, flags, names)
                for destination, source in zip(destinations, sources or [None] * len(destinations), strict=True)
            ]

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them."""
        with self._translated():
            indexes = {name: index for index, name in self._names().items()}
            check_devices(changes, indexes)
            for change in changes:
                # Refuse a route that pyroute2 cannot express before anything is sent.
                for route in change.before, change.after:
                    if route is not None:
                        _request(route, indexes)
            transport = OneByOne(partial(self._change, indexes), self.routes)
            commit_routes(transport, changes, verify=verify)

    def _change(self, indexes: dict[str, int], verb: str, route: Route | ObservedRoute) -> Failure | None:
        from pyroute2 import NetlinkError

        with self._lock:
            try:
                message = _request(route, indexes)
                message["header"]["type"], message["header"]["flags"] = _REQUESTS[verb]
                self._ipr.nlm_request_batch([message])
            except NetlinkError as error:
                return Failure(error.code, _reason(error))
        return None

    def _ask(self, destination: int, source: int | None, flags: int, names: dict[int, str]) -> Lookup:
        from pyroute2 import NetlinkError

        asked = _lookup_message()()
        asked.update(family=_AF_INET, dst_len=32, flags=flags, attrs=[("RTA_DST", format_ipv4(destination))])
        if source:
            asked["src_len"] = 32
            asked["attrs"].append(("RTA_SRC", format_ipv4(source)))
        # Without a user, a rule on uidrange would answer for the user of this process.
        asked["attrs"].append(("RTA_UID", 0))
        asked["header"].update(type=_GETROUTE, flags=_REQUEST | _ACK)
        try:
            answer = self._ipr.nlm_request_batch([asked])[0]
        except NetlinkError as error:
            return Lookup(destination, None, error.code)
        return Lookup(destination, _observed(answer, names))

    def _names(self) -> dict[int, str]:
        return {message["index"]: message.get_attr("IFLA_IFNAME") for message in self._ipr.get_links()}

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from pyroute2 import NetlinkError

        with self._lock:
            try:
                yield
            except NetlinkError as error:
                raise BackendError(f"pyroute2: {_reason(error)}", errno=error.code) from error
            except OSError as error:
                raise BackendError(f"pyroute2: {error.strerror or error}", errno=error.errno) from error


@cache
def _lookup_message() -> Any:
    """Return the class of a route message with a user id, which pyroute2's class lacks."""
    from pyroute2.netlink import nlmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

    class LookupMessage(rtmsg_base, nlmsg):  # type: ignore[misc]  # a class derived from rtmsg would have its table
        nla_map = (*rtmsg_base.nla_map, ("RTA_PAD", "none"), ("RTA_UID", "uint32"))

    return LookupMessage


def _reason(error: Any) -> str:
    """Return the text of a refusal: the kernel's message if the socket asked for one, else that of the errno."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _request(route: Route | ObservedRoute, indexes: dict[str, int]) -> Any:
    """Return a route as pyroute2's message."""
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    message = rtmsg()
    message["family"] = _AF_INET
    message["dst_len"] = route.prefix_length
    message["tos"] = route.tos
    message["table"] = route.table if route.table < 256 else _TABLE_COMPAT
    message["proto"] = route.protocol
    message["scope"] = route.scope
    message["type"] = KIND_NUMBERS[route.kind]
    message["flags"] = FLAG_ONLINK if route.onlink else 0
    attached: list[tuple[str, Any]] = [("RTA_TABLE", route.table), ("RTA_DST", format_ipv4(route.network))]
    if route.nexthop_id:
        raise _beyond_pyroute2(route, f"the nexthop object {route.nexthop_id}")
    _refuse_beyond_pyroute2(route, route)
    if route.gateway is not None:
        attached.append(("RTA_GATEWAY", str(route.gateway)))
    if route.dev is not None:
        attached.append(("RTA_OIF", indexes[route.dev]))
    if route.metric:
        attached.append(("RTA_PRIORITY", route.metric))
    if route.source is not None:
        attached.append(("RTA_PREFSRC", format_ipv4(route.source)))
    if route.nexthops:
        attached.append(("RTA_MULTIPATH", [_hop_request(route, hop, indexes) for hop in route.nexthops]))
    for number, payload in route.extra:
        if number == _METRICS:
            attached.append(("RTA_METRICS", {"attrs": [_metric(route, *metric) for metric in attributes(payload)]}))
        elif number == _FLOW:
            attached.append(("RTA_FLOW", number_of(payload)))
        else:
            raise _beyond_pyroute2(route, f"attribute {number}")
    message["attrs"] = attached
    return message


def _hop_request(route: Route | ObservedRoute, hop: NextHop, indexes: dict[str, int]) -> dict[str, Any]:
    attached: list[tuple[str, Any]] = []
    _refuse_beyond_pyroute2(route, hop)
    if hop.gateway is not None:
        attached.append(("RTA_GATEWAY", str(hop.gateway)))
    for number, payload in hop.extra:
        if number != _FLOW:
            raise _beyond_pyroute2(route, f"attribute {number} of a next hop")
        attached.append(("RTA_FLOW", number_of(payload)))
    flags = FLAG_ONLINK if hop.onlink else 0
    return {"oif": indexes[hop.dev], "hops": hop.weight - 1, "flags": flags, "attrs": attached}


def _metric(route: Route | ObservedRoute, number: int, payload: bytes) -> tuple[str, Any]:
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    if number == _CONGESTION_CONTROL:
        return "RTAX_CC_ALGO", payload.rstrip(b"\0").decode(errors="surrogateescape")
    known = rtmsg.metrics.nla_map
    if not 0 < number < len(known):
        raise _beyond_pyroute2(route, f"metric {number}")
    return known[number][0], number_of(payload)


def _refuse_beyond_pyroute2(route: Route | ObservedRoute, hop: Route | ObservedRoute | NextHop) -> None:
    if hop.encapsulation is not None:
        raise _beyond_pyroute2(route, "the encapsulation")
    if hop.gateway is not None and hop.gateway.family != IPV4:
        raise _beyond_pyroute2(route, f"the IPv6 gateway {hop.gateway}")


def _beyond_pyroute2(route: Route | ObservedRoute, detail: str) -> BackendError:
    return BackendError(
        f"{route}: pyroute2 cannot be told {detail} of this route; use NetlinkBackend", errno=errno.ENOTSUP
    )


def _ipv4(text: str | None) -> int | None:
    return None if text is None else parse_ipv4(text)


def _observed(message: Any, names: dict[int, str]) -> ObservedRoute:
    raw = _raw(message)
    legs = [dict(attributes(packed)) for *_, packed in next_hops(raw.get(_MULTIPATH, b""))]
    return ObservedRoute(
        network=_ipv4(message.get_attr("RTA_DST")) or 0,
        prefix_length=message["dst_len"],
        gateway=_gateway(message, raw),
        dev=names.get(message.get_attr("RTA_OIF")),
        metric=message.get_attr("RTA_PRIORITY") or 0,
        table=message.get_attr("RTA_TABLE") or message["table"],
        protocol=message["proto"],
        kind=KINDS[message["type"]],
        scope=message["scope"],
        source=_ipv4(message.get_attr("RTA_PREFSRC")),
        tos=message["tos"],
        flags=message["flags"],
        nexthops=tuple(
            _next_hop(hop, leg, names) for hop, leg in zip(message.get_attr("RTA_MULTIPATH") or (), legs, strict=True)
        ),
        extra=_extra(raw),
        nexthop_id=number_of(raw.get(_NH_ID)),
        encapsulation=encapsulation_of(raw),
    )


def _raw(message: Any) -> dict[int, bytes]:
    """Return the packed attributes of a route or rule: pyroute2 keeps the datagram in which a message came."""
    end = message.offset + message["header"]["length"]
    return dict(attributes(bytes(message.data[message.offset : end]), HEADER_LENGTH + 12))


def _extra(raw: Mapping[int, bytes]) -> Extra:
    return tuple((number, payload) for number, payload in raw.items() if number not in _OWN_FIELDS | _ANSWER_ONLY)


def _gateway(message: Any, raw: Mapping[int, bytes]) -> Address | None:
    text = message.get_attr("RTA_GATEWAY")
    return gateway_of(raw, IPV4) if text is None else Address.parse(text)


def _next_hop(hop: Any, raw: Mapping[int, bytes], names: dict[int, str]) -> NextHop:
    return NextHop(
        gateway=_gateway(hop, raw),
        dev=names.get(hop["oif"], ""),
        weight=hop["hops"] + 1,
        onlink=bool(hop["flags"] & FLAG_ONLINK),
        extra=_extra(raw),
        encapsulation=encapsulation_of(raw),
        dead=bool(hop["flags"] & FLAG_DEAD),
    )


def _mac(text: str) -> str:
    """Return a hardware address; tunnels show their own IPv4 or IPv6 address in its place."""
    return text if len(text) == _ETHERNET and text.strip("0:") else ""


def _kind(link_info: Any) -> str:
    kind: str | None = link_info and link_info.get_attr("IFLA_INFO_KIND")
    return kind or ""


def _address(message: Any) -> DeviceAddress:
    peer = _ipv4(message.get_attr("IFA_ADDRESS")) or 0
    local = _ipv4(message.get_attr("IFA_LOCAL"))
    return DeviceAddress(
        local=peer if local is None else local,
        prefix_length=message["prefixlen"],
        peer=peer,
        broadcast=_ipv4(message.get_attr("IFA_BROADCAST")),
        scope=message["scope"],
        secondary=bool(message["flags"] & 0x1),
    )


def _rule(message: Any) -> Rule:
    raw = _raw(message)

    def value(name: str, default: Any) -> Any:
        found = message.get_attr(f"FRA_{name}")
        return default if found in {None, ""} else found

    return Rule(
        priority=value("PRIORITY", 0),
        action=RULE_ACTIONS.get(message["action"], f"action {message['action']}"),
        table=value("TABLE", 0) or message["table"],
        source=(_ipv4(message.get_attr("FRA_SRC")) or 0, message["src_len"]),
        destination=(_ipv4(message.get_attr("FRA_DST")) or 0, message["dst_len"]),
        inverted=bool(message["flags"] & 0x2),
        goto=value("GOTO", None),
        tos=message["tos"],
        mark=value("FWMARK", 0),
        mark_mask=value("FWMASK", 0),
        iif=value("IIFNAME", ""),
        oif=value("OIFNAME", ""),
        ip_protocol=value("IP_PROTO", 0),
        source_ports=_range(message, "FRA_SPORT_RANGE"),
        destination_ports=_range(message, "FRA_DPORT_RANGE"),
        uids=_range(message, "FRA_UID_RANGE"),
        tun_id=value("TUN_ID", 0),
        l3mdev=bool(value("L3MDEV", 0)),
        suppress_prefix_length=_unless_off(value("SUPPRESS_PREFIXLEN", None)),
        suppress_group=_unless_off(value("SUPPRESS_IFGROUP", None)),
        protocol=value("PROTOCOL", 0),
        unknown=unknown_selectors(raw),
    )


def _range(message: Any, name: str) -> Range | None:
    found = message.get_attr(name)
    return None if found is None else Range(*map(int, found.split(":")))


def _unless_off(number: int | None) -> int | None:
    return None if number in {None, -1, 0xFFFFFFFF} else number
