"""The exits of a node: by which device each family leaves, as its last right apply has pinned it.

A default route that comes later, from a router in the fabric for example, decides at once. The
pinned exit stays the one that completes routes, and that an apply must not leave silently, as long
as it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from hostrouting.net.addresses import FAMILY_NAMES, parse_network
from hostrouting.net.routes import default_routes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hostrouting.net.links import Device
    from hostrouting.net.routes import NextHop, ObservedRoute

#: The device of each family.
Exits: TypeAlias = Mapping[int, str]


def working(exits: Exits, links: Iterable[Device], observed: Iterable[ObservedRoute]) -> Exits:
    """Return the exits that are up, with a carrier, and with a default route that may carry.

    The gateway of that route must not be FAILED. The boot script does the same: see `exit_works` in
    `static_routes/assets/static-routes.sh`.
    """
    if not exits:
        return exits
    devices = {link.name: link for link in links}
    hops: dict[tuple[int, str], NextHop] = {}
    for route in default_routes(observed):
        for hop in route.hops:
            hops.setdefault((route.family, hop.dev), hop)
    return {
        family: dev
        for family, dev in exits.items()
        if dev in devices and _carries(family, devices[dev], hops.get((family, dev)))
    }


def unnamed(defaults: Iterable[ObservedRoute], links: Iterable[Device]) -> list[ObservedRoute]:
    """Return the default routes that may be an exit without a name in the config.

    A router in the fabric may bring one at any time, with a better metric. So an InfiniBand device
    is expected, or completes routes, only if the config names it, or it is pinned.
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
    the end of a pod's veth only on a node without other devices.
    """
    # A record may name a device as no kernel does.
    networks = [network for name in named if (network := parse_network(name))]
    return [
        link
        for link in links
        if link.name in named
        or any(network.covers(own.address) for network in networks for own in link.addresses)
    ] or _wired(links)


def _wired(links: Sequence[Device]) -> Sequence[Device]:
    """Return the devices that lead to a wire; ends of veths only on a node without another one."""
    wired = [link for link in links if link.may_stand_for_network and link.master is None]
    return [link for link in wired if link.kind != "veth"] or wired


def _carries(family: int, device: Device, hop: NextHop | None) -> bool:
    if hop is None or hop.dead or not (device.up and device.carrier):
        return False
    return not (hop.gateway and hop.gateway.family == family and hop.gateway in device.failed)
