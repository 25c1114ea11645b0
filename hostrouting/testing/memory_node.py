"""A node without a kernel: links, addresses, rules and routes, and how they bring each other about."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from typing import Final

import attrs

from hostrouting.exceptions import BackendError, LinkNotFoundError
from hostrouting.net.addresses import netmask, parse_cidr, parse_ipv4
from hostrouting.net.links import DeviceAddress
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, SCOPE_HOST, SCOPE_LINK, SCOPE_UNIVERSE, ObservedRoute, Route
from hostrouting.net.rules import Rule
from hostrouting.testing.fib import Fib, Found, Refused, same_subnet
from hostrouting.testing.node import Node

_KERNEL: Final = 2
_RULE_ERRORS: Final = {
    "blackhole": errno.EINVAL,
    "unreachable": errno.ENETUNREACH,
    "prohibit": errno.EACCES,
}


@attrs.define(eq=False)
class Device:
    """A network device; `wire` is whether something is plugged in."""

    name: str
    ifindex: int
    up: bool = False
    wire: bool = True
    loopback: bool = False
    addresses: list[DeviceAddress] = attrs.Factory(list)
    neighbours: set[int] = attrs.Factory(set)

    @property
    def carrier(self) -> bool:
        """What the kernel would say of the wire, which it only looks at when the device is up."""
        return self.up and self.wire


class MemoryNode(Node):
    """The handles of `Node` on a model of the kernel; `MemoryBackend` asks it what the port promises to answer."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.fib = Fib(self.devices.__getitem__)
        self.policy = [
            Rule(priority, table=table, protocol=_KERNEL)
            for priority, table in ((0, LOCAL_TABLE), (32766, MAIN_TABLE), (32767, 253))
        ]
        self._added_rules: list[Rule] = []
        self._next_ifindex = 1
        self._add_device("lo", loopback=True)
        self.set_up("lo")

    def add_link(self, name: str, *, up: bool = True, carrier: bool = True) -> None:
        """A new device, without addresses."""
        if name in self.devices:
            raise _refusal(f"link {name}", Refused(errno.EEXIST))
        self._add_device(name)
        self.devices[name].wire = carrier
        if up:
            self.set_up(name)

    def remove_link(self, name: str) -> None:
        """The device goes, and every route over it with it; a multipath route keeps its other legs."""
        device = self._device(name)
        self.set_up(name, up=False)
        self.fib.flush(lambda entry: any(leg.dev == name for leg in entry.legs))
        # Secondaries before their primaries.
        for address in sorted(device.addresses, key=lambda address: not address.secondary):
            self._forget_address(device, address)
        del self.devices[name]

    def set_up(self, name: str, *, up: bool = True) -> None:
        """Set the device up or down.

        Down takes its routes, but for those of its own addresses; up brings back only the kernel's own, and the legs
        of multipath routes.
        """
        device = self._device(name)
        if device.up == up:
            return
        device.up = up
        if not up:
            device.neighbours.clear()
            self.fib.kill_legs(name, all_scopes=False)
            return
        if device.loopback and not device.addresses:
            device.addresses.append(
                DeviceAddress(parse_ipv4("127.0.0.1"), 8, parse_ipv4("127.0.0.1"), scope=SCOPE_HOST)
            )
        for address in device.addresses:
            self._add_own_routes(device, address)
        self.fib.revive_legs(name)

    def set_carrier(self, name: str, *, carrier: bool) -> None:
        """Plug the wire in or out; routes stay, and are marked `linkdown`."""
        self._device(name).wire = carrier

    def add_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """`ip address add ADDRESS [peer PEER] broadcast + dev DEV`, without the `broadcast +`."""
        device = self._device(dev)
        local, length = parse_cidr(address)
        far = local if peer is None else parse_ipv4(peer)
        secondary = False
        for other in device.addresses:
            if same_subnet((far, length), (other.peer, other.prefix_length)):
                if other.local == local:
                    raise _refusal(f"address {address} on {dev}", Refused(errno.EEXIST, "Address already assigned"))
                secondary = True
        new = DeviceAddress(local, length, far, secondary=secondary)
        primaries = sum(not other.secondary for other in device.addresses)
        device.addresses.insert(len(device.addresses) if secondary else primaries, new)
        self._add_own_routes(device, new)
        if device.up:
            self.fib.revive_legs(dev)

    def remove_address(self, dev: str, address: str, *, peer: str | None = None) -> None:
        """The address goes, with the routes that the kernel made for it and those in main that send from it.

        Its secondaries go first; and when it was the device's last, so does every route over the device.
        """
        device = self._device(dev)
        local, length = parse_cidr(address)
        far = local if peer is None else parse_ipv4(peer)
        for gone in device.addresses:
            if (gone.local, gone.prefix_length, gone.peer) == (local, length, far):
                break
        else:
            raise _refusal(f"address {address} on {dev}", Refused(errno.EADDRNOTAVAIL, "Address not found"))
        if not gone.secondary:
            subnet = (gone.peer, gone.prefix_length)
            for other in list(device.addresses):
                if other.secondary and same_subnet(subnet, (other.peer, other.prefix_length)):
                    self._forget_address(device, other)
        self._forget_address(device, gone)
        if not device.addresses:
            self.fib.kill_legs(dev, all_scopes=True)

    def add_neighbour(self, dev: str, address: str) -> None:
        """See `Node.add_neighbour`."""
        self._device(dev).neighbours.add(parse_ipv4(address))

    def insert_route(self, route: Route, *, append: bool = False, replace: bool = False) -> None:
        """Add a foreign route in its full description; `append` and `replace` as `ip route append` and `replace`."""
        try:
            self.insert(route, append=append, replace=replace, exclusive=not append and not replace)
        except Refused as refused:
            raise _refusal(f"route {route}", refused) from None

    def delete_route(self, route: Route | ObservedRoute) -> None:
        """Somebody else deletes a route."""
        try:
            self.fib.delete(route)
        except Refused as refused:
            raise _refusal(f"route {route}", refused) from None

    def add_rule(self, rule: Rule) -> None:
        """`ip rule add`; the first one parts the local table from main, for good."""
        if rule.action not in {"lookup", *_RULE_ERRORS} or rule.other_selectors:
            raise ValueError(f"{rule} is beyond this model: it knows `from`, `to`, `not`, and the actions")
        # The three that a namespace begins with are the kernel's own; another like them is not a duplicate.
        if any(_covers(rule, other) for other in self._added_rules):
            raise _refusal(f"rule {rule.priority}", Refused(errno.EEXIST))
        position = sum(other.priority <= rule.priority for other in self.policy)
        self.policy.insert(position, rule)
        self._added_rules.append(rule)
        self.fib.merged = False

    def remove_rule(self, rule: Rule) -> None:
        """`ip rule delete`: the first rule that fits; a selector that is left out fits any."""
        position = next((i for i, other in enumerate(self.policy) if _covers(rule, other)), None)
        if position is None:
            raise _refusal(f"rule {rule.priority}", Refused(errno.ENOENT))
        del self.policy[position]
        self._added_rules = [added for added in self._added_rules if any(added is held for held in self.policy)]
        self.fib.merged = False

    # --- the kernel's part

    def _add_device(self, name: str, *, loopback: bool = False) -> None:
        self.devices[name] = Device(name, self._next_ifindex, loopback=loopback)
        self._next_ifindex += 1

    def _device(self, name: str) -> Device:
        try:
            return self.devices[name]
        except KeyError:
            raise LinkNotFoundError(f"no such device: {name}", dev=name, errno=errno.ENODEV) from None

    def insert(self, route: Route | ObservedRoute, **flags: bool) -> None:
        """Insert a route with the flags of a netlink message, see `Fib.insert`."""
        self.fib.insert(route, find_gateway=self._find_gateway, is_local=self._is_local, **flags)

    def _add_own_routes(self, device: Device, address: DeviceAddress) -> None:
        for route in self._own_routes(device, address):
            # One that stands already, on a device that is down, behind somebody's odd route: the kernel goes on, too.
            with suppress(Refused):
                self.insert(route, append=True)

    def _forget_address(self, device: Device, address: DeviceAddress) -> None:
        routes = self._own_routes(device, address)
        device.addresses.remove(address)
        needed = {route for other in device.addresses for route in self._own_routes(device, other)}
        for route in routes:
            if route not in needed:
                with suppress(Refused):  # somebody deleted it before
                    self.fib.delete(route)
        if not self._is_local(address.local, LOCAL_TABLE):
            self.fib.forget_source(address.local)

    def _own_routes(self, device: Device, address: DeviceAddress) -> list[ObservedRoute]:
        """What the kernel adds for an address: itself, its network, and that network's broadcast address."""
        primary = address
        if address.secondary:
            subnet = (address.peer, address.prefix_length)
            primary = next(
                other
                for other in device.addresses
                if not other.secondary and same_subnet(subnet, (other.peer, other.prefix_length))
            )
        make = partial(ObservedRoute, dev=device.name, protocol=_KERNEL, source=primary.local)
        routes = [make(address.local, 32, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST)]
        network = address.peer & netmask(address.prefix_length)
        if not device.up or address.secondary or network >> 24 == 0:
            return routes
        if address.prefix_length < 32 or network != address.local:
            if device.loopback:
                routes.append(make(network, address.prefix_length, table=LOCAL_TABLE, kind="local", scope=SCOPE_HOST))
            else:
                routes.append(make(network, address.prefix_length, scope=SCOPE_LINK))
            if address.prefix_length < 31:
                broadcast = network | ~netmask(address.prefix_length) & 0xFFFFFFFF
                routes.append(make(broadcast, 32, table=LOCAL_TABLE, kind="broadcast", scope=SCOPE_LINK))
        return routes

    def _find_gateway(self, gateway: int, *, table: int, scope: int, dev: str) -> Found:
        if table != MAIN_TABLE:
            found = self.fib.search(table, gateway, scope=scope, dev=dev)
            if found.entry is not None:
                return found
        return self.decide(gateway, 0, scope=scope, dev=dev)

    def _is_local(self, address: int, table: int) -> bool:
        for number in {LOCAL_TABLE if table == MAIN_TABLE else table, LOCAL_TABLE}:
            found = self.fib.search(number, address)
            if found.entry is not None and found.entry.route.kind == "local":
                return True
        return False

    def decide(self, destination: int, source: int, *, scope: int = SCOPE_UNIVERSE, dev: str | None = None) -> Found:
        """Try the rules in turn, as for a packet that the node itself sends."""
        for rule in self.policy:
            selected = _selects(rule.destination, destination) and _selects(rule.source, source)
            if selected == rule.inverted:
                continue
            if rule.action in _RULE_ERRORS:
                return Found(None, _RULE_ERRORS[rule.action])
            found = self.fib.search(rule.table, destination, scope=scope, dev=dev)
            if found.errno != errno.EAGAIN:
                return found
        return Found(None, errno.ENETUNREACH)

    def holds(self, address: int) -> bool:
        """Whether the node may send from `address`."""
        if any(own.local == address for device in self.devices.values() for own in device.addresses):
            return True
        found = self.fib.search(LOCAL_TABLE, address)
        return found.entry is not None and found.entry.route.kind == "local"

    def source_for(self, destination: int, route: ObservedRoute, dev: str, gateway: int | None) -> int | None:
        """The address that the kernel would send from, by a route whose leg is on `dev`."""
        if route.source is not None:
            return route.source
        if route.kind == "local":
            return destination
        own = [address for address in self.devices[dev].addresses if not address.secondary]
        own = [address for address in own if address.scope <= route.scope]
        for address in own:
            if gateway is None or same_subnet((gateway, address.prefix_length), (address.peer, address.prefix_length)):
                return address.local
        for device in self.devices.values():
            own += [a for a in device.addresses if not a.secondary and a.scope <= route.scope and a.scope != SCOPE_LINK]
        return own[0].local if own else None


def _selects(selector: tuple[int, int], address: int) -> bool:
    network, length = selector
    return not (network ^ address) & netmask(length)


def _covers(rule: Rule, other: Rule) -> bool:
    """Whether the kernel takes `rule` to mean `other`: it compares no selector that `rule` does not have."""
    return (
        (rule.priority, rule.action, rule.table) == (other.priority, other.action, other.table)
        and (not rule.source[1] or rule.source == other.source)
        and (not rule.destination[1] or rule.destination == other.destination)
    )


def _refusal(what: str, refused: Refused) -> BackendError:
    return BackendError(f"{what}: {refused.reason}", errno=refused.errno)
