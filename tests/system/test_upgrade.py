"""A node moves from upstream's installation to hostrouting's while its machines run."""

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from support.boot_units import (
    CHECK,
    STATIC,
    UPSTREAM_LINKS,
    departure_of,
    install_upstream,
    stand_in_program,
)
from support.gated_machine import KUBE, STAND_INS, GatedMachine
from support.hurried import hurried, rewritten
from support.systemd_box import require_program
from system.matrix import Node, parsed
from system.troubles import EARLIER, LINKS

from hostrouting import Configure, Host
from hostrouting.boot import layout
from hostrouting.boot.layout import UNIT_DIRECTORY, read_asset
from phases import Context, TaskFailedError

UNITS = f"{STATIC}.service", f"{CHECK}.service"


@pytest.fixture
def machine(tmp_path: Path) -> Generator[GatedMachine]:
    """A machine with upstream's units, all active and required by the container that runs."""

    def upstream(image: Host) -> None:
        install_upstream(image.files)

    with GatedMachine(tmp_path, units=(), arrange=upstream) as machine:
        assert [machine.state(unit).sub_state for unit in UNITS] == ["exited", "exited"]
        assert machine.state(KUBE).is_running
        assert machine.state(KUBE).requires >= set(UNITS)
        yield machine


def test_our_scripts_run_and_the_machine_goes_on(machine: GatedMachine) -> None:
    """An install over upstream's units leaves the machine's process, runs the new scripts, and
    removes the binding links.
    """
    pids = machine.pids()
    stand_in_program(machine.files)
    for unit in STAND_INS:
        assert machine.boot.install(machine.ctx, unit)
        machine.services.start(machine.ctx, unit.name)
        assert machine.pids() == pids
    for unit in STAND_INS:
        ran = machine.files.read(f"/run/hostrouting/{unit.name.removesuffix('.service')}.ran")
        assert ran == b"ran\n"
        assert not machine.boot.install(machine.ctx, unit)
    assert [machine.files.exists(link) for link in UPSTREAM_LINKS] == [False] * 3
    assert machine.state(KUBE).requires.isdisjoint(UNITS)
    machine.systemctl("restart", *UNITS)
    assert machine.pids() == pids
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 1


def of_another_release(module: str, name: str) -> bytes:
    """Return an asset as a release has it whose program ends with 30 for a yes."""
    text = read_asset(module, name)
    answered = b"    status=$?\n    [[ $status == 1[0-2] ]] && return\n"
    assert (answered in text) == (name == "hostrouting-ask.sh")
    yes = b"    case $status in 10) status=9 ;; 30) status=10 ;; esac\n"
    return text.replace(answered, answered.replace(b"$?\n", b"$?\n" + yes))


@pytest.mark.slow
def test_a_kill_of_an_upgrade_holds_no_right_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade between programs with different statuses that is killed at any step leaves gates
    that open on a right node under STRICT.
    """
    yes = b"RIGHT: Final = 10\n", b"RIGHT: Final = 30\n"
    with monkeypatch.context() as earlier, rewritten("hostrouting.node.at_boot", *yes):
        earlier.setattr(layout, "read_asset", of_another_release)
        machine = Node(tmp_path, mode="STRICT", earlier=True)
    with machine:
        machine.prepare_configs(new=EARLIER)
        machine.wait_until_up()
        begin = "rm -rf /etc/aks-flex-node /etc/systemd/system; cp -a /run/earlier/* /etc"
        save = "mkdir -p /run/earlier/systemd; cp -a /etc/aks-flex-node /run/earlier"
        machine.bash(f"{save}; cp -a /etc/systemd/system /run/earlier/systemd")
        step, status, refused = 0, 1, []
        while status:
            step += 1
            status = machine.apply("new", step=step).returncode
            unit = f"systemd-nspawn@step{step}.service"
            if machine.systemctl("start", unit):
                refused.append((step, machine.journal(f"--unit={unit}")[1:3]))
            machine.bash(f"{begin}; systemctl daemon-reload")
        assert step > 10
        assert refused == []


def test_a_unit_that_left_the_config_is_removed(machine: GatedMachine) -> None:
    """Upstream's units are removed as own ones are, and no machine stops."""
    pids = machine.pids()
    for unit in STAND_INS:
        assert machine.boot.install(machine.ctx, departure_of(unit))
        assert machine.pids() == pids
        assert not machine.state(unit.name).exists
    assert not machine.files.exists("/etc/aks-flex-node")


def test_a_machine_that_a_cut_upgrade_left_down(tmp_path: Path) -> None:
    """A machine that upstream's remaining link keeps down without a check is held by the next
    apply, and starts once routing is right.
    """
    require_program()
    wrong = {"routeOverlap": EARLIER["routeOverlap"]}

    def cut(image: Host) -> None:
        Configure(parsed(wrong, "STRICT"), host=image, force=True).do(Context(timeout=60))
        image.files.link(UPSTREAM_LINKS[1], f"{UNIT_DIRECTORY}/{CHECK}.service")

    with GatedMachine(tmp_path, units=(), arrange=cut, prepare=LINKS) as machine:
        assert machine.state(KUBE).active_state == "inactive"
        assert KUBE not in machine.boot.held(machine.ctx)
        with hurried(), suppress(TaskFailedError):
            Configure(parsed(wrong, "STRICT"), host=machine.host).do(machine.ctx)
        assert KUBE in machine.boot.held(machine.ctx)
        machine.run("bash", "-ec", "ip route add 172.16.8.0/22 via 10.224.0.1 dev eth0")
        machine.wait_until_up()
        assert machine.payloads().count("kube1") == 1
