"""The routes that an announced fabric will bring, and the answers of today that they may change.

The cloud's agent adds the addresses of the fabric after the boot. Each brings its network to table main, without a
metric, and itself and its broadcast address to table local; no other table changes. So an answer of today stays

- if its own route precedes the new one: in main by a longer prefix, or by an equal one without a metric, because the
  new route is added after it; in local, if there is a route to the same address now;
- or if every rule that looks up the table of the answer precedes those that look up the table of the new route.

Any other answer counts as lost. So nothing is missed, and on a node with unusual rules too much may be found:
docs/decisions/fabric.md names these rules. `assets/check-route-overlap.sh` has the same rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from hostrouting.net.addresses import IPV4, Prefix, netmask, parse_cidr
from hostrouting.net.links import DeviceAddress, vrf_of
from hostrouting.net.routes import (
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    NextHop,
    ObservedRoute,
)
from hostrouting.route_overlap.fabric import agent_mac

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.net.links import Device
    from hostrouting.net.routes import Lookup
    from hostrouting.net.rules import Rule
    from hostrouting.route_overlap.fabric import Fabric

#: The prefix length that the agent gives to each address.
_LENGTH: Final = 16
#: No device has a name with a slash, so the name of an absent device is never that of a present one.
_ABSENT: Final = "announced/"
#: A network and its prefix length.
_Network: TypeAlias = tuple[int, int]


class Announcement(NamedTuple):
    """A network that will be connected, the present devices that will have an address in it, and who says so."""

    network: str
    devs: tuple[str, ...]
    source: str


class Announced:
    """The routes that an announced fabric will bring to a node."""

    def __init__(
        self, devices: Sequence[Device], routes: Iterable[ObservedRoute], rules: Sequence[Rule], fabric: Fabric
    ) -> None:
        self._source = fabric.source
        self._devices = {
            device.name: device._replace(addresses=tuple(own for own in device.addresses if own.family == IPV4))
            for device in devices
        }
        self._by_source = any(rule.source[1] for rule in rules)
        #: The tables that rules look up, in their order.
        self._tables = [table for rule in rules for table in _looked_up(rule)]
        # By position, which is faster than by name: this line reads every route of a full table.
        local = [route for route in routes if route[5] == LOCAL_TABLE and route.prefix_length == 32]
        #: The addresses whose route in table local precedes a new one.
        self._standing = {
            route.network for route in local if route.kind in {"local", "broadcast"} and not (route.metric or route.tos)
        }
        # Before Linux 5.14 the first address of a network is a broadcast address, too, as that of 127.0.0.0/8 shows.
        self._with_first = any(route.kind == "broadcast" and route.network == 127 << 24 for route in local)
        #: The devices that will have an address in a network, by network.
        self._devs: dict[_Network, list[str]] = {}
        #: The networks of the addresses that come to table local.
        self._own: dict[int, _Network] = {}
        #: The devices that get an address.
        self._changed: set[str] = set()
        #: The present devices of the fabric, whether they have their address or not.
        self.members: set[str] = {
            device.name
            for network, length in map(parse_cidr, fabric.networks)
            for device in self._devices.values()
            for one in device.addresses
            if one.local & netmask(length) == network
        }
        for mac, address in fabric.addresses:
            for name in self._named(mac):
                self.members.add(name)
                self._connect(name, DeviceAddress(address, _LENGTH, address))
        for cidr in fabric.networks:
            self._announce(_ABSENT + cidr, parse_cidr(cidr))
        #: Of several devices that bring one network the first decides. Their order is not known, so one route has all.
        self.routes: list[ObservedRoute] = [
            *(_route(network, devs) for network, devs in self._devs.items()),
            *(
                _route((address, 32), self._devs[network], kind="local", table=LOCAL_TABLE, scope=SCOPE_HOST)
                for address, network in self._own.items()
            ),
        ]
        self._by_prefix = {(route.table, *route[:2]): route for route in self.routes}
        self._lengths = sorted({length for _, length in self._devs}, reverse=True)

    def _named(self, mac: str) -> list[str]:
        """Return the devices that get the address of a pair: all that have this hardware address."""
        names = [one.name for one in self._devices.values() if one.mac and agent_mac(one.name, one.mac) == mac]
        # An address of a VRF brings routes to the table of that VRF alone.
        return [name for name in names if vrf_of(name, self._devices) is None] if names else [_ABSENT + mac]

    def _connect(self, name: str, new: DeviceAddress) -> None:
        device = self._devices.get(name)
        present = device.addresses if device else ()
        if device and not device.up:
            # The agent sets the device up, and the kernel connects the networks of its other addresses, too.
            for address in present:
                if address.prefix_length < 32 or address.peer != address.local:
                    self._announce(name, _network(address))
        is_new = (new.local, _network(new)) not in [(address.local, _network(address)) for address in present]
        if is_new and self._announce(name, _network(new)):
            self._own.setdefault(new.local, _network(new))
            self._changed.add(name)
        if device:
            addresses = (*present, new) if is_new else present
            carrier = device.carrier or not device.up
            self._devices[name] = device._replace(up=True, carrier=carrier, addresses=addresses)

    def _announce(self, name: str, network: _Network) -> bool:
        """Note the routes that a network brings; return False if the kernel connects no such network."""
        first, length = network
        if first >> 24 == 0:
            return False
        # A packet from a new address may meet rules about which nobody can be asked yet: as if by an absent device.
        devs = self._devs.setdefault(network, [_ABSENT] if self._by_source else [])
        if name not in devs:
            devs.append(name)
        if length < 31:
            last = first | ~netmask(length) & 0xFFFFFFFF
            for address in (first, last) if self._with_first else (last,):
                self._own.setdefault(address, network)
        return True

    def links(self) -> list[Device]:
        """Return the present devices as they will be."""
        return [*self._devices.values()]

    def announcement(self, route: ObservedRoute | None) -> Announcement | None:
        """Return the announcement that brings a route; None for any other route."""
        if route is None or self._by_prefix.get((route.table, *route[:2])) is not route:
            return None
        network = self._own[route.network] if route.table == LOCAL_TABLE else route[:2]
        return Announcement(str(Prefix(IPV4, *network)), tuple(filter(is_present, route.devs)), self._source)

    # --- the rule

    def taker(self, plain: Lookup, sourced: Iterable[Lookup]) -> ObservedRoute | None:
        """Return a new route that may take an address from today's answers; None if all of them certainly stay.

        `sourced` are the answers with the sources from which the kernel sends after the plain one.
        """
        if not self.routes or plain.route is None:
            # Without a route it is a finding already.
            return None
        if self._by_source and not self._sends_as_now(plain.route):
            return self._around(plain.destination) or self.routes[0]
        return next(filter(None, map(self._new_before, (plain, *sourced))), None)

    def _new_before(self, now: Lookup) -> ObservedRoute | None:
        route, address = now.route, now.destination
        if route is None:
            return None
        own = self._by_prefix.get((LOCAL_TABLE, address, 32))
        if own and address not in self._standing and not self._is_earlier(route.table, LOCAL_TABLE):
            return own
        new = self._around(address)
        if new is None or self._is_earlier(route.table, MAIN_TABLE):
            return None
        stays = route.table == MAIN_TABLE and (-route.prefix_length, route.metric) <= (-new.prefix_length, 0)
        return None if stays else new

    def _around(self, address: int) -> ObservedRoute | None:
        """Return the most specific new route of table main to an address."""
        places = ((MAIN_TABLE, address & netmask(length), length) for length in self._lengths)
        return next((self._by_prefix[place] for place in places if place in self._by_prefix), None)

    def _is_earlier(self, table: int, other: int) -> bool:
        """Return True if every rule that looks up the one table precedes those that look up the other."""
        if table not in self._tables:
            return False
        last = len(self._tables) - self._tables[::-1].index(table)
        return other not in self._tables[:last]

    def _sends_as_now(self, route: ObservedRoute) -> bool:
        """Return True if the kernel chooses the same source by a route when the new addresses are there."""
        if route.kind == "local" or route.source is not None:
            return True
        # A device without an address borrows one of another device.
        return all(hop.dev not in self._changed and self._has_address(hop.dev) for hop in route.hops)

    def _has_address(self, dev: str) -> bool:
        device = self._devices.get(dev)
        return device is not None and any(not one.scope for one in device.addresses)


def is_present(dev: str) -> bool:
    """Return True if the name is that of a device, and not of an announced one that is not there yet."""
    return not dev.startswith(_ABSENT)


def _network(address: DeviceAddress) -> _Network:
    return address.peer & netmask(address.prefix_length), address.prefix_length


def _route(
    network: _Network, devs: Iterable[str], *, kind: str = "unicast", table: int = MAIN_TABLE, scope: int = SCOPE_LINK
) -> ObservedRoute:
    hops = tuple(NextHop(None, dev) for dev in devs)
    return ObservedRoute(*network, protocol=KERNEL_PROTOCOL, kind=kind, table=table, scope=scope, nexthops=hops)


def _looked_up(rule: Rule) -> tuple[int, ...]:
    """Return the tables that a rule may look up for a packet of no VRF."""
    if rule.l3mdev:
        # Inverted, it selects such packets, and has no table for them: the kernel takes main.
        return (LOCAL_TABLE, MAIN_TABLE) if rule.inverted else ()
    return (rule.table,) if rule.action == "lookup" else ()
