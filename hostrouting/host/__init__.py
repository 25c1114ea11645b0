"""The machine as tasks see it: `Host`, its ports (interfaces), and their adapters.

    Host            routes, services, files and lock in one value: Host.live(), Host.offline(root)
    ports           RouteBackend, FileStore, RunLock, ...: their docstrings are the contract
    netlink/        the kernel's routes, devices, neighbours, bridges and events, by packed messages
    pyroute         the same routes over pyroute2
    packets/        nft and ebtables, with EbtablesRule and EbtablesSnapshot
    systemd/        systemctl and unit files, with UnitState
    files/          the files and the run lock of this machine or of an image
    imds            the cloud's description of the machine
    trial           runs a program as a gate would
    offline         stand-ins for parts that a host does not have

Adapters are imported when a `Host` is made, not with this package: no netlink, no subprocess at
import.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

import attrs

# For annotations, whose names are imported on first use; see `__getattr__`.
import hostrouting.host
from hostrouting.base.errors import HostFileError
from hostrouting.host.offline import NoSupervisor, absent, late, offline_routes
from hostrouting.host.units import UnitState
from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix
from hostrouting.net.links import Device, DeviceAddress, Neighbour, Station
from hostrouting.net.routes import (
    OUR_PROTOCOL,
    Encapsulation,
    Lookup,
    NextHop,
    ObservedRoute,
    Route,
    RouteChange,
)
from hostrouting.net.rules import Range, Rule
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from hostrouting.host.files.rooted import Exposure
    from hostrouting.host.packets.ebtables_rules import EbtablesRule, EbtablesSnapshot
    from hostrouting.host.ports import (
        Announced,
        Ebtables,
        FileStore,
        InstanceMetadata,
        LinkLayer,
        Listener,
        Network,
        NetworkEvents,
        Nftables,
        ProgramTrial,
        RouteBackend,
        Routing,
        RunLock,
        ServiceManager,
        Supervisor,
    )
    from hostrouting.net.events import NetworkEvent

__all__ = [
    "IPV4",
    "IPV6",
    "OUR_PROTOCOL",
    "Address",
    "Announced",
    "Device",
    "DeviceAddress",
    "Ebtables",
    "EbtablesRule",
    "EbtablesSnapshot",
    "Encapsulation",
    "Exposure",
    "FileStore",
    "Host",
    "InstanceMetadata",
    "LinkLayer",
    "Listener",
    "Lookup",
    "Neighbour",
    "Network",
    "NetworkEvent",
    "NetworkEvents",
    "NextHop",
    "Nftables",
    "ObservedRoute",
    "Prefix",
    "ProgramTrial",
    "Range",
    "Route",
    "RouteBackend",
    "RouteChange",
    "Routing",
    "Rule",
    "RunLock",
    "ServiceManager",
    "Station",
    "Supervisor",
    "UnitState",
]


if not TYPE_CHECKING:
    # Type checkers would accept any name of this module.
    def __getattr__(name: str) -> object:
        """Import a port, one of its values, or an event: most uses only name the type."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "net.events" if name == "NetworkEvent" else "host.ports"
        return getattr(import_module(f"hostrouting.{module}"), name)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Host:
    """A machine, or an image from which machines are made.

    If `is_live` is False only files and the links of units can be changed: nothing runs, not even
    a kernel. If `has_boot` is False only routes can be changed: boot files and units are left
    alone.
    """

    routes: hostrouting.host.RouteBackend
    services: hostrouting.host.ServiceManager
    files: hostrouting.host.FileStore
    lock: hostrouting.host.RunLock
    # Only some tasks need these. If they are missing, every call on them raises an error.
    link_layer: hostrouting.host.LinkLayer = absent("link_layer")
    events: hostrouting.host.NetworkEvents = absent("events")
    nftables: hostrouting.host.Nftables = absent("nftables")
    ebtables: hostrouting.host.Ebtables = absent("ebtables")
    metadata: hostrouting.host.InstanceMetadata = absent("metadata")
    #: By default none, so notifications are dropped.
    supervisor: hostrouting.host.Supervisor = NoSupervisor()
    #: By default none, so programs are not tried.
    trial: hostrouting.host.ProgramTrial | None = None
    is_live: bool = True
    has_boot: bool = True
    #: The path of the command `hostrouting` for services; None for the running installation's.
    command: str | None = None

    def __repr__(self) -> str:
        place = "live" if self.is_live else "an image"
        place += "" if self.has_boot else " without boot files"
        return f"<{type(self).__name__}: {place}, {type(self.routes).__name__}>"

    @classmethod
    def live(cls, *, boot: bool = True, root: str | os.PathLike[str] = "/") -> Host:
        """Return this machine: its current network namespace, systemd and files.

        With `boot=False` it needs no systemd, and `Configure` changes and checks routes until the
        next boot: boot files, gates and optional features are skipped. In a container, `root` is
        the folder where the file system of the host is mounted: the installed config,
        /run/hostrouting and the run lock are read below it.

        >>> Host.live(boot=False, root="/host")
        Traceback (most recent call last):
        hostrouting.base.errors.HostFileError: cannot use the host's files in /host: there is no ...
        """
        # Imported here because it is not needed by programs with other backends.
        from hostrouting.host.files.lock import FileLock
        from hostrouting.host.files.store import RootedFiles
        from hostrouting.host.netlink import NetlinkBackend
        from hostrouting.host.systemd.notify import supervisor_of
        from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl

        if not isinstance(boot, bool):
            raise wrong_argument("boot", boot, "True or False", "False")
        if boot and root != "/":
            raise TypeError(
                f"root is for boot=False (got root={root!r}): write Host.live(boot=False, root=...)"
                ", or Host.offline(root) for an image"
            )
        folder = _folder("use the host's files in", root)
        return cls(
            routes=NetlinkBackend(),
            services=Systemctl() if boot else OfflineUnits(folder),
            files=RootedFiles(folder),
            lock=FileLock(root=folder),
            # Most runs use none of these, and importing them takes 15 ms.
            link_layer=late("netlink.link_layer", "NetlinkLinkLayer"),
            events=late("netlink.events", "NetlinkEvents"),
            nftables=late("packets.nft", "NftCommand"),
            ebtables=late("packets.ebtables", "EbtablesCommand"),
            metadata=late("imds", "InstanceMetadataClient"),
            supervisor=supervisor_of(os.environ),
            trial=late("trial", "GateTrial") if boot else None,
            has_boot=boot,
        )

    @classmethod
    def given_or_live(cls, host: object) -> Host:
        """Return the host of a task, this machine for None; raise TypeError for another type."""
        if host is None:
            return cls.live()
        if not isinstance(host, Host):
            right = "Host.live(), or FakeHost(routes) in a test"
            raise wrong_argument("host", host, "a Host", right)
        return host

    @classmethod
    def offline(cls, root: str | os.PathLike[str]) -> Host:
        """Return the image at `root`, which may be `/`; the kernel and systemd are left alone.

        The path must be absolute: an empty variable of a program must not stand for the working
        directory, which is / for a service.
        """
        # Imported here for the reason in `live`.
        from hostrouting.host.files.lock import FileLock
        from hostrouting.host.files.store import RootedFiles
        from hostrouting.host.systemd.systemctl import OfflineUnits

        root = _folder("prepare the image", root)
        return cls(
            routes=offline_routes(),
            services=OfflineUnits(root),
            files=RootedFiles(root),
            lock=FileLock(root=root),
            is_live=False,
        )


def _folder(purpose: str, root: str | os.PathLike[str]) -> str:
    """Return the path of a folder; raise `HostFileError` for another one."""
    # Not all callers are type-checked, so it may also be None.
    if isinstance(root, bytes):
        raise wrong_argument("root", root, "a path as text", repr(os.fsdecode(root)))
    if root is None or not os.path.isabs(root):  # type: ignore[redundant-expr]  # noqa: PTH117
        raise HostFileError(
            f"cannot {purpose} {root!r}: its path must be absolute, because the working directory "
            "may be /; give one such as /mnt/image"
        )
    folder = os.fspath(root).rstrip("/") or "/"
    if not os.path.isdir(folder):  # noqa: PTH112 (pathlib takes long to import)
        raise HostFileError(f"cannot {purpose} {folder}: there is no such folder")
    return folder
