"""The kernel's admission rules: the routes and rules that it lets in, and the errno and words with which it refuses."""

from __future__ import annotations

import errno
from itertools import starmap
from typing import TYPE_CHECKING, Final

from hostrouting.fib.model import Decision, UnknownDecisionError
from hostrouting.fib.rules import Packet
from hostrouting.fib.tables import inserted, key_of
from hostrouting.host.netlink.frames import attribute, attributes, number_of, word
from hostrouting.net.addresses import IPV6
from hostrouting.net.changes import is_deleted_by
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    resting,
    signature,
)
from hostrouting.net.rules import Rule
from hostrouting.testing import ipv6
from hostrouting.testing.consequences import together, with_bucket, with_state
from hostrouting.testing.faults import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.fib import Fib
    from hostrouting.net.addresses import Address
    from hostrouting.net.links import Device
    from hostrouting.net.routes import NextHop, ObservedRoute, Route

#: RTA_METRICS, and the most that the kernel keeps of its mtu, advmss and hop limit.
_METRICS: Final = 8
_MOST: Final = {2: 65520, 8: 65495, 10: 255}

#: The fields by which the kernel compares rules; the loose ones only if the new rule has them.
_LOOSE: Final = ("source", "destination", "tos")
_COMPARED: Final = tuple(
    name for name in Rule._fields if name not in {*_LOOSE, "inverted", "goto", "unknown", "family"}
)


def admitted(fib: Fib, route: Route | ObservedRoute, verb: str) -> Fib:
    """Return the model after the kernel's `add`, `prepend`, `append` or `replace`; `Refused` if it refuses."""
    if route.family == IPV6:
        return ipv6.admitted(fib, route, verb)
    new = _checked(fib, route)
    bucket = fib.tables.bucket(key_of(route))
    same_place = [other for other in bucket if (other.tos, other.metric) == (route.tos, route.metric)]
    identical = [other for other in same_place if signature(other) == signature(new)]
    if same_place and (verb == "add" or (identical and (verb != "replace" or identical[0] is not same_place[0]))):
        raise Refused(errno.EEXIST)
    if identical:
        return fib
    if verb == "replace" and same_place:
        changed = tuple(new if other is same_place[0] else other for other in bucket)
    else:
        changed = inserted(bucket, new, last=verb == "append")
    return with_bucket(fib, key_of(route), changed)


def removed(fib: Fib, route: Route | ObservedRoute) -> Fib:
    """Return the model without the first route that fits; `Refused` if none does."""
    bucket = fib.tables.bucket(key_of(route))
    first = next((other for other in bucket if is_deleted_by(route, other)), None)
    if first is None:
        raise Refused(errno.ESRCH)
    gone = [first] if route.gateway else together(bucket, first)
    return with_bucket(fib, key_of(route), tuple(other for other in bucket if other not in gone))


def check_rule(policy: Iterable[Rule], new: Rule) -> None:
    """Raise `Refused` if the kernel does not take a new rule: a duplicate, or a `goto` that leads backwards."""
    if new.goto is not None and new.goto <= new.priority:
        raise Refused(errno.EINVAL, "Backward goto not supported")
    for standing in policy:
        if all(getattr(new, name) == getattr(standing, name) for name in _COMPARED) and _fits(new, standing, _LOOSE):
            raise Refused(errno.EEXIST)


def is_named_by(named: Rule, standing: Rule) -> bool:
    """Return True if the kernel's deletion of `named` may take a rule: it compares only the fields that are given."""
    return named.priority == standing.priority and _fits(named, standing, (*_COMPARED, *_LOOSE))


def _fits(named: Rule, standing: Rule, fields: Iterable[str]) -> bool:
    given = (name for name in fields if getattr(named, name) != Rule._field_defaults.get(name))
    return all(getattr(named, name) == getattr(standing, name) for name in given)


def _checked(fib: Fib, route: Route | ObservedRoute) -> ObservedRoute:
    """Return the route as a dump will show it."""
    new = resting(route)
    new = new._replace(extra=tuple(map(_limited, new.extra)))
    if route.kind not in DEVICELESS_KINDS:
        if route.scope == SCOPE_HOST:
            _check_host_scope(fib, route)
        else:
            for hop in new.hops:
                _check_hop(fib, new, hop)
    _check_source(fib, route)
    return new if new.dev is None else with_state(new, fib.devices[new.dev])


def _limited(item: tuple[int, bytes]) -> tuple[int, bytes]:
    """Return an attribute as the kernel keeps it: it limits some metrics."""
    number, payload = item
    if number != _METRICS:
        return item
    metrics = attributes(payload)
    for kind in _MOST.keys() & metrics:
        metrics[kind] = word.pack(min(number_of(metrics[kind]), _MOST[kind]))
    return number, b"".join(starmap(attribute, metrics.items()))


def _check_source(fib: Fib, route: Route | ObservedRoute) -> None:
    if route.source is None or (route.kind == "local" and route.source == route.network):
        return
    tables = {LOCAL_TABLE, LOCAL_TABLE if route.table == MAIN_TABLE else route.table}
    if not any(fib.is_local(route.source, table) for table in tables):
        raise Refused(errno.EINVAL, "Invalid prefsrc address")


def _check_host_scope(fib: Fib, route: Route | ObservedRoute) -> None:
    if route.nexthops:
        raise Refused(errno.EINVAL, "Route with host scope can not have multiple nexthops")
    if route.gateway is not None:
        raise Refused(errno.EINVAL, "Route with host scope can not have a gateway")
    assert route.dev is not None
    _known(fib, route.dev)


def _check_hop(fib: Fib, route: ObservedRoute, hop: NextHop) -> None:
    device = _known(fib, hop.dev)
    if hop.gateway is None:
        if not device.up:
            raise Refused(errno.ENETDOWN, "Device for nexthop is not up")
        return
    if hop.gateway.family == IPV6:
        ipv6.check_hop(fib, hop, route.table)
        return
    if hop.onlink:
        _check_onlink(fib, route, hop.gateway, device)
        return
    found = _gateway_found(fib, Packet(hop.gateway.number, oif=hop.dev), route)
    if found.route is None:
        raise Refused(found.errno, "Nexthop has invalid gateway")
    if found.route.kind not in {"unicast", "local"}:
        raise Refused(errno.EINVAL, "Nexthop has invalid gateway")
    if not device.up:
        raise Refused(errno.ENETDOWN)
    if found.route.scope != SCOPE_LINK:
        # The kernel takes it for another route than the same one by a neighbour, and sends no packet to the gateway.
        reason = f"the model does not know gateways that are the node's own addresses, such as {hop.gateway}"
        raise UnknownDecisionError(reason)


def _check_onlink(fib: Fib, route: ObservedRoute, gateway: Address, device: Device) -> None:
    if route.scope >= SCOPE_LINK:
        raise Refused(errno.EINVAL, "Nexthop has invalid scope")
    if not device.up:
        raise Refused(errno.ENETDOWN, "Nexthop device is not up")
    found = fib.search(LOCAL_TABLE, Packet(gateway.number))
    if found is not None and found.kind not in {"unicast", *DEVICELESS_KINDS}:
        raise Refused(errno.EINVAL, "Nexthop has invalid gateway")


def _gateway_found(fib: Fib, packet: Packet, route: ObservedRoute) -> Decision:
    """Ask the route's own table, then the policy rules, if a gateway is on the link of the packet's `oif`."""
    scope = max(route.scope + 1, SCOPE_LINK)
    if route.table != MAIN_TABLE:
        found = fib.search(route.table, packet, scope=scope)
        if found is not None and found.kind not in DEVICELESS_KINDS:
            return Decision(found)
    return fib.decide(packet, scope=scope)


def _known(fib: Fib, dev: str) -> Device:
    if dev not in fib.devices:
        raise Refused(errno.ENODEV)
    return fib.devices[dev]
