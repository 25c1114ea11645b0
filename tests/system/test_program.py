"""The program of a boot, which units and gates run, on real systemd."""

import json
import time
from pathlib import Path
from typing import Any

from support.gated_machine import (
    CIDR,
    CONNECT,
    EARLY,
    KUBE,
    KUBELET,
    SMALL_NODE,
    GatedMachine,
    applied,
    refusal,
)
from support.overlap_answers import verdict_of
from support.printed import HELPFUL_ROUTES, leaves

from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.host.units import instance_of
from hostrouting.node.status import node_status
from hostrouting.route_overlap.script import COPIES, MARKER_OK

UNIT = "check-route-overlap.service"
WRONG = f"{SMALL_NODE}{CONNECT}\n"
CHECKED: dict[str, Any] = {"routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"}}
#: A node under it is healthy.
ROUTED: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": CIDR}]},
    "routeOverlap": {"expectedCidrs": [CIDR], "expectedDevs": ["eth0"], "mode": "STRICT"},
}
MEND = f"ip route add {CIDR} via 10.224.0.1 dev eth0"
AGENT = "agent.service"
#: As upstream ships its agent: each restart removes the folder of the markers.
_AGENT = f"""
cat > /etc/systemd/system/{AGENT} <<'END'
[Service]
ExecStart=/bin/sleep infinity
RuntimeDirectory=aks-flex-node
RuntimeDirectoryMode=0750
END
"""


def test_the_sandbox_of_a_unit_lets_it_answer(tmp_path: Path) -> None:
    """The program queries the kernel and writes the marker within the sandbox of a unit, and the
    journal has its verdict once.
    """
    with GatedMachine(tmp_path, units=(), arrange=applied(**CHECKED), prepare=WRONG) as machine:
        assert machine.systemctl("start", UNIT) == 1
        machine.run(*MEND.split())
        assert machine.systemctl("start", UNIT) == 0
        fine = leaves(CIDR, "eth0")
        marker = (machine.files.read(MARKER_OK) or b"").decode()
        assert verdict_of(MARKER_OK, marker) == f"{fine}\n"
        journal = machine.journal(f"--unit={UNIT}")
        wrong = HELPFUL_ROUTES
        assert journal.count(wrong) == 1
        # The retry may have found it first: a verdict is logged again only when it changes.
        assert journal.count(fine) <= 1


def test_a_restart_of_the_agent(tmp_path: Path) -> None:
    """A restart of upstream's agent removes the copies of the marker alone; the next check writes
    them again, and leaves the mode of the agent's folder.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=applied(**ROUTED), prepare=WRONG + _AGENT
    ) as machine:
        copy = COPIES[MARKER_OK]
        assert machine.files.exists(copy)
        for verb in "start", "restart":
            machine.run("systemctl", verb, AGENT)
        assert (machine.files.exists(copy), machine.files.exists(MARKER_OK)) == (False, True)
        machine.run("systemctl", "restart", KUBELET)
        assert machine.files.read(copy) == machine.files.read(MARKER_OK)
        show = "stat", "--format=%a %U", "/run/aks-flex-node"
        assert machine.run(*show).stdout == "750 root\n"
        # Of another user: root has not the capability to write there.
        drop_in = b"[Service]\nUser=nobody\n"
        machine.files.write(f"/etc/systemd/system/{AGENT}.d/user.conf", drop_in, mode=0o644)
        machine.run("systemctl", "daemon-reload")
        for unit in AGENT, KUBELET, UNIT:
            machine.run("systemctl", "restart", unit)
        assert machine.run(*show).stdout == "750 nobody\n"


def test_an_edit_of_the_mode_opens_no_gate(tmp_path: Path) -> None:
    """A STRICT gate on a misrouted node refuses its unit after the mode was taken out of the
    installed config, and `status` says that the config was edited and that routing holds the unit.
    """
    with GatedMachine(tmp_path, units=(), arrange=applied(**CHECKED), prepare=WRONG) as machine:
        config = json.loads(machine.files.read(CONFIG_PATH) or b"")
        del config["hostRouting"]["routeOverlap"]["mode"]
        # Through the link.
        machine.run("sh", "-c", f"echo '{json.dumps(config)}' > {CONFIG_PATH}")
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
        assert machine.systemctl("start", UNIT) == 1
        assert machine.payloads() == []
        status = node_status(machine.ctx, machine.host)
        assert status.to_mapping()["edited"]
        # The edited file is no reason.
        held = [finding.reason for finding in status.check.findings if finding.kind == "held"]
        assert held
        assert all(" once routing is right" in reason for reason in held)


def test_forty_gates_at_once(tmp_path: Path) -> None:
    """Forty gates that start together on a healthy node are up within 15 s."""
    units = [instance_of("systemd-nspawn@.service", f"m{number}") for number in range(40)]
    with GatedMachine(tmp_path, units=(), arrange=applied(**ROUTED), prepare=WRONG) as machine:
        since = time.monotonic()
        machine.run("systemctl", "start", *units)
        took = [machine.up_since(unit) - since for unit in units]
        assert max(took) < 15, took


def test_no_python(tmp_path: Path) -> None:
    """Without Python the routes are restored, a STRICT gate is refused and its journal names what
    is missing; the unit starts within 15 s after Python is back.
    """
    python = "/usr/bin/python3"
    prepare = f"{WRONG}{EARLY}mv {python} {python}.away\n"
    with GatedMachine(tmp_path, units=(), arrange=applied(**ROUTED), prepare=prepare) as machine:
        text = f"there is no Python 3.10 or newer; install it as {python}"
        machine.wait_for(refusal(KUBE, text), unit=KUBE)
        assert machine.run("ip", "route", "show", "proto", "142").stdout.split()[0] == CIDR
        routes = machine.journal("--unit=static-routes.service", "--priority=warning")
        assert "routes were added without Python, and routing was not checked" in routes
        assert text in machine.journal(f"--unit={UNIT}")
        assert machine.payloads() == []
        since = time.monotonic()
        machine.run("mv", f"{python}.away", python)
        for unit in KUBE, KUBELET:
            machine.wait_until_up(unit)
            assert machine.up_since(unit) - since < 15
