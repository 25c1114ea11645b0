"""The timer of watch on real systemd: the scripts of the boot run again, and no machine that runs
is touched.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from support.gated_machine import SMALL_NODE, GatedMachine, applied

CIDR = "172.16.8.0/22"
SECTIONS: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.20.0.0/16"}]},
    "routeOverlap": {"expectedCidrs": [CIDR], "mode": "STRICT"},
    "watch": {"enabled": True, "interval": "1s"},
}
CHECK = "check-route-overlap"


def news(machine: GatedMachine) -> list[str]:
    """Return the messages of the check, but for that of a run with the same findings."""
    return [
        line
        for line in machine.journal(f"--identifier={CHECK}")
        if not line.startswith("as before, since ")
    ]


def test_a_deleted_route_and_a_late_overlap(tmp_path: Path) -> None:
    """The timer restores a deleted route after one interval, and a late overlap sets the marker.

    Each of many runs leaves the machine that runs alone, those that fail under STRICT included. The
    log has a line for each change; each run that fails adds an own line and three of systemd.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=applied(**SECTIONS), prepare=SMALL_NODE
    ) as machine:
        before = machine.pids()
        assert all(before)
        machine.run("ip", "route", "delete", "172.20.0.0/16")
        machine.until("[[ $(ip route show proto 142) == 172.20* ]]")
        machine.run("ip", "address", "add", "172.16.1.4/16", "dev", "ib0")
        machine.until("[[ -e /run/hostrouting/route-overlap.detected ]]")
        failures = (
            f"$(journalctl --quiet --output=cat --unit={CHECK} | grep --count 'Failed with result')"
        )
        machine.until(f"(({failures} > 0))")
        found = news(machine)
        # It goes on after a run that failed.
        machine.run("ip", "route", "delete", "172.20.0.0/16")
        machine.until("[[ $(ip route show proto 142) == 172.20* ]]")
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
        machine.until(f"(({failures} > 3))")
        assert news(machine) == found
        machine.run("ip", "address", "delete", "172.16.1.4/16", "dev", "ib0")
        machine.until("[[ -e /run/hostrouting/route-overlap.ok ]]")
        machine.wait_until_up("systemd-nspawn@late.service")
        assert machine.pids() == before
        repaired = "repaired: + 172.20.0.0/16 via 10.224.0.1 dev eth0 proto 142"
        journal = machine.journal("--identifier=static-routes")
        assert [line for line in journal if line != repaired] == ["routes in force: 1"]
        # The retry of a gate that is slow to come up may be faster than the timer.
        assert machine.journal().count(repaired) == 2
        of_systemd = Counter(machine.journal(f"--unit={CHECK}", "--identifier=systemd"))
        of_failures = {
            count for line, count in of_systemd.items() if re.search(r"process exited|Failed", line)
        }
        # 247 logs each start and each success, too, whatever LogLevelMax= is.
        assert (len(of_systemd), len(of_failures)) == (6 if machine.version == 247 else 3, 1)
