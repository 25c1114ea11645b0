"""NetworkManager, by the file that it keeps for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.managers.managed import Managed, runs, value_of
from hostrouting.net.addresses import IPV4
from hostrouting.net.links import address_families

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

_PROGRAM: Final = "NetworkManager"
_UNIT: Final = "NetworkManager.service"
#: What it knows of a device, by index; it stays when NetworkManager stops.
_STATE: Final = "/run/NetworkManager/devices/{}"


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """See `DeviceManager`."""
    state = _STATE.format(device.ifindex)
    is_managed = value_of(files, state, "managed")
    if not is_managed:
        return None
    if is_managed == "false":
        set_managed = quoted("nmcli", "device", "set", device.name, "managed", "yes")
        advice = f"it is told to leave {device.name} alone: if it should not, run: {set_managed}"
        return Managed(_PROGRAM, manages=False, advice=advice)
    if not runs(files, _UNIT):
        return Managed(_PROGRAM, command=f"systemctl start {_UNIT}")
    connection = value_of(files, state, "connection-uuid")
    if not connection:
        # Somebody has disconnected it, or its profile is inactive.
        return Managed(_PROGRAM, command=quoted("nmcli", "device", "connect", device.name))
    # It has a metric for the default route that the profile asks for, and for no other one.
    asks_default = value_of(files, state, "route-metric-default-aspired")
    if family == IPV4 and family in address_families(device) and not asks_default:
        shown = quoted("nmcli", "connection", "show", connection)
        advice = (
            f"its profile gives {device.name} no default route: see ipv4.never-default and "
            f"ipv4.gateway of: {shown}"
        )
        return Managed(_PROGRAM, advice=advice)
    return Managed(_PROGRAM, command=quoted("nmcli", "device", "reapply", device.name))


def metric_step(device: Device, files: FileStore, route: ObservedRoute, metric: int) -> str:
    """See `DeviceManager`."""
    connection = value_of(files, _STATE.format(device.ifindex), "connection-uuid")
    if not connection:
        return ""
    family = "ipv4" if route.family == IPV4 else "ipv6"
    words = ("nmcli", "connection", "modify", connection, f"{family}.route-metric", str(metric))
    return f"run: {quoted(*words)}; {quoted('nmcli', 'device', 'reapply', device.name)}"
