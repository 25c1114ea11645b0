"""The program of a boot, run by systemd in the sandbox of the units whose scripts run it."""

from pathlib import Path

import pytest
from support.gated_machine import CONNECT, SMALL_NODE, GatedMachine, applied
from support.overlap_answers import verdict_of
from support.printed import HELPFUL_ROUTES, leaves

from hostrouting.boot.layout import PROGRAM_PATH
from hostrouting.boot.program import interpreter_of
from hostrouting.route_overlap.script import MARKER_OK

UNIT = "check-route-overlap.service"
#: In place of the script.
DROP_IN = """\
[Service]
ExecStart=
ExecStart=/bin/bash -pc '{python} -I -S {program} check rule; [[ $$? == 10 ]]'
"""


@pytest.mark.slow
def test_the_sandbox_of_a_unit_lets_it_answer(tmp_path: Path) -> None:
    """The program queries the kernel and writes the marker within the sandbox of a unit, and the
    journal has its verdict once.
    """
    section = {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}
    arrange = applied(routeOverlap=section)
    prepare = f"{SMALL_NODE}{CONNECT}\n"
    with GatedMachine(tmp_path, units=(), arrange=arrange, prepare=prepare) as machine:
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
        wrong = HELPFUL_ROUTES
        assert journal.count(wrong) == 1
        # The retry may have found it first: a verdict is logged again only when it changes.
        assert journal.count(fine) <= 1
