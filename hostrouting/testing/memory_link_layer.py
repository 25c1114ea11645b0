"""A link layer in memory: a `LinkLayer` to arrange, to inspect and to break."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from hostrouting.host.netlink.neighbours import refuse_changed, refuse_failed
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
    >>> layer.table.append(pod)
    >>> layer.neighbours() == [pod]
    True
    """

    def __init__(self, node: MemoryBackend | None = None) -> None:
        super().__init__(Refused(errno.EPERM).of("rtnetlink"))
        self.node: MemoryBackend = node or MemoryBackend()
        #: The (device, IPv4 address) pairs from which the kernel gets no answer, though the device
        #: has carrier.
        self.mute: set[LinkAddress] = set()
        #: The seconds since an IPv6 address was added to each device that has one.
        self.ages: dict[str, float] = {}
        #: The names of the BPF programs on each device.
        self.programs: dict[str, tuple[str, ...]] = {}
        #: By bridge and hardware address: an address is at one port only.
        self._stations: dict[tuple[str, str], Station] = {}
        #: The neighbours, which a test adds.
        self.table: list[Neighbour] = []

    def newest_address(self, dev: str) -> float | None:
        """See `LinkLayer.newest_address`."""
        return self.ages.get(dev)

    def classifiers(self, dev: str) -> tuple[str, ...]:
        """See `LinkLayer.classifiers`."""
        return tuple(sorted(set(self.programs.get(dev, ()))))

    def neighbours(self) -> list[Neighbour]:
        """See `LinkLayer.neighbours`."""
        return sorted(self.table, key=neighbour_order)

    def stations(self, bridge: str) -> list[Station]:
        """See `LinkLayer.stations`."""
        return sorted(station for (name, _), station in self._stations.items() if name == bridge)

    def silent(self, ctx: Context, addresses: Sequence[LinkAddress]) -> frozenset[LinkAddress]:
        """See `LinkLayer.silent`; it never waits."""
        resolved = {(neighbour.dev, neighbour.address) for neighbour in self.table}
        mute = self.mute - resolved
        wired = self._wired()
        return frozenset(pair for pair in addresses if pair in mute and pair[0] in wired)

    def _wired(self) -> set[str]:
        return {name for name, device in self.node.fib.devices.items() if device.carrier}

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """See `LinkLayer.remove_neighbours`."""
        refuse_changed(neighbours, self.table)
        failures = self.steps.each(self.table.remove, neighbours)
        refuse_failed(neighbours, failures, self.table)
