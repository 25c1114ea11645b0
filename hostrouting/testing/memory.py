"""A node's routing in memory: the fake that earns its place by passing the kernel's own contract suite."""

from __future__ import annotations

import errno
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

import attrs

from hostrouting.exceptions import LinkNotFoundError
from hostrouting.fib import Fib
from hostrouting.fib.rules import Policy
from hostrouting.fib.tables import key_of
from hostrouting.host.netlink.batches import commit_routes
from hostrouting.net.addresses import IPV4, IPV6, Address, parse_ipv4
from hostrouting.net.changes import families_of
from hostrouting.net.events import AddressEvent, DeviceEvent, RouteEvent, RuleEvent
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import SCOPE_HOST, place
from hostrouting.testing import consequences, ipv6
from hostrouting.testing.admission import admitted, check_rule, is_named_by, removed
from hostrouting.testing.faults import OneByOne, Operations, Refused
from hostrouting.testing.memory_events import MemoryEvents, new_indexes
from hostrouting.testing.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.fib.tables import Bucket
    from hostrouting.host.netlink.commit import AnyRoute
    from hostrouting.net.changes import RouteChange
    from hostrouting.net.routes import Lookup, ObservedRoute
    from hostrouting.net.rules import Rule


class MemoryBackend(Node):
    """A `RouteBackend` without a kernel, with the node's links, addresses, foreign routes and rules in your hands.

    >>> node = MemoryBackend()
    >>> node.add_link("eth0")
    >>> node.add_address("eth0", "10.224.0.4/16")
    >>> node.add_route("default", gateway="10.224.0.1", dev="eth0")
    >>> for route in node.routes():
    ...     if route.table == 254:
    ...         print(route)
    default via 10.224.0.1 dev eth0
    10.224.0.0/16 dev eth0 proto kernel scope link src 10.224.0.4

    It refuses each change that the kernel refuses, with the kernel's errno and words. `fail_at` lets a change fail, and
    `steps.plan` lets another program act within a batch. `fib` is the node as it is now. `events` announces the changes
    of the handles, but not the routes that come and go with a device or an address, of which the kernel announces some.
    A feature that it does not model (nexthop objects, or gateways that are the node's own) raises ValueError. It
    forwards no IPv6 packets, so it has no anycast addresses; and it shows each IPv6 route, though a dump of the
    kernel's may leave one out that stands between two next hops of another.
    """

    families: tuple[int, ...] = (IPV4, IPV6)

    def __init__(self) -> None:
        self.events: MemoryEvents = MemoryEvents()
        self.indexes: dict[str, int] = new_indexes()
        self.fib: Fib = attrs.evolve(Fib.of([], []), merged=True)
        #: The steps of batches, those of rollbacks counted in.
        self.steps: Operations = Operations()
        self._unplugged: set[str] = set()
        own, own_ipv6 = (DeviceAddress.parse(text)._replace(scope=SCOPE_HOST) for text in ("127.0.0.1/8", "::1/128"))
        self._add_device("lo", loopback=True, addresses=(own,))
        self.set_up("lo")
        self.fib = ipv6.address_added(self.fib, "lo", own_ipv6)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.fib.devices)})"

    def links(self) -> list[Device]:
        """See `RouteBackend.links`."""
        return self.fib.links()

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes`."""
        # The next hops of an IPv6 route are shown as one.
        return list(dict.fromkeys(map(self.shown, self.fib.tables.routes(family))))

    def routes_of(self, protocol: int, family: int = IPV4) -> list[ObservedRoute]:
        """See `RouteBackend.routes_of`."""
        return [route for route in MemoryBackend.routes(self, family) if route.protocol == protocol]

    def rules(self, family: int = IPV4) -> list[Rule]:
        """See `RouteBackend.rules`."""
        return self.fib.rules(family)

    def lookup(
        self,
        destinations: Sequence[int],
        *,
        sources: Sequence[int | None] | None = None,
        resolve: bool = False,
        family: int = IPV4,
    ) -> list[Lookup]:
        """See `RouteBackend.lookup`."""
        answers = self.fib.lookup(destinations, sources=sources, resolve=resolve, family=family)
        if resolve:
            return answers
        return [answer._replace(route=answer.route and self.shown(answer.route)) for answer in answers]

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        """Make all the changes, in their order, or none of them."""
        families = families_of(changes)
        transport: OneByOne[AnyRoute] = OneByOne(
            self.steps, self.take, lambda: [route for family in families for route in self.routes(family)]
        )
        commit_routes(transport, changes, devices=self.fib.devices, verify=verify)

    def fail_at(self, step: int, *, number: int = errno.ENOBUFS) -> None:
        """Refuse the `step`-th change from now (1 is the next), those of a rollback counted in."""
        self.steps.fail(step, Refused(number, "injected fault"))

    def add_link(
        self,
        name: str,
        *,
        up: bool = True,
        carrier: bool = True,
        mac: str = "",
        kind: str = "",
        master: str | None = None,
    ) -> None:
        """See `Node.add_link`."""
        if name in self.fib.devices:
            raise Refused(errno.EEXIST).of(f"link {name}")
        if master is not None:
            self._device(master)
        self._add_device(name, mac=mac.lower(), kind=kind, master=master)
        if not carrier:
            self._unplugged.add(name)
        if up:
            self.set_up(name)

    def remove_link(self, name: str) -> None:
        """See `Node.remove_link`."""
        self.set_up(name, up=False)
        device = self.fib.devices[name]
        self.fib = consequences.device_removed(self.fib, name)
        self.events.announce(*(AddressEvent("remove", name, address) for address in device.addresses))
        self.events.announce(DeviceEvent("remove", _bare(device)))
        self._unplugged.discard(name)
        del self.indexes[name]

    def set_up(self, name: str, *, up: bool = True) -> None:
        """See `Node.set_up`."""
        device = self._device(name)
        if device.up == up:
            return
        if not up:
            self.fib = consequences.device_down(self.fib, name)
            self._announce_device(name)
            gone = (own for own in device.addresses if own not in self.fib.devices[name].addresses)
            self.events.announce(*(AddressEvent("remove", name, own) for own in gone))
            return
        self.fib = consequences.device_up(self.fib, name, carrier=name not in self._unplugged)
        self.fib = ipv6.with_multicast(self.fib, name)
        self._announce_device(name)
        for address in self.fib.devices[name].addresses:
            own = ipv6.with_network if address.family == IPV6 else consequences.with_own_routes
            self.fib = own(self.fib, name, address)

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.add_address`; the address gets no broadcast address."""
        device = self._device(dev)
        new = _address(address, peer)
        same = [other for other in device.addresses if other.address == new.address]
        if any(new.family == IPV6 or consequences.same_subnet(new, other) for other in same):
            raise Refused(errno.EEXIST, "Address already assigned").of(f"address {address} on {dev}")
        family = ipv6 if new.family == IPV6 else consequences
        self.fib = family.address_added(self.fib, dev, new)
        new = next(own for own in self.fib.devices[dev].addresses if own[:3] == new[:3])
        self.events.announce(AddressEvent("set", dev, new))

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.remove_address`."""
        device = self._device(dev)
        wanted = _address(address, peer)
        gone = next((own for own in device.addresses if own[:3] == wanted[:3]), None)
        if gone is None:
            raise Refused(errno.EADDRNOTAVAIL, "Address not found").of(f"address {address} on {dev}")
        family = ipv6 if gone.family == IPV6 else consequences
        self.fib = family.address_removed(self.fib, dev, gone)
        together = [own for own in device.addresses if own not in self.fib.devices[dev].addresses]
        # The primary one goes last.
        together.sort(key=attrgetter("secondary"), reverse=True)
        self.events.announce(*(AddressEvent("remove", dev, own) for own in together))

    def add_neighbour(self, dev: str, address: str) -> None:
        """See `Node.add_neighbour`."""
        device = self._device(dev)
        number = parse_ipv4(address)
        known = device._replace(neighbours=tuple(sorted({*device.neighbours, number})))
        self.fib = consequences.with_device(self.fib, known)

    def insert_route(self, route: AnyRoute, *, verb: str = "add") -> None:
        """See `Node.insert_route`."""
        try:
            self.take(verb, route)
        except Refused as refused:
            raise refused.of(f"route {route}") from None

    def delete_route(self, route: AnyRoute) -> None:
        """See `Node.delete_route`."""
        self.insert_route(route, verb="remove")

    def take(self, verb: str, route: AnyRoute) -> None:
        """Make one change, or raise `Refused`; `remove` takes the first route that fits."""
        before, self.fib = self.fib, removed(self.fib, route) if verb == "remove" else admitted(self.fib, route, verb)
        buckets = [fib.tables.bucket(key_of(route)) for fib in (before, self.fib)]
        self.events.announce(*_events_of(verb, *buckets))

    def add_rule(self, rule: Rule) -> None:
        """See `Node.add_rule`; the first change of the rules parts the local table from main, for good."""
        try:
            check_rule(self.fib.rules(rule.family), rule)
        except Refused as refused:
            raise refused.of(f"rule {rule.priority}") from None
        self._set_policy(sorted((*self.fib.policy.rules, rule), key=attrgetter("priority")), rule.family)
        self.events.announce(RuleEvent("add", rule))

    def remove_rule(self, rule: Rule) -> None:
        """See `Node.remove_rule`."""
        policy = self.fib.policy.rules
        gone = next((other for other in policy if other.family == rule.family and is_named_by(rule, other)), None)
        if gone is None:
            raise Refused(errno.ENOENT).of(f"rule {rule.priority}")
        self._set_policy((other for other in policy if other is not gone), rule.family)
        self.events.announce(RuleEvent("remove", gone))

    def shown(self, route: ObservedRoute) -> ObservedRoute:
        """Return a route of the model as a dump shows it."""
        return ipv6.shown(self.fib.tables.bucket(key_of(route)), route)

    def _set_policy(self, policy: Iterable[Rule], family: int) -> None:
        self.fib = attrs.evolve(self.fib, policy=Policy(policy), merged=self.fib.merged and family == IPV6)

    def _add_device(self, name: str, **fields: Any) -> None:
        self.fib = consequences.with_device(
            self.fib, Device(name, self.indexes[name], up=False, carrier=False, **fields)
        )
        self._announce_device(name)

    def _device(self, name: str) -> Device:
        try:
            return self.fib.devices[name]
        except KeyError:
            raise LinkNotFoundError(f"no such device: {name}", dev=name, errno=errno.ENODEV) from None

    def _announce_device(self, name: str) -> None:
        self.events.announce(DeviceEvent("set", _bare(self.fib.devices[name])))


def _address(text: str, peer: str | None) -> DeviceAddress:
    own = DeviceAddress.parse(text)
    return own if peer is None else own._replace(peer=Address.parse(peer).number)


def _bare(device: Device) -> Device:
    return device._replace(addresses=(), neighbours=())


def _events_of(verb: str, before: Bucket, after: Bucket) -> Iterator[RouteEvent]:
    """Yield the event of one change, if it changed anything; `verb` is the one that was asked for."""
    places = set(map(place, before))
    old, new = (after, before) if verb == "remove" else (before, after)
    for route in new:
        if route not in old:
            told = cast("Literal['add', 'prepend', 'append', 'replace', 'remove']", verb)
            yield RouteEvent(told if place(route) in places else "add", ipv6.shown((route,), route))
