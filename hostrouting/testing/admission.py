"""Accept and refuse changes of routes and rules as the kernel does, with its errno and words.

Remainders of merged IPv6 routes, and a few other answers, only a kernel can give:
`UnknownDecisionError`.
"""

from __future__ import annotations

import errno
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.fib.model import Decision
from hostrouting.fib.rules import Packet
from hostrouting.fib.tables import inserted, key_of
from hostrouting.host.netlink.frames import attribute, attributes, number_of, word
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.changes import is_deleted_by, may_merge
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    place,
    resting,
)
from hostrouting.testing.faults import Refused, unknown
from hostrouting.testing.own_routes import is_same, link_flags, with_bucket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.fib import Fib
    from hostrouting.net.addresses import Address
    from hostrouting.net.routes import NextHop, ObservedRoute, Route
    from hostrouting.net.rules import Rule

#: RTA_METRICS, and the most that the kernel keeps of its mtu, advmss and hop limit.
_METRICS = 8
_MOST = {2: 65520, 8: 65495, 10: 255}


def with_route(fib: Fib, route: Route | ObservedRoute, verb: str) -> Fib:
    """Return the model after `add`, `prepend`, `append` or `replace` as the kernel does."""
    new = _checked(fib, route)
    bucket = fib.tables.bucket(key_of(new))
    in_place = [route for route in bucket if place(route) == place(new)]
    same = [route for route in in_place if is_same(new, route)]
    if new.family == IPV6 and verb != "add":
        merges = may_merge(new) and any(map(may_merge, in_place))
        if (len(in_place) > 1) if verb == "replace" else merges:
            raise unknown(f"how IPv6 merges '{new}' and '{in_place[0]}'")
    replaces = verb == "replace" and same in ([], in_place[:1])
    if in_place and (verb == "add" or (same and not replaces)):
        raise Refused(errno.EEXIST)
    if in_place and replaces:
        bucket = tuple(new if route is in_place[0] else route for route in bucket)
    else:
        bucket = inserted(bucket, new, last=verb == "append")
    return with_bucket(fib, key_of(new), bucket)


def without_route(fib: Fib, route: Route | ObservedRoute) -> Fib:
    """Return the model without the first route that fits; raise `Refused` if none does."""
    bucket = fib.tables.bucket(key_of(route))
    first = next((candidate for candidate in bucket if is_deleted_by(route, candidate)), None)
    if first is None:
        raise Refused(errno.ESRCH)
    if first.table == LOCAL_TABLE and first.protocol == KERNEL_PROTOCOL:
        raise unknown(f"which changes follow the deletion of its own '{first}'")
    if first.family == IPV6 and first.nexthops and not route.nexthops:
        raise unknown(f"which next hop of '{first}' goes")
    rest = tuple(candidate for candidate in bucket if candidate is not first)
    return with_bucket(fib, key_of(route), rest)


def with_rule(rules: Iterable[Rule], new: Rule) -> list[Rule]:
    """Return the rules with another; raise `Refused` for a duplicate or backward `goto`."""
    if new.goto is not None and new.goto <= new.priority:
        raise Refused(errno.EINVAL, "Backward goto not supported")
    if new in rules:
        raise Refused(errno.EEXIST)
    if any(_bare(rule) == _bare(new) for rule in rules):
        raise unknown(f"if rule {new.priority} is present: it compares few of the selectors")
    return sorted((*rules, new), key=attrgetter("priority"))


def without_rule(rules: Iterable[Rule], named: Rule) -> list[Rule]:
    """Return the rules without `named`; raise `Refused` if it is absent."""
    if named not in rules:
        raise Refused(errno.ENOENT)
    if sum((rule.priority, rule.family) == (named.priority, named.family) for rule in rules) > 1:
        raise unknown(f"which rule {named.priority} goes: it compares few of the selectors")
    return [rule for rule in rules if rule != named]


def _bare(rule: Rule) -> Rule:
    """Return a rule without the fields that the kernel does not always compare."""
    return rule._replace(
        source=(0, 0), destination=(0, 0), tos=0, inverted=False, goto=None, unknown=()
    )


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
        tables = {LOCAL_TABLE, LOCAL_TABLE if new.table == MAIN_TABLE else new.table}
        if not any(fib.is_local(new.source, table) for table in tables):
            raise Refused(errno.EINVAL, "Invalid prefsrc address")
    if new.dev is None or new.scope == SCOPE_HOST:
        return new
    return new._replace(flags=new.flags | link_flags(fib.devices[new.dev]))


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
    if hop.dev not in fib.devices:
        raise Refused(errno.ENODEV)
    if route.family == IPV4 and route.scope == SCOPE_HOST:
        if hop.gateway or route.nexthops:
            raise unknown(f"which next hops '{route}' may have: its scope is the node")
        return
    is_up = fib.devices[hop.dev].up
    if hop.gateway and (is_up or not hop.onlink):
        check = _check_ipv4_gateway if hop.gateway.family == IPV4 else _check_ipv6_gateway
        check(fib, route, hop, hop.gateway)
    if not is_up:
        is_link = route.family == IPV4 and not hop.gateway
        device = "Device for nexthop" if is_link else "Nexthop device"
        raise Refused(errno.ENETDOWN, f"{device} is not up")
    if route.family == IPV6 and route.source is not None and not _holds(fib, route.source):
        raise Refused(errno.EINVAL, "Invalid source address")


def _check_ipv4_gateway(fib: Fib, route: ObservedRoute, hop: NextHop, gateway: Address) -> None:
    if hop.onlink:
        owner = fib.search(LOCAL_TABLE, Packet(gateway.number))
        if route.scope >= SCOPE_LINK or (owner and owner.kind in {"local", "broadcast"}):
            raise unknown(f"if it takes {gateway} as an on-link gateway")
        return
    packet, scope = Packet(gateway.number, oif=hop.dev), max(route.scope + 1, SCOPE_LINK)
    # First the route's own table, then the policy rules.
    on_link = fib.search(route.table, packet, scope=scope) if route.table != MAIN_TABLE else None
    decision = Decision(on_link) if on_link else fib.decide(packet, scope=scope)
    if decision.errno == errno.ENETUNREACH:
        raise Refused(errno.ENETUNREACH, "Nexthop has invalid gateway")
    if not decision.route or (decision.route.kind, decision.route.scope) != ("unicast", SCOPE_LINK):
        raise unknown(f"if it takes {gateway}: it may be an own address, or behind another gateway")


def _check_ipv6_gateway(fib: Fib, route: ObservedRoute, hop: NextHop, gateway: Address) -> None:
    if hop.onlink and not gateway.is_link_local:
        raise unknown(f"if it takes {gateway} as an on-link gateway: it is not link-local")
    if _holds(fib, gateway.number, hop.dev if gateway.is_link_local else None):
        raise Refused(errno.EINVAL, "Gateway can not be a local address")
    if not fib.takes(hop, route.table, (route.family == IPV6 and route.source) or 0):
        raise Refused(errno.EHOSTUNREACH)


def _holds(fib: Fib, number: int, dev: str | None = None) -> bool:
    """Return True if the node, or one of its devices, has an IPv6 address."""
    devices = [device for device in fib.devices.values() if dev in {None, device.name}]
    return (IPV6, number) in {own.address for device in devices for own in device.addresses}
