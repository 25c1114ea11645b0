"""A link layer in memory: a `LinkLayer` to arrange, to look into, and to break."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from ipaddress import IPv6Address, IPv6Network, ip_interface
from itertools import chain
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import BackendError, PermissionDeniedError
from hostrouting.host.netlink.commit import Failure, OneByOne
from hostrouting.host.netlink.places import commit_links, shares_place, slot
from hostrouting.host.netlink.probes import pack_address
from hostrouting.net.links import Device, DeviceAddress, Neighbour, Station, is_as_shown, neighbour_order
from hostrouting.net.routes import ObservedRoute, route_order
from hostrouting.testing.faults import Operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.host.netlink.commit import LinkThing
    from hostrouting.net.addresses import Address
    from phases import Context

__all__ = ["MemoryLinkLayer"]

#: RTPROT_KERNEL: the owner of a connected route.
_KERNEL: Final = 2


class MemoryLinkLayer:
    """The devices of a node and the stations on their links.

    >>> layer = MemoryLinkLayer()
    >>> layer.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16"])
    >>> layer.add_neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc")
    >>> layer.apply(remove=layer.neighbours())
    >>> layer.neighbours()
    []
    """

    def __init__(self) -> None:
        self.operations: Operations = Operations()
        #: The (device, address) pairs that answer, while the device exists and is up.
        self.alive: set[tuple[str, str]] = set()
        #: True if the process has the privilege to ask on the link.
        self.may_probe = True
        self._devices: dict[str, Device] = {}
        self._stations: list[tuple[str, Station]] = []
        #: Neighbours and routes by the slot in which the kernel would look for them.
        self._things: dict[tuple[object, ...], list[LinkThing]] = defaultdict(list)
        self._changes = 0
        self._refusals: dict[int, Failure] = {}
        self._vanishing: dict[int, str] = {}
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
            raise _refused(errno.EEXIST, f"add device {name}")
        if master is not None and master not in self._devices:
            raise _refused(errno.ENODEV, f"add device {name} to {master}")
        index = max((device.ifindex for device in self._devices.values()), default=0) + 1
        self._devices[name] = Device(
            name,
            index,
            up,
            mac.lower(),
            kind,
            master,
            tuple(map(DeviceAddress.parse, addresses)),
            carrier=up and carrier,
            loopback=name == "lo",
        )
        for address in addresses:
            network = ip_interface(address).network
            if isinstance(network, IPv6Network) and up and name != "lo":
                self._insist(ObservedRoute.parse(str(network), name, metric=256, protocol=_KERNEL))

    def add_pod(self, dev: str, *addresses: str, master: str | None = None, up: bool = True) -> None:
        """A veth whose other end is a pod that has these addresses, and answers for them."""
        self.add_device(dev, kind="veth", master=master, up=up)
        self.alive.update((dev, address) for address in addresses)

    def remove_device(self, name: str) -> None:
        """The device goes, and its neighbours, routes and stations with it; ports of a bridge are let go."""
        if self._devices.pop(name, None) is None:
            raise _refused(errno.ENODEV, f"remove device {name}")
        for here in self._things.values():
            here[:] = [thing for thing in here if thing.dev != name]
        self._stations = [(bridge, one) for bridge, one in self._stations if name not in {bridge, one.dev}]
        for device in [device for device in self._devices.values() if device.master == name]:
            self._devices[device.name] = device._replace(master=None)

    def add_neighbour(
        self, address: str, dev: str, mac: str, *, permanent: bool = True, flags: int = 0, protocol: int = 0
    ) -> None:
        """`ip neigh add`; with `permanent=False` one that the kernel learned."""
        self._insist(Neighbour(address, dev, mac, permanent=permanent, flags=flags, protocol=protocol))

    def learn(self, mac: str, dev: str, *, permanent: bool = False, vlan: int = 0) -> None:
        """Add the address to the bridge's table, at port `dev`; `permanent`: set by a program, not learned."""
        device = self._devices.get(dev)
        if device is None or (device.master is None and device.kind != "bridge"):
            raise _refused(errno.EOPNOTSUPP if device else errno.ENODEV, f"learn {mac} at {dev}")
        bridge = device.master or dev
        # An address is at one port only: it moves.
        self._stations = [
            (other, one) for other, one in self._stations if (other, one.mac, one.vlan) != (bridge, mac, vlan)
        ]
        self._stations.append((bridge, Station(mac, dev, permanent, vlan)))

    def add_route(
        self,
        destination: str,
        dev: str,
        *,
        gateway: str | None = None,
        metric: int = 1024,
        protocol: int = 3,
        table: int = 254,
    ) -> None:
        """`ip -6 route add`."""
        self._insist(ObservedRoute.parse(destination, dev, gateway, metric=metric, table=table, protocol=protocol))

    def fail_at(self, number: int, error: BaseException | None = None) -> None:
        """Let the `number`-th call of the port from now (1 is the next) fail: by default without privilege."""
        self.operations.fail(number, error or BackendError(f"rtnetlink: {os.strerror(errno.EPERM)}", errno=errno.EPERM))

    def refuse_at(self, change: int, *, number: int = errno.ENOBUFS) -> None:
        """Refuse the `change`-th change from now (1 is the next) within `apply`, those of a rollback counted in."""
        self._refusals[self._changes + change] = Failure(number, f"injected fault ({os.strerror(number)})")

    def vanish_at(self, change: int, dev: str) -> None:
        """Take the device away just before the `change`-th change from now."""
        self._vanishing[self._changes + change] = dev

    def devices(self) -> list[Device]:
        """See `LinkLayer.devices`."""
        self.operations.record("devices")
        return sorted(self._devices.values(), key=lambda device: device.ifindex)

    def neighbours(self) -> list[Neighbour]:
        """See `LinkLayer.neighbours`."""
        self.operations.record("neighbours")
        return sorted((thing for thing in self._all() if isinstance(thing, Neighbour)), key=neighbour_order)

    def stations(self, bridge: str) -> list[Station]:
        """See `LinkLayer.stations`."""
        self.operations.record("stations", bridge)
        return sorted(station for name, station in self._stations if name == bridge)

    def answering(self, ctx: Context, asked: Sequence[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """See `LinkLayer.answering`; it never waits."""
        ctx.check()
        self.operations.record("answering", *(f"{address} dev {dev}" for dev, address in asked))
        places = {(dev, address): (dev, pack_address(address)) for dev, address in asked}
        if places and not self.may_probe:
            raise PermissionDeniedError(
                "asking for addresses on the link needs root or CAP_NET_RAW; nothing was asked", errno=errno.EPERM
            )
        up = {name for name, device in self._devices.items() if device.carrier}
        alive = {(dev, pack_address(address)) for dev, address in self.alive if dev in up}
        return frozenset(pair for pair, place in places.items() if place in alive)

    def routes(self) -> list[ObservedRoute]:
        """See `LinkLayer.routes`."""
        self.operations.record("routes")
        return sorted((thing for thing in self._all() if isinstance(thing, ObservedRoute)), key=route_order)

    def apply(self, *, remove: Sequence[LinkThing] = (), add: Sequence[LinkThing] = ()) -> None:
        """See `LinkLayer.apply`."""
        changes = [f"- {thing}" for thing in remove] + [f"+ {thing}" for thing in add]
        self.operations.record("apply", *changes)
        commit_links(OneByOne(self.take, self._all), remove=remove, add=add, devices=self._devices.keys())

    def take(self, verb: str, thing: LinkThing) -> Failure | None:
        """Make one change of a batch and return the refusal, if there is one."""
        self._changes += 1
        if self._changes in self._vanishing:
            self.remove_device(self._vanishing.pop(self._changes))
        planned = self._refusals.pop(self._changes, None)
        return planned or self._change(verb, thing)

    def _insist(self, thing: LinkThing) -> None:
        failure = self._change("add", thing) if is_as_shown(thing) else _failure(errno.EINVAL)
        if failure is not None:
            raise BackendError(f"+ {thing}: {failure.reason}", errno=failure.errno)

    def _change(self, verb: str, thing: LinkThing) -> Failure | None:
        here = self._things[slot(thing)]
        if thing.dev is not None and thing.dev not in self._devices:
            return _failure(errno.ENODEV)
        if verb == "remove":
            if thing not in here:
                return _failure(errno.ENOENT if isinstance(thing, Neighbour) else errno.ESRCH)
            here.remove(thing)
            return None
        if any(shares_place(thing, other) for other in here):
            return _failure(errno.EEXIST)
        if isinstance(thing, ObservedRoute):
            if thing.dev is not None and not self._devices[thing.dev].up:
                return _failure(errno.ENETDOWN)
            if thing.gateway is not None and not self._is_reachable(thing.gateway, thing.dev):
                return _failure(errno.EHOSTUNREACH)
        here.append(thing)
        return None

    def _all(self) -> Iterator[LinkThing]:
        return chain.from_iterable(self._things.values())

    def _is_reachable(self, gateway: Address, dev: str | None) -> bool:
        address = IPv6Address(gateway.number)
        return address.is_link_local or any(
            thing.dev == dev and thing.gateway is None and address in IPv6Network(thing.destination)
            for thing in self._all()
            if isinstance(thing, ObservedRoute)
        )


def _failure(number: int) -> Failure:
    return Failure(number, os.strerror(number))


def _refused(number: int, what: str) -> BackendError:
    return BackendError(f"{what}: {os.strerror(number)}", errno=number)
