"""A link layer in memory: a `LinkLayer` to arrange, to look into, and to break."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.host.netlink.batches import Places, commit_links
from hostrouting.host.netlink.commit import Failure
from hostrouting.host.netlink.probes import pack_address
from hostrouting.net.addresses import IPV6, Address, Prefix, parse_address
from hostrouting.net.events import DeviceEvent, NeighbourEvent
from hostrouting.net.links import Device, DeviceAddress, Neighbour, Station, neighbour_order
from hostrouting.net.routes import MAIN_TABLE, NextHop, ObservedRoute, route_order
from hostrouting.testing.faults import Faulty, OneByOne, Operations, Refused
from hostrouting.testing.memory_events import MemoryEvents, new_indexes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host.netlink.commit import LinkThing
    from hostrouting.host.ports import LinkAddress
    from phases import Context

#: RTPROT_KERNEL: the owner of a connected route.
_KERNEL: Final = 2
_LINK_LOCAL: Final = Prefix.parse("fe80::/10")


class MemoryLinkLayer(Faulty):
    """The devices of a node, the stations on their links, and the node's IPv6.

    By default, `fail_at` says that privilege is missing. In a `FakeHost` it shares `events` and `indexes` with the
    routes of the host.

    >>> layer = MemoryLinkLayer()
    >>> layer.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
    >>> layer.add_neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc")
    >>> layer.apply(remove=layer.neighbours())
    >>> layer.neighbours(), layer.leaves_by("fd00:1::9")
    ([], ('azure0',))
    """

    def __init__(self, *, events: MemoryEvents | None = None, indexes: dict[str, int] | None = None) -> None:
        super().__init__(Refused(errno.EPERM).of("rtnetlink"))
        self.events: MemoryEvents = events or MemoryEvents()
        self._indexes = new_indexes() if indexes is None else indexes
        #: The (device, address) pairs that answer, while the device exists and is up.
        self.alive: set[LinkAddress] = set()
        #: The (device, IPv4 address) pairs from which the kernel gets no answer, though the device has carrier.
        self.mute: set[LinkAddress] = set()
        #: True if the process has the privilege to ask on the link.
        self.may_probe = True
        #: The seconds since an IPv6 address was added to each device that has one.
        self.ages: dict[str, float] = {}
        #: The names of the BPF programs on each device.
        self.programs: dict[str, tuple[str, ...]] = {}
        self._devices: dict[str, Device] = {}
        #: By bridge and hardware address: an address is at one port only.
        self._stations: dict[tuple[str, str], Station] = {}
        #: The neighbours and routes.
        self._places = Places(())
        #: The steps of batches, those of rollbacks counted in.
        self.steps: Operations = Operations()
        self.add_device("lo", addresses=["127.0.0.1/8", "::1/128"])

    def add_device(
        self,
        name: str,
        *,
        mac: str = "",
        kind: str = "",
        master: str | None = None,
        addresses: Sequence[str] = (),
        up: bool = True,
        carrier: bool = True,
    ) -> None:
        """A new device; its IPv6 addresses bring their connected routes along if it is up.

        One that is down has no carrier, whatever is asked for.
        """
        if name in self._devices:
            raise Refused(errno.EEXIST).of(f"add device {name}")
        if master is not None and master not in self._devices:
            raise Refused(errno.ENODEV).of(f"add device {name} to {master}")
        wire, index = up and carrier, self._indexes[name]
        device = Device(name, index, up, mac.lower(), kind, master, carrier=wire, loopback=name == "lo")
        self._devices[name] = device
        self.events.announce(DeviceEvent("set", device))
        for address in addresses:
            self.add_address(name, address)

    def add_pod(self, dev: str, *addresses: str, master: str | None = None, up: bool = True) -> None:
        """A veth whose other end is a pod that has these addresses, and answers for them."""
        self.add_device(dev, kind="veth", master=master, up=up)
        self.alive.update((dev, address) for address in addresses)

    def silence(self, dev: str, address: str) -> None:
        """No station on the link has the IPv4 address."""
        self.mute.add((dev, address))

    def add_address(self, dev: str, address: str) -> None:
        """`ip address add`, usable at once; one of IPv6 brings its connected route if the device is up."""
        device, new = self._devices[dev], DeviceAddress.parse(address)
        self._devices[dev] = device._replace(addresses=(*device.addresses, new))
        if new.family == IPV6:
            self.ages[dev] = 0.0
            if device.up and not device.loopback:
                self._insist(_connected(dev, address))

    def remove_address(self, dev: str, address: str) -> None:
        """`ip address delete`, with the connected route; the device has no age until it gets another one."""
        device, gone = self._devices[dev], DeviceAddress.parse(address)
        self._devices[dev] = device._replace(addresses=tuple(own for own in device.addresses if own != gone))
        self.ages.pop(dev, None)
        self._places = Places(thing for thing in self._places if thing != _connected(dev, address))

    def remove_device(self, name: str) -> None:
        """The device goes, and its neighbours, routes and stations with it."""
        device = self._devices.pop(name)
        self._indexes.pop(name, None)
        for thing in self._places:
            if thing.dev == name:
                self._announce("remove", thing)
        self.events.announce(DeviceEvent("remove", device._replace(addresses=())))
        self._places = Places(thing for thing in self._places if thing.dev != name)
        self._stations = {key: one for key, one in self._stations.items() if name not in {key[0], one.dev}}

    def add_neighbour(
        self, address: str, dev: str, mac: str, *, permanent: bool = True, flags: int = 0, protocol: int = 0
    ) -> None:
        """`ip neigh add`; with `permanent=False` one that the kernel learned."""
        self._insist(Neighbour(address, dev, mac, permanent=permanent, flags=flags, protocol=protocol))

    def learn(self, mac: str, dev: str, *, permanent: bool = False) -> None:
        """Add the address to the bridge's table, at port `dev`; `permanent`: set by a program, not learned."""
        self._stations[self._devices[dev].master or dev, mac] = Station(mac, dev, permanent)

    def add_route(
        self,
        destination: str,
        *devs: str,
        gateway: str | None = None,
        metric: int = 1024,
        protocol: int = 3,
        table: int = MAIN_TABLE,
    ) -> None:
        """`ip -6 route add`, with a next hop by each device; without any it blocks."""
        route = ObservedRoute.parse(destination, None, gateway, metric=metric, table=table, protocol=protocol)
        match devs:
            case []:
                route = route._replace(kind="blackhole")
            case [dev]:
                route = route._replace(dev=dev)
            case _:
                route = route._replace(gateway=None, nexthops=tuple(NextHop(route.gateway, dev) for dev in devs))
        self._insist(route)

    def attach(self, dev: str, direction: str, program: str) -> None:
        """Attach a BPF program of that name for the packets `in` or `out`."""
        self.programs[dev] = (*self.programs.get(dev, ()), program)

    def refuse_at(self, step: int) -> None:
        """Refuse the `step`-th change from now (1 is the next) within `apply`, those of a rollback counted in."""
        self.steps.fail(step, Refused(errno.ENOBUFS, "injected fault"))

    def devices(self) -> list[Device]:
        """See `LinkLayer.devices`."""
        self.operations.record("devices")
        return sorted(self._devices.values(), key=lambda device: device.ifindex)

    def newest_address(self, dev: str) -> float | None:
        """See `LinkLayer.newest_address`."""
        self.operations.record("newest_address", dev)
        return self.ages.get(dev)

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """See `LinkLayer.classifiers`."""
        self.operations.record("classifiers", dev)
        return tuple(sorted(set(self.programs.get(dev, ()))))

    def neighbours(self) -> list[Neighbour]:
        """See `LinkLayer.neighbours`."""
        self.operations.record("neighbours")
        return sorted((thing for thing in self._places if isinstance(thing, Neighbour)), key=neighbour_order)

    def stations(self, bridge: str) -> list[Station]:
        """See `LinkLayer.stations`."""
        self.operations.record("stations", bridge)
        return sorted(station for (name, _), station in self._stations.items() if name == bridge)

    def answering(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """See `LinkLayer.answering`; it never waits."""
        self._begin(ctx, "answering", *(f"{address} dev {dev}" for dev, address in asked))
        places = {(dev, address): (dev, pack_address(address)) for dev, address in asked}
        if places and not self.may_probe:
            raise PermissionDeniedError(
                "asking for addresses on the link needs root or CAP_NET_RAW; nothing was asked", errno=errno.EPERM
            )
        up = {name for name, device in self._devices.items() if device.carrier}
        alive = {(dev, pack_address(address)) for dev, address in self.alive if dev in up}
        return frozenset(pair for pair, place in places.items() if place in alive)

    def silent(self, ctx: Context, asked: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """See `LinkLayer.silent`; it never waits."""
        self._begin(ctx, "silent", *(f"{address} dev {dev}" for dev, address in asked))
        known = {(thing.dev, thing.address) for thing in self._places if isinstance(thing, Neighbour)}
        wired = {name for name, device in self._devices.items() if device.carrier}
        return frozenset(pair for pair in asked if pair in self.mute - known and pair[0] in wired)

    def routes(self) -> list[ObservedRoute]:
        """See `LinkLayer.routes`."""
        self.operations.record("routes")
        return self._routes()

    def leaves_by(self, address: str) -> tuple[str, ...]:
        """See `LinkLayer.leaves_by`; there are no policy rules."""
        self.operations.record("leaves_by", address)
        wanted = parse_address(address)
        if wanted is None or wanted.family != IPV6:
            raise BackendError(f"{address!r} is not an IPv6 address", errno=errno.EINVAL)
        for device in self._devices.values():
            if wanted in [own.address for own in device.addresses]:
                return (device.name,)
        fitting = [
            route
            for route in self._routes()
            if route.table == MAIN_TABLE and Prefix.parse(route.destination).covers(wanted)
        ]
        route = max(fitting, key=lambda route: route.prefix_length, default=None)
        return () if route is None else tuple(sorted(route.devs))

    def apply(self, *, remove: Sequence[LinkThing] = (), add: Sequence[LinkThing] = ()) -> None:
        """See `LinkLayer.apply`."""
        changes = [f"- {thing}" for thing in remove] + [f"+ {thing}" for thing in add]
        self.operations.record("apply", *changes)
        transport = OneByOne(self.steps, self.take, lambda: self._places)
        commit_links(transport, remove=remove, add=add, devices=self._devices.keys())

    def take(self, verb: str, thing: LinkThing) -> None:
        """Make one change, or raise `Refused`."""
        if thing.dev is not None and thing.dev not in self._devices:
            raise Refused(errno.ENODEV)
        if verb != "remove" and isinstance(thing, ObservedRoute) and thing.dev is not None:
            self._check_reachable(thing.gateway, self._devices[thing.dev])
        answer = self._places.remove(thing) if verb == "remove" else self._places.add(thing)
        if isinstance(answer, Failure):
            raise Refused(answer.errno)
        self._announce(verb, thing)

    def _announce(self, verb: str, thing: LinkThing) -> None:
        if isinstance(thing, Neighbour) and ":" not in thing.address:
            self.events.announce(NeighbourEvent("remove" if verb == "remove" else "set", thing))

    def _insist(self, thing: LinkThing) -> None:
        try:
            self.take("add", thing)
        except Refused as refused:
            raise refused.of(f"+ {thing}") from None

    def _check_reachable(self, gateway: Address | None, device: Device) -> None:
        if not device.up:
            raise Refused(errno.ENETDOWN)
        on_link = [
            Prefix.parse(one.destination) for one in self._routes() if not one.gateway and one.dev == device.name
        ]
        if gateway is not None and not any(network.covers(gateway) for network in (_LINK_LOCAL, *on_link)):
            raise Refused(errno.EHOSTUNREACH)

    def _routes(self) -> list[ObservedRoute]:
        return sorted((thing for thing in self._places if isinstance(thing, ObservedRoute)), key=route_order)


def _connected(dev: str, address: str) -> ObservedRoute:
    return ObservedRoute.parse(str(Prefix.parse(address).masked), dev, metric=256, protocol=_KERNEL)
