"""A default route that systemd-networkd has lost: the commands that `status` offers bring it back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from support.gated_machine import shell_with, status_of
from support.systemd_box import install_command, require_program
from system.test_networkd import Machine, prepare
from system.test_networkd_dhcp import NETWORK, WIRE

from hostrouting.boot.layout import INTENT_PATH

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
        self._command = install_command(folder / "image")
        prepared = prepare(network=NETWORK, wire=ROUTER) + FABRIC
        super().__init__(prepared, image=folder / "image")

    def shell(self, script: str) -> str:
        """Return the output of a script, with the command on its path."""
        return shell_with(self, self._command, script)

    def status(self) -> Mapping[str, Any]:
        return status_of(self, self._command)


RECONFIGURE = "networkctl reconfigure eth0"
#: By the trouble: the first line, and the next step.
LEASED = {
    "ip route del default; ip route del 172.20.8.0/22 proto 142": (
        "wrong: eth0 has no IPv4 default route, which systemd-networkd gives it",
        RECONFIGURE,
    ),
    "ip address flush dev eth0": (
        "wrong: eth0 has no IPv4 address, which systemd-networkd gives it",
        RECONFIGURE,
    ),
    "ip link set eth0 down": (
        "wrong: eth0 is set down, and no packet leaves by it",
        "ip link set eth0 up",
    ),
}


def test_a_dhcp_server_that_is_silent(tmp_path: Path) -> None:
    """The first command asks for a lease, in vain; the next one shows who is waited for."""
    require_program()
    with Leased(tmp_path) as machine:
        machine.shell(f"hostrouting apply - <<< '{json.dumps(CONFIG)}'")
        machine.shell("systemctl stop dhcp-server.service")
        machine.shell("ip address flush dev eth0")
        assert machine.status()["next"] == RECONFIGURE
        machine.shell(RECONFIGURE)
        machine.until("[[ $(networkctl --no-legend list eth0) == *configuring* ]]")
        status = machine.status()
        assert status["next"] == "journalctl -b -u systemd-networkd.service", status
        assert status["verdict"].startswith("wrong: eth0 has no IPv4 address"), status


def test_a_fabric_with_a_better_default_route_moves_nothing(tmp_path: Path) -> None:
    """An image names the network of its exit. A router in the fabric brings a default route, and the
    kubelet starts again: its route stays by eth0, and the router answers.
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
    """Two commands, and the router answers, also where an image has pinned no exit."""
    require_program()
    first, step = LEASED[trouble]
    # Of a device that is down nobody but a pin says that it is the right one.
    wheres = ("", "--root / ") if step == RECONFIGURE else ("",)
    with Leased(tmp_path) as machine:
        machine.shell(f"hostrouting apply - <<< '{json.dumps(CONFIG)}'")
        assert machine.status()["ok"], machine.status()
        for where in wheres:
            machine.shell(f"hostrouting apply {where}- <<< '{json.dumps(CONFIG)}'")
            machine.shell(trouble)
            status = machine.status()
            assert (status["verdict"], status["next"]) == (first, step), (where, status)
            machine.shell(step)
            machine.until_configured()
            assert machine.status()["next"] == f"hostrouting apply {INTENT_PATH}", machine.status()
            machine.shell(f"hostrouting apply {INTENT_PATH}")
            status = machine.status()
            assert status["ok"], (where, status)
            assert "via 10.224.0.1 dev eth0" in machine.run("ip", "route", "get", PEER).stdout
            answer = machine.shell(f"timeout 2 bash -c ': > /dev/tcp/{PEER}/9' 2>&1")
            assert "Connection refused" in answer
