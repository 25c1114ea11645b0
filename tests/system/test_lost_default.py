"""A default route that systemd-networkd or NetworkManager has lost: the commands that `status` offers
bring it back.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from support.golden import assert_first_line
from support.needs import require
from support.patience import wait_until
from support.systemd_box import SystemdBox, install_command, require_program
from support.trees import make_tree
from system.test_networkd import Machine, prepare
from system.test_networkd_dhcp import NETWORK, WIRE

from hostrouting.boot.layout import CONFIG_PATH

CIDR = "172.20.8.0/22"
PEER = "172.20.8.9"
#: The router has an address of the CIDR.
ROUTER = f"{WIRE}ip -n beyond link set lo up; ip -n beyond address add {PEER}/32 dev lo\n"
FABRIC = """
ip link add ib0 type veth peer name fabric && ip link set fabric up && ip link set ib0 up
ip address add 172.20.1.4/16 dev ib0
"""
CONFIG: Final[dict[str, Any]] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": CIDR}]},
    "routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"},
    "gates": ["kubelet.service"],
}


class Leased(Machine):
    """A machine of networkd with a lease, a fabric and the command."""

    def __init__(self, folder: Path) -> None:
        install_command(folder / "image")
        prepared = prepare(network=NETWORK, wire=ROUTER) + FABRIC
        super().__init__(prepared, image=folder / "image")


APPLY = f"hostrouting apply {CONFIG_PATH}"
RECONFIGURE = "networkctl reconfigure eth0"
#: By the trouble: its commands, and the next steps until the node is right.
LEASED = {
    "networkd: the default route is lost": (
        "ip route del default; ip route del 172.20.8.0/22 proto 142",
        [f"{RECONFIGURE} && {APPLY}"],
    ),
    "networkd: the address is lost": (
        "ip address flush dev eth0",
        [f"{RECONFIGURE} && {APPLY}"],
    ),
    "networkd: the device is down": ("ip link set eth0 down", ["ip link set eth0 up", APPLY]),
}


def test_a_dhcp_server_that_is_silent(tmp_path: Path) -> None:
    """The first step for a lost lease asks for another one; while the DHCP server is silent, no
    command helps, and the step names networkd's log.
    """
    require_program()
    with Leased(tmp_path) as machine:
        machine.shell(f"hostrouting apply - <<< '{json.dumps(CONFIG)}'")
        machine.shell("systemctl stop dhcp-server.service")
        machine.shell("ip address flush dev eth0")
        assert machine.status()["next"] == f"{RECONFIGURE} && {APPLY}"
        machine.shell(RECONFIGURE)
        machine.until("[[ $(networkctl --no-legend list eth0) == *configuring* ]]")
        status = machine.status()
        assert status["next"] is None, status
        assert "journalctl -b -u systemd-networkd.service" in status["step"]["owner"], status
        assert status["verdict"].startswith("wrong: eth0 has no IPv4 address"), status


def test_a_fabric_with_a_better_default_route_moves_nothing(tmp_path: Path) -> None:
    """A node whose config names the network of its exit keeps its routes by eth0 when the fabric
    gets a better default route and the kubelet restarts.
    """
    require_program()
    named = {**CONFIG["routeOverlap"], "expectedDevs": ["10.224.0.0/16"]}
    with Leased(tmp_path) as machine:
        config = json.dumps({**CONFIG, "routeOverlap": named})
        machine.shell(f"hostrouting apply - <<< '{config}'")
        machine.shell(f"hostrouting apply --root / - <<< '{config}'")
        machine.shell("ip route add default via 172.20.1.1 dev ib0 metric 50")
        machine.shell("systemctl restart kubelet.service")
        status = machine.status()
        assert (status["ok"], status["next"]) == (True, None), status
        assert "via 10.224.0.1 dev eth0" in machine.run("ip", "route", "get", PEER).stdout


@pytest.mark.parametrize("trouble", LEASED)
def test_networkd_gives_it_back(tmp_path: Path, trouble: str) -> None:
    """Two commands restore a default route that networkd has lost, and the router answers, also on
    a node that was made of an image.
    """
    require_program()
    commands, steps = LEASED[trouble]
    # Only an apply on the node can know that a device that is down is the right one.
    wheres = ("", "--root / ") if RECONFIGURE in steps[0] else ("",)
    with Leased(tmp_path) as machine:
        machine.shell(f"hostrouting apply - <<< '{json.dumps(CONFIG)}'")
        assert machine.status()["ok"], machine.status()
        for where in wheres:
            machine.shell(f"hostrouting apply {where}- <<< '{json.dumps(CONFIG)}'")
            machine.shell(commands)
            follow(machine, trouble, steps)
            assert "via 10.224.0.1 dev eth0" in machine.run("ip", "route", "get", PEER).stdout
            answer = machine.shell(f"timeout 2 bash -c ': > /dev/tcp/{PEER}/9' 2>&1")
            assert "Connection refused" in answer


#: Bash that has NetworkManager manage eth0; `ADDRESS` is how it gets its address.
_MANAGED = """
cat > /etc/NetworkManager/system-connections/eth0.nmconnection <<'END'
[connection]
id=eth0
type=ethernet
interface-name=eth0
[ipv4]
ADDRESS
[ipv6]
method=disabled
END
chmod 600 /etc/NetworkManager/system-connections/*
ln -s /lib/systemd/system/NetworkManager.service /etc/systemd/system/multi-user.target.wants/
"""
_PACKAGES = (
    *("python3", "systemd", "dbus", "iproute2", "procps"),
    # debootstrap does not find the one that polkitd needs.
    *("libpam-systemd", "network-manager", "ifupdown", "isc-dhcp-client"),
)
#: Bash that has ifupdown manage eth0.
_RAISED = """
rm -f /etc/systemd/system/multi-user.target.wants/NetworkManager.service
cat > /etc/network/interfaces <<'END'
auto lo
iface lo inet loopback
auto eth0
iface eth0 inet dhcp
END
ln -s /lib/systemd/system/networking.service /etc/systemd/system/multi-user.target.wants/
"""
#: By the trouble: its commands, and the next steps until the node is right.
OF_NETWORK_MANAGER = {
    "NetworkManager: it is stopped": (
        "systemctl stop NetworkManager; ip address flush dev eth0",
        [f"systemctl start NetworkManager.service && {APPLY}"],
    ),
    "NetworkManager: the device is disconnected": (
        "nmcli device disconnect eth0",
        [f"nmcli device connect eth0 && {APPLY}"],
    ),
}
OF_IFUPDOWN = {
    "ifupdown: the address is lost": (
        "ip address flush dev eth0",
        [f"ifup --force eth0 && {APPLY}"],
    ),
    "ifupdown: its client is dead, and the address is lost": (
        "kill $(cat /run/dhclient.eth0.pid); ip address flush dev eth0",
        [f"ifup --force eth0 && {APPLY}"],
    ),
    "ifupdown: the device was taken down by ifdown": (
        "ifdown eth0",
        ["ip link set eth0 up", f"ifup eth0 && {APPLY}"],
    ),
}


def follow(machine: SystemdBox, trouble: str, steps: list[str]) -> None:
    """Follow the next steps of a node in trouble until it is right."""
    for number, step in enumerate(steps):
        status = machine.status()
        if not number:
            assert_first_line(trouble, status["verdict"])
        assert status["next"] == step, status
        machine.shell(step)
        # ifupdown does nothing about a device that comes up.
        if "ip link" in step and not trouble.startswith("ifupdown"):
            wait_until(
                lambda: "via 10.224.0.1 dev eth0" in machine.shell("ip route show default"),
                f"the default route after {step}",
            )
    status = machine.status()
    assert (status["state"], status["next"]) == ("right", None), status


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tree with NetworkManager, which is not installed or started on this machine."""
    require("systemd", "debootstrap")
    return make_tree("bookworm", tmp_path_factory.mktemp("managed") / "bookworm", *_PACKAGES)


@pytest.mark.soak
@pytest.mark.parametrize(
    "address", ["method=auto", "method=manual\naddress1=10.224.0.4/24,10.224.0.1"]
)
def test_network_manager_gives_it_back(tree: Path, tmp_path: Path, address: str) -> None:
    """Two commands restore a default route that NetworkManager has lost, whether the address comes
    from a DHCP server or from the connection.
    """
    install_command(tmp_path / "image", python=Path("/usr/bin/python3"))
    prepared = ROUTER + _MANAGED.replace("ADDRESS", address) + FABRIC
    with SystemdBox(prepare=prepared, image=tmp_path / "image", tree=tree) as machine:

        def has_default() -> bool:
            return "via 10.224.0.1 dev eth0" in machine.shell("ip route show default")

        wait_until(has_default, "the default route of NetworkManager")
        ungated = {**CONFIG, "gates": []}
        machine.shell(f"hostrouting apply - <<< '{json.dumps(ungated)}'")
        for trouble, (commands, leased) in LEASED.items():
            machine.shell(commands)
            steps = [step.replace(RECONFIGURE, "nmcli device reapply eth0") for step in leased]
            follow(machine, trouble.replace("networkd", "NetworkManager"), steps)
        for trouble, (commands, steps) in OF_NETWORK_MANAGER.items():
            machine.shell(commands)
            follow(machine, trouble, steps)
        never = "nmcli connection modify eth0 ipv4.never-default yes ipv4.gateway ''"
        machine.shell(f"{never}; nmcli device reapply eth0; ip route flush proto 142")
        status = machine.status()
        assert_first_line("NetworkManager: a profile with never-default", status["verdict"])
        assert status["next"] is None, status
        assert "ipv4.never-default" in status["step"]["owner"], status


@pytest.mark.soak
def test_ifupdown_gives_it_back(tree: Path, tmp_path: Path) -> None:
    """The offered commands restore an address that ifupdown has given and that was lost."""
    install_command(tmp_path / "image", python=Path("/usr/bin/python3"))
    with SystemdBox(prepare=ROUTER + _RAISED + FABRIC, image=tmp_path / "image", tree=tree) as node:
        wait_until(
            lambda: "via 10.224.0.1 dev eth0" in node.shell("ip route show default"),
            "the default route of ifupdown",
        )
        ungated = {**CONFIG, "gates": []}
        node.shell(f"hostrouting apply - <<< '{json.dumps(ungated)}'")
        for trouble, (commands, steps) in OF_IFUPDOWN.items():
            node.shell(commands)
            follow(node, trouble, steps)
