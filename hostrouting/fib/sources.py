"""The source address that the kernel chooses for a packet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.net.addresses import netmask
from hostrouting.net.links import vrf_of
from hostrouting.net.routes import SCOPE_LINK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.net.links import Device
    from hostrouting.net.routes import NextHop

__all__ = ["source_by"]


def source_by(hop: NextHop, scope: int, links: Iterable[Device]) -> int | None:
    """Return the address from which the kernel sends by a next hop of a route that names none.

    `scope` is the route's. `links` are all devices of the node, in the order of their indexes.
    """
    devices = {link.name: link for link in links}
    eligible = [
        (link.name, address)
        for link in devices.values()
        for address in link.addresses
        if not address.secondary and address.scope <= scope
    ]
    own = [address for name, address in eligible if name == hop.dev]
    for address in own:
        if hop.gateway is None or not (hop.gateway.number ^ address.peer) & netmask(address.prefix_length):
            return address.local
    # A device without a fitting address borrows one whose scope is wider than a link, and first that of its VRF.
    vrf = vrf_of(hop.dev, devices)
    lent = [pair for pair in eligible if vrf_of(pair[0], devices) == vrf and pair[1].scope != SCOPE_LINK]
    own += [address for _, address in sorted(lent, key=lambda pair: pair[0] != vrf)]
    return own[0].local if own else None
