"""The kernel's IPv6 where it differs from its IPv4: what it admits and shows, what goes with devices and addresses.

In the tables of a `MemoryNode` each next hop of an IPv6 route is a route of its own, with just this next hop, as in the
kernel. Those of one place that have a gateway are one multipath route for who reads them, whoever added them.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.fib.model import resting
from hostrouting.fib.rules import Packet
from hostrouting.fib.tables import inserted, key_of
from hostrouting.net.addresses import IPV4, IPV6, is_link_local, mask_of
from hostrouting.net.routes import FLAG_ONLINK, LOCAL_TABLE, MAIN_TABLE, SCOPE_HOST, ObservedRoute, place
from hostrouting.testing.faults import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.fib import Fib
    from hostrouting.fib.tables import Bucket
    from hostrouting.net.links import DeviceAddress
    from hostrouting.net.routes import NextHop, Route

_KERNEL: Final = 2
#: The metric of the kernel's routes to the networks of a device.
_CONNECTED: Final = 256
#: Longer prefixes have no address for any of their routers.
_LONGEST_WITH_ANYCAST: Final = 126


def parted(route: Route | ObservedRoute) -> list[ObservedRoute]:
    """Return a route for each next hop, as the tables hold them."""
    whole = resting(route)
    return [whole._replace(gateway=None, dev=None, nexthops=(hop,)) for hop in whole.hops] or [whole]


def dumped(bucket: Bucket) -> Iterator[ObservedRoute]:
    """Yield the routes of a bucket as a dump shows them.

    After a multipath route the kernel goes on behind its last next hop: what stands before that is left out.
    """
    passed: list[ObservedRoute] = []
    for number, route in enumerate(bucket):
        if route not in passed:
            last = bucket.index(together(bucket, route)[-1])
            passed += [other for other in bucket[number : last + 1] if other.from_prefix == route.from_prefix]
            yield shown(bucket, route)


def shown(bucket: Bucket, route: ObservedRoute) -> ObservedRoute:
    """Return the route that one of the bucket is a part of."""
    first, *others = parts = together(bucket, route)
    if others:
        hops = sorted((hop._replace(extra=()) for part in parts for hop in part.hops), key=str)
        return first._replace(nexthops=tuple(hops), flags=0)
    if not route.nexthops:
        return route
    gateway, dev, _, onlink, _, encapsulation, _ = route.nexthops[0]
    flags = FLAG_ONLINK if onlink else 0
    return route._replace(gateway=gateway, dev=dev, nexthops=(), encapsulation=encapsulation, flags=flags)


def together(bucket: Bucket, route: ObservedRoute) -> list[ObservedRoute]:
    """Return the routes that are next hops of one route with this one, which is among them."""
    if route.family == IPV4 or not _has_gateway(route):
        return [route]
    return [other for other in bucket if _has_gateway(other) and place(other) == place(route)]


def admitted(fib: Fib, route: Route | ObservedRoute, verb: str) -> Fib:
    """Return the model after the kernel's `add`, `prepend`, `append` or `replace`; `Refused` if it refuses."""
    parts = parted(route)
    if len(parts) > 1 and not all(map(_has_gateway, parts)):
        raise Refused(errno.EINVAL, "Device only routes can not be added for IPv6 using the multipath API")
    for hop in resting(route).hops:
        check_hop(fib, hop, route.table, route.source or 0)
        if route.source is not None and not _holds(fib, route.source):
            raise Refused(errno.EINVAL, "Invalid source address")
    for part in parts:
        fib = _with(fib, part, verb)
        verb = "append"
    return fib


def address_added(fib: Fib, name: str, new: DeviceAddress, *, forwards: bool = False) -> Fib:
    """Add an address, with the kernel's routes for it. If the node forwards, its network has an anycast address."""
    device = fib.devices[name]
    ours = [own for own in device.addresses if own.family == IPV6]
    others = [own for own in device.addresses if own.family != IPV6]
    fib = _with_addresses(fib, name, (*others, new, *ours))
    fib = _owned(fib, _route(name, new.local, 128, table=LOCAL_TABLE, kind="local"))
    fib = with_network(fib, name, new)
    if device.up and new.peer != new.local:
        fib = _owned(fib, _route(name, new.peer, 128, metric=_CONNECTED))
    if forwards and _anycast(new) not in {None, *map(_anycast, ours)}:
        fib = _owned(fib, _route(name, _network(new), 128, table=LOCAL_TABLE, kind="anycast"))
    return fib


def with_network(fib: Fib, name: str, address: DeviceAddress) -> Fib:
    """Return the model with the route to the network of an address while its device is up; not to the far end."""
    if not fib.devices[name].up or address.scope == SCOPE_HOST:
        return fib
    network = _route(name, _network(address), address.prefix_length, metric=_CONNECTED)
    return with_multicast(_owned(fib, network), name)


def with_multicast(fib: Fib, name: str) -> Fib:
    """Return the model with the route for multicast that a device has while it is up."""
    multicast = _route(name, 0xFF << 120, 8, table=LOCAL_TABLE, kind="multicast", metric=_CONNECTED)
    return fib if fib.devices[name].loopback else _owned(fib, multicast)


def address_removed(fib: Fib, name: str, gone: DeviceAddress) -> Fib:
    """Remove an address with its routes. Of its network goes the first route on the link, even if it is another's."""
    left = tuple(own for own in fib.devices[name].addresses if own != gone)
    fib = _with_addresses(fib, name, left)
    ours = [own for own in left if own.family == IPV6]
    ends = [_route(name, gone.local, 128, table=LOCAL_TABLE, kind="local")]
    if _anycast(gone) not in map(_anycast, ours):
        ends.append(_route(name, _network(gone), 128, table=LOCAL_TABLE, kind="anycast"))
    if (_network(gone), gone.prefix_length) not in [(_network(own), own.prefix_length) for own in ours]:
        ends.append(_route(name, _network(gone), gone.prefix_length))
    if gone.peer != gone.local:
        ends.append(_route(name, gone.peer, 128))
    for end in ends:
        for route in fib.tables.bucket(key_of(end)):
            is_ours = (route.kind, route.metric) == (end.kind, 0) or end.table == MAIN_TABLE
            if is_ours and route.from_prefix is None and _way(route) == _way(end):
                fib = _without(fib, [route])
                break
    if _holds(fib, gone.local):
        return fib

    def change(route: ObservedRoute, _: Bucket) -> ObservedRoute:
        return route._replace(source=None) if (route.family, route.source) == (IPV6, gone.local) else route

    return attrs.evolve(fib, tables=fib.tables.mapped(change))


def check_hop(fib: Fib, hop: NextHop, table: int, source: int = 0) -> None:
    """Raise `Refused` if the kernel takes no route of a table by this next hop, which may be one of an IPv4 route."""
    if hop.dev not in fib.devices:
        raise Refused(errno.ENODEV)
    if hop.gateway is not None and (fib.devices[hop.dev].up or not hop.onlink):
        _check_gateway(fib, hop, hop.gateway.number, source)
        if not fib.takes(hop, table, source):
            raise Refused(errno.EHOSTUNREACH)
    if not fib.devices[hop.dev].up:
        raise Refused(errno.ENETDOWN, "Nexthop device is not up")


def _check_gateway(fib: Fib, hop: NextHop, gateway: int, source: int) -> None:
    is_near = is_link_local(gateway)
    if _holds(fib, gateway, hop.dev if is_near else None):
        raise Refused(errno.EINVAL, "Gateway can not be a local address")
    if hop.onlink and not is_near:
        # It may leave by another device, like a packet that came in by this one.
        found = fib.search(MAIN_TABLE, Packet(gateway, source, iif=hop.dev, family=IPV6))
        if found and found.devs and found.network and (found.kind != "unicast" or found.devs != (hop.dev,)):
            raise Refused(errno.EINVAL, "Nexthop has invalid gateway or device mismatch")


def _holds(fib: Fib, number: int, dev: str | None = None) -> bool:
    """Return True if the node, or one of its devices, has an IPv6 address."""
    devices = [device for device in fib.devices.values() if dev in {None, device.name}]
    return (IPV6, number) in {own.address for device in devices for own in device.addresses}


def _has_gateway(route: ObservedRoute) -> bool:
    return any(hop.gateway for hop in route.hops)


def _way(route: ObservedRoute) -> tuple[object, ...]:
    """Return the fields by which the kernel takes two routes of one place for the same."""
    return tuple((hop.dev, hop.gateway, hop.encapsulation) for hop in route.hops)


def _with(fib: Fib, new: ObservedRoute, verb: str) -> Fib:
    bucket = fib.tables.bucket(key_of(new))
    standing = [other for other in bucket if place(other) == place(new)]
    if standing and verb == "replace":
        old = next((other for other in standing if _has_gateway(other) == _has_gateway(new)), standing[0])
        gone = together(bucket, old)
        return _with_bucket(
            fib, new, [new if other is old else other for other in bucket if other is old or other not in gone]
        )
    if standing and (verb == "add" or _way(new) in map(_way, standing)):
        raise Refused(errno.EEXIST)
    return _with_bucket(fib, new, inserted(bucket, new, last=True))


def _owned(fib: Fib, route: ObservedRoute) -> Fib:
    """Return the model with a route of the kernel's, unless it is there already."""
    try:
        return _with(fib, route, "append")
    except Refused:
        return fib


def _without(fib: Fib, gone: list[ObservedRoute]) -> Fib:
    bucket = fib.tables.bucket(key_of(gone[0]))
    return _with_bucket(fib, gone[0], [route for route in bucket if route not in gone])


def _with_bucket(fib: Fib, route: ObservedRoute, bucket: Iterable[ObservedRoute]) -> Fib:
    return attrs.evolve(fib, tables=fib.tables.with_buckets({key_of(route): tuple(bucket)}))


def _with_addresses(fib: Fib, name: str, addresses: tuple[DeviceAddress, ...]) -> Fib:
    return attrs.evolve(fib, devices={**fib.devices, name: fib.devices[name]._replace(addresses=addresses)})


def _anycast(address: DeviceAddress) -> int | None:
    """Return the address of any of the routers in the network of an address."""
    return _network(address) if address.prefix_length <= _LONGEST_WITH_ANYCAST else None


def _network(address: DeviceAddress) -> int:
    return address.local & mask_of(IPV6, address.prefix_length)


def _route(dev: str, network: int, length: int, **fields: Any) -> ObservedRoute:
    return parted(ObservedRoute(network, length, dev=dev, protocol=_KERNEL, family=IPV6, **fields))[0]
