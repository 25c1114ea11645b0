"""The routing of a node as it will be when an announced fabric is connected.

The cloud's agent adds the addresses of the fabric after the boot, and the kernel then adds connected routes, which win
over every shorter prefix. The model adds them now, so the same proof finds the addresses that will be lost.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.fib import Fib, events
from hostrouting.fib.model import UnknownDecisionError
from hostrouting.net.addresses import format_cidr, netmask, parse_cidr
from hostrouting.net.links import Device, DeviceAddress, vrf_of
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, Lookup, ObservedRoute
from hostrouting.route_overlap.fabric import agent_mac

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.host.ports import Routing
    from hostrouting.net.rules import Rule
    from hostrouting.route_overlap.fabric import Fabric

__all__ = ["Announcement", "Assumed", "is_present", "model_of"]

#: The prefix length that the agent gives to each address.
_LENGTH: Final = 16
#: No device has a name with a slash, so the name of an absent device is never that of a present one.
_ABSENT: Final = "announced/"
#: A network and its prefix length.
_Network: TypeAlias = tuple[int, int]
#: The fields of a route by which it is found again.
_Identity: TypeAlias = tuple[object, ...]


class Announcement(NamedTuple):
    """A network that will be connected, the present devices that will have an address in it, and who says so."""

    network: str
    devs: tuple[str, ...]
    source: str


class Assumed:
    """The routing of a node once its announced fabric is connected; it implements `Routing`.

    The kernel answers for addresses that the fabric does not touch. Where a rule selects by source, a new address may
    change any answer, so the model gives them all.

    Of several devices in one network the first one decides. Their order is not known, so those for which `last` is
    True, the allowed ones, get their addresses after all others.
    """

    def __init__(self, backend: Routing, fabric: Fabric, *, last: Callable[[str], bool] = lambda _: False) -> None:
        self._backend = backend
        self._fabric = fabric
        self._source = fabric.source
        self._fib = model_of(backend)
        self._by_source = any(rule.source[1] for rule in self.rules())
        #: The networks that will be connected, with the present devices in them.
        self._networks: dict[_Network, list[str]] = {}
        #: The networks that bring new routes.
        self._brought: dict[_Identity, _Network] = {}
        before = set(map(_identity, self._fib.tables))
        for name, local in sorted(self._device_addresses(), key=lambda pair: last(pair[0])):
            # An address of a VRF brings routes to the table of that VRF alone.
            if vrf_of(name, self._fib.devices) is None:
                self._connect(name, DeviceAddress(local, _LENGTH, local))
        for cidr in fabric.networks:
            self._connect_network(cidr)
        for identity in before & self._brought.keys():
            del self._brought[identity]

    def _device_addresses(self) -> Iterator[tuple[str, int]]:
        """Yield each device with an address that it will get: all devices with one hardware address get the same."""
        present: dict[str | None, list[str]] = defaultdict(list)
        for device in self._backend.links():
            present[agent_mac(device.name, device.mac) if device.mac else None].append(device.name)
        for mac, local in self._fabric.addresses:
            for name in present.get(mac) or [_ABSENT + mac]:
                yield name, local

    @property
    def brings_nothing(self) -> bool:
        """True if the agent has acted: the node has every announced route now."""
        return not self._brought

    def with_last(self, last: Callable[[str], bool]) -> Assumed:
        """Return the same routing, but with these devices last."""
        orders = [last(name) for name, _ in self._device_addresses()]
        return self if orders == sorted(orders) else Assumed(self._backend, self._fabric, last=last)

    def _connect(self, name: str, new: DeviceAddress) -> None:
        device = self._fib.devices.get(name)
        was_down = device is not None and not device.up
        self._fib = _with_address(_with_device_up(self._fib, name), name, new)
        device = self._fib.devices[name]
        for address in device.addresses:
            # A device that is set up now connects the networks of its other addresses, too.
            if was_down or _is_same(address, new):
                network = address.peer & netmask(address.prefix_length), address.prefix_length
                self._note(network, events.own_routes(self._fib, device, address), by=name)

    def _connect_network(self, cidr: str) -> None:
        name, network = _ABSENT + cidr, parse_cidr(cidr)
        self._fib = _with_device_up(self._fib, name)
        number, length = network
        # Its own address is not known, and a packet without a source gets one of another device's. With none, a network
        # of one address is connected, too.
        own = events.own_routes(self._fib, self._fib.devices[name], DeviceAddress(0, length, number))
        routes = [route._replace(source=None) for route in own[1:]]
        for route in routes:
            self._fib = events.with_route(self._fib, route)
        self._note(network, routes, by=name)

    def _note(self, network: _Network, routes: Iterable[ObservedRoute], *, by: str) -> None:
        devs = self._networks.setdefault(network, [])
        if is_present(by) and by not in devs:
            devs.append(by)
        for route in routes:
            self._brought.setdefault(_identity(route), network)

    def links(self) -> list[Device]:
        """See `Routing.links`; without the devices that are not there yet."""
        return [device for device in self._fib.links() if is_present(device.name)]

    def routes(self) -> list[ObservedRoute]:
        """See `Routing.routes`."""
        return self._fib.routes()

    def rules(self) -> list[Rule]:
        """See `Routing.rules`."""
        return self._fib.rules()

    def lookup(
        self, destinations: Sequence[int], *, sources: Sequence[int | None] | None = None, resolve: bool = False
    ) -> list[Lookup]:
        """See `Routing.lookup`."""
        answers = self._backend.lookup(destinations, sources=sources, resolve=resolve)
        for index, now in enumerate(answers):
            if self._by_source or self._network_around(now.destination):
                answers[index] = self._then(now, sources[index] if sources else None, resolve=resolve)
        return answers

    def announcement(self, route: ObservedRoute) -> Announcement | None:
        """Return the announcement that brings a route; None if the node has the route now."""
        network = self._brought.get(_identity(route))
        return network and Announcement(format_cidr(*network), tuple(self._networks[network]), self._source)

    def _network_around(self, address: int) -> _Network | None:
        around = [one for one in self._networks if not (address ^ one[0]) & netmask(one[1])]
        return max(around, key=itemgetter(1), default=None)

    def _then(self, now: Lookup, source: int | None, *, resolve: bool) -> Lookup:
        try:
            return self._fib.lookup([now.destination], sources=[source], resolve=resolve)[0]
        except UnknownDecisionError:
            network = self._network_around(now.destination)
            if network is None or self._stands(now, network):
                return now
            connected = self._fib.tables.bucket((MAIN_TABLE, *network))
            new = next((route for route in connected if _identity(route) in self._brought), None)
            return Lookup(now.destination, new) if new else now

    def _stands(self, now: Lookup, network: _Network) -> bool:
        """Return True if the kernel's present answer certainly stays; asked where the model does not know."""
        route = now.route
        if route is None:
            return now.errno != errno.ENETUNREACH
        if route.table == MAIN_TABLE:
            return route.kind == "local" or (-route.prefix_length, route.metric) <= (-network[1], 0)
        first = next((rule.table for rule in self.rules() if rule.table in {MAIN_TABLE, route.table}), MAIN_TABLE)
        return first == route.table


def model_of(backend: Routing) -> Fib:
    """Return the model of a node; an answer tells if the kernel keeps the local and the main table as one."""
    routes = backend.routes()
    fib = Fib.of(backend.links(), routes, backend.rules())
    own = next((route.network for route in routes if route.table == LOCAL_TABLE and route.kind == "local"), None)
    if fib.merged is not None or own is None:
        return fib
    route = backend.lookup([own])[0].route
    return attrs.evolve(fib, merged=route is not None and route.table == MAIN_TABLE)


def is_present(dev: str) -> bool:
    """Return True if the name is that of a device, and not of an announced one that is not there yet."""
    return not dev.startswith(_ABSENT)


def _identity(route: ObservedRoute) -> _Identity:
    # Without the table: the kernel gives local routes the name of main until a rule is added.
    return (*route[:2], route.kind, route.dev, route.source, route.protocol, route.metric)


def _is_same(first: DeviceAddress, second: DeviceAddress) -> bool:
    return first.local == second.local and events.same_subnet(first, second)


def _with_device_up(fib: Fib, name: str) -> Fib:
    device = fib.devices.get(name)
    if device is None:
        return events.with_device(fib, Device(name, _next_index(fib), up=True))
    if not device.up:
        fib = events.device_up(fib, name, carrier=True)
        for address in device.addresses:
            fib = events.with_own_routes(fib, name, address)
    return fib


def _with_address(fib: Fib, name: str, new: DeviceAddress) -> Fib:
    """Return the model with an address; the agent goes on if the device has it already."""
    own = fib.devices[name].addresses
    return fib if any(_is_same(other, new) for other in own) else events.address_added(fib, name, new)


def _next_index(fib: Fib) -> int:
    return max(device.ifindex for device in fib.devices.values()) + 1
