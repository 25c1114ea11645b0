"""systemd-networkd, also if netplan configures it, as on Ubuntu."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.host.units import MASK
from hostrouting.managers.managed import Managed, runs, value_of
from hostrouting.net.links import address_families
from hostrouting.net.routes import PROTOCOL_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host.ports import FileStore
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute

_UNIT: Final = "systemd-networkd.service"
#: This link starts it at boot, unless an administrator has masked it.
_ENABLED: Final = f"/etc/systemd/system/multi-user.target.wants/{_UNIT}"
_MASKED: Final = f"/etc/systemd/system/{_UNIT}"
#: The state of a device, by index. A clean stop removes the file.
_STATE: Final = "/run/systemd/netif/links/{}"
_NETPLAN: Final = "/etc/netplan"
#: The files that netplan generates for networkd.
_OF_NETPLAN: Final = re.compile(r"/run/systemd/network/\d+-netplan-")
#: networkd's section and key for the metric, by the protocol of the route.
_KEYS: Final = {
    "dhcp": ("DHCPv4", "RouteMetric"),
    "ra": ("IPv6AcceptRA", "RouteMetric"),
    "static": ("Route", "Metric"),
}
#: netplan's key for the metric, and the mapping that contains it.
_IN_NETPLAN: Final = {
    "dhcp": ("route-metric", "dhcp4-overrides"),
    "static": ("metric", "the default route in routes"),
}


def managed(device: Device, files: FileStore, family: int) -> Managed | None:
    """See `DeviceManager`."""
    state = _STATE.format(device.ifindex)
    program = "systemd-networkd"
    if not runs(files, _UNIT):
        # After a crash the file of a device remains, but is out of date.
        starts = files.read_link(_ENABLED) is not None and files.read_link(_MASKED) != MASK
        start = Managed(program, runs=False, command=f"systemctl start {_UNIT}")
        return start if starts else None
    if path := value_of(files, state, "NETWORK_FILE"):
        command = quoted("networkctl", "reconfigure", device.name)
        if _OF_NETPLAN.match(path):
            program, command = "netplan", "netplan apply"
        is_configuring = value_of(files, state, "ADMIN_STATE") == "configuring"
        if is_configuring or _has_link_address_alone(device, family):
            # Reconfiguring would only restart the wait.
            advice = (
                "it is waiting for a DHCP server or router, so check that one; "
                f"see: journalctl -b -u {_UNIT}"
            )
            return Managed(program, advice=advice)
        return Managed(program, command=command)
    see = quoted("networkctl", "status", device.name)
    advice = (
        f"no .network file matches {device.name}, whose name may have changed; "
        f"correct [Match] in its file, or the netplan file; see: {see}"
    )
    return Managed(program, manages=False, advice=advice)


def metric_step(device: Device, files: FileStore, route: ObservedRoute, metric: int) -> str:
    """See `DeviceManager`."""
    path = value_of(files, _STATE.format(device.ifindex), "NETWORK_FILE")
    protocol = PROTOCOL_NAMES.get(route.protocol)
    if not path or protocol not in _KEYS:
        return ""
    if _OF_NETPLAN.match(path) and protocol in _IN_NETPLAN:
        key, mapping = _IN_NETPLAN[protocol]
        place = " or ".join(_netplan_files(files, device.name)) or f"a file of {_NETPLAN}"
        return (
            f"set {key}: {metric} in {mapping} of {device.name} in {place}, and run: netplan apply"
        )
    section, key = _KEYS[protocol]
    # A [Route] section in a drop-in would define another route.
    name = path.rpartition("/")[2]
    drop_in = f"/etc/systemd/network/{name}.d/metric.conf"
    place = path if protocol == "static" else drop_in
    # It reconfigures the devices of changed files. A `reconfigure` right after it can make networkd
    # 252 wait for the removal of an address, and leave the device without one.
    return f"set {key}={metric} in [{section}] of {place}, and run: networkctl reload"


def _has_link_address_alone(device: Device, family: int) -> bool:
    has_one = any(own.family == family for own in device.addresses)
    return has_one and family not in address_families(device)


def _netplan_files(files: FileStore, dev: str) -> Iterator[str]:
    """Yield the netplan files that mention a device."""
    for name in files.names(_NETPLAN):
        path = f"{_NETPLAN}/{name}"
        if name.endswith(".yaml") and dev.encode() in (files.read(path) or b""):
            yield path
