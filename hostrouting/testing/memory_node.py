"""A node without a kernel: the handles of `Node` on the model of a node's routing."""

from __future__ import annotations

import errno
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from hostrouting.exceptions import BackendError, LinkNotFoundError
from hostrouting.fib import Fib, events
from hostrouting.fib.rules import Policy
from hostrouting.fib.tables import key_of
from hostrouting.net.addresses import format_ipv4, parse_cidr, parse_ipv4
from hostrouting.net.events import AddressEvent, DeviceEvent, NeighbourEvent, RuleEvent
from hostrouting.net.links import Device, DeviceAddress, Neighbour
from hostrouting.net.routes import SCOPE_HOST, ObservedRoute, Route
from hostrouting.testing.admission import admitted, check_rule, is_named_by, removed
from hostrouting.testing.announcements import change_of_a_route, changes_of_own_routes, removals_of_addresses
from hostrouting.testing.faults import Refused
from hostrouting.testing.memory_events import Indexes, MemoryEvents
from hostrouting.testing.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.net.rules import Rule

__all__ = [
    "MemoryNode",
]

_MAC: Final = "02:00:00:00:00:01"


class MemoryNode(Node):
    """The handles of `Node` on `fib`, which is the node as it is now. Their changes are announced by `events`."""

    def __init__(self) -> None:
        self.events: MemoryEvents = MemoryEvents()
        self.indexes: Indexes = Indexes()
        self.fib: Fib = attrs.evolve(Fib.of([], []), merged=True)
        self._unplugged: set[str] = set()
        own = parse_ipv4("127.0.0.1")
        self._add_device("lo", loopback=True, addresses=(DeviceAddress(own, 8, own, scope=SCOPE_HOST),))
        self.set_up("lo")

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """See `Node.add_link`."""
        if name in self.fib.devices:
            raise _refusal(f"link {name}", Refused(errno.EEXIST))
        self._add_device(name)
        if not carrier:
            self._unplugged.add(name)
        if up:
            self.set_up(name)

    def remove_link(self, name: str) -> None:
        """See `Node.remove_link`."""
        self.set_up(name, up=False)
        before, device = self.fib, self.fib.devices[name]
        self.fib = events.device_removed(self.fib, name)
        self.events.announce(*removals_of_addresses(before, self.fib, device, device.addresses))
        self.events.announce(DeviceEvent("remove", _bare(device)))
        self._unplugged.discard(name)
        del self.indexes[name]

    def rename_link(self, name: str, new: str) -> None:
        """See `Node.rename_link`."""
        self._device(name)
        if new in self.fib.devices:
            raise _refusal(f"link {new}", Refused(errno.EEXIST))
        self.fib = events.device_renamed(self.fib, name, new)
        self.indexes[new] = self.indexes.pop(name)
        self._unplugged = {new if unplugged == name else unplugged for unplugged in self._unplugged}
        self.events.announce(DeviceEvent("set", _bare(self.fib.devices[new]), name))
        for address in self.fib.devices[new].addresses:
            self.events.announce(AddressEvent("set", new, address))

    def set_up(self, name: str, *, up: bool = True) -> None:
        """See `Node.set_up`."""
        device = self._device(name)
        if device.up == up:
            return
        if not up:
            self.fib = events.device_down(self.fib, name)
            self._announce_device(name)
            for number in device.neighbours:
                self.events.announce(NeighbourEvent("remove", _neighbour(name, number)))
            return
        self.fib = events.device_up(self.fib, name, carrier=name not in self._unplugged)
        self._announce_device(name)
        for address in self.fib.devices[name].addresses:
            before, self.fib = self.fib, events.with_own_routes(self.fib, name, address)
            self._announce_own(before, self.fib.devices[name], address)

    def set_group(self, dev: str, group: int) -> None:
        """See `Node.set_group`."""
        device = self._device(dev)._replace(group=group)
        self._keep(device)
        if device.up:
            self._announce_device(dev)

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.add_address`; the address gets no broadcast address."""
        device = self._device(dev)
        new = _address(address, peer)
        same = [other for other in device.addresses if events.same_subnet(new, other)]
        if any(other.local == new.local for other in same):
            raise _refusal(f"address {address} on {dev}", Refused(errno.EEXIST, "Address already assigned"))
        before, self.fib = self.fib, events.address_added(self.fib, dev, new)
        device = self.fib.devices[dev]
        new = next(own for own in device.addresses if own[:3] == new[:3])
        self.events.announce(AddressEvent("set", dev, new))
        self._announce_own(before, device, new)

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.remove_address`."""
        wanted = _address(address, peer)
        device = self._device(dev)
        gone = next((own for own in device.addresses if own[:3] == wanted[:3]), None)
        if gone is None:
            raise _refusal(f"address {address} on {dev}", Refused(errno.EADDRNOTAVAIL, "Address not found"))
        before, self.fib = self.fib, events.address_removed(self.fib, dev, gone)
        together = [own for own in device.addresses if own not in self.fib.devices[dev].addresses]
        # The primary one goes last.
        together.sort(key=attrgetter("secondary"), reverse=True)
        self.events.announce(*removals_of_addresses(before, self.fib, device, together))

    def add_neighbour(self, dev: str, address: str) -> None:
        """See `Node.add_neighbour`."""
        device = self._device(dev)
        number = parse_ipv4(address)
        self._keep(device._replace(neighbours=tuple(sorted({*device.neighbours, number}))))
        self.events.announce(NeighbourEvent("set", _neighbour(dev, number)))

    def insert_route(self, route: Route, *, verb: str = "add") -> None:
        """See `Node.insert_route`."""
        try:
            self.take(verb, route)
        except Refused as refused:
            raise _refusal(f"route {route}", refused) from None

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """See `Node.delete_route`."""
        try:
            self.take("remove", route)
        except Refused as refused:
            raise _refusal(f"route {route}", refused) from None

    def take(self, verb: str, route: Route | ObservedRoute) -> None:
        """Make one change, or raise `Refused`; `remove` takes the first route that fits."""
        before, self.fib = self.fib, removed(self.fib, route) if verb == "remove" else admitted(self.fib, route, verb)
        buckets = [fib.tables.bucket(key_of(route)) for fib in (before, self.fib)]
        self.events.announce(*change_of_a_route(verb, *buckets))

    def add_rule(self, rule: Rule) -> None:
        """See `Node.add_rule`; the first change of the rules parts the local table from main, for good."""
        policy = self.fib.policy.rules
        try:
            check_rule(policy, rule)
        except Refused as refused:
            raise _refusal(f"rule {rule.priority}", refused) from None
        self._set_policy(sorted((*policy, rule), key=attrgetter("priority")))
        self.events.announce(RuleEvent("add", rule))

    def remove_rule(self, rule: Rule) -> None:
        """See `Node.remove_rule`."""
        policy = self.fib.policy.rules
        gone = next((other for other in policy if is_named_by(rule, other)), None)
        if gone is None:
            raise _refusal(f"rule {rule.priority}", Refused(errno.ENOENT))
        self._set_policy(other for other in policy if other is not gone)
        self.events.announce(RuleEvent("remove", gone))

    def _set_policy(self, policy: Iterable[Rule]) -> None:
        self.fib = attrs.evolve(self.fib, policy=Policy(policy), merged=False)

    def _add_device(self, name: str, **fields: Any) -> None:
        self._keep(Device(name, self.indexes[name], up=False, carrier=False, **fields))
        self._announce_device(name)

    def _device(self, name: str) -> Device:
        try:
            return self.fib.devices[name]
        except KeyError:
            raise LinkNotFoundError(f"no such device: {name}", dev=name, errno=errno.ENODEV) from None

    def _keep(self, device: Device) -> None:
        self.fib = events.with_device(self.fib, device)

    def _announce_device(self, name: str) -> None:
        self.events.announce(DeviceEvent("set", _bare(self.fib.devices[name])))

    def _announce_own(self, before: Fib, device: Device, address: DeviceAddress) -> None:
        self.events.announce(*changes_of_own_routes(before, self.fib, device, address))


def _address(text: str, peer: str | None) -> DeviceAddress:
    local, length = parse_cidr(text)
    return DeviceAddress(local, length, local if peer is None else parse_ipv4(peer))


def _refusal(what: str, refused: Refused) -> BackendError:
    return BackendError(f"{what}: {refused.reason}", errno=refused.errno)


def _bare(device: Device) -> Device:
    return device._replace(addresses=(), neighbours=())


def _neighbour(dev: str, number: int) -> Neighbour:
    return Neighbour(format_ipv4(number), dev, _MAC, permanent=True)
