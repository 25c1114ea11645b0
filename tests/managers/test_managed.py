"""A device that lost its address or default route: the command of the program that manages it, or
why no command helps. Each row is a state that the program leaves in its files.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hostrouting.managers import managed
from hostrouting.managers.managed import Managed
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import SCOPE_LINK
from hostrouting.testing import FakeHost

ADDRESS = DeviceAddress.parse("10.224.0.5/16")
OF_THE_LINK = DeviceAddress.parse("fe80::5/64")._replace(scope=SCOPE_LINK)
IPV6_ADDRESS = DeviceAddress.parse("fd00::5/64")
NETWORKD = "/run/systemd/netif/links/7"
NETWORK_MANAGER = "/run/NetworkManager/devices/7"
RUNNING = "/run/systemd/units/invocation:{}.service"
NETWORKD_RUNS = {RUNNING.format("systemd-networkd"): "-> 0123"}
NM_RUNS = {RUNNING.format("NetworkManager"): "-> 0123"}
_UNITS = "/etc/systemd/system"
NETWORKD_STARTS = {f"{_UNITS}/multi-user.target.wants/systemd-networkd.service": "-> unit"}
OF_NETWORKD = "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/10-eth1.network\n"
OF_NETPLAN = "ADMIN_STATE=configured\nNETWORK_FILE=/run/systemd/network/10-netplan-eth1.network\n"
CONNECTED = "[device]\nmanaged=true\nconnection-uuid=1c8a\nnm-owned=false\n"
PROFILE = "[connection]\nid=eth1\nuuid={}\n\n[ipv4]\nmethod=auto\n{}\n[ipv6]\nmethod=auto\n"
PROFILES = "/etc/NetworkManager/system-connections/{}.nmconnection"
INTERFACES = {"/etc/network/interfaces": "auto lo\niface lo inet loopback\niface eth1 inet dhcp\n"}
IS_UP = {"/run/network/ifstate": "lo=lo\neth1=eth1\n"}


class Lacking(NamedTuple):
    """A device that does not have something, by the files of the node; `->` begins the text of a link."""

    files: dict[str, str]
    program: str
    #: The command, or a part of the advice if that begins with dots.
    step: str
    addresses: tuple[DeviceAddress, ...] = ()
    family: int = IPV4
    manages: bool = True


DEVICES = {
    "networkd, the default route": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS},
        "systemd-networkd",
        "networkctl reconfigure eth1",
        (ADDRESS,),
    ),
    "networkd, the address": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS}, "systemd-networkd", "networkctl reconfigure eth1"
    ),
    "netplan": Lacking({NETWORKD: OF_NETPLAN, **NETWORKD_RUNS}, "netplan", "netplan apply"),
    "networkd asks for a lease": Lacking(
        {NETWORKD: OF_NETWORKD.replace("configured", "configuring"), **NETWORKD_RUNS},
        "systemd-networkd",
        "... journalctl -b -u systemd-networkd.service",
    ),
    "networkd waits for a router": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS},
        "systemd-networkd",
        "... journalctl -b -u systemd-networkd.service",
        (OF_THE_LINK,),
        IPV6,
    ),
    "networkd, IPv4 beside an address of the link": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS},
        "systemd-networkd",
        "networkctl reconfigure eth1",
        (OF_THE_LINK,),
    ),
    "networkd, the IPv6 default route": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS},
        "systemd-networkd",
        "networkctl reconfigure eth1",
        (OF_THE_LINK, IPV6_ADDRESS),
        IPV6,
    ),
    "a renamed device of networkd": Lacking(
        {NETWORKD: "ADMIN_STATE=unmanaged\n", **NETWORKD_RUNS},
        "systemd-networkd",
        "... no .network file matches eth1",
        manages=False,
    ),
    "networkd is stopped": Lacking(
        NETWORKD_STARTS, "systemd-networkd", "systemctl start systemd-networkd.service"
    ),
    "networkd has crashed": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_STARTS},
        "systemd-networkd",
        "systemctl start systemd-networkd.service",
    ),
    "NetworkManager beside networkd, which is stopped": Lacking(
        {NETWORK_MANAGER: CONNECTED, **NM_RUNS, **NETWORKD_STARTS},
        "NetworkManager",
        "nmcli device reapply eth1",
    ),
    "networkd beside NetworkManager, which is stopped": Lacking(
        {NETWORKD: OF_NETWORKD, **NETWORKD_RUNS, NETWORK_MANAGER: CONNECTED},
        "systemd-networkd",
        "networkctl reconfigure eth1",
    ),
    "NetworkManager": Lacking(
        {NETWORK_MANAGER: CONNECTED, **NM_RUNS}, "NetworkManager", "nmcli device reapply eth1"
    ),
    "NetworkManager beside networkd, which leaves it alone": Lacking(
        {NETWORK_MANAGER: CONNECTED, **NM_RUNS, **NETWORKD_RUNS},
        "NetworkManager",
        "nmcli device reapply eth1",
    ),
    "NetworkManager is stopped": Lacking(
        {NETWORK_MANAGER: CONNECTED}, "NetworkManager", "systemctl start NetworkManager.service"
    ),
    "NetworkManager has disconnected it": Lacking(
        {NETWORK_MANAGER: "[device]\nmanaged=true\n", **NM_RUNS},
        "NetworkManager",
        "nmcli device connect eth1",
    ),
    "NetworkManager is told to leave it alone": Lacking(
        {NETWORK_MANAGER: "[device]\nmanaged=false\n", **NM_RUNS},
        "NetworkManager",
        "... nmcli device set eth1 managed yes",
        manages=False,
    ),
    "a profile with never-default": Lacking(
        {
            NETWORK_MANAGER: CONNECTED,
            PROFILES.format("a"): PROFILE.format("77", "never-default=true\n"),
            PROFILES.format("eth1"): PROFILE.format("1c8a", "never-default=true\n"),
            **NM_RUNS,
        },
        "NetworkManager",
        "... nmcli connection modify 1c8a ipv4.never-default no; nmcli device reapply eth1",
        (ADDRESS,),
    ),
    "a profile with never-default for IPv6 alone": Lacking(
        {
            NETWORK_MANAGER: CONNECTED,
            PROFILES.format("a"): PROFILE.format("77", "never-default=true\n"),
            PROFILES.format("eth1"): PROFILE.format("1c8a", "") + "never-default=true\n",
            **NM_RUNS,
        },
        "NetworkManager",
        "nmcli device reapply eth1",
        (ADDRESS,),
    ),
    "ifupdown": Lacking({**INTERFACES, **IS_UP}, "ifupdown", "ifup --force eth1"),
    "ifupdown, in a file of the folder": Lacking(
        {"/etc/network/interfaces.d/eth1": "iface eth1 inet static\n", **IS_UP},
        "ifupdown",
        "ifup --force eth1",
    ),
    "after an ifdown": Lacking(
        {**INTERFACES, "/run/network/ifstate": "lo=lo\n"}, "ifupdown", "ifup eth1"
    ),
    "ifupdown, and its client is dead": Lacking(
        {**INTERFACES, **IS_UP, "/run/dhclient.eth1.pid": "999\n"},
        "ifupdown",
        "ifup --force eth1",
    ),
    "ifupdown, and its client has got no answer": Lacking(
        {**INTERFACES, **IS_UP, "/run/dhclient.eth1.pid": "999\n", "/proc/999/comm": "dhclient\n"},
        "ifupdown",
        "... journalctl -b -t dhclient",
    ),
}


def found(lacking: Lacking) -> Managed | None:
    """Return how the device is managed on a node with these files."""
    host = FakeHost()
    for path, text in lacking.files.items():
        _, is_link, target = text.partition("-> ")
        if is_link:
            host.files.link(path, target)
        else:
            host.files.write(path, text.encode(), mode=0o644)
    device = Device("eth1", 7, up=True, addresses=lacking.addresses)
    return managed(device, host.files, lacking.family)


@pytest.mark.parametrize("name", DEVICES)
def test_who_gives_it_back(name: str) -> None:
    """The program that manages a device has a command that gives it its configuration again, if that
    can help in its state; otherwise it says who must act, with a command that shows more.
    """
    lacking = DEVICES[name]
    device = found(lacking)
    assert device
    assert (device.program, device.manages) == (lacking.program, lacking.manages)
    if lacking.step.startswith("... "):
        assert not device.command
        assert lacking.step.removeprefix("... ") in device.advice
    else:
        assert (device.command, device.advice) == (lacking.step, "")


def test_nobody_manages_it() -> None:
    """A device that none of the known programs configures, or starts to configure, has no manager."""
    others = "iface eth10 inet dhcp\n# iface eth1 inet dhcp\niface eth1 inet manual\n"
    masked = {f"{_UNITS}/systemd-networkd.service": "-> /dev/null"}
    files = {"/etc/network/interfaces": others, **NETWORKD_STARTS, **masked}
    assert found(Lacking(files, "", "")) is None
    assert found(Lacking(INTERFACES, "", "", family=IPV6)) is None
