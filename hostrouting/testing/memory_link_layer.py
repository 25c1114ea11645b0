"""A link layer in memory: a `LinkLayer` to arrange, to inspect and to break."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any

from hostrouting.base.errors import PermissionDeniedError
from hostrouting.host.netlink.neighbours import (
    Verb,
    check_changes,
    refuse_impossible,
)
from hostrouting.host.netlink.probes import pack_address
from hostrouting.host.ports import LinkAddress, LinkLayer
from hostrouting.net.links import Neighbour, Station, neighbour_order
from hostrouting.testing.faults import FaultyBatches, Refused
from hostrouting.testing.memory import MemoryBackend
from phases import Context


class MemoryLinkLayer(FaultyBatches, ports=[LinkLayer]):
    """The neighbours of a node, and the stations on the links of its devices.

    By default, `fail_at` reports missing privilege. A `FakeHost` shares the node of its routes.

    >>> layer = MemoryLinkLayer()
    >>> layer.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
    >>> layer.add_neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc")
    >>> layer.change_neighbours("remove", layer.neighbours())
    >>> layer.neighbours()
    []
    """

    def __init__(self, node: MemoryBackend | None = None) -> None:
        super().__init__(Refused(errno.EPERM).of("rtnetlink"))
        self.node: MemoryBackend = node or MemoryBackend()
        #: The (device, address) pairs that answer, while the device exists and is up.
        self.alive: set[LinkAddress] = set()
        #: The (device, IPv4 address) pairs from which the kernel gets no answer, though the device
        #: has carrier.
        self.mute: set[LinkAddress] = set()
        #: True if the process has the privilege to send probes.
        self.may_probe = True
        #: The seconds since an IPv6 address was added to each device that has one.
        self.ages: dict[str, float] = {}
        #: The names of the BPF programs on each device.
        self.programs: dict[str, tuple[str, ...]] = {}
        #: By bridge and hardware address: an address is at one port only.
        self._stations: dict[tuple[str, str], Station] = {}
        self._table: list[Neighbour] = []

    def add_device(self, name: str, *, addresses: Sequence[str] = (), **options: Any) -> None:
        """Add a device to the node, see `MemoryBackend.add_link` for the options."""
        self.node.add_link(name, **options)
        for address in addresses:
            self.add_address(name, address)

    def add_pod(self, dev: str, *addresses: str, **options: Any) -> None:
        """Add a veth of a pod that has these addresses, and answers for them; see `add_device`."""
        self.add_device(dev, kind="veth", **options)
        self.alive.update((dev, address) for address in addresses)

    def silence(self, dev: str, address: str) -> None:
        """Leave the IPv4 address without a station on the link."""
        self.mute.add((dev, address))

    def add_address(self, dev: str, address: str) -> None:
        """Add an address that is usable at once."""
        self.node.add_address(dev, address)
        if ":" in address:
            self.ages[dev] = 0.0

    def remove_address(self, dev: str, address: str) -> None:
        """Remove an address; the device has an age again after the next one."""
        self.node.remove_address(dev, address)
        self.ages.pop(dev, None)

    def remove_device(self, name: str) -> None:
        """Remove the device with its neighbours, routes and stations."""
        self.node.remove_link(name)
        self._table = [neighbour for neighbour in self._table if neighbour.dev != name]
        stations = self._stations.items()
        self._stations = {
            key: station for key, station in stations if name not in {key[0], station.dev}
        }

    def add_neighbour(
        self, address: str, dev: str, mac: str, *, permanent: bool = True, **fields: int
    ) -> None:
        """Add a neighbour; with `permanent=False` as if the kernel learned it.

        `fields` are its `flags` and its `protocol`.
        """
        neighbour = Neighbour(address, dev, mac, permanent, **fields)
        refuse_impossible("add", [neighbour], self._table, self.node.fib.devices)
        self._take("add", neighbour)

    def learn(self, mac: str, dev: str, *, permanent: bool = False) -> None:
        """Add the address to the bridge's table, at port `dev`; `permanent` if a program set it."""
        self._stations[self.node.fib.devices[dev].master or dev, mac] = Station(mac, dev, permanent)

    def attach(self, dev: str, direction: str, program: str) -> None:
        """Attach a BPF program of that name for the packets `in` or `out`."""
        self.programs[dev] = (*self.programs.get(dev, ()), program)

    def newest_address(self, dev: str) -> float | None:
        """See `LinkLayer.newest_address`."""
        return self.ages.get(dev)

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """See `LinkLayer.classifiers`."""
        return tuple(sorted(set(self.programs.get(dev, ()))))

    def neighbours(self) -> list[Neighbour]:
        """See `LinkLayer.neighbours`."""
        return sorted(self._table, key=neighbour_order)

    def stations(self, bridge: str) -> list[Station]:
        """See `LinkLayer.stations`."""
        return sorted(station for (name, _), station in self._stations.items() if name == bridge)

    def answering(self, ctx: Context, addresses: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """See `LinkLayer.answering`; it never waits."""
        if addresses and not self.may_probe:
            raise PermissionDeniedError(
                "asking for addresses on the link needs root or CAP_NET_RAW; nothing was asked"
            )
        wired = self._wired()
        alive = {(dev, pack_address(address)) for dev, address in self.alive if dev in wired}
        return frozenset(pair for pair in addresses if (pair[0], pack_address(pair[1])) in alive)

    def silent(self, ctx: Context, addresses: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """See `LinkLayer.silent`; it never waits."""
        resolved = {(neighbour.dev, neighbour.address) for neighbour in self._table}
        mute = self.mute - resolved
        wired = self._wired()
        return frozenset(pair for pair in addresses if pair in mute and pair[0] in wired)

    def _wired(self) -> set[str]:
        return {name for name, device in self.node.fib.devices.items() if device.carrier}

    def change_neighbours(self, verb: Verb, neighbours: Sequence[Neighbour]) -> None:
        """See `LinkLayer.change_neighbours`."""
        refuse_impossible(verb, neighbours, self._table, self.node.fib.devices)
        failures = self.steps.each(partial(self._take, verb), neighbours)
        check_changes(verb, neighbours, failures, self._table)

    def _take(self, verb: Verb, neighbour: Neighbour) -> None:
        if neighbour.dev not in self.node.fib.devices:
            raise Refused(errno.ENODEV)
        (self._table.append if verb == "add" else self._table.remove)(neighbour)
