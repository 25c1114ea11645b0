"""Gated units with a sandbox of their own, and a node that loses its Python, on real systemd."""

import re
import time
from pathlib import Path

from support.gated_machine import (
    CIDR,
    KUBE,
    KUBELET,
    GatedMachine,
    applied,
    more_machines,
    refusal,
)
from support.without_python import NO_PYTHON
from system.test_program import CHECKED, MEND, ROUTED, WRONG
from system.test_recovery import unit_of

#: Units that systemd separates from the host in its ways. The root has no /etc.
SANDBOXES = {
    "network": "PrivateNetwork=yes",
    "user": "User=nobody\nNotifyAccess=all",
    "strict": "ProtectSystem=strict",
    "root": "RootDirectory=/srv/root",
    "with__dash": "PrivateNetwork=yes\nUser=nobody\nProtectSystem=strict\nNotifyAccess=all",
}
_ROOT = """
for name in proc run usr; do mkdir -p /srv/root/$name; mount --bind /$name /srv/root/$name; done
for name in bin lib lib64; do ln -s usr/$name /srv/root/$name; done
"""
#: How a node loses its Python, how it comes back, and the reason that its gates log.
ACCIDENTS = (
    ("mv /usr/bin/python3 /usr/bin/away", "mv /usr/bin/away /usr/bin/python3", NO_PYTHON),
    ("mount --bind /dev/null /usr/bin/python3", "umount /usr/bin/python3", NO_PYTHON),
    (
        "mount --bind /bin/false /usr/bin/python3",
        "umount /usr/bin/python3",
        "the check failed with status 1; run: hostrouting apply ",
    ),
)


def mend_within_15_s(machine: GatedMachine, command: str, *units: str) -> None:
    """Run a command, after which held units start by themselves."""
    since = time.monotonic()
    machine.shell(command)
    for unit in units:
        machine.until(f"systemctl is-active --quiet '{unit}'", unit=unit)
    took = {unit: round(machine.up_since(unit) - since, 1) for unit in units}
    assert max(took.values()) < 15, took


def test_units_in_a_sandbox(tmp_path: Path) -> None:
    """In STRICT mode, a unit with a network, user, root directory or file system of its own is
    refused while the node is misrouted, and starts within 15 s after the repair.
    """
    prepare = WRONG + _ROOT
    prepare += more_machines(**{name: f"[Service]\n{text}" for name, text in SANDBOXES.items()})
    units = [unit_of(name) for name in SANDBOXES]
    with GatedMachine(tmp_path, units=(), arrange=applied(**CHECKED), prepare=prepare) as machine:
        for unit in units:
            journal = machine.journal(f"--unit={unit}")
            assert any(line.startswith(f"hostrouting: {unit} is refused: ") for line in journal)
        assert set(units) <= {*machine.boot.held(machine.ctx)}
        mend_within_15_s(machine, MEND, *units)
        machine.wait_for_retry()
        assert machine.boot.held(machine.ctx) == []


def test_a_python_that_is_taken_away(tmp_path: Path) -> None:
    """In STRICT mode, a unit of a healthy node is refused while its Python is missing, and starts
    within 15 s after Python is back. Meanwhile static-routes.service restores a deleted route.
    """
    with GatedMachine(tmp_path, units=(), arrange=applied(**ROUTED), prepare=WRONG) as machine:
        for number, (lose, bring_back, reason) in enumerate(ACCIDENTS):
            machine.shell(f"{lose}; {MEND.replace('add', 'del')} proto 142")
            cursor = machine.cursor()
            machine.run("systemctl", "restart", "--no-block", KUBE, KUBELET)
            for unit in KUBE, KUBELET:
                line = re.compile(refusal(unit, reason).pattern + ".*")
                machine.wait_for(line, unit=unit, after=cursor)
            assert machine.systemctl("start", "static-routes.service") == 1
            # Only the first time in a boot, and only if no Python can run the program.
            is_restored = CIDR in machine.shell("ip route show proto 142")
            assert is_restored == (number == 0)
            mend_within_15_s(machine, bring_back, KUBE, KUBELET)
