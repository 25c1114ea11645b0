"""The machine behind ports: what tasks may ask of it, the values they speak, and `Host`, which assembles it.

    Host            routes, services, files and lock in one value: Host.live(), Host.offline(root)
    ports           RouteBackend, ServiceManager, FileStore, RunLock: their docstrings are the contract
    routes          Route, RouteChange; ObservedRoute, Rule, Lookup, ...: values of the route port
    links           Device, Neighbour, Station: values of the link-layer port
    ebtables_rules  EbtablesRule, EbtablesReading: what the ebtables port speaks
    units           UnitState: what the service port speaks
    netlink, pyroute            the kernel's IPv4 routes, lean and over pyroute2
    ipv6, link_layer            the kernel's IPv6, its neighbours and bridges
    nft, ebtables               packet rules by way of their tools (ebtables_tools)
    imds                        what the cloud says about the machine
    systemd, files, lock        this machine's, and those of an offline image
    offline                     what is not there and says so

Adapters are imported when a `Host` is made, not with this package: no netlink, no subprocess at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.exceptions import HostFileError
from hostrouting.host.packets.ebtables_rules import EbtablesReading, EbtablesRule
from hostrouting.host.ports import (
    Ebtables,
    FileStore,
    InstanceMetadata,
    IPv6Backend,
    LinkLayer,
    Nftables,
    RouteBackend,
    RunLock,
    ServiceManager,
)
from hostrouting.host.systemd.units import UnitState
from hostrouting.net.addresses import Address
from hostrouting.net.changes import RouteChange
from hostrouting.net.links import Device, DeviceAddress, Neighbour, Station
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, OUR_PROTOCOL, Lookup, NextHop, ObservedRoute, Route
from hostrouting.net.rules import Rule

if TYPE_CHECKING:
    import os

__all__ = [
    "LOCAL_TABLE",
    "MAIN_TABLE",
    "OUR_PROTOCOL",
    "Address",
    "Device",
    "DeviceAddress",
    "Ebtables",
    "EbtablesReading",
    "EbtablesRule",
    "FileStore",
    "Host",
    "IPv6Backend",
    "InstanceMetadata",
    "LinkLayer",
    "Lookup",
    "Neighbour",
    "NextHop",
    "Nftables",
    "ObservedRoute",
    "Route",
    "RouteBackend",
    "RouteChange",
    "Rule",
    "RunLock",
    "ServiceManager",
    "Station",
    "UnitState",
]


@attrs.frozen(kw_only=True)
class Host:
    """One machine, or one image that machines will be made of.

    Where `is_live` is False only files and links of units can be changed: there is no kernel to ask, and nothing runs.
    """

    routes: RouteBackend
    services: ServiceManager
    files: FileStore
    lock: RunLock
    # Only some tasks need these. Whoever makes a Host of parts of their own may leave them out: what is then asked of
    # them is refused.
    ipv6: IPv6Backend = attrs.field(factory=lambda: _absent("ipv6"))
    link_layer: LinkLayer = attrs.field(factory=lambda: _absent("link_layer"))
    nftables: Nftables = attrs.field(factory=lambda: _absent("nftables"))
    ebtables: Ebtables = attrs.field(factory=lambda: _absent("ebtables"))
    metadata: InstanceMetadata = attrs.field(factory=lambda: _absent("metadata"))
    is_live: bool = True

    @classmethod
    def live(cls) -> Host:
        """This machine: its kernel, in the network namespace that we are in, its systemd, its files."""
        # All of these here and not at the top: whoever brings backends of their own need not pay for ours.
        from hostrouting.host.files.lock import FileLock
        from hostrouting.host.files.store import RootedFiles
        from hostrouting.host.imds import InstanceMetadataClient
        from hostrouting.host.netlink import NetlinkBackend
        from hostrouting.host.netlink.ipv6 import NetlinkIPv6
        from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
        from hostrouting.host.packets.ebtables import EbtablesCommand
        from hostrouting.host.packets.nft import NftCommand
        from hostrouting.host.systemd.systemctl import Systemctl

        return cls(
            routes=NetlinkBackend(),
            services=Systemctl(),
            files=RootedFiles(),
            lock=FileLock(),
            ipv6=NetlinkIPv6(),
            link_layer=NetlinkLinkLayer(),
            nftables=NftCommand(),
            ebtables=EbtablesCommand(),
            metadata=InstanceMetadataClient(),
        )

    @classmethod
    def offline(cls, root: str | os.PathLike[str]) -> Host:
        """The image whose root folder is `root`, be it `/`; this machine's kernel and systemd are left alone."""
        from pathlib import Path

        from hostrouting.host.files.lock import FileLock
        from hostrouting.host.files.store import RootedFiles
        from hostrouting.host.offline import OfflineRoutes
        from hostrouting.host.systemd.systemctl import OfflineUnits

        # Absolute, for we are not told when somebody changes the working directory; and systemctl takes no other.
        folder = Path(root).absolute()
        if not folder.is_dir():
            raise HostFileError(f"cannot prepare the image {folder}: there is no such folder")
        root = str(folder)
        return cls(
            routes=OfflineRoutes(),
            services=OfflineUnits(root),
            files=RootedFiles(root),
            lock=FileLock(root=root),
            is_live=False,
        )


def _absent(part: str) -> Any:
    from hostrouting.host.offline import Absent

    return Absent(part)
