"""NetworkManager, judging by the file that it keeps for each device."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.base.errors import HostFileError
from hostrouting.managers.managed import Managed, runs, value_of
from hostrouting.net.addresses import IPV4, IPV6

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

_PROGRAM: Final = "NetworkManager"
_UNIT: Final = "NetworkManager.service"
#: The state of a device, by index; the file remains when NetworkManager stops.
_STATE: Final = "/run/NetworkManager/devices/{}"
_PROFILES: Final = (
    "/etc/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
)
#: The section of a profile for each family.
_SECTIONS: Final = {IPV4: "ipv4", IPV6: "ipv6"}


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """See `DeviceManager`."""
    state = _STATE.format(device.ifindex)
    is_managed = value_of(files, state, "managed")
    if not is_managed:
        return None
    if is_managed == "false":
        set_managed = quoted("nmcli", "device", "set", device.name, "managed", "yes")
        advice = f"it is configured to ignore {device.name}; to change that, run: {set_managed}"
        return Managed(_PROGRAM, manages=False, advice=advice)
    if not runs(files, _UNIT):
        return Managed(_PROGRAM, runs=False, command=f"systemctl start {_UNIT}")
    connection = value_of(files, state, "connection-uuid")
    if not connection:
        # It was disconnected, or its profile is inactive.
        return Managed(_PROGRAM, command=quoted("nmcli", "device", "connect", device.name))
    if _is_never_default(files, connection, family):
        name = f"{_SECTIONS[family]}.never-default"
        words = ("nmcli", "connection", "modify", connection, name, "no")
        again = quoted("nmcli", "device", "reapply", device.name)
        advice = f"its profile sets {name}; to change that, run: {quoted(*words)}; {again}"
        return Managed(_PROGRAM, advice=advice)
    return Managed(_PROGRAM, command=quoted("nmcli", "device", "reapply", device.name))


def _is_never_default(files: FileStore, connection: str, family: int) -> bool:
    """Return True if a profile disables the default route; only root can read it."""
    with suppress(HostFileError):
        for folder in _PROFILES:
            for name in files.names(folder):
                text = (files.read(f"{folder}/{name}") or b"").decode(errors="replace")
                if f"\nuuid={connection}\n" in text:
                    section = text.partition(f"\n[{_SECTIONS[family]}]\n")[2].partition("\n[")[0]
                    return "never-default=true" in section.splitlines()
    return False


def metric_step(device: Device, files: FileStore, route: ObservedRoute, metric: int) -> str:
    """See `DeviceManager`."""
    connection = value_of(files, _STATE.format(device.ifindex), "connection-uuid")
    if not connection:
        return ""
    name = f"{_SECTIONS[route.family]}.route-metric"
    words = ("nmcli", "connection", "modify", connection, name, str(metric))
    return f"run: {quoted(*words)}; {quoted('nmcli', 'device', 'reapply', device.name)}"
