"""The exits of a node: by which device each family leaves.

The config names it, or the last apply that found the node right has found it. A default route that
comes later, from a router in the fabric for example, decides at once. That device completes routes
all the same, as long as it works.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from hostrouting.net.addresses import FAMILY_NAMES, parse_network
from hostrouting.net.links import Device, address_families, carries_packets, is_inside
from hostrouting.net.routes import NextHop, ObservedRoute, default_routes

#: The device of each family.
Exits: TypeAlias = Mapping[int, str]


def working(
    names: Collection[str], links: Sequence[Device], observed: Iterable[ObservedRoute]
) -> Exits:
    """Return the first named device of each family that works.

    It carries packets, and its default route has a gateway that is not FAILED, or none. A
    network names the devices with an address in it.
    """
    if not names:
        return {}
    devices = {link.name: link for link in links}
    named = named_devices(names, links)
    hops: dict[tuple[int, str], NextHop] = {}
    for route in default_routes(observed):
        for hop in route.hops:
            hops.setdefault((route.family, hop.dev), hop)
    works: dict[int, str] = {}
    for (family, dev), hop in hops.items():
        if dev in named and _carries(family, dev, devices, hop):
            works.setdefault(family, dev)
    return works


def unnamed(defaults: Iterable[ObservedRoute], links: Iterable[Device]) -> list[ObservedRoute]:
    """Return the default routes that may be an exit without a name in the config.

    A router in the fabric may bring one at any time, with a better metric. So an InfiniBand device
    is expected, or completes routes, only if the config names it.
    """
    fabric = {link.name for link in links if link.infiniband}
    return [route for route in defaults if fabric.isdisjoint(route.devs)]


def fabric_exits(
    defaults: Iterable[ObservedRoute], links: Iterable[Device]
) -> tuple[tuple[int, str], ...]:
    """Return the InfiniBand devices of default routes, each with the family of its route."""
    fabric = {link.name for link in links if link.infiniband}
    devs = ((route.family, dev) for route in defaults for dev in route.devs if dev in fabric)
    return tuple(dict.fromkeys(devs))


def no_default(family: int, fabric: Iterable[tuple[int, str]]) -> str:
    """Return the words for a missing default route; `fabric` are the `fabric_exits`.

    >>> no_default(2, [(2, "ib0")])
    'no IPv4 default route but by ib0 (InfiniBand, which expectedDevs must name)'
    """
    devs = " and ".join(dev for its, dev in fabric if its == family)
    beside = f" but by {devs} (InfiniBand, which expectedDevs must name)" if devs else ""
    return f"no {FAMILY_NAMES[family]} default route{beside}"


def set_down(named: Collection[str], links: Sequence[Device]) -> tuple[tuple[str, ...], bool]:
    """Return the devices set down that may be the exit of a family, and True if no other one may.

    See `candidates`.
    """
    may_be = candidates(named, links)
    down = tuple(link.name for link in may_be if not link.up)
    return down, len(down) == len(may_be)


def candidates(named: Collection[str], links: Sequence[Device]) -> Sequence[Device]:
    """Return the devices that may be the exit of a family.

    Those that are `named` may, by a network of an address, too, or else each that leads to a wire:
    the end of a pod's veth only on a node without other devices. A network that no device holds is
    that of one without any address.
    """
    names = named_devices(named, links)
    found = [link for link in links if link.name in names] or _wired(links)
    families = {network.family for name in named if (network := parse_network(name))}
    if names or not families:
        return found
    return [link for link in found if families.isdisjoint(address_families(link))] or found


def named_devices(names: Collection[str], links: Iterable[Device]) -> set[str]:
    """Return the devices that are named, or that have an address in a network that is."""
    # A record may name a device as no kernel does.
    networks = [network for name in names if (network := parse_network(name))]
    return {
        link.name
        for link in links
        if link.name in names or (link.may_stand_for_network and is_inside(link, networks))
    }


def _wired(links: Sequence[Device]) -> Sequence[Device]:
    """Return the devices that lead to a wire; ends of veths only on a node without another one."""
    wired = [link for link in links if link.may_stand_for_network and link.master is None]
    return [link for link in wired if link.kind != "veth"] or wired


def _carries(family: int, dev: str, devices: Mapping[str, Device], hop: NextHop) -> bool:
    device = devices[dev]
    if hop.dead or not carries_packets(device, devices):
        return False
    return not (hop.gateway and hop.gateway.family == family and hop.gateway in device.failed)
