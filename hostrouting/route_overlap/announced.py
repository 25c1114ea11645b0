"""The routes that an announced fabric will bring, and the answers of today that they may change.

The cloud's agent adds the addresses of the fabric after the boot. Each brings its network to table
main, without a metric, and itself and its broadcast address to table local; no other table changes.
So an address in an announced network is safe if its route in main is longer than the network, or
equal and without a metric, because the new route is added after it; and if it is not one of the
addresses that table local lacks. Any other address of the network counts as lost. So nothing is
missed, and on a node with unusual rules too much may be found: docs/decisions/fabric.md names these
rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.net.addresses import IPV4, Prefix, netmask, parse_cidr
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
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.net.links import Device
    from hostrouting.net.rules import Rule

#: The prefix length that the agent gives to each address.
_LENGTH = 16
_TO_ALL = 0xFFFFFFFF
#: A network and its prefix length.
_Network: TypeAlias = tuple[int, int]


class Announcement(NamedTuple):
    """A network that will be connected, and the source of that knowledge."""

    network: str
    source: str


class Announced:
    """The routes that an announced fabric will add to a node; none if its devices may carry all."""

    def __init__(
        self,
        devices: Sequence[Device],
        routes: Sequence[ObservedRoute],
        rules: Sequence[Rule],
        fabric: Fabric,
        may_carry: Callable[[str], bool],
    ) -> None:
        self._source = fabric.source
        # A rule that selects by `from` cannot be moved before it, so table local decides first.
        self._local_first = bool(rules) and (rules[0].priority, rules[0].table) == (0, LOCAL_TABLE)
        # By position, which is faster than by name: this line reads every route of a full table.
        near = [route for route in routes if route[6] == KERNEL_PROTOCOL or route[5] == LOCAL_TABLE]
        connected = {
            route[:2]
            for route in near
            if route.table == MAIN_TABLE
            and not (route.metric or route.tos or route.flags & (FLAG_DEAD | FLAG_LINKDOWN))
        }
        local = [
            route for route in near if route.table == LOCAL_TABLE and route.prefix_length == 32
        ]
        present = {
            route.network
            for route in local
            if route.kind in {"local", "broadcast"}
            and not (route.metric or route.tos or route.flags & FLAG_DEAD)
        }
        # Before Linux 5.14 the first address of a network is a broadcast address, too, as that of
        # 127.0.0.0/8 shows.
        with_first = any(
            route.kind == "broadcast" and route.network == 127 << 24 for route in local
        )
        #: The networks of the addresses that come to table local.
        self._own: dict[int, _Network] = {}
        new: dict[_Network, None] = {}
        others: set[str] = set()
        #: The networks that precede equal ones without a metric, too.
        self._first: set[_Network] = set()
        # One that is dead by a device that may carry comes back as right as it was.
        dead = [
            route
            for route in near
            if route.flags & FLAG_DEAD and _is_connected(route) and not may_carry(route.dev or "")
        ]
        firsts = _before_all_alive(dead, routes) if dead else ()
        for network, addresses, dev, back in _coming(devices, fabric, dead):
            is_first = back in firsts
            if dev:
                others.add(dev)
            first, length = network
            last = first | ~netmask(length) & 0xFFFFFFFF
            ends = () if length > 30 else (last, first) if with_first else (last,)
            for own in (*ends, *addresses):
                if own not in present or (is_first and own in addresses):
                    self._own.setdefault(own, network)
            if back and back.table == LOCAL_TABLE:
                continue
            if is_first:
                self._first.add(network)
            if network not in connected or is_first:
                new[network] = None
        #: One of the networks, if a rule may select by an address in it, which cannot be looked up
        #: yet.
        selectable = (
            network for network in new if any(_may_select(rule, network) for rule in rules)
        )
        self._by_source = next(((MAIN_TABLE, *network) for network in selectable), None)
        macs = [
            (device.name, agent_mac(device.name, device.mac)) for device in devices if device.mac
        ]
        named = {
            pair.mac: [name for name, mac in macs if mac == pair.mac] for pair in fabric.addresses
        }
        #: The devices of the fabric that are present, whether they have their address or not.
        self.members: set[str] = {name for names in named.values() for name in names}
        self.members |= _inside(fabric, devices)
        is_carried = all(names and all(map(may_carry, names)) for names in named.values())
        is_carried = is_carried and all(map(may_carry, others))
        if is_carried and not fabric.networks and not self._by_source:
            new, self._own = {}, {}
        route = ObservedRoute(0, 0, dev=FABRIC, protocol=KERNEL_PROTOCOL, scope=SCOPE_LINK)
        own = route._replace(prefix_length=32, kind="local", table=LOCAL_TABLE, scope=SCOPE_HOST)
        self.routes: list[ObservedRoute] = [
            route._replace(network=first, prefix_length=length) for first, length in new
        ]
        self.routes += [own._replace(network=address) for address in self._own]
        self._by_prefix = {(route.table, *route[:2]): route for route in self.routes}
        lengths = sorted({length for _, length in new}, reverse=True)
        self._masks = [(length, netmask(length)) for length in lengths]

    def announcement(self, route: ObservedRoute | None) -> Announcement | None:
        """Return the announcement that brings a route; None for any other route."""
        if route is None or self._by_prefix.get((route.table, *route[:2])) is not route:
            return None
        network = self._own[route.network] if route.table == LOCAL_TABLE else route[:2]
        return Announcement(str(Prefix(IPV4, *network)), self._source)

    def taker(self, plain: Lookup, sourced: Iterable[Lookup]) -> ObservedRoute | None:
        """Return a new route that may take an address from today's answers; None if it cannot.

        `sourced` are the answers with the sources from which the kernel sends after the plain one.
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
            return new or self._by_prefix[self._by_source]
        if new is None:
            return None
        for now in (lookup.route for lookup in (plain, *sourced)):
            if now is None or (now.table == LOCAL_TABLE and self._local_first):
                continue
            is_first = (new.network, new.prefix_length) in self._first
            is_earlier = (-now.prefix_length, now.metric) <= (-new.prefix_length, -is_first)
            if now.table != MAIN_TABLE or not is_earlier:
                return new
        return None


def _is_connected(route: ObservedRoute) -> bool:
    """Return True for a network or a broadcast address that the kernel has by an address."""
    kind, table = route.kind, route.table
    return route.protocol == KERNEL_PROTOCOL and (
        (kind, table) in {("unicast", MAIN_TABLE), ("broadcast", LOCAL_TABLE)}
    )


class _Coming(NamedTuple):
    """A network that the kernel will connect, and the addresses that come with it."""

    network: _Network
    addresses: tuple[int, ...] = ()
    #: The device that connects it, if it is neither in the pool nor in the config.
    dev: str | None = None
    #: The route that is there already, and dead.
    route: ObservedRoute | None = None


def _before_all_alive(
    dead: Iterable[ObservedRoute], routes: Iterable[ObservedRoute]
) -> list[ObservedRoute]:
    """Return the dead routes that precede each route to the same network which is alive."""
    places = {(route.table, *route[:2]) for route in dead}
    order: dict[tuple[int, ...], ObservedRoute] = {}
    for route in routes:
        place = route.table, *route[:2]
        if place in places and not route.tos:
            order.setdefault(place, route)
    return [route for route in order.values() if route.flags & FLAG_DEAD]


def _coming(
    devices: Sequence[Device], fabric: Fabric, dead: Iterable[ObservedRoute]
) -> Iterator[_Coming]:
    """Yield what the kernel will connect; `dead` are routes of its own, without carrier."""
    coming = [_Coming(parse_cidr(cidr)) for cidr in fabric.networks]
    # The agent sets devices up, and those above them follow; so does whatever connects a network of
    # the config, on the devices that have an address there.
    started = {device.name for device in devices} if fabric.addresses else _inside(fabric, devices)
    for device in devices:
        if device.name in started and not device.up:
            coming += _networks_of(device)
    for route in dead:
        # It comes back with the carrier, which a port of InfiniBand gets from its fabric.
        if route.dev in started:
            own = (route.network,) if route.kind == "broadcast" else ()
            coming.append(_Coming(route[:2], own, route.dev, route))
    for mac, address in fabric.addresses:
        named = [device for device in devices if agent_mac(device.name, device.mac) == mac]
        # The kernel refuses an address that the device has.
        if not named or not all(_has(device, address) for device in named):
            coming.append(_Coming((address & netmask(_LENGTH), _LENGTH), (address,)))
    # It connects none of 0.0.0.0/8.
    yield from (each for each in coming if each.network[0] >> 24)


def _inside(fabric: Fabric, devices: Iterable[Device]) -> set[str]:
    """Return the devices that have an address in a network of the config."""
    networks = [*map(Prefix.parse, fabric.networks)]
    return {
        device.name
        for device in devices
        for own in device.addresses
        if any(prefix.covers(own.address) for prefix in networks)
    }


def _networks_of(device: Device) -> Iterator[_Coming]:
    """Yield what the kernel connects when it sets a device up that is down."""
    for own in device.addresses:
        if own.family != IPV4:
            continue
        brd = own.broadcast if own.broadcast not in {None, _TO_ALL} else None
        if own.prefix_length < 32 or own.peer != own.local:
            network = own.peer & netmask(own.prefix_length), own.prefix_length
            yield _Coming(network, () if brd is None else (brd,), device.name)
        elif brd is not None:
            yield _Coming((brd, 32), (brd,), device.name)


def _has(device: Device, address: int) -> bool:
    """Return True if a device has an address with the network that the agent would give it."""
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
