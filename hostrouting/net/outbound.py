"""The outbound device of a node, for each address family.

The config names it, or the last apply that found the node healthy recorded it. A default route that
appears later, for example from a router in the fabric, takes effect in the kernel at once. Static
routes without `dev` still use the outbound device, as long as it works.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from hostrouting.net.addresses import FAMILY_NAMES, parse_network
from hostrouting.net.links import Device, address_families, carries_packets, is_inside
from hostrouting.net.routes import NextHop, ObservedRoute, default_routes

#: The outbound device of each family.
OutboundDevs: TypeAlias = Mapping[int, str]


def working_devs(
    names: Collection[str], links: Sequence[Device], observed: Iterable[ObservedRoute]
) -> OutboundDevs:
    """Return the first of the named devices that works, for each family.

    A device works if it carries packets and has a default route whose gateway, if any, is not in
    state FAILED. A network stands for the devices with an address in it.
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


def outside_fabric(
    defaults: Iterable[ObservedRoute], links: Iterable[Device]
) -> list[ObservedRoute]:
    """Return the default routes that do not leave through an InfiniBand device.

    A router in the fabric may advertise a default route at any time, with a better metric. That is
    why an InfiniBand device is used only if the config names it.
    """
    fabric = {link.name for link in links if link.infiniband}
    return [route for route in defaults if fabric.isdisjoint(route.devs)]


def fabric_default_devs(
    defaults: Iterable[ObservedRoute], links: Iterable[Device]
) -> tuple[tuple[int, str], ...]:
    """Return the InfiniBand devices of default routes, each with the family of its route."""
    fabric = {link.name for link in links if link.infiniband}
    devs = ((route.family, dev) for route in defaults for dev in route.devs if dev in fabric)
    return tuple(dict.fromkeys(devs))


def no_default_route(family: int, fabric: Iterable[tuple[int, str]]) -> str:
    """Describe a missing default route; `fabric` is the result of `fabric_default_devs`.

    >>> no_default_route(2, [(2, "ib0")])
    'no IPv4 default route except through ib0 (InfiniBand, so expectedDevs must name it)'
    """
    devs = " and ".join(dev for its, dev in fabric if its == family)
    except_fabric = (
        f" except through {devs} (InfiniBand, so expectedDevs must name it)" if devs else ""
    )
    return f"no {FAMILY_NAMES[family]} default route{except_fabric}"


def devices_down(named: Collection[str], links: Sequence[Device]) -> tuple[tuple[str, ...], bool]:
    """Return the candidates that are administratively down, and True if no candidate is up.

    See `candidates`.
    """
    may_be = candidates(named, links)
    down = tuple(link.name for link in may_be if not link.up)
    return down, len(down) == len(may_be)


def candidates(named: Collection[str], links: Sequence[Device]) -> Sequence[Device]:
    """Return the devices that may be the outbound device of a family.

    These are the `named` ones, directly or by a network that contains one of their addresses. If
    none is named, all physical devices are candidates, and a veth only if there is no other device.
    A named network without any device may belong to a device that has no address yet.
    """
    names = named_devices(named, links)
    found = [link for link in links if link.name in names] or _wired(links)
    families = {network.family for name in named if (network := parse_network(name))}
    if names or not families:
        return found
    return [link for link in found if families.isdisjoint(address_families(link))] or found


def named_devices(names: Collection[str], links: Iterable[Device]) -> set[str]:
    """Return the devices that are named, directly or by a network with one of their addresses."""
    # The name of a device in a record may be one that no kernel accepts.
    networks = [network for name in names if (network := parse_network(name))]
    return {
        link.name
        for link in links
        if link.name in names or (link.may_stand_for_network and is_inside(link, networks))
    }


def _wired(links: Sequence[Device]) -> Sequence[Device]:
    """Return the physical devices; veths only if there are no others."""
    wired = [link for link in links if link.may_stand_for_network and link.master is None]
    return [link for link in wired if link.kind != "veth"] or wired


def _carries(family: int, dev: str, devices: Mapping[str, Device], hop: NextHop) -> bool:
    device = devices[dev]
    if hop.dead or not carries_packets(device, devices):
        return False
    return not (hop.gateway and hop.gateway.family == family and hop.gateway in device.failed)
