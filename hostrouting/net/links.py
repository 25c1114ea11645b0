"""Devices with their addresses, neighbours, and entries of a bridge's forwarding database.

Addresses of neighbours are text as `ip` prints it: there are few, and most end up in reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hostrouting.net.addresses import IPV4, Address, Prefix
from hostrouting.net.routes import SCOPE_LINK, NextHop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


#: The kinds of devices that connect a node to a network: hardware has no kind, a container a veth.
_WIRED = frozenset({"", "bond", "team", "vlan", "veth"})


#: The kinds of devices that receive the packets of their ports.
_TAKING = frozenset({"bridge", "bond", "team", "openvswitch"})


class DeviceAddress(NamedTuple):
    """An address of a device; `peer` is the other end of a point-to-point link, or the address.

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
    #: False for an IPv6 address that is tentative or dadfailed: the node cannot send from it.
    usable: bool = True
    #: True for an IPv6 address that new connections should not use.
    deprecated: bool = False

    @classmethod
    def parse(cls, text: str) -> DeviceAddress:
        """Parse `address/length`."""
        family, local, length = Prefix.parse(text)
        return cls(local, length, local, family=family)

    @property
    def address(self) -> Address:
        """The address without its prefix length."""
        return Address(self.family, self.local)

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}"


class Device(NamedTuple):
    """A network device with its addresses; `up` is its setting, `carrier` the state of the link."""

    name: str
    ifindex: int
    up: bool
    #: In lower case with leading zeros; empty if it has none.
    mac: str = ""
    #: The name in rtnetlink (`bridge`, `veth`, ...); empty for hardware.
    kind: str = ""
    #: The bridge, bond or VRF that the device belongs to.
    master: str | None = None
    addresses: tuple[DeviceAddress, ...] = ()
    #: False without a connection, for example for a veth whose peer is down.
    carrier: bool = True
    loopback: bool = False
    #: True for IP over InfiniBand: link type 32, whatever the device is called.
    infiniband: bool = False
    #: The IPv4 neighbours whose hardware address is currently known; none while the device is down.
    neighbours: tuple[int, ...] = ()
    #: The neighbours of both families that currently do not answer (state FAILED).
    failed: tuple[Address, ...] = ()
    #: The group (`ip link set group`), which rules can use to suppress routes.
    group: int = 0

    @property
    def may_stand_for_network(self) -> bool:
        """True if a network in `expectedDevs` may stand for this device.

        It must be a physical device or a bond, team, VLAN or veth, and not InfiniBand.
        """
        return self.kind in _WIRED and not (self.loopback or self.infiniband)


def enslaving(device: Device, devices: Mapping[str, Device]) -> Device | None:
    """Return the bridge or bond that receives the packets of a device; None if there is none.

    A VRF does not, and neither does the synthetic device in front of a virtual function, which has
    no kind.

    >>> bridge, eth0 = Device("br0", 3, up=True, kind="bridge"), Device("eth0", 2, up=True)
    >>> enslaving(eth0._replace(master="br0"), {"br0": bridge}) is bridge
    True
    """
    master = devices.get(device.master or "")
    return master if master and master.kind in _TAKING else None


def carries_packets(device: Device, devices: Mapping[str, Device]) -> bool:
    """Return True if a device is up, has a carrier, and receives its packets itself."""
    return device.up and device.carrier and enslaving(device, devices) is None


def address_families(link: Device) -> set[int]:
    """Return the families of a device's addresses, except link-local ones."""
    return {own.family for own in link.addresses if own.scope < SCOPE_LINK}


def is_inside(link: Device, networks: Iterable[Prefix]) -> bool:
    """Return True if one of a device's addresses is in one of these networks."""
    return any(network.covers(own.address) for network in networks for own in link.addresses)


def vrf_of(name: str, devices: Mapping[str, Device]) -> str | None:
    """Return the VRF whose table has the routes of a device's addresses; None if it is in no VRF.

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
    """Return the source address that the kernel chooses for a next hop if the route names none.

    `scope` is that of the route. `links` are all devices of the node, ordered by index.
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
    # A device without a suitable address uses one whose scope is wider than the link, first that
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
    #: True if a program added it; otherwise the kernel learned it and will forget it.
    permanent: bool
    #: NTF_* (router, extern_learn, ...); NTF_EXT_* above the lowest eight bits.
    flags: int = 0
    #: RTPROT_* of the program that added it, or 0.
    protocol: int = 0

    def __str__(self) -> str:
        state = " PERMANENT" if self.permanent else ""
        return f"{self.address} dev {self.dev} lladdr {self.mac}{state}"


class Station(NamedTuple):
    """An entry of a bridge's forwarding database: the port of a hardware address."""

    mac: str
    #: The port, or the bridge itself.
    dev: str
    #: True for the address of the port or bridge itself, and for an entry that a program added.
    permanent: bool = False


def neighbour_order(neighbour: Neighbour) -> tuple[object, ...]:
    """Return the sort key of neighbours: device, address, hardware address."""
    return neighbour.dev, Address.parse(neighbour.address), neighbour.mac
