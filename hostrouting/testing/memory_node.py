"""A node without a kernel: the handles of `Node` on the model of a node's routing."""

from __future__ import annotations

import errno
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.exceptions import BackendError, LinkNotFoundError
from hostrouting.fib import Fib, events
from hostrouting.fib.rules import Policy
from hostrouting.net.addresses import parse_cidr, parse_ipv4
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import SCOPE_HOST, ObservedRoute, Route
from hostrouting.testing.admission import admitted, check_rule, is_named_by, removed
from hostrouting.testing.faults import Refused
from hostrouting.testing.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.net.rules import Rule

__all__ = [
    "MemoryNode",
]


class MemoryNode(Node):
    """The handles of `Node` on `fib`, which is the node as it is now."""

    def __init__(self) -> None:
        self.fib: Fib = attrs.evolve(Fib.of([], []), merged=True)
        self._unplugged: set[str] = set()
        self._last_ifindex = 0
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
        self._device(name)
        self._unplugged.discard(name)
        self.fib = events.device_removed(self.fib, name)

    def set_up(self, name: str, *, up: bool = True) -> None:
        """See `Node.set_up`."""
        device = self._device(name)
        if device.up == up:
            return
        if not up:
            self.fib = events.device_down(self.fib, name)
            return
        self.fib = events.device_up(self.fib, name, carrier=name not in self._unplugged)
        for address in self.fib.devices[name].addresses:
            self.fib = events.with_own_routes(self.fib, name, address)

    def set_group(self, dev: str, group: int) -> None:
        """See `Node.set_group`."""
        self._keep(self._device(dev)._replace(group=group))

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.add_address`; the address gets no broadcast address."""
        device = self._device(dev)
        new = _address(address, peer)
        same = [other for other in device.addresses if events.same_subnet(new, other)]
        if any(other.local == new.local for other in same):
            raise _refusal(f"address {address} on {dev}", Refused(errno.EEXIST, "Address already assigned"))
        self.fib = events.address_added(self.fib, dev, new)

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """See `Node.remove_address`."""
        wanted = _address(address, peer)
        for gone in self._device(dev).addresses:
            if gone[:3] == wanted[:3]:
                self.fib = events.address_removed(self.fib, dev, gone)
                return
        raise _refusal(f"address {address} on {dev}", Refused(errno.EADDRNOTAVAIL, "Address not found"))

    def add_neighbour(self, dev: str, address: str) -> None:
        """See `Node.add_neighbour`."""
        device = self._device(dev)
        self._keep(device._replace(neighbours=tuple(sorted({*device.neighbours, parse_ipv4(address)}))))

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
        self.fib = removed(self.fib, route) if verb == "remove" else admitted(self.fib, route, verb)

    def add_rule(self, rule: Rule) -> None:
        """See `Node.add_rule`; the first change of the rules parts the local table from main, for good."""
        policy = self.fib.policy.rules
        try:
            check_rule(policy, rule)
        except Refused as refused:
            raise _refusal(f"rule {rule.priority}", refused) from None
        self._set_policy(sorted((*policy, rule), key=attrgetter("priority")))

    def remove_rule(self, rule: Rule) -> None:
        """See `Node.remove_rule`."""
        policy = self.fib.policy.rules
        gone = next((other for other in policy if is_named_by(rule, other)), None)
        if gone is None:
            raise _refusal(f"rule {rule.priority}", Refused(errno.ENOENT))
        self._set_policy(other for other in policy if other is not gone)

    def _set_policy(self, policy: Iterable[Rule]) -> None:
        self.fib = attrs.evolve(self.fib, policy=Policy(policy), merged=False)

    def _add_device(self, name: str, **fields: Any) -> None:
        self._last_ifindex += 1
        self._keep(Device(name, self._last_ifindex, up=False, carrier=False, **fields))

    def _device(self, name: str) -> Device:
        try:
            return self.fib.devices[name]
        except KeyError:
            raise LinkNotFoundError(f"no such device: {name}", dev=name, errno=errno.ENODEV) from None

    def _keep(self, device: Device) -> None:
        self.fib = events.with_device(self.fib, device)


def _address(text: str, peer: str | None) -> DeviceAddress:
    local, length = parse_cidr(text)
    return DeviceAddress(local, length, local if peer is None else parse_ipv4(peer))


def _refusal(what: str, refused: Refused) -> BackendError:
    return BackendError(f"{what}: {refused.reason}", errno=refused.errno)
