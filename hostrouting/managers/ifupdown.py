"""Debian's ifupdown with dhclient."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.managers.managed import Managed, value_of
from hostrouting.net.addresses import IPV4, IPV6

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

_PROGRAM: Final = "ifupdown"
_INTERFACES: Final = "/etc/network/interfaces"
#: The methods that give a device an address, as they follow its name.
_METHODS: Final = {IPV4: rb"inet\s+(dhcp|static)\b", IPV6: rb"inet6\s+(auto|dhcp|static)\b"}
#: Contains a line `DEVICE=NAME` for each device that ifupdown has brought up.
_STATE: Final = "/run/network/ifstate"
#: dhclient writes the first when it has a lease or begins to wait, the second at each lease.
_PID: Final = "/run/dhclient.{}.pid"
_LEASES: Final = "/var/lib/dhcp/dhclient.{}.leases"
#: A client that gets no answer keeps asking for a minute before it waits.
_SECONDS_TO_ASK: Final = 30.0


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """See `DeviceManager`."""
    if not _is_configured(files, device.name, family):
        return None
    if not value_of(files, _STATE, device.name):
        return Managed(_PROGRAM, command=quoted("ifup", device.name))
    if family == IPV4 and _waits(files, device.name):
        advice = (
            "its DHCP client got no answer and will retry by itself, so check the DHCP server; "
            "see: journalctl -b -t dhclient"
        )
        return Managed(_PROGRAM, advice=advice)
    return Managed(_PROGRAM, command=quoted("ifup", "--force", device.name))


def metric_step(_device: Device, _files: FileStore, _route: ObservedRoute, _metric: int) -> str:
    """See `DeviceManager`; unknown, because several files may define the default route."""
    return ""


def _is_configured(files: FileStore, dev: str, family: int) -> bool:
    """Return True if a file gives the device an address of a family (`manual` does not)."""
    name, method = re.escape(dev.encode()), _METHODS[family]
    stanza = re.compile(rb"^\s*iface\s+" + name + rb"\s+" + method, re.MULTILINE)
    return any(stanza.search(files.read(path) or b"") for path in _files(files))


def _files(files: FileStore) -> Iterator[str]:
    yield _INTERFACES
    for name in files.names(f"{_INTERFACES}.d"):
        yield f"{_INTERFACES}.d/{name}"


def _waits(files: FileStore, dev: str) -> bool:
    """Return True if a DHCP client is running and has had no lease since it started."""
    pid = (files.read(_PID.format(dev)) or b"").decode(errors="replace").strip()
    if not (pid.isdecimal() and files.exists(f"/proc/{pid}")):
        return False
    began = files.modified(_PID.format(dev)) or 0.0
    leased = files.modified(_LEASES.format(dev))
    return leased is None or began > leased + _SECONDS_TO_ASK
