"""Which program configures a device, in which state it is, and how to make it do so again.

There is a module for each program. It only reads the program's files and does not run anything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hostrouting.base.errors import HostFileError
from hostrouting.managers import ifupdown, network_manager, networkd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host.ports import FileStore
    from hostrouting.managers.managed import DeviceManager, Managed
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

#: In the order in which they are consulted.
MANAGERS: Sequence[DeviceManager] = (networkd, network_manager, ifupdown)


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """Return which program manages a device that has no address or default route of a family.

    A program that ignores the device or is stopped counts only if there is no other. Returns None
    if none of the known programs manages any device.
    """
    found = []
    for manager in MANAGERS:
        # Some files can be read only by root.
        with suppress(HostFileError):
            found.append(manager.managed(device, files, family))
    known = [each for each in found if each is not None]
    known.sort(key=lambda each: (not each.manages, not each.runs))
    return next(iter(known), None)


def metric_step(
    route: ObservedRoute,
    defaults: Sequence[ObservedRoute],
    devices: Sequence[Device],
    files: FileStore,
) -> str:
    """Return how to give a default route a higher metric than all others; "" if unknown.

    Setting it with `ip route` lasts only until the next lease or the next start of the program.
    """
    device = next((each for each in devices if each.name == route.dev), None)
    if device is None:
        return ""
    metric = max(other.metric for other in defaults) + 100
    for manager in MANAGERS:
        with suppress(HostFileError):
            if step := manager.metric_step(device, files, route, metric):
                return step
    return ""
