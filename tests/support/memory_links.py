"""The links of a machine in memory: devices, pods, neighbours and stations of its link layer."""

from collections.abc import Sequence
from typing import Any

from hostrouting.net.links import Neighbour, Station
from hostrouting.testing import MemoryLinkLayer


def add_device(
    layer: MemoryLinkLayer, name: str, *, addresses: Sequence[str] = (), **options: Any
) -> None:
    """Add a device to the node, see `MemoryBackend.add_link` for the options."""
    layer.node.add_link(name, **options)
    for address in addresses:
        add_address(layer, name, address)


def add_pod(layer: MemoryLinkLayer, dev: str, *_addresses: str, **options: Any) -> None:
    """Add a veth of a pod that has these addresses; see `add_device`."""
    add_device(layer, dev, kind="veth", **options)


def silence(layer: MemoryLinkLayer, dev: str, address: str) -> None:
    """Leave the IPv4 address without a station on the link."""
    layer.mute.add((dev, address))


def add_address(layer: MemoryLinkLayer, dev: str, address: str) -> None:
    """Add an address that is usable at once."""
    layer.node.add_address(dev, address)
    if ":" in address:
        layer.ages[dev] = 0.0


def remove_address(layer: MemoryLinkLayer, dev: str, address: str) -> None:
    """Remove an address; the device has an age again after the next one."""
    layer.node.remove_address(dev, address)
    layer.ages.pop(dev, None)


def remove_device(layer: MemoryLinkLayer, name: str) -> None:
    """Remove the device with its neighbours, routes and stations."""
    layer.node.remove_link(name)
    layer.table = [neighbour for neighbour in layer.table if neighbour.dev != name]
    stations = layer._stations.items()
    layer._stations = {
        key: station for key, station in stations if name not in {key[0], station.dev}
    }


def add_neighbour(
    layer: MemoryLinkLayer,
    address: str,
    dev: str,
    mac: str,
    *,
    permanent: bool = True,
    **fields: int,
) -> None:
    """Add a neighbour; with `permanent=False` as if the kernel learned it.

    `fields` are its `flags` and its `protocol`.
    """
    layer.table.append(Neighbour(address, dev, mac, permanent, **fields))


def add_neighbours(layer: MemoryLinkLayer, neighbours: Sequence[Neighbour]) -> None:
    """Add many neighbours."""
    layer.table.extend(neighbours)


def learn(layer: MemoryLinkLayer, mac: str, dev: str, *, permanent: bool = False) -> None:
    """Add the address to the bridge's table, at port `dev`; `permanent` if a program set it."""
    layer._stations[layer.node.fib.devices[dev].master or dev, mac] = Station(mac, dev, permanent)


def attach(layer: MemoryLinkLayer, dev: str, direction: str, program: str) -> None:  # noqa: ARG001 - as in the kernel
    """Attach a BPF program of that name for the packets `in` or `out`."""
    layer.programs[dev] = (*layer.programs.get(dev, ()), program)


class MemoryLinks(MemoryLinkLayer):
    """A link layer in memory with the arrangements of `KernelLinks`."""

    add_device = add_device
    add_pod = add_pod
    silence = silence
    add_address = add_address
    remove_address = remove_address
    remove_device = remove_device
    add_neighbour = add_neighbour
    add_neighbours = add_neighbours
    learn = learn
    attach = attach
