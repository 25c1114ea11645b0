"""A link layer in memory: a `LinkLayer` to arrange, to inspect and to break."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial

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

    >>> from hostrouting.testing import MemoryBackend
    >>> layer = MemoryLinkLayer(MemoryBackend(links={"azure0": ["10.240.0.4/16"]}))
    >>> pod = Neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc", permanent=True)
    >>> layer.change_neighbours("add", [pod])
    >>> layer.neighbours() == [pod]
    True
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
