"""The routes that an announced fabric will bring, and the current answers that they may change.

The cloud's agent adds the addresses of the fabric after the boot. Each address adds its network to
table main, without a metric, and itself and its broadcast address to table local; no other table
changes. So an address in an announced network is safe if its route in main is more specific than
the network, or equal and without a metric (because the new route is added after it), and if it is
not one of the addresses that will be new in table local. Any other address of the network counts as
lost. So nothing is missed, but on a node with unusual rules there may be false findings:
docs/decisions/fabric.md names these rules.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.net.addresses import IPV4, Prefix, netmask, parse_cidr
from hostrouting.net.links import Device, is_inside
from hostrouting.net.routes import (
    FLAG_DEAD,
    FLAG_LINKDOWN,
    KERNEL_PROTOCOL,
    LOCAL_TABLE,
    MAIN_TABLE,
    SCOPE_HOST,
    SCOPE_LINK,
    Lookup,
    ObservedRoute,
)
from hostrouting.route_overlap.fabric import FABRIC, Fabric, agent_mac

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from hostrouting.net.rules import Rule

#: The prefix length that the agent gives to each address.
_LENGTH = 16
_TO_ALL = 0xFFFFFFFF
#: A network and its prefix length.
_Network: TypeAlias = tuple[int, int]


class Announced:
    """The routes that an announced fabric will add; none if its devices may carry everything."""

    def __init__(
        self,
        devices: Sequence[Device],
        routes: Sequence[ObservedRoute],
        rules: Sequence[Rule],
        fabric: Fabric,
        may_carry: Callable[[str], bool],
    ) -> None:
        present = _Present.of(routes)
        # A dead route through a device that may carry traffic is fine when it comes back.
        returning = [route for route in present.dead if not may_carry(route.dev or "")]
        firsts = _before_all_alive(returning, routes) if returning else ()
        by_mac = _by_mac(devices)
        coming = [*_coming(devices, by_mac, fabric, returning, firsts)]
        networks = _new_networks(coming, present)
        members = [by_mac.get(pair.mac, []) for pair in fabric.addresses]
        names = [device.name for device in chain.from_iterable(members)]
        self._source = fabric.source
        # No rule that selects by `from` can precede this one, so table local decides first.
        self._local_first = bool(rules) and (rules[0].priority, rules[0].table) == (0, LOCAL_TABLE)
        #: The networks whose routes precede even equal routes without a metric.
        self._first = {each.network for each in coming if each.is_first and each.is_network}
        #: One of the networks if a rule may select by an address in it: that cannot be looked up
        #: yet.
        self._by_source = next(
            (each for each in networks if any(_may_select(rule, each) for rule in rules)), None
        )
        #: The addresses that table local will get, each with its network.
        self._own = _new_addresses(coming, present)
        names += [each.dev for each in coming if each.dev]
        is_known = all(members) and not fabric.networks and not self._by_source
        if is_known and all(map(may_carry, names)):
            # No address will be misrouted.
            networks = []
            self._own = {}
        self.routes: list[ObservedRoute] = _routes_to(networks, self._own)
        self._by_prefix = {(route.table, *route[:2]): route for route in self.routes}
        lengths = sorted({length for _, length in networks}, reverse=True)
        self._masks = [(length, netmask(length)) for length in lengths]

    def announcement(self, route: ObservedRoute | None) -> tuple[str, str] | None:
        """Return the network that brings a route, and its source; None for other routes."""
        if route is None or self._by_prefix.get((route.table, *route[:2])) is not route:
            return None
        network = self._own[route.network] if route.table == LOCAL_TABLE else route[:2]
        return str(Prefix(IPV4, *network)), self._source

    def taker(self, plain: Lookup, sourced: Iterable[Lookup]) -> ObservedRoute | None:
        """Return a new route that may attract an address, or None.

        `sourced` are the answers with the sources that the kernel may choose after the plain one.
        """
        route = plain.route
        if route is None:
            # It is a finding already.
            return None
        new = None
        for length, mask in self._masks:
            if new := self._by_prefix.get((MAIN_TABLE, plain.destination & mask, length)):
                break
        if own := self._by_prefix.get((LOCAL_TABLE, plain.destination, 32)):
            return own
        if self._by_source and route.kind != "local" and route.source is None:
            # The kernel may choose another source by then.
            selectable = (MAIN_TABLE, *self._by_source)
            return new or self._by_prefix[selectable]
        if new is None:
            return None
        for now in (lookup.route for lookup in (plain, *sourced)):
            if now is None or (now.table == LOCAL_TABLE and self._local_first):
                continue
            if now.table != MAIN_TABLE or not self._stays_before(now, new):
                return new
        return None

    def _stays_before(self, now: ObservedRoute, new: ObservedRoute) -> bool:
        """Return True if a route in main still decides after a new one was added."""
        if now.prefix_length != new.prefix_length:
            return now.prefix_length > new.prefix_length
        return now.metric == 0 and new[:2] not in self._first


class _Present(NamedTuple):
    """The routes that the kernel made for the current addresses."""

    #: The networks in table main without a metric: the kernel adds an equal route after these.
    networks: set[_Network]
    #: The own and broadcast addresses in table local.
    addresses: set[int]
    #: True before Linux 5.14, where the first address of a network is also a broadcast address, as
    #: 127.0.0.0 shows.
    has_first: bool
    #: The routes of networks and broadcast addresses that wait for the carrier of their device.
    dead: list[ObservedRoute]

    @classmethod
    def of(cls, routes: Iterable[ObservedRoute]) -> _Present:
        """Return what these routes contain."""
        # By position, which is faster than by name: this line reads every route of a full table.
        near = [route for route in routes if route[6] == KERNEL_PROTOCOL or route[5] == LOCAL_TABLE]
        alive = [
            route for route in near if not (route.metric or route.tos or route.flags & FLAG_DEAD)
        ]
        connected = [
            route
            for route in alive
            if route.table == MAIN_TABLE and not route.flags & FLAG_LINKDOWN
        ]
        own = filter(_is_address, alive)
        dead = [route for route in near if route.flags & FLAG_DEAD]
        return cls(
            networks={route[:2] for route in connected},
            addresses={route.network for route in own},
            has_first=any(map(_is_first_of_loopback, near)),
            dead=[*filter(_is_connected, dead)],
        )


def _is_address(route: ObservedRoute) -> bool:
    """Return True for one of the node's addresses, or the broadcast address of a network."""
    is_one = route.table == LOCAL_TABLE and route.prefix_length == 32
    return is_one and route.kind in {"local", "broadcast"}


def _is_first_of_loopback(route: ObservedRoute) -> bool:
    """Return True for the broadcast address 127.0.0.0."""
    return route.network == 127 << 24 and route.kind == "broadcast" and _is_address(route)


def _is_connected(route: ObservedRoute) -> bool:
    """Return True for a network or broadcast address that the kernel added for an address."""
    if route.protocol != KERNEL_PROTOCOL:
        return False
    if route.table == MAIN_TABLE:
        return route.kind == "unicast"
    return route.table == LOCAL_TABLE and route.kind == "broadcast"


class _Coming(NamedTuple):
    """A network that the kernel will connect, and the addresses that come with it."""

    network: _Network
    addresses: tuple[int, ...] = ()
    #: The device that connects it, if neither the pool nor the config names it.
    dev: str | None = None
    #: True if its route exists, is dead, and precedes all equal routes that are not dead.
    is_first: bool = False
    #: False for a broadcast address, whose network is added separately.
    is_network: bool = True


def _before_all_alive(
    dead: Iterable[ObservedRoute], routes: Iterable[ObservedRoute]
) -> list[ObservedRoute]:
    """Return the dead routes that precede all working routes to the same network."""
    keys = {(route.table, *route[:2]) for route in dead}
    order: dict[tuple[int, ...], ObservedRoute] = {}
    for route in routes:
        key = route.table, *route[:2]
        if key in keys and not route.tos:
            order.setdefault(key, route)
    return [route for route in order.values() if route.flags & FLAG_DEAD]


def _coming(
    devices: Sequence[Device],
    by_mac: Mapping[str | None, Sequence[Device]],
    fabric: Fabric,
    dead: Iterable[ObservedRoute],
    firsts: Collection[ObservedRoute],
) -> Iterator[_Coming]:
    """Yield the networks that the kernel will connect.

    `dead` are its own routes without a carrier; of these, `firsts` precede all equal routes.
    """
    coming = [_Coming(parse_cidr(cidr)) for cidr in fabric.networks]
    # The agent sets devices up, and the devices on top of them follow. The same happens to devices
    # with an address in a network of the config.
    started = {device.name for device in devices} if fabric.addresses else _inside(fabric, devices)
    for device in devices:
        if device.name in started and not device.up:
            coming += _networks_of(device)
    for route in dead:
        # It comes back with the carrier, which an InfiniBand port gets from its fabric.
        if route.dev in started:
            is_broadcast = route.kind == "broadcast"
            own = (route.network,) if is_broadcast else ()
            is_first = route in firsts
            coming.append(_Coming(route[:2], own, route.dev, is_first, not is_broadcast))
    for mac, address in fabric.addresses:
        named = by_mac.get(mac, [])
        # The kernel refuses an address that the device already has.
        if not named or not all(_has(device, address) for device in named):
            coming.append(_Coming((address & netmask(_LENGTH), _LENGTH), (address,)))
    for each in coming:
        # The kernel connects no network in 0.0.0.0/8.
        if each.network[0] >> 24:
            yield each


def _by_mac(devices: Iterable[Device]) -> dict[str | None, list[Device]]:
    """Return the devices by their hardware addresses as the pool writes them."""
    by_mac: dict[str | None, list[Device]] = {}
    for device in devices:
        by_mac.setdefault(agent_mac(device.name, device.mac), []).append(device)
    return by_mac


def _new_networks(coming: Iterable[_Coming], present: _Present) -> list[_Network]:
    """Return the coming networks that have no route yet, or whose routes will come first."""
    new = [
        each.network
        for each in coming
        if each.is_network and (each.is_first or each.network not in present.networks)
    ]
    return [*dict.fromkeys(new)]


def _new_addresses(coming: Iterable[_Coming], present: _Present) -> dict[int, _Network]:
    """Return the addresses that table local will get, each with the network that brings it."""
    new: dict[int, _Network] = {}
    for each in coming:
        returning = each.addresses if each.is_first else ()
        for address in (*_broadcasts(each.network, present), *each.addresses):
            if address not in present.addresses or address in returning:
                new.setdefault(address, each.network)
    return new


def _broadcasts(network: _Network, present: _Present) -> tuple[int, ...]:
    """Return the broadcast addresses that the kernel makes for a network."""
    first, length = network
    if length > 30:
        return ()
    last = first | ~netmask(length) & 0xFFFFFFFF
    return (last, first) if present.has_first else (last,)


def _routes_to(networks: Iterable[_Network], addresses: Iterable[int]) -> list[ObservedRoute]:
    """Return the routes through the fabric as the kernel will add them."""
    connected = ObservedRoute(0, 0, dev=FABRIC, protocol=KERNEL_PROTOCOL, scope=SCOPE_LINK)
    own = connected._replace(prefix_length=32, kind="local", table=LOCAL_TABLE, scope=SCOPE_HOST)
    return [
        *(connected._replace(network=first, prefix_length=length) for first, length in networks),
        *(own._replace(network=address) for address in addresses),
    ]


def _inside(fabric: Fabric, devices: Iterable[Device]) -> set[str]:
    """Return the devices that have an address in a network of the config."""
    networks = [*map(Prefix.parse, fabric.networks)]
    return {device.name for device in devices if is_inside(device, networks)}


def _networks_of(device: Device) -> Iterator[_Coming]:
    """Yield the networks that are connected when a device that is down comes up."""
    for own in device.addresses:
        if own.family != IPV4:
            continue
        broadcasts: tuple[int, ...] = ()
        if own.broadcast is not None and own.broadcast != _TO_ALL:
            broadcasts = (own.broadcast,)
        if own.prefix_length < 32 or own.peer != own.local:
            network = own.peer & netmask(own.prefix_length), own.prefix_length
            yield _Coming(network, broadcasts, device.name)
            continue
        for broadcast in broadcasts:
            yield _Coming((broadcast, 32), broadcasts, device.name)


def _has(device: Device, address: int) -> bool:
    """Return True if a device has the address and network that the agent would add."""
    mask = netmask(_LENGTH)
    return device.up and any(
        (own.local, own.prefix_length) == (address, _LENGTH) and not (own.peer ^ address) & mask
        for own in device.addresses
    )


def _may_select(rule: Rule, network: _Network) -> bool:
    """Return True if a rule may select packets by an address in a network as their source."""
    source, length = rule.source
    overlaps = not (source ^ network[0]) & netmask(min(length, network[1]))
    return bool(length) and (rule.inverted or overlaps)
