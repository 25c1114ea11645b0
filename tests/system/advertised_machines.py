"""Machines of real systemd with two links on which routers advertise themselves.

The kernel, networkd or NetworkManager receives the advertisements.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.needs import require
from support.patience import wait_until
from support.routers import ROUTER, Prefix, Router
from support.systemd_box import BOX_ROOT, SystemdBox
from support.trees import make_tree

DEVICES = ("eth0", "rdma0")
_IPV4, _IPV4_ROUTER = "10.224.0.4/24", "10.224.0.1"
#: Two links into a namespace of routers; nothing waits for the detection of duplicates.
WIRES = f"""
sysctl -qw net.ipv6.conf.default.accept_dad=0
ip netns add beyond
for dev in eth0 rdma0; do
    ip link add $dev type veth peer name $dev netns beyond
    ip -n beyond address add {ROUTER}/64 dev $dev nodad
    ip -n beyond link set $dev up
done
ip -n beyond address add {_IPV4_ROUTER}/24 dev eth0
"""
#: No daemon: an IPv4 default route through eth0, and the kernel makes the others.
KERNEL = f"""
{WIRES}
ip link set eth0 up && ip link set rdma0 up
ip address add {_IPV4} dev eth0 && ip route add default via {_IPV4_ROUTER} dev eth0
"""
#: As for `test_networkd.py`, for both devices: a udev that knows them, and no marks of a container.
NETWORKD = f"""
{WIRES}
rm /etc/systemd/system/systemd-networkd.service
cd /etc/systemd
mkdir -p network system/systemd-networkd.service.d system/multi-user.target.wants
ln -s /lib/systemd/system/systemd-networkd.service system/multi-user.target.wants/
mount -o remount,rw /sys
mkdir -p /run/udev/data
for dev in eth0 rdma0; do
    echo I:1 > /run/udev/data/n$(cat /sys/class/net/$dev/ifindex)
    cat > network/10-$dev.network <<END
[Match]
Name=$dev
[Network]
IPv6AcceptRA=yes
LinkLocalAddressing=ipv6
END
done
cat >> network/10-eth0.network <<'END'
Gateway={_IPV4_ROUTER}
[Address]
Address={_IPV4}
Broadcast=10.224.0.255
END
cat > system/systemd-networkd.service.d/settings.conf <<'END'
[Service]
Environment=SYSTEMD_LOG_LEVEL=debug
ExecStartPre=+rm -f /run/systemd/container
ProtectControlGroups=no
TemporaryFileSystem=/sys/fs/cgroup
END
"""
#: Without a udev: it takes the devices of a test for its own. It activates none that is `$late`.
NETWORK_MANAGER = f"""
{WIRES}
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /lib/systemd/system/NetworkManager.service /etc/systemd/system/multi-user.target.wants/
ln -s /lib/systemd/system/NetworkManager.service /etc/systemd/system/dbus-org.freedesktop.NetworkManager.service
for dev in eth0 rdma0; do
    file=/etc/NetworkManager/system-connections/$dev.nmconnection
    cat > $file <<END
[connection]
id=$dev
type=ethernet
interface-name=$dev
autoconnect=$([[ $dev == "${{late-}}" ]] && echo false || echo true)
[ipv4]
$([[ $dev == eth0 ]] && printf 'method=manual\naddress1={_IPV4},{_IPV4_ROUTER}' || echo method=disabled)
[ipv6]
method=auto
END
    chmod 600 $file
done
"""
#: Of a tree with NetworkManager; libpam-systemd is what its polkit needs.
_PACKAGES = (
    *("systemd", "systemd-sysv", "systemd-container", "dbus", "iproute2", "procps", "python3"),
    *("libpam-systemd", "network-manager"),
)
#: Devices and metric of a default route.
Default = tuple[list[str], int]


def tree_with_network_manager(folder: Path) -> Path:
    """Return that of the machines, if it has NetworkManager, or else a fresh one of Debian 12."""
    if (BOX_ROOT / "usr/sbin/NetworkManager").exists():
        return BOX_ROOT
    require("debootstrap")
    return make_tree("bookworm", folder / "bookworm", *_PACKAGES)


def defaults_of(owner: str, version: int, preference: str, *, first: str = "eth0") -> list[Default]:
    """Return what becomes of an advertisement on eth0, and one with this preference on rdma0.

    systemd-networkd 252 makes one multipath route, 257 two, with a metric by preference. Of
    NetworkManager's the device that it activates first has the better one.
    """
    if owner == "networkd" and version < 257:
        return [(["eth0", "rdma0"], 1024)]
    metrics = {"eth0": 1024, "rdma0": 1024}
    if owner == "networkd":
        metrics["rdma0"] = {"high": 512, "medium": 1024, "low": 2048}[preference]
    elif owner == "NetworkManager":
        metrics = {dev: 100 + (dev != first) for dev in DEVICES}
    return sorted((([dev], metric) for dev, metric in metrics.items()), key=_by_metric)


def _by_metric(one: Default) -> tuple[int, list[str]]:
    return one[1], one[0]


class Routers:
    """The routers at the far ends of the links of a machine that was prepared with `WIRES`."""

    def __init__(self, machine: SystemdBox) -> None:
        self.machine = machine

    def __enter__(self) -> Routers:
        for dev in DEVICES:
            # A device has IPv6 a moment after its carrier, which comes with the daemon.
            self.machine.until(
                f"ip -n beyond -6 route show table local dev {dev} | grep --quiet ff00::/8"
            )
        self._stack = ExitStack()
        self.by_device = {
            dev: Router(f"{self.machine.root}/run/netns/beyond", dev) for dev in DEVICES
        }
        for router in self.by_device.values():
            self._stack.callback(router.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def advertise(self, *devs: str, **settings: Any) -> None:
        """Let each, or only these, advertise itself: the second one so, the first with its lifetime
        and a prefix.
        """
        first = {"lifetime": settings.get("lifetime", 1800), "options": [Prefix("fd01::/64")]}
        for dev in devs or DEVICES:
            self.by_device[dev].advertise(**(first if dev == "eth0" else settings))

    def advertise_until(self, wanted: list[Default], *devs: str, **settings: Any) -> None:
        """Advertise again and again until there are these default routes: a daemon may not listen
        yet.
        """

        def is_told() -> bool:
            self.advertise(*devs, **settings)
            return self.defaults() == wanted

        wait_until(is_told, f"default routes {wanted}")

    def shown(self) -> list[dict[str, Any]]:
        """Return the default routes of the machine."""
        return list(
            json.loads(
                self.machine.run("ip", "-6", "-j", "route", "show", "default").stdout or "[]"
            )
        )

    def defaults(self) -> list[Default]:
        """Return devices and metric of each default route, by metric and device."""
        found = [
            (sorted(leg["dev"] for leg in route.get("nexthops", [route])), route["metric"])
            for route in self.shown()
        ]
        return sorted(found, key=_by_metric)
