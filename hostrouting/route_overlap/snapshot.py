"""A snapshot of a node: its routes and rules of one family, lookups, and allowed devices."""

from __future__ import annotations

import errno
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hostrouting.base.errors import UnknownDecisionError
from hostrouting.base.findings import NodeFinding
from hostrouting.host import Host
from hostrouting.host.cached_routing import CachedRouting, cached_routing, with_cached_routing
from hostrouting.net.addresses import (
    FAMILY_NAMES,
    IPV4,
    IPV6,
    Address,
    Prefix,
    address_bits,
    is_network,
)
from hostrouting.net.links import carries_packets
from hostrouting.net.outbound import named_devices, outside_fabric, working_devs
from hostrouting.net.routes import (
    DEVICELESS_KINDS,
    IP_TUNNELS,
    KERNEL_PROTOCOL,
    PROTOCOL_NAMES,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    TABLE_NAMES,
    Lookup,
    ObservedRoute,
    alternating_routes,
    default_route,
    default_routes,
    expected_outbound_dev,
    preference,
    route_key,
)
from hostrouting.net.rules import (
    OTHER_PROTOCOL,
    UDP,
    Rule,
    addition,
    as_of_protocol,
    lost_rules,
    packets_of,
    protocols_apart,
)
from hostrouting.route_overlap.fabric import is_present
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.fib.model import Decision, Fib
    from hostrouting.host.ports import FileStore, Routing
    from hostrouting.net.links import Device, DeviceAddress
    from hostrouting.route_overlap.announced import Announced
    from hostrouting.route_overlap.expectation import Expectation

#: The destinations for which the kernel prefers site-local sources, fec0::/10: to parse an IPv6
#: address loads `socket`.
SITE_LOCAL: Final = Prefix(IPV6, 0xFEC0 << 112, 10)
#: The protocol of Calico's routes, and the devices that have its own addresses.
_OF_CALICO: Final = 80
_TUNNELS_OF_CALICO: Final = frozenset({"tunl0", "vxlan.calico"})
#: The errno of the answers for addresses whose routing changed while it was being read, and for
#: those of which a rule may suppress the next hop of a flow.
CHANGING: Final = errno.EAGAIN
_BY_FLOW: Final = errno.EMLINK
#: The causes of undecided addresses by the errno of their answers.
UNDECIDED: Final = {CHANGING: "changing", _BY_FLOW: "by-flow"}
#: An answer of the kernel, and the source that the packet has already; 0 for none.
SourcedLookup: TypeAlias = "tuple[Lookup, int]"


def require_node(node: object) -> None:
    """Raise TypeError for anything but a host or a backend."""
    backend = node.routes if isinstance(node, Host) else node
    if not hasattr(backend, "lookup") or isinstance(backend, type):
        right = "Host.live(), or MemoryBackend() in a test"
        raise wrong_argument("node", node, "a Host or a RouteBackend", right)


def watched(node: Host | Routing) -> Host | Routing:
    """Return a node with one reading of its routing, for the snapshots of a check."""
    require_node(node)
    return with_cached_routing(node) if isinstance(node, Host) else cached_routing(node)


class AllowedDevices(NamedTuple):
    """The devices that may carry expected traffic: expected ones and those that match a pattern."""

    #: The devices through which expected traffic should leave.
    expected: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    #: The expected devices that carry nothing: set down, without a carrier, or a port of a bridge.
    dead_ends: frozenset[str] = frozenset()
    #: The networks among the expected devices that stand for none, each with those that hold it.
    undecided: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def allows(self, dev: str | None) -> bool:
        """Return True if traffic may leave through a device now.

        The device of a route with several next hops is None: its next hops need a closer look.
        """
        return dev is not None and dev not in self.dead_ends and self.may_carry(dev)

    def may_carry(self, dev: str) -> bool:
        """Return True for a device that is allowed, or will be once its carrier is up."""
        return dev in self.expected or _matches(dev, self.patterns)

    def among(self, devs: Iterable[str]) -> tuple[str, ...]:
        """Return those devices that are allowed: the expected ones, then the rest by name."""
        allowed = set(filter(self.allows, devs))
        return (
            *filter(allowed.__contains__, self.expected),
            *sorted(allowed.difference(self.expected)),
        )

    def tunnels(self, route: ObservedRoute) -> tuple[str, ...]:
        """Return the devices of next hops whose header decides where packets leave.

        A segment or a label leads anywhere. The header of an IP tunnel is for a device that is
        allowed as a tunnel: there it is as fine as without one.
        """
        devs: list[str] = []
        for hop in route.hops:
            header = hop.encapsulation
            if header is None:
                continue
            if header.kind not in IP_TUNNELS or hop.dev in self.expected:
                devs.append(hop.dev)
        return tuple(devs)

    def leads_out(self, dev: str) -> bool:
        """Return True for an expected device with a carrier."""
        return dev in self.expected and dev not in self.dead_ends

    def refused(self, route: ObservedRoute) -> tuple[str, ...]:
        """Return the refused devices of a route, without dead ends that get nothing."""
        refused = [dev for dev in route.devs if not self.allows(dev)]
        if not self.dead_ends.isdisjoint(refused):
            dead = {hop.dev for hop in route.hops if hop.dead} & self.dead_ends
            refused = [dev for dev in refused if dev not in dead]
        return tuple(refused)

    def answer_is_fine(self, answer: Lookup) -> bool:
        """Return True if every next hop is allowed; own addresses need no carrier."""
        route = answer.route
        if route is None or not route.devs or self.tunnels(route):
            return False
        refused = self.refused(route)
        return (
            self.dead_ends.issuperset(refused)
            if route.kind in {"local", "anycast"}
            else not refused
        )


# A node has few devices, and thousands of answers name them.
@lru_cache(1024)
def _matches(dev: str, patterns: tuple[str, ...]) -> bool:
    """Return True if the name of a device matches a pattern, as bash decides in the C locale."""
    # No device has a slash in its name: that stands for those of an announced fabric.
    if "/" in dev:
        return False
    # Byte for byte.
    name = dev.encode(errors="surrogateescape").decode("latin-1")
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class RoutingSnapshot:
    """The routes and rules of a node, of one family, and the backend for its lookups."""

    def __init__(
        self,
        node: Host | Routing,
        family: int = IPV4,
        expectation: Expectation | None = None,
        *,
        view: tuple[RoutingSnapshot, str] | None = None,
    ) -> None:
        """Read a node. `view` is a snapshot, and the packets for which `node` is its model."""
        backend = cached_routing(node.routes if isinstance(node, Host) else node)
        self.backend: CachedRouting = backend
        #: The files of a host, which show the owners of its routes.
        self.files: FileStore | None = node.files if isinstance(node, Host) else None
        self.family = family
        # First, so that the devices of later events are known.
        self.links: list[Device] = backend.links()
        self.routes: list[ObservedRoute] = backend.routes(family)
        self.rules: list[Rule] = backend.rules(family)
        #: The rules as the node has them: an answer may change at their selectors.
        self.selecting: Sequence[Rule] = self.rules
        #: The packets that this is about, unless it is about those of a lookup.
        self.packets: str = ""
        #: The IPv6 routes that the kernel passed over; see `candidates`.
        self.silent: dict[ObservedRoute, None] = {}
        #: True if an answer may depend on the source.
        self.by_source: bool = any(rule.source[1] for rule in self.rules) or (
            family == IPV6 and any(route.from_prefix for route in self.routes)
        )
        #: Empty without an expectation.
        self.allowed: AllowedDevices = AllowedDevices()
        self.announced: Announced | None = None
        #: The devices found, and those that are expected, whatever default route decides: devices,
        #: or networks, that the config names, or the found ones if they work.
        self.found: Sequence[str] = ()
        self.expected: Sequence[str] = ()
        if expectation is not None:
            self._expect(expectation)
        elif view is not None:
            other, self.packets = view
            self.routes = other.routes
            self.selecting = other.selecting
            self.allowed = other.allowed
            self.announced = other.announced

    def _expect(self, expectation: Expectation) -> None:
        named = expectation.expected_devs
        self.found = expectation.found_devs
        if named is None and self.family in working_devs(self.found, self.links, self.defaults):
            named = self.found
        self.expected = named or ()
        self.allowed = allowed_devices(self, expectation.allowed_devs, named)
        fabric = expectation.fabric
        if self.family == IPV4 and (fabric.addresses or fabric.networks):
            # Imported here because few nodes announce a fabric.
            from hostrouting.route_overlap.announced import Announced

            may_carry = self.allowed.may_carry
            self.announced = Announced(self.links, self.routes, self.rules, fabric, may_carry)
            self.routes += self.announced.routes

    def lookup(
        self, destinations: Sequence[int], *, resolve: bool = False, **options: Any
    ) -> list[Lookup]:
        """See `Routing.lookup`; of default routes that the kernel takes in turns, return all."""
        if self._is_suppressed:
            return self._lookup_by_flow(destinations, resolve=resolve, **options)
        answers = self.backend.lookup(destinations, family=self.family, resolve=resolve, **options)
        if resolve or not self.turns:
            return answers
        return [answer._replace(route=self.joined(answer.route)) for answer in answers]

    @cached_property
    def _is_suppressed(self) -> bool:
        """True if an IPv6 rule suppresses a group of devices.

        The hash of a flow picks a next hop first. Where those of a route are of several groups,
        flows go different ways, of which a lookup shows one.
        """
        rules = self.rules if self.family == IPV6 else ()
        return any(rule.suppress_group is not None for rule in rules)

    def _lookup_by_flow(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] = (), **options: Any
    ) -> list[Lookup]:
        answers: list[Lookup] = []
        groups = {link.name: link.group for link in self.links}
        for destination, source in zip_longest(destinations, sources):
            try:
                [answer] = self.backend.lookup(
                    [destination], sources=[source], family=self.family, **options
                )
            except UnknownDecisionError:
                # A forecast is unknown then.
                if not self.packets:
                    raise
                answer = Lookup(destination, None, _BY_FLOW)
            route = answer.route
            if route and len({groups.get(dev) for dev in route.devs}) > 1:
                answer = Lookup(destination, None, _BY_FLOW)
            answers.append(answer)
        return answers

    @cached_property
    def views(self) -> list[RoutingSnapshot]:
        """The node as packets of other protocols find it; mostly none.

        A lookup of IPv4 is for UDP, one of IPv6 for no protocol. Where rules select by nothing but
        the protocol, the model answers for the rest.
        """
        asked = UDP if self.family == IPV4 else OTHER_PROTOCOL
        return [self._view(protocol) for protocol in protocols_apart(self.rules, but=asked)]

    def _view(self, protocol: int) -> RoutingSnapshot:
        rules = [as_of_protocol(rule, protocol) for rule in self.rules]
        present = [route for route in self.routes if is_present(route.dev)]
        model = _modelled(self.links, present, rules)
        return RoutingSnapshot(model, self.family, view=(self, packets_of(protocol)))

    @cached_property
    def defaults(self) -> list[ObservedRoute]:
        """The default routes by which packets may leave; see `default_routes`."""
        return default_routes(self._of_all)

    @cached_property
    def _rare(self) -> list[ObservedRoute]:
        """The routes to all addresses, those with a header, and the local ones."""
        # By position, which is faster than by name: this line reads every route of a full table.
        return [route for route in self.routes if not route[1] or route[15] or route[7] == "local"]

    @property
    def _of_all(self) -> list[ObservedRoute]:
        """The routes of every table to all addresses."""
        return [route for route in self._rare if not route.prefix_length]

    @cached_property
    def has_exceptions(self) -> bool:
        """True if a route by a single allowed device may be wrong all the same.

        It adds a header to packets, or keeps on the node packets to an address of nobody.
        """
        return any(
            route.encapsulation
            or (
                route.kind == "local"
                and route.protocol != KERNEL_PROTOCOL
                and self.allowed.allows(route.dev)
            )
            for route in self._rare
        )

    @cached_property
    def _held(self) -> set[int]:
        """The addresses of the node's devices."""
        return {
            own.local for link in self.links for own in link.addresses if own.family == self.family
        }

    @cached_property
    def turns(self) -> dict[ObservedRoute, tuple[ObservedRoute, ...]]:
        """The IPv4 default routes that the kernel takes in turns, by one route that joins them.

        The joint route has the next hop of each, since each must be fine.
        """
        if self.family == IPV6 or len(self._of_all) < 2:
            return {}
        by_table: dict[int, list[ObservedRoute]] = defaultdict(list)
        for route in self._of_all:
            by_table[route.table].append(route)
        turns = filter(None, map(alternating_routes, by_table.values()))
        return {_joint(routes): routes for routes in turns}

    def joined(self, route: ObservedRoute | None) -> ObservedRoute | None:
        """Return the joint route of those that have their turns with this one, or this one."""
        if route is None or route.prefix_length:
            return route
        own = _TURN(route)
        return next((joint for joint in self.turns if _TURN(joint) == own), route)

    def turns_of(self, route: ObservedRoute) -> tuple[ObservedRoute, ...]:
        """Return the routes that a route joins, or the route alone."""
        return self.turns.get(route, (route,)) if self.turns else (route,)

    def named(self, decider: ObservedRoute | Rule) -> str:
        """Return a decider as `ip` prints it; of routes in turns all."""
        routes = self.turns_of(decider) if isinstance(decider, ObservedRoute) else (decider,)
        return "; ".join(map(str, routes))

    def around(self, addresses: Iterable[int]) -> list[ObservedRoute]:
        """Return the routes that may decide these addresses, and others near them."""
        shift = address_bits(self.family) - 16
        near = {address >> shift for address in addresses}
        # By position, which is faster than by name: this line reads every route of a full table.
        return [route for route in self.routes if route[0] >> shift in near or route[1] < 16]

    def owner_step(self, route: ObservedRoute) -> str:
        """Return how the owner of a default route gives it a higher metric; "" if unknown."""
        if self.files is None:
            return ""
        # Imported here because most nodes have one default route.
        from hostrouting.managers import metric_step

        return metric_step(route, self.defaults, self.links, self.files)

    def holders(self, network: str) -> list[str]:
        """Return the devices for which a network in `expectedDevs` may stand.

        They have an IPv4 default route and an address in it.
        """
        defaults = self.defaults if self.family == IPV4 else default_routes(self.backend.routes())
        exits = {hop.dev for route in defaults for hop in route.hops if not hop.dead}
        exits &= named_devices((network,), self.links)
        return [link.name for link in self.links if link.name in exits]

    @cached_property
    def model(self) -> Fib:
        """The routes and rules, for the decider where the kernel's answer is an errno.

        No table that the kernel tries before the refusing one has a route that forwards the packet,
        so for IPv4 the refusing routes are enough.
        """
        if self.family == IPV6:
            return _modelled((), self.routes, self.rules)
        refusing = (route for route in self.routes if route.kind in DEVICELESS_KINDS)
        return _modelled((), refusing, self.rules)

    def _decision(self, destination: int, source: int) -> Decision:
        return self.model.decide_between(destination, source, family=self.family)

    def decider(self, answer: Lookup, source: int) -> ObservedRoute | Rule | None:
        """Return the route or rule that decides a packet from `source`; None without a match."""
        if answer.route or answer.errno in UNDECIDED:
            return answer.route
        blocker = self._decision(answer.destination, source).blocker
        return self._as_on_node(blocker) if isinstance(blocker, Rule) else blocker

    def special_rule(
        self, decider: ObservedRoute | Rule | None, destination: int, source: int
    ) -> Rule | None:
        """Return the rule that is a packet's decider, or leads to the decider's table.

        None if the decider is in a table that every node searches.
        """
        if isinstance(decider, Rule):
            return decider
        if decider is None or decider.table in TABLE_NAMES:
            return None
        selected = self.model.rules_for(destination, source, family=self.family)
        rule = next((each for each in selected if each.table == decider.table), None)
        return rule and self._as_on_node(rule)

    def _as_on_node(self, rule: Rule) -> Rule:
        """Return a rule with all its selectors: a view for one protocol has it without these."""
        return self.selecting[self.rules.index(rule)]

    def candidates(self, answer: Lookup, source: int) -> list[Lookup]:
        """Return the answer, and the answers that would follow from gateways that fail or return.

        Of IPv6 routes that are equal it takes one, but none whose next hops are all dead. On a host
        it passes over a gateway that does not answer.
        """
        if self.family == IPV4 or answer.errno in UNDECIDED:
            return [answer]
        now = answer.route
        decided = self._decision(answer.destination, source).route
        if now and decided and _names_another(now, decided, answer.destination):
            now = decided
            answer = Lookup(answer.destination, decided)
        if decided and any(hop.gateway for hop in decided.hops) and not is_same(now, decided):
            self.silent[decided] = None
        else:
            decided = None
        equal: list[ObservedRoute] = []
        for route in filter(None, (now, decided)):
            beside = self.model.tables.usable_beside(route)
            lasting = [other for other in beside if other.expires >= 0]
            equal += [other for other in lasting if other != now and is_same(route, other)]
        return [answer, *(Lookup(answer.destination, route) for route in equal)]

    def ways(self, answers: Iterable[SourcedLookup]) -> Iterator[SourcedLookup]:
        """Yield the answers that the kernel gives, and those that it may give."""
        for answer, source in answers:
            for candidate in self.candidates(answer, source):
                yield candidate, source

    def faults(self, answers: Iterable[SourcedLookup]) -> Iterator[SourcedLookup]:
        """Yield the answers that the kernel gives, or may give, that are not fine."""
        for answer, source in self.ways(answers):
            if not self.is_fine(answer, source):
                yield answer, source

    def is_fine(self, answer: Lookup, source: int) -> bool:
        """Return True if a packet leaves through allowed devices, or may be refused."""
        if answer.route is None:
            return self.is_own_block(self.decider(answer, source))
        return not self._is_lost(answer) and self.allowed.answer_is_fine(answer)

    def _is_lost(self, answer: Lookup) -> bool:
        """Return True for a local route to an address that no device has.

        The kernel makes one for each address. Of the others, UDP goes to `lo`, and TCP fails.
        """
        route = answer.route
        if route is None or route.kind != "local" or route.protocol == KERNEL_PROTOCOL:
            return False
        return answer.destination not in self._held

    def is_own_block(self, decider: ObservedRoute | Rule | None) -> bool:
        """Return True for a route by which Calico refuses what no pod of this node has."""
        if not isinstance(decider, ObservedRoute) or decider.protocol != _OF_CALICO:
            return False
        block = Prefix(decider.family, decider.network, decider.prefix_length)
        return any(map(block.covers, self._of_calico))

    @cached_property
    def _of_calico(self) -> list[Prefix | Address]:
        """The networks of Calico's pods on this node, and its own addresses."""
        pods = (route for route in self.routes if route.dev and route.dev.startswith("cali"))
        tunnels = (link for link in self.links if link.name in _TUNNELS_OF_CALICO)
        return [
            *(Prefix(route.family, route.network, route.prefix_length) for route in pods),
            *(own.address for link in tunnels for own in link.addresses),
        ]

    @cached_property
    def own(self) -> dict[str, list[int]]:
        """The IPv6 addresses from which a program may send, by their device."""
        return {
            link.name: [own.local for own in link.addresses if _is_source(own)]
            for link in self.links
        }

    @cached_property
    def _global_devs(self) -> set[str]:
        """The devices that have a global IPv6 address."""
        return {
            link.name
            for link in self.links
            for own in link.addresses
            if own.scope == SCOPE_UNIVERSE and own.local in self.own[link.name]
        }

    def sends_from_own(self, route: ObservedRoute, destination: int) -> bool:
        """Return True if the kernel prefers addresses of the devices of an IPv6 route.

        A fitting scope comes before the device: a global address of another device before a
        site-local one of the route's, unless the destination is site-local.
        """
        is_site_local = SITE_LOCAL.covers(Address(IPV6, destination))
        return not is_site_local and self._global_devs.issuperset(route.devs)


def _modelled(
    links: Iterable[Device], routes: Iterable[ObservedRoute], rules: Iterable[Rule]
) -> Fib:
    """Return the model of a node."""
    # Imported here because a node of IPv4 that is right needs none.
    from hostrouting.fib.model import Fib

    return Fib.of(links, routes, rules)


def _is_source(own: DeviceAddress) -> bool:
    """Return True for an IPv6 address from which a program may send beyond the link."""
    if own.family != IPV6 or own.deprecated or not own.usable:
        return False
    # Site-local ones are among them, and those of the link are not.
    return own.scope < SCOPE_LINK


#: The fields that default routes in turns share.
_TURN = attrgetter("table", "tos", "metric", "scope", "kind")


def _joint(turns: Sequence[ObservedRoute]) -> ObservedRoute:
    hops = tuple(route.hops[0]._replace(dead=False) for route in turns)
    return turns[0]._replace(gateway=None, dev=None, flags=0, nexthops=hops)


def owner_of(blackhole: ObservedRoute) -> str:
    """Return who has probably added a blackhole, by its protocol.

    >>> owner_of(ObservedRoute.parse("10.244.2.0/26", None, kind="blackhole", protocol=80))
    'Calico'
    """
    if blackhole.protocol == _OF_CALICO:
        return "Calico"
    name = PROTOCOL_NAMES.get(blackhole.protocol, f"protocol {blackhole.protocol}")
    return "an administrator" if name in {"boot", "static"} else name


def is_same(decider: ObservedRoute | Rule | None, route: ObservedRoute) -> bool:
    """Return True for the route, or for an equal one of IPv6: the kernel may take any of these."""
    if decider == route:
        return True
    return (
        isinstance(decider, ObservedRoute)
        and route.family == IPV6
        and _rank(decider) == _rank(route)
    )


def _names_another(now: ObservedRoute, decided: ObservedRoute, destination: int) -> bool:
    """Return True if the kernel names another route than the one that decides.

    IPv6 routes that share a nexthop object, also through a group, share the kernel's answer: it
    names whichever of them was looked up first.
    """
    prefix = Prefix(now.family, *now[:2])
    if not prefix.covers(Address(now.family, destination)):
        return True
    return now.nexthop_id != 0 and now.nexthop_id == decided.nexthop_id


def _rank(route: ObservedRoute) -> tuple[object, ...]:
    """Return the fields that equal IPv6 routes share."""
    return route_key(route), preference(route), route.kind


def allowed_devices(
    node: RoutingSnapshot, patterns: Sequence[str], expected_devs: Sequence[str] | None
) -> AllowedDevices:
    """Return the devices that may carry expected traffic, by default routes or the config."""
    held: dict[str, list[str]] = {}
    if expected_devs is None:
        expected = _expected_by_default(node)
        if not expected:
            return AllowedDevices()
    else:
        held = {dev: node.holders(dev) for dev in expected_devs if is_network(dev)}
        # Where not one device holds a network, that stays: no device has such a name.
        single = {network: devs[0] for network, devs in held.items() if len(devs) == 1}
        expected = tuple(dict.fromkeys(single.get(dev, dev) for dev in expected_devs))
    devices = {link.name: link for link in node.links}
    unable = [name for name, link in devices.items() if not carries_packets(link, devices)]
    return AllowedDevices(
        expected=expected,
        patterns=tuple(patterns),
        dead_ends=frozenset(expected).intersection(unable),
        undecided=tuple((network, tuple(devs)) for network, devs in held.items() if len(devs) > 1),
    )


def _expected_by_default(node: RoutingSnapshot) -> tuple[str, ...]:
    """Return the devices of the default route that decides among those that may be the exit."""
    leading = outside_fabric(node.defaults, node.links)
    if node.family == IPV6:
        ipv4 = outside_fabric(default_routes(node.backend.routes()), node.links)
        return expected_outbound_dev(ipv4, leading)
    first = default_route(leading)
    default = node.joined(first)
    if default is None:
        return ()
    if default is not first and len(default.devs) > 1:
        # Of default routes in turns, any may be the one for packets to the fabric.
        return ()
    return default.devs


def lost_rule_findings(node: RoutingSnapshot) -> list[NodeFinding]:
    """Return a warning for each built-in rule that is gone."""
    reason = "is gone, so the kernel does not search the table"
    if node.family == IPV6:
        reason += " once any rule is added"
    return [
        NodeFinding(
            "lost-rule",
            f"the {FAMILY_NAMES[node.family]} rule '{rule}'",
            reason,
            "warning",
            command=addition(rule),
        )
        for rule in lost_rules(node.rules, node.family)
    ]
