"""The IPv6 routes of a node in memory; there are no policy rules of them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from hostrouting.net.addresses import IPV6, Address, Prefix, address_bits
from hostrouting.net.changes import is_deleted_by
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, Lookup, ObservedRoute, place, route_order
from hostrouting.net.rules import Rule
from hostrouting.testing.faults import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.net.routes import Route

_KERNEL: Final = 2
_LINK_LOCAL: Final = Prefix.parse("fe80::/10")
_ERRORS: Final = {"blackhole": errno.EINVAL, "unreachable": errno.EHOSTUNREACH, "prohibit": errno.EACCES}
RULES: Final = [Rule(priority, table=table, protocol=2, family=IPV6) for priority, table in ((0, 255), (32766, 254))]


def own_routes(device: Device, own: DeviceAddress) -> Iterator[ObservedRoute]:
    """Yield the routes that the kernel adds for an address."""
    yield ObservedRoute(own.local, 128, dev=device.name, table=LOCAL_TABLE, protocol=_KERNEL, kind="local", family=IPV6)
    if device.up and not device.loopback:
        network = Prefix(IPV6, own.local, own.prefix_length).masked.network
        yield ObservedRoute(network, own.prefix_length, dev=device.name, metric=256, protocol=_KERNEL, family=IPV6)


def added(held: tuple[ObservedRoute, ...], new: ObservedRoute) -> tuple[ObservedRoute, ...]:
    """Return the routes with one more, in the order of a dump."""
    return tuple(sorted((*held, new), key=route_order))


def admitted(
    held: tuple[ObservedRoute, ...], new: ObservedRoute, verb: str, devices: Mapping[str, Device]
) -> tuple[ObservedRoute, ...]:
    """Return the routes after an addition; `Refused` if the kernel refuses it."""
    here = [other for other in held if place(other) == place(new)]
    if here and (verb == "add" or any(set(other.hops) & set(new.hops) for other in here)):
        raise Refused(errno.EEXIST)
    for hop in new.hops:
        if hop.dev not in devices:
            raise Refused(errno.ENODEV)
        if not devices[hop.dev].up:
            raise Refused(errno.ENETDOWN)
        near = [Prefix(IPV6, *one[:2]) for one in held if not one.gateway and one.dev == hop.dev]
        if hop.gateway is not None and not any(network.covers(hop.gateway) for network in (_LINK_LOCAL, *near)):
            raise Refused(errno.EHOSTUNREACH)
    return added(held, new)


def removed(held: tuple[ObservedRoute, ...], named: Route | ObservedRoute) -> tuple[ObservedRoute, ...]:
    """Return the routes without the first that fits; `Refused` if none does."""
    gone = next((route for route in held if is_deleted_by(named, route)), None)
    if gone is None:
        raise Refused(errno.ESRCH)
    return tuple(route for route in held if route is not gone)


def answer(held: tuple[ObservedRoute, ...], number: int) -> Lookup:
    """Return the route that decides an address: of the local table, else of main."""
    for table in LOCAL_TABLE, MAIN_TABLE:
        fitting = [
            route for route in held if route.table == table and Prefix(IPV6, *route[:2]).covers(Address(IPV6, number))
        ]
        # The first of the longest: they are sorted by metric.
        route = max(fitting, key=lambda route: route.prefix_length, default=None)
        if route is not None:
            refusal = _ERRORS.get(route.kind, 0)
            return Lookup(number, None if refusal else route, refusal)
    assert number < 1 << address_bits(IPV6)
    return Lookup(number, None, errno.ENETUNREACH)
