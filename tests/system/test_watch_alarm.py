"""An alarm of watch on real systemd: the gates prove again at each start, and nothing that runs is
stopped.
"""

from pathlib import Path

import attrs
from support.gated_machine import GATES, KUBE, KUBELET, SMALL_NODE, GatedMachine, applied
from support.watched_nodes import running

from hostrouting import HostRoutingConfig, Watch
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK

OVERLAP = {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}


def test_an_alarm_holds_the_next_start_and_stops_nothing(tmp_path: Path) -> None:
    """Late addresses set the marker within two readings; a running unit goes on, and a unit that
    starts is held.

    The gate queries the kernel at each start, and not the marker, so it would hold without watch,
    too. When the addresses go, watch logs it, and the held unit starts by itself.
    """
    with GatedMachine(
        tmp_path, units=(), arrange=applied(routeOverlap=OVERLAP), prepare=SMALL_NODE
    ) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        pids = machine.pids()
        host = attrs.evolve(machine.host, events=NetlinkEvents(netns=f"/proc/{machine.pid}/ns/net"))
        with running(
            Watch(
                HostRoutingConfig.from_mapping({"routeOverlap": OVERLAP, "gates": GATES}), host=host
            )
        ) as watch:
            machine.run("ip", "address", "add", "172.16.1.4/16", "dev", "ib0")
            watch.until(
                lambda: (
                    machine.files.exists(MARKER_DETECTED) and not machine.files.exists(MARKER_OK)
                )
            )
            assert machine.pids() == pids
            assert machine.systemctl("restart", KUBE) == 1
            assert machine.pids() == (0, pids[1])
            machine.run("ip", "address", "delete", "172.16.1.4/16", "dev", "ib0")
            watch.until(
                lambda: (
                    machine.files.exists(MARKER_OK) and not machine.files.exists(MARKER_DETECTED)
                )
            )
            watch.until(lambda: machine.state(KUBE).main_pid != 0)
            assert machine.state(KUBELET).main_pid == pids[1]
