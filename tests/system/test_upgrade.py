"""A node moves from upstream's installation to ours while its machines run."""

from collections.abc import Generator
from pathlib import Path

import pytest
from support.boot_units import CHECK, STATIC, UPSTREAM_LINKS, departure_of, install_upstream
from support.gated_machine import KUBE, STAND_INS, GatedMachine, require_nspawn

from hostrouting.host import Host

UNITS = (f"{STATIC}.service", f"{CHECK}.service")


@pytest.fixture
def machine(tmp_path: Path) -> Generator[GatedMachine]:
    """A machine with upstream's units, all active and required by the container that runs."""
    require_nspawn()

    def upstream(image: Host) -> None:
        install_upstream(image.files)

    with GatedMachine(tmp_path, units=(), arrange=upstream) as machine:
        assert [machine.state(unit).sub_state for unit in UNITS] == ["exited", "exited"]
        assert machine.state(KUBE).is_running
        assert machine.state(KUBE).requires >= set(UNITS)
        yield machine


def test_our_scripts_run_and_the_machine_goes_on(machine: GatedMachine) -> None:
    """The process is the same before and after; a start runs the new script, and the binding links are gone."""
    pids = machine.pids()
    for unit in STAND_INS:
        assert machine.boot.install(machine.ctx, unit)
        machine.services.start(machine.ctx, unit.name)
        assert machine.pids() == pids
    for unit in STAND_INS:
        ran = machine.files.read(f"/run/aks-flex-node/{unit.name.removesuffix('.service')}.ran")
        assert ran == b"ran\n"
        assert not machine.boot.install(machine.ctx, unit)
    assert [machine.files.exists(link) for link in UPSTREAM_LINKS] == [False] * 3
    assert machine.state(KUBE).requires.isdisjoint(UNITS)
    machine.systemctl("restart", *UNITS)
    assert machine.pids() == pids
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 1


def test_a_unit_that_left_the_config_is_removed(machine: GatedMachine) -> None:
    """Upstream's units are removed as ours would be, and no machine stops."""
    pids = machine.pids()
    for unit in STAND_INS:
        assert machine.boot.install(machine.ctx, departure_of(unit))
        assert machine.pids() == pids
        assert not machine.state(unit.name).exists
    assert not machine.files.exists("/etc/aks-flex-node")
