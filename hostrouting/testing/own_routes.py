"""Update a model after a change of a device: the kernel's own routes, and those that need it.

Only a kernel can answer how a route loses one of several next hops with its device.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import attrs

from hostrouting.fib.tables import Tables, inserted, key_of
from hostrouting.net.addresses import IPV4, IPV6, mask_of, netmask
from hostrouting.net.routes import (
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
from hostrouting.testing.faults import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Bucket, Key
    from hostrouting.net.links import Device, DeviceAddress

#: The metric of the kernel's IPv6 routes to the networks of a device.
_CONNECTED = 256


def own_routes(device: Device) -> list[ObservedRoute]:
    """Return the routes that the kernel makes for the networks and broadcasts of a device."""
    routes = []
    for address in device.addresses:
        routes += (_ipv4_routes if address.family == IPV4 else _ipv6_routes)(device, address)
    if device.up and not device.loopback:
        multicast = ObservedRoute(
            0xFF << 120, 8, dev=device.name, table=LOCAL_TABLE, kind="multicast", family=IPV6
        )
        routes.append(multicast._replace(metric=_CONNECTED, protocol=KERNEL_PROTOCOL))
    return routes


def _ipv4_routes(device: Device, address: DeviceAddress) -> list[ObservedRoute]:
    primary = next(own for own in device.addresses if same_subnet(own, address))
    make = partial(ObservedRoute, dev=device.name, protocol=KERNEL_PROTOCOL, source=primary.local)
    to_node = partial(make, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST)
    on_link = partial(make, scope=SCOPE_LINK, flags=link_flags(device))
    routes = [to_node(address.local, 32)]
    length = address.prefix_length
    network = address.peer & netmask(length)
    is_route = length < 32 or network != address.local
    if device.up and not address.secondary and network >> 24 and is_route:
        routes.append((to_node if device.loopback else on_link)(network, length))
        if length < 31:
            last = network | ~netmask(length) & 0xFFFFFFFF
            routes.append(on_link(last, 32, table=LOCAL_TABLE, kind="broadcast"))
    return routes


def _ipv6_routes(device: Device, address: DeviceAddress) -> list[ObservedRoute]:
    make = partial(ObservedRoute, dev=device.name, protocol=KERNEL_PROTOCOL, family=IPV6)
    routes = [make(address.local, 128, table=LOCAL_TABLE, kind="local")]
    if device.up and address.scope != SCOPE_HOST:
        length = address.prefix_length
        routes.append(make(address.local & mask_of(IPV6, length), length, metric=_CONNECTED))
    return routes


def with_device(
    fib: Fib,
    before: Device | None,
    after: Device | None,
    own: Callable[[Device], list[ObservedRoute]] = own_routes,
) -> Fib:
    """Return the model with a device as `after` instead of `before`; None is an absent device.

    The device's `own` routes follow. Routes that need the lost device, state or address go, too.
    """
    old, new = (own(device) if device else [] for device in (before, after))
    devices = {
        name: device for name, device in fib.devices.items() if after or device is not before
    }
    fib = attrs.evolve(fib, devices={**devices, after.name: after} if after else devices)
    if before:
        fib = _without(fib, {route for route in old if route not in new and _is_taken(fib, route)})
        fib = _without(fib, set(_lost(fib, before, after)))
    for route in new:
        bucket = fib.tables.bucket(key_of(route))
        if route not in old and not any(is_same(route, present) for present in bucket):
            fib = with_bucket(fib, key_of(route), inserted(bucket, route, last=True))
    return fib


def with_bucket(fib: Fib, key: Key, bucket: Bucket) -> Fib:
    """Return the model with these routes to one destination."""
    return attrs.evolve(fib, tables=fib.tables.with_buckets({key: bucket}))


def is_same(first: ObservedRoute, second: ObservedRoute) -> bool:
    """Return True if the kernel takes two routes for one: by place, of IPv6 also by next hop."""
    if first.family == IPV4:
        return signature(first) == signature(second)
    return place(first) == place(second) and _ways(first) == _ways(second)


def _ways(route: ObservedRoute) -> list[tuple[object, ...]]:
    return [(hop.dev, hop.gateway, hop.encapsulation) for hop in route.hops]


def same_subnet(first: DeviceAddress, second: DeviceAddress) -> bool:
    """Return True if two IPv4 addresses have one prefix length and one network."""
    kinds = {(address.family, address.prefix_length) for address in (first, second)}
    if kinds != {(IPV4, first.prefix_length)}:
        return False
    return not (first.peer ^ second.peer) & netmask(first.prefix_length)


def link_flags(device: Device) -> int:
    """Return the flags of a route by a device."""
    return FLAG_LINKDOWN if device.up and not device.carrier else 0


def _without(fib: Fib, routes: Collection[ObservedRoute]) -> Fib:
    if not routes:
        return fib
    everything = chain.from_iterable(map(fib.tables.routes, fib.families))
    kept = (route for route in everything if route not in routes)
    return attrs.evolve(fib, tables=Tables.of(kept))


def _is_taken(fib: Fib, route: ObservedRoute) -> bool:
    """Return True; raise UnknownDecisionError where the kernel may delete another route."""
    rivals = [rival for rival in fib.tables.bucket(key_of(route)) if rival != route]
    for rival in rivals if route.family == IPV6 else ():
        if rival.table == MAIN_TABLE and rival.devs == route.devs:
            raise unknown(f"which route to {route.destination} goes with an address")
    return True


def _lost(fib: Fib, before: Device, after: Device | None) -> Iterator[ObservedRoute]:
    """Yield the routes that cannot stay as a device changes, in a model without its own routes."""
    lost = [own for own in before.addresses if after is None or own not in after.addresses]
    is_down = before.up and not (after and after.up)
    if not lost and not is_down and after:
        return
    has_ipv4 = after is not None and any(own.family == IPV4 for own in after.addresses)
    is_bare = not has_ipv4 and any(own.family == IPV4 for own in lost)
    lost = [own for own in lost if own.family == IPV6 or not fib.is_local(own.local)]
    sources = {(own.family, own.local) for own in lost}
    for route in (*fib.routes(IPV4), *fib.routes(IPV6)):
        is_of_node = route.family == IPV4 and route.scope == SCOPE_HOST
        stops = after is None or (is_down and not is_of_node) or (is_bare and route.family == IPV4)
        if before.name in route.devs and stops:
            if len(route.devs) > 1:
                raise unknown(f"how '{route}' continues without {before.name}")
            yield route
        elif (route.family, route.source) in sources:
            if route.family == IPV6:
                raise unknown(f"how '{route}' continues without its source")
            if route.table == MAIN_TABLE:
                yield route
