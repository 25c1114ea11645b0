"""The routes that go and change together with a device or an address: most of this the kernel announces to no one.

Each function returns the model after the event. Routes that the kernel adds (for an address, or for a device that comes
up) are announced, and come as changes; `own_routes` tells which they are.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.fib.tables import deleted, inserted, key_of
from hostrouting.net.addresses import IPV4, IPV6, netmask
from hostrouting.net.changes import may_merge
from hostrouting.net.routes import (
    FLAG_DEAD,
    FLAG_LINKDOWN,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    ObservedRoute,
    place,
    signature,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.fib.model import Fib
    from hostrouting.fib.tables import Bucket, Key
    from hostrouting.net.links import Device, DeviceAddress

_LOOPBACKS_FIRST: Final = IPV4, LOCAL_TABLE, 127 << 24, 32


def with_device(fib: Fib, device: Device) -> Fib:
    """Return the model with a device as it is now; its routes stay as they are."""
    return attrs.evolve(fib, devices={**fib.devices, device.name: device})


def with_bucket(fib: Fib, key: Key, bucket: Bucket) -> Fib:
    """Return the model with these routes to one destination."""
    return attrs.evolve(fib, tables=fib.tables.with_buckets({key: bucket}))


def mapped(fib: Fib, change: Callable[[ObservedRoute, Bucket], ObservedRoute | None]) -> Fib:
    """Return the model with every route of a bucket replaced by the result of `change`; None removes it."""
    return attrs.evolve(fib, tables=fib.tables.mapped(change))


def device_down(fib: Fib, name: str) -> Fib:
    """Set a device down: its routes go, but not the local ones of IPv4; of multipath routes its next hops die."""
    device = fib.devices[name]
    down = device._replace(up=False, carrier=False, neighbours=(), addresses=ipv4_addresses(device))
    return _with_hops(with_device(fib, down), name, dead=True, spare_local=True)


def device_up(fib: Fib, name: str, *, carrier: bool) -> Fib:
    """Set a device up: its next hops in multipath routes revive. The kernel then adds the device's own routes."""
    return _with_hops(with_device(fib, fib.devices[name]._replace(up=True, carrier=carrier)), name, dead=False)


def device_removed(fib: Fib, name: str) -> Fib:
    """Remove a device, with its addresses and every route that has a next hop on it."""
    fib = mapped(device_down(fib, name), lambda route, _: None if name in route.devs else route)
    # Secondaries go before their primaries.
    for address in sorted(fib.devices[name].addresses, key=lambda address: not address.secondary):
        fib = _forgotten(fib, name, address)
    return attrs.evolve(fib, devices={other: device for other, device in fib.devices.items() if other != name})


def address_added(fib: Fib, name: str, new: DeviceAddress) -> Fib:
    """Add an IPv4 address, with the kernel's routes for it: secondary if the device has one in its network."""
    device = fib.devices[name]
    new = new._replace(secondary=any(same_subnet(new, other) for other in device.addresses))
    # Primaries come first.
    addresses = tuple(sorted((*device.addresses, new), key=attrgetter("family", "secondary")))
    fib = with_own_routes(with_device(fib, device._replace(addresses=addresses)), name, new)
    return device_up(fib, name, carrier=device.carrier) if device.up else fib


def address_removed(fib: Fib, name: str, gone: DeviceAddress) -> Fib:
    """Remove an IPv4 address: the routes that the kernel made for it go, and those of the main table that send from it.

    Its secondary addresses go first. With the last address of a device, all its routes go.
    """
    if not gone.secondary:
        for other in fib.devices[name].addresses:
            if other.secondary and same_subnet(gone, other):
                fib = _forgotten(fib, name, other)
    fib = _forgotten(fib, name, gone)
    return fib if ipv4_addresses(fib.devices[name]) else _with_hops(fib, name, dead=True, spare_ipv6=True)


def own_routes(fib: Fib, device: Device, address: DeviceAddress) -> list[ObservedRoute]:
    """Return the routes that the kernel adds for an address: itself, its network, and the broadcast address.

    Before Linux 5.14 the first address of a network is a broadcast address, too, and that of 127.0.0.0/8 shows it.
    """
    primary = address
    if address.secondary:
        primary = next(other for other in device.addresses if not other.secondary and same_subnet(address, other))
    make = partial(ObservedRoute, dev=device.name, protocol=KERNEL_PROTOCOL, source=primary.local)
    routes = [make(address.local, 32, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST)]
    length = address.prefix_length
    network = address.peer & netmask(length)
    if not device.up or address.secondary or network >> 24 == 0:
        return routes
    if length < 32 or network != address.local:
        if device.loopback:
            routes.append(make(network, length, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST))
        else:
            routes.append(make(network, length, scope=SCOPE_LINK))
        if length < 31:
            last = network | ~netmask(length) & 0xFFFFFFFF
            with_first = any(route.kind == "broadcast" for route in fib.tables.bucket(_LOOPBACKS_FIRST))
            broadcast = partial(make, prefix_length=32, table=LOCAL_TABLE, kind="broadcast", scope=SCOPE_LINK)
            routes += map(broadcast, (network, last) if with_first else (last,))
    return routes


def with_own_routes(fib: Fib, name: str, address: DeviceAddress) -> Fib:
    """Return the model with the routes that the kernel makes for an IPv4 address, see `own_routes`."""
    device = fib.devices[name]
    for route in own_routes(fib, device, address):
        # The kernel refuses a source that is not local. If the local route of a primary address was deleted, its
        # secondary addresses get no routes.
        if (route.kind == "local" and route.source == route.network) or fib.is_local(route.source or 0):
            key = key_of(route)
            bucket = fib.tables.bucket(key)
            # The last of its place, unless it is there already.
            if signature(route) not in map(signature, bucket):
                fib = with_bucket(fib, key, inserted(bucket, with_state(route, device), last=True))
    return fib


def together(bucket: Bucket, route: ObservedRoute) -> list[ObservedRoute]:
    """Return the routes that are next hops of one route with this one, which is among them; see `testing.ipv6`."""
    if route.family == IPV4 or not may_merge(route):
        return [route]
    return [other for other in bucket if may_merge(other) and place(other) == place(route)]


def with_state(route: ObservedRoute, device: Device) -> ObservedRoute:
    """Return a route as a dump shows it with `device` in this state; local routes keep no state of their link."""
    if route.dev != device.name or route.scope == SCOPE_HOST:
        return route
    flags = route.flags & ~FLAG_LINKDOWN | (FLAG_LINKDOWN if device.up and not device.carrier else 0)
    return route if flags == route.flags else route._replace(flags=flags)


def same_subnet(first: DeviceAddress, second: DeviceAddress) -> bool:
    """Return True if two addresses have one prefix length and one network."""
    lengths = {(one.family, one.prefix_length) for one in (first, second)}
    return len(lengths) == 1 and not (first.peer ^ second.peer) & netmask(first.prefix_length)


def ipv4_addresses(device: Device) -> tuple[DeviceAddress, ...]:
    """Return the addresses of a device that are IPv4, which come first."""
    return tuple(address for address in device.addresses if address.family == IPV4)


def _forgotten(fib: Fib, name: str, address: DeviceAddress) -> Fib:
    device = fib.devices[name]
    remaining = device._replace(addresses=tuple(other for other in device.addresses if other != address))
    needed = {route for other in ipv4_addresses(remaining) for route in own_routes(fib, remaining, other)}
    for route in own_routes(fib, device, address):
        if route not in needed:
            key = key_of(route)
            fib = with_bucket(fib, key, deleted(fib.tables.bucket(key), route))
    fib = with_device(fib, remaining)
    if fib.is_local(address.local):
        return fib

    sends = address.local, MAIN_TABLE
    return mapped(fib, lambda route, _: None if (route.source, route.table) == sends else route)


def _with_hops(fib: Fib, name: str, *, dead: bool, spare_local: bool = False, spare_ipv6: bool = False) -> Fib:
    """Kill or revive the next hops by a device; a route without living ones goes."""

    def change(route: ObservedRoute, bucket: Bucket) -> ObservedRoute | None:
        if (spare_local and route.scope == SCOPE_HOST) or (spare_ipv6 and route.family == IPV6):
            return route
        all_hops = [hop for part in together(bucket, route) for hop in part.hops]
        if name not in {hop.dev for hop in all_hops}:
            return route
        if dead and all(hop.dead or hop.dev == name for hop in all_hops):
            return None
        hops = tuple(hop._replace(dead=dead if hop.dev == name else hop.dead) for hop in route.nexthops)
        return route._replace(nexthops=hops, flags=route.flags & ~FLAG_DEAD)

    return mapped(fib, change)
