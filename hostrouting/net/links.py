"""What the link-layer port speaks: devices, neighbours, what a bridge has learned, IPv6 routes; observed, so believed.

Addresses are text here, as `ip` prints it: there are few of each, of both families, and most go into reports.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from hostrouting.net.route_text import (
    DEVICELESS_KINDS,
    KIND_NUMBERS,
    LOCAL_TABLE,
    MAIN_TABLE,
    PROTOCOL_NAMES,
    TABLE_NAMES,
)

__all__ = [
    "Device",
    "IPv6Route",
    "Neighbour",
    "Station",
    "address_order",
    "is_as_shown",
    "neighbour_order",
    "route_order",
]


class Device(NamedTuple):
    """A network device. `kind` is what rtnetlink calls it (`bridge`, `veth`, ...), empty for hardware."""

    name: str
    ifindex: int
    up: bool
    #: In lower case, with leading zeros; empty where a device has none.
    mac: str = ""
    kind: str = ""
    #: The bridge (or bond, or VRF) of which it is a port.
    master: str | None = None
    #: Of both families, each with its prefix length: `10.240.0.4/16`.
    addresses: tuple[str, ...] = ()
    #: Whether the wire leads anywhere: without it (a veth whose other end is down, say) nobody can be heard.
    carrier: bool = True


class Neighbour(NamedTuple):
    """An entry of the neighbour table, in every detail that it takes to put it back.

    >>> str(Neighbour("10.240.0.9", "azure0", "12:34:56:78:9a:bc", permanent=True))
    '10.240.0.9 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT'
    """

    address: str
    dev: str
    mac: str
    #: Put there by somebody, for good; the others the kernel learned, and forgets.
    permanent: bool
    #: NTF_*: router, extern_learn, ...; above the first eight bits NTF_EXT_*.
    flags: int = 0
    #: RTPROT_* of whoever put it there; 0 where nobody says.
    protocol: int = 0

    def __str__(self) -> str:
        return f"{self.address} dev {self.dev} lladdr {self.mac}{' PERMANENT' if self.permanent else ''}"


class Station(NamedTuple):
    """An entry of a bridge's forwarding database: which port leads to a hardware address."""

    mac: str
    #: The port, or the bridge itself.
    dev: str
    #: It is the address of the port or bridge itself, or somebody put it there.
    permanent: bool = False
    #: 0 is none. A kernel that can filter VLANs shows what is permanent once more for each VLAN of the port.
    vlan: int = 0


class IPv6Route(NamedTuple):
    """An IPv6 route, in every detail that it takes to put it back.

    >>> str(IPv6Route("fd00:1::9/128", "azv1234", metric=1024, protocol=3))
    'fd00:1::9 dev azv1234 metric 1024'
    """

    #: With its prefix length, as `fd00:1::9/128`; `::/0` is the default route.
    destination: str
    #: None for a route that blocks, and for one with several next hops.
    dev: str | None
    gateway: str | None = None
    metric: int = 0
    table: int = MAIN_TABLE
    protocol: int = 0
    #: `unicast`, `blackhole`, ...
    kind: str = "unicast"
    source: str | None = None
    flags: int = 0
    #: Attributes that we carry without understanding them (preference, metrics, several next hops, ...), as
    #: (number, payload) pairs, so that the route comes back whole.
    extra: tuple[tuple[int, bytes], ...] = ()
    #: Only packets from this prefix take the route; None for the usual ones.
    from_prefix: str | None = None
    #: In how many seconds it ends; 0 for never. It counts down, so it does not tell one route from another: see
    #: `without_expiry`.
    expires: int = 0

    def without_expiry(self) -> IPv6Route:
        """What stays the same from reading to reading."""
        return self._replace(expires=0) if self.expires else self

    def __str__(self) -> str:
        destination = "default" if self.destination == "::/0" else self.destination.removesuffix("/128")
        words = [destination] if self.kind == "unicast" else [self.kind, destination]
        words += ["from", self.from_prefix] if self.from_prefix else []
        words += ["via", self.gateway] if self.gateway else []
        words += ["dev", self.dev] if self.dev else []
        words += ["table", TABLE_NAMES.get(self.table, str(self.table))] if self.table != MAIN_TABLE else []
        protocol = PROTOCOL_NAMES.get(self.protocol, str(self.protocol))
        words += ["proto", protocol] if protocol != "boot" else []  # what ip leaves out, too
        words += ["src", self.source] if self.source else []
        words += ["metric", str(self.metric)]
        return " ".join(words)


def neighbour_order(neighbour: Neighbour) -> tuple[object, ...]:
    """By device and address, IPv4 before IPv6: the order in which `LinkLayer.neighbours` gives them."""
    return neighbour.dev, *address_order(neighbour.address), neighbour.mac


def route_order(route: IPv6Route) -> tuple[object, ...]:
    """By table, network, prefix length and metric: the order in which `LinkLayer.routes` gives them."""
    network, _, length = route.destination.partition("/")
    # By its text at last: two that differ in whether they have a source, say, cannot be compared field by field.
    rank = route.table, *address_order(network), int(length), route.metric, route.dev or "", route.gateway or ""
    return *rank, repr(route)


def address_order(address: str) -> tuple[bool, bytes]:
    """By number, IPv4 before IPv6.

    >>> sorted(["fd00::10", "10.0.0.10", "fd00::9", "10.0.0.9"], key=address_order)
    ['10.0.0.9', '10.0.0.10', 'fd00::9', 'fd00::10']
    """
    is_ipv6 = ":" in address
    return is_ipv6, socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, address)


def is_as_shown(thing: Neighbour | IPv6Route) -> bool:
    """Whether this is how the port shows such a thing: what the kernel would change could not be found again.

    It makes 1024 of metric 0 and `boot` of no protocol, and drops the bits behind a prefix.

    >>> is_as_shown(Neighbour("FD00::9", "azure0", "12:34:56:78:9a:bc", permanent=True))
    False
    """
    try:
        if isinstance(thing, Neighbour):
            mac = bytes.fromhex(thing.mac.replace(":", "")).hex(":")
            return bool(mac) and mac == thing.mac and _canonical(thing.address) == thing.address
        prefixes = [thing.destination, *([thing.from_prefix] if thing.from_prefix is not None else [])]
        return (
            all(prefix == _canonical_prefix(prefix) for prefix in prefixes)
            and all(address == _canonical(address) for address in (thing.gateway, thing.source) if address is not None)
            and thing.kind in KIND_NUMBERS
            and not (thing.kind in DEVICELESS_KINDS and thing.dev is not None)
            and thing.table != LOCAL_TABLE
            and min(thing.metric, thing.protocol) > 0
        )
    except (OSError, ValueError):
        return False


def _canonical(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_ntop(family, socket.inet_pton(family, address))


def _canonical_prefix(prefix: str) -> str:
    network, _, length = prefix.partition("/")
    rest = 128 - int(length)
    number = int.from_bytes(socket.inet_pton(socket.AF_INET6, network), "big") >> rest << rest
    return f"{socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, 'big'))}/{int(length)}"
