"""A backend over the pyroute2 `IPRoute` or `NetNS` that an agent already holds.

It is simple instead of fast: one request for each route, which pyroute2 packs. So it is also the second opinion against
which the tests compare the packed messages. The answers of the kernel are parsed as those to the default backend.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink.commit import Failure, OneByOne
from hostrouting.host.netlink.device_codec import parse_devices, parse_names
from hostrouting.host.netlink.frames import ACK, HEADER_LENGTH, REQUEST, attributes, number_of
from hostrouting.host.netlink.route_codec import FIB_MATCH, GETROUTE, UnknownDeviceError, parse_route
from hostrouting.host.netlink.route_commit import check_devices, commit_routes
from hostrouting.host.netlink.route_writer import FLAG_LOOKUP_TABLE, HEADS
from hostrouting.host.netlink.rule_codec import parse_rules
from hostrouting.net.addresses import IPV4, format_ipv4
from hostrouting.net.routes import FLAG_ONLINK, KIND_NUMBERS, Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostrouting.net.changes import RouteChange
    from hostrouting.net.links import Device
    from hostrouting.net.routes import NextHop, ObservedRoute, Route
    from hostrouting.net.rules import Rule

__all__ = [
    "Pyroute2Backend",
]

T = TypeVar("T")

#: How often routes are read again because a device of theirs is newer than the reading of the devices.
_READINGS: Final = 20
#: The attributes in `extra` that pyroute2 can send again.
_METRICS, _FLOW = 8, 11
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
            links = map(_raw, self._ipr.get_links())
            addresses = map(_raw, self._ipr.get_addr(family=IPV4))
            return parse_devices(links, addresses, map(_raw, self._ipr.get_neighbours(family=IPV4)))

    def routes(self) -> list[ObservedRoute]:
        """Return the routes of every table."""
        return self._with_names(
            lambda names: [_observed(message, names) for message in self._ipr.get_routes(family=IPV4)]
        )

    def rules(self) -> list[Rule]:
        """Return the policy rules in the kernel's order."""
        with self._translated():
            return parse_rules(map(_raw, self._ipr.get_rules(family=IPV4)))

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """Ask which route decides each destination."""
        if sources is not None and len(sources) != len(destinations):
            raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations: give one for each, or none")
        flags = FLAG_LOOKUP_TABLE if resolve else FLAG_LOOKUP_TABLE | FIB_MATCH
        asked = list(zip(destinations, sources or [None] * len(destinations), strict=True))
        return self._with_names(
            lambda names: [self._ask(destination, source, flags, names) for destination, source in asked]
        )

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
                kind, flags = HEADS[verb]
                message["header"].update(type=kind, flags=flags | ACK)
                self._ipr.nlm_request_batch([message])
            except NetlinkError as error:
                return Failure(error.code, _reason(error))
        return None

    def _ask(self, destination: int, source: int | None, flags: int, names: dict[int, str]) -> Lookup:
        from pyroute2 import NetlinkError

        asked = _lookup_message()()
        asked.update(family=IPV4, dst_len=32, flags=flags, attrs=[("RTA_DST", format_ipv4(destination))])
        if source:
            asked["src_len"] = 32
            asked["attrs"].append(("RTA_SRC", format_ipv4(source)))
        # Without a user, a rule on uidrange would answer for the user of this process.
        asked["attrs"].append(("RTA_UID", 0))
        asked["header"].update(type=GETROUTE, flags=REQUEST | ACK)
        try:
            answer = self._ipr.nlm_request_batch([asked])[0]
        except NetlinkError as error:
            return Lookup(destination, None, error.code)
        return Lookup(destination, _observed(answer, names))

    def _names(self) -> dict[int, str]:
        return parse_names(map(_raw, self._ipr.get_links()))

    def _with_names(self, read: Callable[[dict[int, str]], list[T]]) -> list[T]:
        """Call `read` with the device names, and again if it finds a device that is newer."""
        with self._translated():
            for _ in range(_READINGS):
                with suppress(UnknownDeviceError):
                    return read(self._names())
        raise BackendError("pyroute2: the devices changed during each reading; try again", errno=errno.EAGAIN)

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
    message["family"] = IPV4
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


def _observed(message: Any, names: Mapping[int, str]) -> ObservedRoute:
    return parse_route(_raw(message), names)


def _raw(message: Any) -> bytes:
    """Return a message without its header, as the kernel sent it: pyroute2 keeps the datagram in which it came."""
    return bytes(message.data[message.offset + HEADER_LENGTH : message.offset + message["header"]["length"]])
