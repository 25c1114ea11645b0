"""The program of a boot, run by systemd in the sandbox of the units whose scripts run it."""

from pathlib import Path

import pytest
from support.gated_machine import EARLY, KUBE, KUBELET, GatedMachine, applied
from support.overlap_answers import verdict_of
from support.printed import leaves

from hostrouting.boot.layout import PROGRAM_PATH
from hostrouting.boot.program import interpreter_of
from hostrouting.route_overlap.script import MARKER_OK

LINKS = """
ip link add eth0 type veth peer name wire && ip link set wire up
ip link set eth0 up && ip address add 10.224.0.4/24 dev eth0
ip route add default via 10.224.0.1 dev eth0
"""
FABRIC = """
ip link add ib0 type veth peer name fabric && ip link set fabric up
ip link set ib0 up && ip address add 172.16.1.4/16 dev ib0
"""
#: Right, and not plain.
_NEXTHOP = "ip nexthop add id 7 via 10.224.0.1 dev eth0; ip route add 172.16.8.0/22 nhid 7\n"
UNIT = "check-route-overlap.service"
#: In place of the script.
DROP_IN = """\
[Service]
ExecStart=
ExecStart=/bin/bash -pc '{python} -I -S {program} check rule; [[ $$? == 10 ]]'
"""


@pytest.mark.slow
def test_the_sandbox_of_a_unit_lets_it_answer(tmp_path: Path) -> None:
    """It queries the kernel, writes the marker, and the journal has its verdict once."""
    section = {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}
    arrange = applied(routeOverlap=section)
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=LINKS + FABRIC) as machine:
        python = interpreter_of(machine.files.read(PROGRAM_PATH))
        text = DROP_IN.format(python=python, program=PROGRAM_PATH)
        path = f"/run/systemd/system/{UNIT}.d/program.conf"
        machine.files.write(path, text.encode(), mode=0o644)
        machine.run("systemctl", "daemon-reload")
        assert machine.systemctl("start", UNIT) == 1
        machine.run("ip", "route", "add", "172.16.8.0/22", "via", "10.224.0.1", "dev", "eth0")
        assert machine.systemctl("start", UNIT) == 0
        fine = leaves("172.16.8.0/22", "eth0")
        marker = (machine.files.read(MARKER_OK) or b"").decode()
        assert verdict_of(MARKER_OK, marker) == f"{fine}\n"
        journal = machine.journal(f"--unit={UNIT}")
        wrong = "for the routes that help: hostrouting check"
        assert journal.count(wrong) == 1
        # The retry may have found it first: a verdict is logged again only when it changes.
        assert journal.count(fine) <= 1


#: This boot has waited enough.
_WAITED = "mkdir -p /run/aks-flex-node; echo 30 > /run/aks-flex-node/waited\n"
#: A fault of the interpreter, and the output of the scripts.
_INTERPRETERS = {
    "absent": (
        "rm -f /usr/bin/python3*",
        "there is no Python 3.10 or newer; install it as /usr/bin/python3",
    ),
    "hanging": (
        (
            "rm /usr/bin/python3; printf '#!/bin/bash\\ntrap : TERM\\nwhile :; do sleep 9; done\\n' "
            "> /usr/bin/python3; chmod 755 /usr/bin/python3"
        ),
        (
            f"{PROGRAM_PATH} has not answered after 10 s; run: hostrouting apply "
            "/etc/aks-flex-node/hostrouting.json"
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
@pytest.mark.parametrize("interpreter", _INTERPRETERS)
def test_without_an_answer_of_it(tmp_path: Path, interpreter: str, mode: str) -> None:
    """A node that is right, and not plain: WARN starts the gates with a warning, STRICT holds them.
    With the program they start.
    """
    spoil, reason = _INTERPRETERS[interpreter]
    section = {"expectedCidrs": ["172.16.8.0/22"], "mode": mode}
    arrange = applied(routeOverlap=section)
    keep = "mkdir /var/python; cp -a /usr/bin/python3* /var/python/\n"
    prepare = f"{EARLY}{LINKS}{_NEXTHOP}{_WAITED}{keep}{spoil}\n"
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:
        if mode == "WARN":
            machine.wait_until_up()
        else:
            machine.wait_for_failure(KUBE)
            assert machine.payloads() == []
        text = (
            f"cannot be proven here: row (172.16.8.0/22 nhid 7 via 10.224.0.1 dev eth0); {reason}"
        )
        assert text in machine.journal(f"--unit={UNIT}", f"--unit={KUBE}")
        assert machine.files.read("/run/aks-flex-node/route-overlap.ok") is None
        machine.run("sh", "-c", "rm -f /usr/bin/python3; cp -a /var/python/* /usr/bin/")
        for unit in KUBE, KUBELET:
            machine.systemctl("restart", unit)
            machine.wait_until_up(unit)
        assert machine.files.read("/run/aks-flex-node/route-overlap.ok") is not None
