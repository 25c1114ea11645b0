"""The service of watch on real systemd: its readiness, its restarts, and a boot that does not wait
for it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gated_machine import EARLY, GATES, KUBE, KUBELET, SMALL_NODE, GatedMachine, applied
from support.systemd_box import install_command, require_program

from hostrouting import Host, HostRoutingConfig, Reset
from hostrouting.boot.layout import APPLIED_PATH, CONFIG_PATH
from hostrouting.node.status import node_status
from hostrouting.watch.unit import ConfigureWatch
from phases import Context

UNIT = "hostrouting-watch.service"
#: So that a process that hangs, or ends, is replaced sooner.
IMPATIENT = "[Service]\nRestartSec=100ms\nWatchdogSec=4s\n"
ONE_ROUTE = [{"destination": "172.20.0.0/16"}]
TWO_ROUTES = [*ONE_ROUTE, {"destination": "172.21.0.0/16"}]
SECTIONS: dict[str, Any] = {
    "staticRoutes": {"enabled": True, "routes": ONE_ROUTE},
    "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
    "watch": {"enabled": True, "mode": "service"},
    "gates": list(GATES),
}


@pytest.fixture(autouse=True)
def _possible() -> None:
    require_program()


def config(**changes: object) -> HostRoutingConfig:
    return HostRoutingConfig.from_json(json.dumps(SECTIONS | changes))


def apply(host: Host, **changes: object) -> None:
    applied(**SECTIONS | changes)(host)


def routes(wanted: object) -> dict[str, object]:
    return {"staticRoutes": {"enabled": True, "routes": wanted}}


class WatchedMachine(GatedMachine):
    """A machine whose image was made by an apply, and has the command."""

    def __init__(self, folder: Path, *, drop_in: str = IMPATIENT, prepare: str = "") -> None:
        def arrange(host: Host) -> None:
            install_command(folder / "image")
            host.files.write(
                f"/etc/systemd/system/{UNIT}.d/test.conf", drop_in.encode(), mode=0o644
            )
            apply(host)

        super().__init__(folder, units=(), arrange=arrange, prepare=SMALL_NODE + prepare)

    def until_it_runs(self, *, instead_of: int = 0) -> int:
        """Wait until the service is ready with another process than this one, and return its
        process.
        """
        shown = (
            f"$(systemctl show --property=ActiveState,MainPID --value {UNIT} | sort | tr '\\n' ' ')"
        )
        self.until(f'state="{shown}"; [[ $state == *" active "* && $state != "{instead_of} "* ]]')
        return self.state(UNIT).main_pid

    def until_status(self, status: str) -> None:
        """Wait until the service has sent this state."""
        self.until(f"[[ $(systemctl show --property=StatusText --value {UNIT}) == '{status}' ]]")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[WatchedMachine]:
    with WatchedMachine(tmp_path) as machine:
        machine.until_it_runs()
        yield machine


def test_from_the_boot_to_the_reset(machine: WatchedMachine) -> None:
    """The service is ready after its first look, and keeps routes; an apply that changes nothing
    for it leaves its process, and `status` prints what it says. It is started again after a signal has ended it without a failure.

    A reset stops and removes it. The machines run on.
    """
    before = machine.pids()
    assert all(before)
    pid = machine.until_it_runs()
    machine.until_status("routes in force: 1")
    machine.run("ip", "route", "delete", "172.20.0.0/16")
    machine.until("[[ $(ip route show proto 142) == 172.20* ]]")
    apply(machine.host)
    apply(machine.host, **routes(TWO_ROUTES))
    machine.until_status("routes in force: 2")
    shown = node_status(Context(timeout=60), machine.host).lines()
    assert f"watch: {UNIT} (active): routes in force: 2" in shown
    assert machine.state(UNIT).main_pid == pid
    machine.run("systemctl", "kill", UNIT)
    assert machine.until_it_runs(instead_of=pid) != pid
    Reset(config(), host=machine.host).do(Context(timeout=60))
    assert not machine.state(UNIT).exists
    assert machine.run("pgrep", "--full", "hostrouting watch", check=False).stdout == ""
    assert machine.pids() == before


def test_a_config_that_is_damaged_at_the_start(machine: WatchedMachine) -> None:
    """The service that starts with a damaged config logs one line and waits in the same process,
    until an apply replaces the config.
    """
    machine.files.write(APPLIED_PATH, b"{", mode=0o644)
    cursor = machine.cursor()
    machine.run("systemctl", "restart", UNIT)
    pid = machine.until_it_runs()
    machine.until(
        f"[[ $(systemctl show --property=StatusText --value {UNIT}) == *'so nothing is kept'* ]]"
    )
    apply(machine.host)
    machine.until_status("routes in force: 1")
    assert machine.state(UNIT).main_pid == pid
    journal = machine.journal(f"--unit={UNIT}", f"--after-cursor={cursor}")
    [damage] = [
        line
        for line in journal
        if "the installed config cannot be read" in line and "over" not in line
    ]
    assert damage.endswith(f"apply its other copy: hostrouting apply {CONFIG_PATH}")
    # The name of the unit is enough.
    assert "hostrouting: " not in damage


def test_a_process_that_hangs_or_ends_is_replaced(machine: WatchedMachine) -> None:
    """The watchdog replaces a process of the service that was stopped by a signal, and Restart= one
    that was killed.
    """
    first = machine.until_it_runs()
    machine.run("systemctl", "kill", "--signal=STOP", UNIT)
    second = machine.until_it_runs(instead_of=first)
    machine.crash(UNIT)
    assert machine.until_it_runs(instead_of=second) != first
    journal = machine.journal(f"--unit={UNIT}")
    assert [line for line in journal if "Watchdog timeout" in line] != []


def test_it_is_restarted_if_its_unit_changed(machine: WatchedMachine) -> None:
    """The service is restarted by a config that needs more rights, and is replaced by the timer,
    and back, by another mode.
    """
    first = machine.until_it_runs()
    sweep = {"staleCni": {"enabled": True, "podCidrs": ["10.240.0.0/16"], "sweep": "clean"}}
    ConfigureWatch(config(**sweep), host=machine.host).do(machine.ctx)
    machine.until_it_runs(instead_of=first)
    apply(machine.host, watch={"enabled": True})
    assert not machine.state(UNIT).exists
    assert machine.state("hostrouting-watch.timer").is_running
    apply(machine.host)
    machine.until_it_runs()
    assert not machine.state("hostrouting-watch.timer").exists
    assert machine.systemctl("stop", UNIT) == 0
    assert machine.state(UNIT).result == "success"


#: A program that hangs, whatever its arguments are, and ends by no signal but SIGKILL.
STUBBORN = "#!/bin/bash\ntrap '' TERM\n: > /run/stuck\nwhile :; do sleep 1000; done\n"


def test_a_program_that_hangs_is_killed_with_it(machine: WatchedMachine) -> None:
    """A stop of the service succeeds while its sweep runs a program that ignores SIGTERM, which
    systemd kills at once.

    So does the stop by an apply or reset that removes the unit.
    """
    sweep = {"enabled": True, "podCidrs": ["10.240.0.0/16"]}
    machine.files.remove("/usr/sbin/ebtables-nft")
    machine.files.write("/usr/sbin/ebtables-nft", STUBBORN.encode(), mode=0o755)
    machine.run("ip", "link", "add", "azure0", "type", "bridge")

    def stick() -> None:
        machine.files.remove("/run/stuck")
        apply(machine.host, staleCni=sweep)
        machine.until("[[ -e /run/stuck ]]")

    stick()
    assert machine.systemctl("stop", UNIT) == 0
    assert machine.state(UNIT).result == "success"
    stick()
    apply(machine.host, watch={"enabled": True})
    assert not machine.state(UNIT).exists
    stick()
    Reset(config(), host=machine.host).do(Context(timeout=60))
    assert not machine.state(UNIT).exists
    assert machine.run("pgrep", "--full", "sleep 1000", check=False).stdout == ""
    journal = machine.journal(f"--unit={UNIT}")
    assert [
        line for line in journal if "timed out" in line or "reception is disabled" in line
    ] == []


def test_nothing_waits_for_it(tmp_path: Path) -> None:
    """A boot with a service of watch that never gets ready starts the machines and reaches
    multi-user.target.
    """
    never = "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n"
    with WatchedMachine(tmp_path, drop_in=never, prepare=EARLY) as machine:
        machine.wait_until_up(KUBE)
        machine.wait_until_up(KUBELET)
        machine.until("systemctl is-active --quiet multi-user.target")
        assert machine.state(UNIT).active_state == "activating"
