"""The age of the marker on real systemd: watch renews it, and without watch it stays."""

from pathlib import Path
from typing import Any

import pytest
from support.documents import ROOT
from support.gated_machine import GatedMachine, applied
from support.overlap_answers import proven_at
from support.systemd_box import install_command, require_program

from hostrouting import Host
from hostrouting.route_overlap.script import MARKER_OK

LINKS = """
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip address add 10.224.0.4/24 dev eth0
ip route add default via 10.224.0.1 dev eth0
"""
SECTIONS: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
    "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "WARN"},
}
PLUGIN = "bash /root/check_hostrouting.sh /run/aks-flex-node"


def with_plugin(machine: GatedMachine) -> GatedMachine:
    """Give the machine the plugin of the Node Problem Detector."""
    text = (ROOT / "examples/fleet/npd/check_hostrouting.sh").read_bytes()
    machine.files.write("/root/check_hostrouting.sh", text, mode=0o755)
    return machine


def verdict(machine: GatedMachine, *words: str) -> int:
    """Return the exit status of the plugin."""
    return machine.run(*PLUGIN.split(), *words, check=False).returncode


def test_a_flap_without_watch(tmp_path: Path) -> None:
    """The device loses its routes, and the marker of the boot stays: the plugin calls the node right,
    unless it has a maximum age, with which a proof that nothing renews is unknown.
    """
    with GatedMachine(tmp_path, units=(), arrange=applied(**SECTIONS), prepare=LINKS) as machine:
        with_plugin(machine)
        assert verdict(machine, "max-age=3600") == 0
        assert verdict(machine, "max-age=3600", "proven") == 1
        machine.run("ip", "link", "set", "eth0", "down")
        machine.run("ip", "link", "set", "eth0", "up")
        assert machine.run("ip", "route", "show", "proto", "142").stdout == ""
        assert verdict(machine) == 0
        machine.until(f"! {PLUGIN} max-age=1")
        assert verdict(machine, "max-age=1") == 2
        assert verdict(machine, "max-age=1", "proven") == 0
        assert verdict(machine, "proven") == 1


@pytest.mark.parametrize("mode", ["timer", "service"])
def test_watch_renews_the_time(tmp_path: Path, mode: str) -> None:
    """Every interval, in either mode, while nothing changes."""
    require_program()
    watch = {"enabled": True, "mode": mode, "interval": "1s"}

    def arrange(host: Host) -> None:
        install_command(tmp_path / "image")
        applied(**SECTIONS, watch=watch)(host)

    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=LINKS) as machine:
        with_plugin(machine)
        for _ in range(3):
            before = (machine.files.read(MARKER_OK) or b"").decode()
            seen = before.splitlines()[1]
            machine.until(f"[[ $(sed -n 2p {MARKER_OK}) > '{seen}' ]]")
            after = (machine.files.read(MARKER_OK) or b"").decode()
            assert proven_at(after) > proven_at(before)
        assert verdict(machine, "max-age=3600", "proven") == 1
