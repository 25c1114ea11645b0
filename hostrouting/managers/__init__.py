"""The programs that configure a device: which one does, in which state, and by which command again.

Each is a module that reads the files of its program, and starts nothing.
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

#: In the order in which they are asked.
MANAGERS: Sequence[DeviceManager] = (networkd, network_manager, ifupdown)


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """Return how a device that lacks an address or a default route of a family is managed.

    A program that leaves it alone, or is stopped, counts only if there is no other one. None if no
    program that is known manages any device.
    """
    found = []
    for manager in MANAGERS:
        # What only root may read is unknown.
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
    """Return how a default route gets a metric above that of all others; "" if it is unknown.

    A metric that is set by `ip route` goes with the next lease, or the next start of the program.
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
