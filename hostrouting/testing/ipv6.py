"""The kernel's IPv6 where it differs from its IPv4: what it admits and shows, what goes with devices and addresses.

In the tables of a `MemoryNode` each next hop of an IPv6 route is a route of its own, with just this next hop, as in the
kernel. Those of one place that have a gateway are one multipath route for who reads them, whoever added them.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

from hostrouting.fib.tables import inserted, key_of
from hostrouting.net.addresses import IPV4, IPV6, mask_of
from hostrouting.net.changes import may_merge
from hostrouting.net.routes import (
    FLAG_ONLINK,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    ObservedRoute,
    place,
    resting,
)
from hostrouting.testing.consequences import ipv4_addresses, mapped, together, with_bucket, with_device
from hostrouting.testing.faults import Refused

if TYPE_CHECKING:
    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Bucket
    from hostrouting.net.links import DeviceAddress
    from hostrouting.net.routes import NextHop, Route

#: The metric of the kernel's routes to the networks of a device.
_CONNECTED: Final = 256


def parted(route: Route | ObservedRoute) -> list[ObservedRoute]:
    """Return a route for each next hop, as the tables hold them."""
    whole = resting(route)
    return [whole._replace(gateway=None, dev=None, nexthops=(hop,)) for hop in whole.hops] or [whole]


def shown(bucket: Bucket, route: ObservedRoute) -> ObservedRoute:
    """Return the route that one of the bucket is a part of; one of IPv4 is whole."""
    if route.family == IPV4 or not route.nexthops:
        return route
    first, *others = parts = together(bucket, route)
    if others:
        hops = sorted((hop._replace(extra=()) for part in parts for hop in part.hops), key=str)
        return first._replace(nexthops=tuple(hops), flags=0)
    gateway, dev, _, onlink, _, encapsulation, _ = route.nexthops[0]
    flags = FLAG_ONLINK if onlink else 0
    return route._replace(gateway=gateway, dev=dev, nexthops=(), encapsulation=encapsulation, flags=flags)


def admitted(fib: Fib, route: Route | ObservedRoute, verb: str) -> Fib:
    """Return the model after the kernel's `add`, `prepend`, `append` or `replace`; `Refused` if it refuses."""
    parts = parted(route)
    if len(parts) > 1 and not all(map(may_merge, parts)):
        raise Refused(errno.EINVAL, "Device only routes can not be added for IPv6 using the multipath API")
    for hop in resting(route).hops:
        check_hop(fib, hop, route.table, route.source or 0)
        if route.source is not None and not _holds(fib, route.source):
            raise Refused(errno.EINVAL, "Invalid source address")
    for part in parts:
        fib = _with(fib, part, verb)
        verb = "append"
    return fib


def address_added(fib: Fib, name: str, new: DeviceAddress) -> Fib:
    """Add an address, with the kernel's routes for it."""
    device = fib.devices[name]
    others = ipv4_addresses(device)
    fib = with_device(fib, device._replace(addresses=(*others, new, *device.addresses[len(others) :])))
    fib = with_own_route(fib, name, new.local, 128, table=LOCAL_TABLE, kind="local")
    fib = with_network(fib, name, new)
    return with_own_route(fib, name, new.peer, 128) if device.up and new.peer != new.local else fib


def with_network(fib: Fib, name: str, address: DeviceAddress) -> Fib:
    """Return the model with the route to the network of an address while its device is up; not to the far end."""
    if not fib.devices[name].up or address.scope == SCOPE_HOST:
        return fib
    return with_multicast(with_own_route(fib, name, *_network(address)), name)


def with_multicast(fib: Fib, name: str) -> Fib:
    """Return the model with the route for multicast that a device has while it is up."""
    if fib.devices[name].loopback:
        return fib
    return with_own_route(fib, name, 0xFF << 120, 8, table=LOCAL_TABLE, kind="multicast", metric=_CONNECTED)


def with_own_route(fib: Fib, name: str, network: int, length: int, **fields: Any) -> Fib:
    """Return the model with a route of the kernel's by a device, unless it is there already."""
    try:
        return _with(fib, _own_route(name, network, length, **fields), "append")
    except Refused:
        return fib


def address_removed(fib: Fib, name: str, gone: DeviceAddress) -> Fib:
    """Remove an address with its routes. Of its network goes the first route on the link, even if it is another's."""
    device = fib.devices[name]
    left = tuple(own for own in device.addresses if own != gone)
    fib = with_device(fib, device._replace(addresses=left))
    ends = [_own_route(name, gone.local, 128, table=LOCAL_TABLE, kind="local")]
    if _network(gone) not in [_network(own) for own in left if own.family == IPV6]:
        ends.append(_own_route(name, *_network(gone)))
    if gone.peer != gone.local:
        ends.append(_own_route(name, gone.peer, 128))
    for end in ends:
        bucket = fib.tables.bucket(key_of(end))
        for route in bucket:
            is_ours = end.table == MAIN_TABLE or (route.kind, route.metric) == (end.kind, end.metric)
            if is_ours and route.from_prefix is None and _way(route) == _way(end):
                fib = with_bucket(fib, key_of(end), tuple(other for other in bucket if other is not route))
                break
    if _holds(fib, gone.local):
        return fib

    sends = IPV6, gone.local
    return mapped(fib, lambda route, _: route._replace(source=None) if (route.family, route.source) == sends else route)


def check_hop(fib: Fib, hop: NextHop, table: int, source: int = 0) -> None:
    """Raise `Refused` if the kernel takes no route of a table by this next hop, which may be one of an IPv4 route."""
    if hop.dev not in fib.devices:
        raise Refused(errno.ENODEV)
    if hop.gateway is not None and (fib.devices[hop.dev].up or not hop.onlink):
        if hop.onlink and not hop.gateway.is_link_local:
            raise ValueError(f"the model does not know on-link gateways of IPv6 that are not link-local, such as {hop}")
        if _holds(fib, hop.gateway.number, hop.dev if hop.gateway.is_link_local else None):
            raise Refused(errno.EINVAL, "Gateway can not be a local address")
        if not fib.takes(hop, table, source):
            raise Refused(errno.EHOSTUNREACH)
    if not fib.devices[hop.dev].up:
        raise Refused(errno.ENETDOWN, "Nexthop device is not up")


def _holds(fib: Fib, number: int, dev: str | None = None) -> bool:
    """Return True if the node, or one of its devices, has an IPv6 address."""
    devices = [device for device in fib.devices.values() if dev in {None, device.name}]
    return (IPV6, number) in {own.address for device in devices for own in device.addresses}


def _way(route: ObservedRoute) -> tuple[object, ...]:
    """Return the fields by which the kernel takes two routes of one place for the same."""
    return tuple((hop.dev, hop.gateway, hop.encapsulation) for hop in route.hops)


def _with(fib: Fib, new: ObservedRoute, verb: str) -> Fib:
    bucket = fib.tables.bucket(key_of(new))
    standing = [other for other in bucket if place(other) == place(new)]
    if standing and verb == "replace":
        old = next((other for other in standing if may_merge(other) == may_merge(new)), standing[0])
        gone = together(bucket, old)
        changed = tuple(new if other is old else other for other in bucket if other is old or other not in gone)
        return with_bucket(fib, key_of(new), changed)
    if standing and (verb == "add" or _way(new) in map(_way, standing)):
        raise Refused(errno.EEXIST)
    return with_bucket(fib, key_of(new), inserted(bucket, new, last=True))


def _network(address: DeviceAddress) -> tuple[int, int]:
    return address.local & mask_of(IPV6, address.prefix_length), address.prefix_length


def _own_route(dev: str, network: int, length: int, **fields: Any) -> ObservedRoute:
    fields = {"metric": 0 if "table" in fields else _CONNECTED, **fields}
    return parted(ObservedRoute(network, length, dev=dev, protocol=KERNEL_PROTOCOL, family=IPV6, **fields))[0]
