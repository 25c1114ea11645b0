"""The owner of a default route: the program that keeps it, and where that has the route's metric.

A metric that is set by `ip route` goes with the next lease, or the next start of the owner.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted
from hostrouting.base.errors import HostFileError
from hostrouting.net.addresses import IPV4
from hostrouting.net.links import Device, address_families
from hostrouting.net.routes import PROTOCOL_NAMES, ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.host import FileStore

#: The files of a device by its index: networkd has the .network file there, NetworkManager the
#: connection.
_NETWORKD: Final = "/run/systemd/netif/links/{}"
_NETWORK_MANAGER: Final = "/run/NetworkManager/devices/{}"
_NETPLAN: Final = "/etc/netplan"
#: netplan writes these for networkd.
_OF_NETPLAN: Final = re.compile(r"/run/systemd/network/\d+-netplan-")
#: The section and the key of networkd, by the protocol of the route.
_KEYS: Final = {
    "dhcp": ("DHCPv4", "RouteMetric"),
    "ra": ("IPv6AcceptRA", "RouteMetric"),
    "static": ("Route", "Metric"),
}
#: The key of netplan, and the mapping of the device that has it.
_IN_NETPLAN: Final = {
    "dhcp": ("route-metric", "dhcp4-overrides"),
    "static": ("metric", "the default route in routes"),
}
_STEP: Final = 100


def metric_step(
    route: ObservedRoute,
    defaults: Sequence[ObservedRoute],
    links: Sequence[Device],
    files: FileStore,
) -> str:
    """Return how a default route gets a metric above that of all others; "" if it is unknown."""
    index = next((link.ifindex for link in links if link.name == route.dev), None)
    if route.dev is None or index is None:
        return ""
    metric = max(other.metric for other in defaults) + _STEP
    for owner in (_by_networkd, _by_network_manager):
        with suppress(HostFileError):
            for step in owner(files, route, route.dev, index, metric):
                return step
    return ""


def keeper_of(link: Device, files: FileStore | None, family: int) -> tuple[str, str]:
    """Return the program that configures a device, and the command by which it does so anew.

    Both are empty where neither networkd nor NetworkManager manages the device.
    """
    if files is None:
        return "", ""
    with suppress(HostFileError):
        state = _NETWORKD.format(link.ifindex)
        if path := _value(files, state, "NETWORK_FILE"):
            keeper, command = "systemd-networkd", quoted("networkctl", "reconfigure", link.name)
            if _OF_NETPLAN.match(path):
                keeper, command = "netplan", "netplan apply"
            is_configuring = _value(files, state, "ADMIN_STATE") == "configuring"
            if is_configuring or _has_link_address_alone(link, family):
                # It waits for an answer of a DHCP server or a router, and would wait anew.
                command = quoted("journalctl", "-b", "-u", "systemd-networkd.service")
            return keeper, command
        if _value(files, _NETWORK_MANAGER.format(link.ifindex), "connection-uuid"):
            return "NetworkManager", quoted("nmcli", "device", "reapply", link.name)
    return "", ""


def _has_link_address_alone(link: Device, family: int) -> bool:
    has_one = any(own.family == family for own in link.addresses)
    return has_one and family not in address_families(link)


def _by_networkd(
    files: FileStore, route: ObservedRoute, dev: str, index: int, metric: int
) -> Iterator[str]:
    path = _value(files, _NETWORKD.format(index), "NETWORK_FILE")
    protocol = PROTOCOL_NAMES.get(route.protocol)
    if not path or protocol not in _KEYS:
        return
    if _OF_NETPLAN.match(path) and protocol in _IN_NETPLAN:
        key, mapping = _IN_NETPLAN[protocol]
        place = " or ".join(_netplan_files(files, dev)) or f"a file of {_NETPLAN}"
        yield f"set {key}: {metric} in {mapping} of {dev} in {place}, and run: netplan apply"
        return
    section, key = _KEYS[protocol]
    # Another [Route] in a drop-in would be another route.
    name = path.rpartition("/")[2]
    drop_in = f"/etc/systemd/network/{name}.d/metric.conf"
    place = path if protocol == "static" else drop_in
    # It configures the devices of changed files anew. A `reconfigure` directly behind it can leave
    # 252 waiting for the removal of an address, and the device without one.
    yield f"set {key}={metric} in [{section}] of {place}, and run: networkctl reload"


def _by_network_manager(
    files: FileStore, route: ObservedRoute, dev: str, index: int, metric: int
) -> Iterator[str]:
    if uuid := _value(files, _NETWORK_MANAGER.format(index), "connection-uuid"):
        family = "ipv4" if route.family == IPV4 else "ipv6"
        words = ("nmcli", "connection", "modify", uuid, f"{family}.route-metric", str(metric))
        yield f"run: {quoted(*words)}; {quoted('nmcli', 'device', 'reapply', dev)}"


def _value(files: FileStore, path: str, key: str) -> str:
    """Return the value of a key in a file of `key=value` lines; "" without one."""
    text = (files.read(path) or b"").decode(errors="replace")
    lines = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name == key), "")


def _netplan_files(files: FileStore, dev: str) -> Iterator[str]:
    """Yield the files that name a device."""
    for name in files.names(_NETPLAN):
        path = f"{_NETPLAN}/{name}"
        if name.endswith(".yaml") and dev.encode() in (files.read(path) or b""):
            yield path
