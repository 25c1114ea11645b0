"""What the link-layer port speaks: devices, neighbours, what a bridge has learned, IPv6 routes; observed, so believed.

Addresses are text here, as `ip` prints it: there are few of each, of both families, and most go into reports.
"""

from __future__ import annotations

from typing import NamedTuple

from hostrouting.host.route_text import MAIN_TABLE, PROTOCOL_NAMES, TABLE_NAMES

__all__ = ["Device", "IPv6Route", "Neighbour", "Station"]


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
    #: NTF_*: router, extern_learn, ...
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

    def __str__(self) -> str:
        destination = "default" if self.destination == "::/0" else self.destination.removesuffix("/128")
        words = [destination] if self.kind == "unicast" else [self.kind, destination]
        words += ["via", self.gateway] if self.gateway else []
        words += ["dev", self.dev] if self.dev else []
        words += ["table", TABLE_NAMES.get(self.table, str(self.table))] if self.table != MAIN_TABLE else []
        protocol = PROTOCOL_NAMES.get(self.protocol, str(self.protocol))
        words += ["proto", protocol] if protocol != "boot" else []  # what ip leaves out, too
        words += ["src", self.source] if self.source else []
        words += ["metric", str(self.metric)]
        return " ".join(words)
