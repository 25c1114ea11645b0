"""Change a model as the kernel does: routes and rules, with its refusals, and devices.

Remainders of merged IPv6 routes, how a route loses one of several next hops, and a few other
answers only a kernel can give: `UnknownDecisionError`.
"""

from __future__ import annotations

import errno
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from hostrouting.fib import Decision, Fib, Packet
from hostrouting.fib.tables import Bucket, Tables, deleted, inserted, key_of
from hostrouting.host.netlink.frames import attribute, attributes, number_of, word
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, mask_of, netmask
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    FLAG_LINKDOWN,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    NextHop,
    ObservedRoute,
    Route,
    may_merge,
    resting,
    route_key,
    signature,
)
from hostrouting.testing.faults import Refused, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator

    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.net.rules import Rule

#: RTA_METRICS, and the most that the kernel keeps of its mtu, advmss and hop limit.
_METRICS = 8
_MOST = {2: 65520, 8: 65495, 10: 255}
#: The metric of the kernel's IPv6 routes to the networks of a device.
_CONNECTED = 256


def with_route(fib: Fib, route: Route | ObservedRoute, verb: str) -> Fib:
    """Return the model after `add`, `prepend`, `append` or `replace` as the kernel does."""
    new = _checked(fib, route)
    bucket = fib.tables.bucket(key_of(new))
    in_place = [present for present in bucket if route_key(present) == route_key(new)]
    if _may_join(new, in_place, verb):
        raise unknown(f"how IPv6 merges '{new}' and '{in_place[0]}'")
    if verb == "add" and in_place:
        raise Refused(errno.EEXIST)
    # A route replaces the first of its place, even if that is the same route.
    others = in_place[1:] if verb == "replace" else in_place
    if any(_is_same(new, present) for present in others):
        raise Refused(errno.EEXIST)
    if verb == "replace" and in_place:
        return _with_bucket(fib, new, _exchanged(bucket, in_place[0], new))
    return _with_bucket(fib, new, inserted(bucket, new, last=verb == "append"))


def _may_join(new: ObservedRoute, in_place: Collection[ObservedRoute], verb: str) -> bool:
    """Return True if IPv6 may make one route of a new one and those in its place."""
    if new.family == IPV4 or verb == "add":
        return False
    if verb == "replace":
        return len(in_place) > 1
    return may_merge(new) and any(map(may_merge, in_place))


def _exchanged(bucket: Bucket, old: ObservedRoute, new: ObservedRoute) -> Bucket:
    position = bucket.index(old)
    return (*bucket[:position], new, *bucket[position + 1 :])


def without_route(fib: Fib, route: Route | ObservedRoute) -> Fib:
    """Return the model without the first route that fits; raise `Refused` if none does."""
    first, rest = deleted(fib.tables.bucket(key_of(route)), route)
    if first is None:
        raise Refused(errno.ESRCH)
    if first.table == LOCAL_TABLE and first.protocol == KERNEL_PROTOCOL:
        raise unknown(f"which changes follow the deletion of its own '{first}'")
    if first.family == IPV6 and first.nexthops and not route.nexthops:
        raise unknown(f"which next hop of '{first}' goes")
    return _with_bucket(fib, route, rest)


def with_rule(rules: Iterable[Rule], new: Rule) -> list[Rule]:
    """Return the rules with another; raise `Refused` for a duplicate or backward `goto`."""
    if new.goto is not None and new.goto <= new.priority:
        raise Refused(errno.EINVAL, "Backward goto not supported")
    if new in rules:
        raise Refused(errno.EEXIST)
    compared = attrgetter("family", "priority", "action", "table")
    if compared(new) in map(compared, rules):
        raise unknown(f"if rule {new.priority} is present: it compares few of the selectors")
    return sorted((*rules, new), key=attrgetter("priority"))


def without_rule(rules: Iterable[Rule], named: Rule) -> list[Rule]:
    """Return the rules without `named`; raise `Refused` if it is absent."""
    if named not in rules:
        raise Refused(errno.ENOENT)
    rest = [rule for rule in rules if rule != named]
    if (named.priority, named.family) in [(rule.priority, rule.family) for rule in rest]:
        raise unknown(f"which rule {named.priority} goes: it compares few of the selectors")
    return rest


def _checked(fib: Fib, route: Route | ObservedRoute) -> ObservedRoute:
    """Return the route as a dump will show it."""
    new = resting(route)
    new = new._replace(extra=tuple(map(_limited, new.extra)))
    if new.kind not in DEVICELESS_KINDS:
        for hop in new.hops:
            _check_hop(fib, new, hop)
    if new.family == IPV6:
        hops = {(hop.dev, hop.gateway) for hop in new.nexthops if hop.gateway}
        if len(hops) < len(new.nexthops):
            raise unknown(f"how IPv6 merges the next hops of '{new}'")
        return new._replace(nexthops=tuple(sorted(new.nexthops, key=str)))
    is_own = new.kind == "local" and new.source == new.network
    if new.source is not None and not is_own:
        is_own_there = new.table != MAIN_TABLE and fib.is_local(new.source, new.table)
        if not is_own_there and not fib.is_local(new.source):
            raise Refused(errno.EINVAL, "Invalid prefsrc address")
    if new.dev is None or new.scope == SCOPE_HOST:
        return new
    return new._replace(flags=new.flags | _link_flags(fib.devices[new.dev]))


def _limited(item: tuple[int, bytes]) -> tuple[int, bytes]:
    """Return an attribute with the kernel's limits of metrics."""
    number, payload = item
    if number != _METRICS:
        return item
    metrics = attributes(payload)
    for kind in _MOST.keys() & metrics:
        metrics[kind] = word.pack(min(number_of(metrics, kind), _MOST[kind]))
    return number, b"".join(starmap(attribute, metrics.items()))


def _check_hop(fib: Fib, route: ObservedRoute, hop: NextHop) -> None:
    device = fib.devices.get(hop.dev)
    if device is None:
        raise Refused(errno.ENODEV)
    if route.family == IPV4 and route.scope == SCOPE_HOST:
        if hop.gateway or route.nexthops:
            raise unknown(f"which next hops '{route}' may have: its scope is the node")
        return
    if hop.gateway and (device.up or not hop.onlink):
        check = _check_ipv4_gateway if hop.gateway.family == IPV4 else _check_ipv6_gateway
        check(fib, route, hop, hop.gateway)
    if not device.up:
        is_link = route.family == IPV4 and not hop.gateway
        subject = "Device for nexthop" if is_link else "Nexthop device"
        raise Refused(errno.ENETDOWN, f"{subject} is not up")
    if route.family == IPV6 and route.source is not None and not fib.holds(route.source, IPV6):
        raise Refused(errno.EINVAL, "Invalid source address")


def _check_ipv4_gateway(fib: Fib, route: ObservedRoute, hop: NextHop, gateway: Address) -> None:
    if hop.onlink:
        owner = fib.search(LOCAL_TABLE, Packet(gateway.number))
        if route.scope >= SCOPE_LINK or (owner and owner.kind in {"local", "broadcast"}):
            raise unknown(f"if it takes {gateway} as an on-link gateway")
        return
    packet = Packet(gateway.number, oif=hop.dev)
    scope = max(route.scope + 1, SCOPE_LINK)
    decision = fib.decide(packet, scope=scope)
    # The route's own table comes before the policy rules.
    if route.table != MAIN_TABLE and (own := fib.search(route.table, packet, scope=scope)):
        decision = Decision(own)
    if decision.errno == errno.ENETUNREACH:
        raise Refused(errno.ENETUNREACH, "Nexthop has invalid gateway")
    if not decision.route or (decision.route.kind, decision.route.scope) != ("unicast", SCOPE_LINK):
        raise unknown(f"if it takes {gateway}: it may be an own address, or behind another gateway")


def _check_ipv6_gateway(fib: Fib, route: ObservedRoute, hop: NextHop, gateway: Address) -> None:
    if hop.onlink and not gateway.is_link_local:
        raise unknown(f"if it takes {gateway} as an on-link gateway: it is not link-local")
    if fib.holds(gateway.number, IPV6):
        raise unknown(f"if it takes {gateway}: it is an own address")
    source = route.source if route.family == IPV6 else None
    if not fib.accepts(hop, route.table, source or 0):
        raise Refused(errno.EHOSTUNREACH)


def own_routes(device: Device) -> list[ObservedRoute]:
    """Return the routes that the kernel makes for the networks and broadcasts of a device."""
    routes = []
    for address in device.addresses:
        if address.family == IPV4:
            routes += _ipv4_routes(device, address)
        else:
            routes += _ipv6_routes(device, address)
    if device.up and not device.loopback:
        routes.append(
            ObservedRoute.parse(
                "ff00::/8",
                device.name,
                metric=_CONNECTED,
                table=LOCAL_TABLE,
                protocol=KERNEL_PROTOCOL,
                kind="multicast",
            )
        )
    return routes


def _ipv4_routes(device: Device, address: DeviceAddress) -> list[ObservedRoute]:
    primary = next(own for own in device.addresses if same_subnet(own, address))
    make = partial(ObservedRoute, dev=device.name, protocol=KERNEL_PROTOCOL, source=primary.local)
    to_node = partial(make, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST)
    on_link = partial(make, scope=SCOPE_LINK, flags=_link_flags(device))
    routes = [to_node(address.local, 32)]
    length = address.prefix_length
    network = address.peer & netmask(length)
    # A secondary address gets no more routes than its primary one.
    is_route = length < 32 or network != primary.local
    if device.up and network >> 24 and is_route:
        make_route = to_node if device.loopback else on_link
        routes.append(make_route(network, length))
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
    fib: Fib, name: str, after: Device | None, own: Callable[[Device], list[ObservedRoute]]
) -> Fib:
    """Return the model with a device as `after`; None is an absent device.

    The device's `own` routes follow. Routes that need the lost device, state or address also go.
    """
    before = fib.devices.get(name)
    old = own(before) if before else []
    new = own(after) if after else []
    devices = dict(fib.devices)
    if after:
        devices[name] = after
    else:
        devices.pop(name, None)
    fib = attrs.evolve(fib, devices=devices)
    if before:
        fib = _without(fib, _gone(fib, old, new))
        fib = _without(fib, [*_lost(fib, before, after)])
    for route in new:
        bucket = fib.tables.bucket(key_of(route))
        if route not in old and not any(_is_same(route, present) for present in bucket):
            fib = _with_bucket(fib, route, inserted(bucket, route, last=True))
    return fib


def _gone(
    fib: Fib, old: Iterable[ObservedRoute], new: Container[ObservedRoute]
) -> list[ObservedRoute]:
    """Return the routes that the kernel had for a device, and has no more."""
    gone = [route for route in old if route not in new]
    for route in gone:
        if route.family == IPV4 or route.table != MAIN_TABLE:
            continue
        rivals = fib.tables.bucket(key_of(route))
        if any(rival != route and rival.devs == route.devs for rival in rivals):
            raise unknown(f"which route to {route.destination} goes with an address")
    return gone


def _with_bucket(fib: Fib, route: Route | ObservedRoute, bucket: Bucket) -> Fib:
    """Return the model with these routes to the destination of one."""
    return attrs.evolve(fib, tables=fib.tables.with_buckets({key_of(route): bucket}))


def _is_same(first: ObservedRoute, second: ObservedRoute) -> bool:
    """Return True if the kernel takes two routes for one: by place, of IPv6 also by next hop."""
    if first.family == IPV4:
        return signature(first) == signature(second)
    return route_key(first) == route_key(second) and _ways(first) == _ways(second)


def _ways(route: ObservedRoute) -> list[tuple[object, ...]]:
    return [(hop.dev, hop.gateway, hop.encapsulation) for hop in route.hops]


def same_subnet(first: DeviceAddress, second: DeviceAddress) -> bool:
    """Return True if two IPv4 addresses have one prefix length and one network."""
    return first.family == second.family == IPV4 and _subnet(first) == _subnet(second)


def _subnet(own: DeviceAddress) -> Prefix:
    return Prefix(own.family, own.peer, own.prefix_length).masked


def _link_flags(device: Device) -> int:
    """Return the flags of a route by a device."""
    return FLAG_LINKDOWN if device.up and not device.carrier else 0


def _without(fib: Fib, routes: Collection[ObservedRoute]) -> Fib:
    kept = (route for route in (*fib.routes(), *fib.routes(IPV6)) if route not in routes)
    return attrs.evolve(fib, tables=Tables.of(kept))


def _lost(fib: Fib, before: Device, after: Device | None) -> Iterator[ObservedRoute]:
    """Yield the routes that cannot stay as a device changes, in a model without its own routes."""
    kept = after.addresses if after else ()
    lost = [own for own in before.addresses if own not in kept]
    is_down = before.up and not (after and after.up)
    if after and not lost and not is_down:
        return
    # Without an IPv4 address, a device has no IPv4 route.
    had_ipv4 = any(own.family == IPV4 for own in lost)
    has_ipv4 = any(own.family == IPV4 for own in kept)
    is_bare = had_ipv4 and not has_ipv4
    lost = [own for own in lost if own.family == IPV6 or not fib.is_local(own.local)]
    sources = {(own.family, own.local) for own in lost}
    for route in (*fib.routes(), *fib.routes(IPV6)):
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
