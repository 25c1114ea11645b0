"""Devices with their addresses, the neighbours on their links, and the stations of a bridge.

Addresses of neighbours are text, as `ip` prints it: they are few, and most go into reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hostrouting.net.addresses import IPV4, Address, Prefix
from hostrouting.net.routes import SCOPE_LINK, NextHop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


#: The kinds of devices that lead to a wire; hardware has none, a node in a container has a veth.
_WIRED = frozenset({"", "bond", "team", "vlan", "veth"})


#: The kinds of devices that take the packets of their ports.
_TAKING = frozenset({"bridge", "bond", "team", "openvswitch"})


class DeviceAddress(NamedTuple):
    """An address of a device; `peer` is the far end of a point-to-point link, or the address.

    >>> str(DeviceAddress.parse("fd00:1::4/64"))
    'fd00:1::4/64'
    """

    local: int
    prefix_length: int
    peer: int
    broadcast: int | None = None
    scope: int = 0
    secondary: bool = False
    family: int = IPV4
    #: False for an IPv6 address that is tentative or dadfailed: the node may not send from it.
    usable: bool = True
    #: True for an IPv6 address that new connections should not use.
    deprecated: bool = False

    @classmethod
    def parse(cls, text: str) -> DeviceAddress:
        """Read `address/length`."""
        family, local, length = Prefix.parse(text)
        return cls(local, length, local, family=family)

    @property
    def address(self) -> Address:
        """The address without its prefix length."""
        return Address(self.family, self.local)

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}"


class Device(NamedTuple):
    """A network device with its addresses; `up` is a setting, `carrier` the state of the wire."""

    name: str
    ifindex: int
    up: bool
    #: In lower case, with leading zeros; empty without one.
    mac: str = ""
    #: The name in rtnetlink (`bridge`, `veth`, ...); empty for hardware.
    kind: str = ""
    #: The bridge (or bond, or VRF) of which the device is a port.
    master: str | None = None
    addresses: tuple[DeviceAddress, ...] = ()
    #: False without a connection, as for a veth whose peer is down.
    carrier: bool = True
    loopback: bool = False
    #: True for IP over InfiniBand: the kernel's link type 32, whatever the device is called.
    infiniband: bool = False
    #: The IPv4 neighbours whose hardware address is known now: rarely all, none while down.
    neighbours: tuple[int, ...] = ()
    #: The neighbours of both families from which the kernel got no answer, for now (`FAILED`).
    failed: tuple[Address, ...] = ()
    #: The group of `ip link set group`, by which rules suppress routes.
    group: int = 0

    @property
    def may_stand_for_network(self) -> bool:
        """True for a device that a network in `expectedDevs` may stand for.

        It is neither InfiniBand nor virtual: hardware, or of a kind that leads to a wire.
        """
        return self.kind in _WIRED and not (self.loopback or self.infiniband)


def enslaving(device: Device, devices: Mapping[str, Device]) -> Device | None:
    """Return the bridge or bond that takes the packets of a device; None without one.

    A VRF takes none, and neither does the synthetic device in front of hardware, which has no kind.

    >>> bridge, eth0 = Device("br0", 3, up=True, kind="bridge"), Device("eth0", 2, up=True)
    >>> enslaving(eth0._replace(master="br0"), {"br0": bridge}) is bridge
    True
    """
    master = devices.get(device.master or "")
    return master if master and master.kind in _TAKING else None


def carries_packets(device: Device, devices: Mapping[str, Device]) -> bool:
    """Return True for a device that is set up, has a carrier, and gets its packets itself."""
    return device.up and device.carrier and enslaving(device, devices) is None


def address_families(link: Device) -> set[int]:
    """Return the families of a device's addresses, but for those of the link alone."""
    return {own.family for own in link.addresses if own.scope < SCOPE_LINK}


def is_inside(link: Device, networks: Iterable[Prefix]) -> bool:
    """Return True if a device has an address in one of these networks."""
    return any(network.covers(own.address) for network in networks for own in link.addresses)


def vrf_of(name: str, devices: Mapping[str, Device]) -> str | None:
    """Return the VRF whose table has the routes of a device's addresses; None for main and local.

    >>> blue, ib0 = Device("blue", 3, up=True, kind="vrf"), Device("ib0", 4, up=True, master="blue")
    >>> devices = {"blue": blue, "ib0": ib0}
    >>> vrf_of("ib0", devices), vrf_of("blue", devices), vrf_of("eth0", devices)
    ('blue', 'blue', None)
    """
    device = devices.get(name)
    master = devices.get(device.master) if device and device.master else None
    # A port of a bridge in a VRF is not in that VRF.
    return next((link.name for link in (device, master) if link and link.kind == "vrf"), None)


def source_by(hop: NextHop, scope: int, links: Iterable[Device]) -> int | None:
    """Return the address from which the kernel sends by a next hop of a route that names none.

    `scope` is the route's. `links` are all devices of the node, in the order of their indexes.
    """
    devices = {link.name: link for link in links}
    eligible = [
        (link.name, address)
        for link in devices.values()
        for address in link.addresses
        if address.family == IPV4 and address.scope <= scope
    ]
    own = [address for name, address in eligible if name == hop.dev]
    for address in own:
        network = Prefix(IPV4, address.peer, address.prefix_length)
        if hop.gateway is None or network.covers(hop.gateway):
            return address.local
    # A device without a fitting address uses one whose scope is wider than a link, and first that
    # of its VRF.
    vrf = vrf_of(hop.dev, devices)
    of_vrf = [pair for pair in eligible if vrf_of(pair[0], devices) == vrf]
    of_vrf.sort(key=lambda pair: pair[0] != vrf)
    own += [address for _, address in of_vrf if address.scope != SCOPE_LINK]
    return own[0].local if own else None


class Neighbour(NamedTuple):
    """An entry of the neighbour table.

    >>> str(Neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc", permanent=True))
    '10.240.0.9 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT'
    """

    address: str
    dev: str
    mac: str
    #: Added by a program; without it the kernel learned the entry, and forgets it.
    permanent: bool
    #: NTF_*: router, extern_learn, ...; above the first eight bits NTF_EXT_*.
    flags: int = 0
    #: RTPROT_* of the program that added it, or 0.
    protocol: int = 0

    def __str__(self) -> str:
        state = " PERMANENT" if self.permanent else ""
        return f"{self.address} dev {self.dev} lladdr {self.mac}{state}"


class Station(NamedTuple):
    """An entry of a bridge's forwarding database: the port that leads to a hardware address."""

    mac: str
    #: The port, or the bridge itself.
    dev: str
    #: The address of the port or bridge itself, or an entry that a program added.
    permanent: bool = False


def neighbour_order(neighbour: Neighbour) -> tuple[object, ...]:
    """Return the sort key of neighbours: device, address, hardware address."""
    return neighbour.dev, Address.parse(neighbour.address), neighbour.mac
