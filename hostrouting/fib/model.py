"""A node's routing as a value: computes the decisions that the kernel would make."""

from __future__ import annotations

import errno
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.fib.rules import LOOPBACK, Packet, Policy
from hostrouting.fib.tables import MERGED_TABLES, Bucket, Key, Tables, deleted, inserted, key_of
from hostrouting.net.addresses import IPV4, IPV6, Address, address_bits, require_lookups
from hostrouting.net.events import NothingChanges
from hostrouting.net.links import Device, source_by
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    Lookup,
    NextHop,
    ObservedRoute,
    Route,
    RouteChange,
    resting,
)
from hostrouting.net.rules import FIRST_RULES, UDP, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_FIRST_POLICY = Policy(FIRST_RULES)
#: The errors of routes that drop packets; `throw` only ends the search in its table.
_ROUTE_ERRORS = {
    "blackhole": errno.EINVAL,
    "unreachable": errno.EHOSTUNREACH,
    "prohibit": errno.EACCES,
}
_RULE_ERRORS = {**_ROUTE_ERRORS, "unreachable": errno.ENETUNREACH}


class Decision(NamedTuple):
    """The route that a packet takes, or the errno as in `Lookup`, or why neither is known."""

    route: ObservedRoute | None
    errno: int = 0
    unknown: str = ""
    #: The route or rule that refuses the packet; None if no table has a route.
    blocker: ObservedRoute | Rule | None = None


@attrs.frozen(eq=False, repr=False)
class Fib:
    """The devices, rules and routes of a network namespace; answers lookups as the kernel does.

    It has the read methods of `RouteBackend`, so `prove_egress` accepts either.

    >>> from hostrouting.net.routes import RouteChange
    >>> from hostrouting.net.routes import Route
    >>> route = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")
    >>> planned = Fib.of([], []).changed([RouteChange.add(route)])
    >>> str(planned.decide(Packet(0xAC100105)).route)
    '172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142'
    """

    tables: Tables
    policy: Policy
    #: By name, ordered by index.
    devices: Mapping[str, Device]
    #: Until a rule is added or removed, the kernel treats the tables local and main as one: a
    #: longer prefix in main beats a shorter one in local. None if unknown, because a rule may have
    #: been added and removed again. (IPv4 only.)
    merged: bool | None = None
    #: The IPv6 gateways in state FAILED, each with its device, on a node that does not forward: the
    #: kernel skips them if the table has another route.
    failed: frozenset[tuple[str, Address | None]] = frozenset()

    @property
    def families(self) -> tuple[int, ...]:
        """See `RouteBackend.families`; pyright does not accept a `ClassVar` here."""
        return (IPV4, IPV6)

    @classmethod
    def of(
        cls,
        links: Iterable[Device],
        routes: Iterable[ObservedRoute],
        rules: Iterable[Rule] = FIRST_RULES,
    ) -> Fib:
        """Return the model of a node from one snapshot of it."""
        policy = Policy(rules)
        is_first = policy.of(IPV4) == [rule for rule in FIRST_RULES if rule.family == IPV4]
        devices = {link.name: link for link in links}
        return cls(Tables.of(routes), policy, devices, None if is_first else False)

    def listen(self) -> NothingChanges:
        """Return a listener without events: a model never changes."""
        return NothingChanges()

    def links(self) -> list[Device]:
        """See `RouteBackend.links`."""
        return list(self.devices.values())

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes`."""
        return list(self.tables.routes(family))

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        return [route for route in self.tables.routes(family) if route.protocol == protocol]

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `RouteBackend.rules`."""
        return self.policy.of(family)

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """See `RouteBackend.lookup`; `resolve` uses the first of several next hops."""
        require_lookups(destinations, sources, family)
        packets = zip(destinations, sources or [None] * len(destinations), strict=True)
        # The kernel answers an IPv4 lookup without a protocol as for UDP.
        protocol = UDP if family == IPV4 else 0
        return [
            self._answer(
                Packet(destination, source or 0, ip_protocol=protocol, family=family),
                resolve=resolve,
            )
            for destination, source in packets
        ]

    def decide(self, packet: Packet, *, scope: int = SCOPE_UNIVERSE) -> Decision:
        """Try the rules in order; `scope` and the packet's `oif` narrow the search in a table."""
        is_bound = packet.oif or packet.iif != LOOPBACK
        if is_bound and any(device.kind == "vrf" for device in self.devices.values()):
            return _undecided("the model cannot decide which packets belong to the node's VRF")
        decision = self._by(self.policy, packet, scope)
        is_in_doubt = packet.family == IPV6 and self.policy.may_be_bypassed
        # A rule may have been added and removed.
        if is_in_doubt and decision != self._by(_FIRST_POLICY, packet, scope):
            return _undecided(
                "a built-in rule for IPv6 is missing, but the kernel still searches the tables "
                "local and main until another rule is added"
            )
        return decision

    def decide_between(self, destination: int, source: int, *, family: int) -> Decision:
        """Decide a packet if only its two addresses are known."""
        return self.decide(Packet(destination, source, family=family))

    def rules_for(self, destination: int, source: int, *, family: int) -> Iterator[Rule]:
        """Yield the rules that apply to the packet of a lookup, in order."""
        protocol = UDP if family == IPV4 else 0
        packet = Packet(destination, source, ip_protocol=protocol, family=family)
        for rule, _ in self.policy.selected(packet):
            yield rule

    def egress(self, packet: Packet) -> Decision:
        """Decide a packet that the node itself sends, as the kernel's `route get` does."""
        if packet.family == IPV6:
            return self.decide(packet)
        source = packet.source
        is_foreign = source and not (self.is_local(source) or self.holds(source))
        if is_foreign or (packet.oif and not self.devices[packet.oif].up):
            return Decision(None, errno.ENETUNREACH)
        to_many = packet.destination >> 28 == 14 or packet.destination == 0xFFFFFFFF
        if not packet.destination or (to_many and packet.source and not packet.oif):
            # No table decides: zero is the node itself, and multicast leaves through the source's
            # device.
            return Decision(None, errno.EHOSTUNREACH)
        decision = self.decide(packet)
        route = decision.route
        looping = "unicast", SCOPE_HOST, None, 0
        if route and (route.kind, route.scope, route.source, packet.source) == looping:
            return _undecided(
                "a route has `scope host`: the kernel may choose the source 127.0.0.1 and refuse "
                "the packet"
            )
        if packet.oif and decision.errno:
            # Without a route, the kernel assumes that the destination is on the link of that
            # device.
            return Decision(
                ObservedRoute(packet.destination, 32, dev=packet.oif, table=0, scope=SCOPE_LINK)
            )
        return decision

    def search(
        self, table: int, packet: Packet, *, scope: int = SCOPE_UNIVERSE
    ) -> ObservedRoute | None:
        """Return the route that a packet takes in one table, or None if the table has none."""
        if packet.family == IPV6:
            route = self.tables.search_ipv6(table, packet, self.failed)
            if route is None and self.failed:
                route = self.tables.search_ipv6(table, packet)
        else:
            is_merged = self.merged is not False and table in MERGED_TABLES
            tables = MERGED_TABLES if is_merged else (table,)
            route = self.tables.search(tables, packet, scope)
        return None if route is None or route.kind == "throw" else route

    def accepts(self, hop: Route | NextHop, table: int = MAIN_TABLE, source: int = 0) -> bool:
        """Return True if the kernel accepts a route with this next hop: the gateway is on the link.

        `table` and `source` are those of the route: an IPv6 gateway is looked up in that table
        first, as if for a packet from that source.
        """
        if hop.gateway is None or hop.onlink:
            return True
        if hop.gateway.family == IPV6:
            packet = Packet(hop.gateway.number, source, iif="", oif=hop.dev or "", family=IPV6)
            own = packet if hop.gateway.is_link_local else packet._replace(oif="")
            route = self.tables.search_ipv6(LOCAL_TABLE, own)
            # Unlike for IPv4, the node's own address is refused.
            if route is not None and (route.kind, route.prefix_length) == ("local", 128):
                return False
            return hop.gateway.is_link_local or self._leads_to(packet, table)
        packet = Packet(hop.gateway.number, oif=hop.dev or "")
        decision = self.decide(packet, scope=SCOPE_LINK)
        route = decision.route
        if decision.unknown:
            # On a node with VRFs the rules may lead to another table.
            route = self.search(MAIN_TABLE, packet, scope=SCOPE_LINK)
        return route is not None and (route.kind, route.scope) == ("unicast", SCOPE_LINK)

    def _leads_to(self, packet: Packet, table: int) -> bool:
        if _is_on_link(self.tables.search_ipv6(table, packet)):
            return True
        packet = packet._replace(source=0)
        for rule, _ in self.policy.selected(packet):
            if rule.action != "lookup":
                return False
            # Unlike for a packet, the lookup of a gateway ends at a `throw` route.
            if route := self.tables.search_ipv6(rule.table or MAIN_TABLE, packet):
                return _is_on_link(route)
        return False

    def is_local(self, address: int, table: int = LOCAL_TABLE) -> bool:
        """Return True if a table has a local route for the address."""
        route = self.search(table, Packet(address))
        return route is not None and route.kind == "local"

    def holds(self, number: int, family: int = IPV4) -> bool:
        """Return True if a device of the node has the address."""
        every = chain.from_iterable(device.addresses for device in self.devices.values())
        return any(own.address == (family, number) for own in every)

    def changed(self, changes: Iterable[RouteChange]) -> Fib:
        """Return the model after changes that the kernel accepts.

        Raises ValueError if a removed route is not in the model.
        """
        buckets: dict[Key, Bucket] = {}
        for change in changes:
            key = key_of(change.route)
            bucket = buckets.get(key, self.tables.bucket(key))
            if change.before is not None:
                first, bucket = deleted(bucket, change.before)
                if first is None:
                    raise ValueError(f"the model has no route '{change.before}'")
            if change.after is not None:
                bucket = inserted(bucket, resting(change.after), last=change.verb == "append")
            buckets[key] = bucket
        return attrs.evolve(self, tables=self.tables.with_buckets(buckets))

    def _by(self, policy: Policy, packet: Packet, scope: int) -> Decision:
        for rule, is_certain in policy.selected(packet):
            decision = self._act(rule, packet, scope)
            if decision is not None:
                return decision if is_certain else _unknown(rule)
        return Decision(None, errno.ENETUNREACH)

    def _act(self, rule: Rule, packet: Packet, scope: int) -> Decision | None:
        if rule.action in _RULE_ERRORS:
            return Decision(None, _RULE_ERRORS[rule.action], blocker=rule)
        if rule.action != "lookup":
            return _unknown(rule)
        # Outside a VRF an inverted `l3mdev` rule matches; it has no table, which means main.
        route = self.search(rule.table or MAIN_TABLE, packet, scope=scope)
        if route is None:
            return None
        unparted = self.merged is not False and packet.family == IPV4
        may_be_parted = unparted and self.merged is None and route.table == MAIN_TABLE
        if may_be_parted and self.tables.search((LOCAL_TABLE,), packet, scope):
            return _undecided(
                "the tables local and main both have a route for the address; the longer one in "
                "main is used only if no rule was ever changed"
            )
        if route.kind in _ROUTE_ERRORS:
            return Decision(None, _ROUTE_ERRORS[route.kind], blocker=route)
        most = rule.suppress_prefix_length
        if most is not None and route.prefix_length <= most:
            return None
        if rule.suppress_group is not None:
            # For IPv6, the hash of the flow selects a next hop first.
            devs = route.devs if packet.family == IPV6 else route.devs[:1]
            groups = {self.devices[dev].group if dev in self.devices else None for dev in devs}
            if None in groups or len(groups) > 1:
                # A device was added after the devices had been read.
                return _undecided(f"the model does not know the group of {' or '.join(devs)}")
            if rule.suppress_group in groups:
                return None
        # While the tables local and main are one, the kernel calls it main.
        is_renamed = unparted and route.table == LOCAL_TABLE
        return Decision(route._replace(table=MAIN_TABLE) if is_renamed else route)

    def _answer(self, packet: Packet, *, resolve: bool) -> Lookup:
        decision = self.egress(packet)
        if decision.unknown:
            raise UnknownDecisionError(decision.unknown)
        route = decision.route
        if route is None:
            return Lookup(packet.destination, None, decision.errno)
        if resolve:
            hop = next((hop for hop in route.hops if not hop.dead), None)
            if hop is None:
                # The kernel may show no next hops of a nexthop object.
                raise UnknownDecisionError(f"the model does not know the next hops of '{route}'")
            route = self._path(packet, route, hop)
        return Lookup(packet.destination, route)

    def _path(self, packet: Packet, route: ObservedRoute, hop: NextHop) -> ObservedRoute:
        is_local = route.kind == "local"
        source = packet.source or route.source
        # The kernel adds its own local routes for the node's addresses.
        is_own = is_local and route.protocol == KERNEL_PROTOCOL
        if not source and not is_own and packet.family == IPV6:
            raise UnknownDecisionError(f"the model cannot choose the source for '{route}'")
        if not source and is_local:
            source = packet.destination
        elif not source:
            source = source_by(hop, route.scope, self.devices.values())
        return ObservedRoute(
            packet.destination,
            address_bits(packet.family),
            gateway=hop.gateway,
            dev="lo" if is_local else hop.dev,
            table=route.table,
            kind=route.kind,
            source=source,
            extra=hop.extra,
            family=packet.family,
        )


def _is_on_link(route: ObservedRoute | None) -> bool:
    return route is not None and bool(route.hops) and not any(hop.gateway for hop in route.hops)


def _undecided(reason: str) -> Decision:
    return Decision(None, unknown=reason)


def _unknown(rule: Rule) -> Decision:
    reason = ", ".join(sorted(rule.selectors)) or rule.action
    return _undecided(f"the model cannot apply rule {rule.priority}: {reason}")
