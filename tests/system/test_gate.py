"""The gate on real systemd: it holds units, lets them pass, and never disturbs a machine that runs."""

from collections.abc import Generator
from pathlib import Path

import pytest
from support.boot_units import CHECK, NSPAWN
from support.gated_machine import (
    GATES,
    KUBE,
    STAND_INS,
    GatedMachine,
    more_machines,
    refusal,
)

from hostrouting import HostRoutingConfig, Reset
from hostrouting.boot.gates import Gates
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH, UNIT_DIRECTORY
from hostrouting.exceptions import UnitError
from hostrouting.host.units import instance_of
from hostrouting.watch.unit import ConfigureWatch

CHECK_UNIT = f"{CHECK}.service"
#: A gate that checks holds it.
LOCK = "/run/hostrouting/ask.lock"
PASSED = "hostrouting: routing is not checked: /etc/aks-flex-node/hostrouting.disabled exists"


@pytest.fixture
def machine(tmp_path: Path) -> Generator[GatedMachine]:
    """A machine whose routing was right at its boot: kube1 and the kubelet run."""
    with GatedMachine(tmp_path) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        yield machine


def test_no_verb_disturbs_running_units(machine: GatedMachine) -> None:
    """Processes that run survive every systemctl verb on hostrouting's units, and findings of the
    check.
    """
    pids = machine.pids()
    own_units = [*(unit.name for unit in STAND_INS), "hostrouting-ready.service"]
    for verb in (
        "restart",
        "stop",
        "start",
        "reload-or-restart",
        "try-restart",
        "reset-failed",
        "kill",
    ):
        for unit in own_units:
            machine.systemctl(verb, unit)
            assert machine.pids() == pids
    machine.break_routing()
    with pytest.raises(UnitError, match=r"see: journalctl -b -u check-route-overlap\.service"):
        machine.services.start(machine.ctx, CHECK_UNIT)
    for verb in "start", "restart", "stop":
        machine.systemctl(verb, "hostrouting-ready.service")
    assert machine.pids() == pids


def test_each_start_of_a_machine_checks_afresh(machine: GatedMachine) -> None:
    """A unit that crashes during an overlap stays down until the repair; a running unit goes on."""
    _, kubelet = machine.pids()
    machine.break_routing()
    cursor = machine.cursor()
    machine.reboot()
    machine.wait_for_refusal(after=cursor)
    assert machine.pids() == (0, kubelet)
    machine.mend_routing()
    machine.wait_until_up(after=cursor)
    assert machine.payloads().count("kube1") == 2
    assert machine.pids()[1] == kubelet


def test_the_break_glass_lets_machines_start(tmp_path: Path) -> None:
    """A gate does not check while the break-glass file exists, and logs that; once the file is
    removed, the gate holds again.
    """
    with GatedMachine(tmp_path, overlap=True) as machine:
        machine.files.write("/etc/aks-flex-node/hostrouting.disabled", b"", mode=0o644)
        machine.wait_until_up()
        assert PASSED in machine.journal(f"--unit={KUBE}")
        machine.files.remove("/etc/aks-flex-node/hostrouting.disabled")
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
        assert machine.state(KUBE).is_running


def test_a_lost_link_opens_no_gate(machine: GatedMachine) -> None:
    """A lost link of a check opens no gate, and holds none on a healthy node."""
    machine.files.remove(f"{UNIT_DIRECTORY}/hostrouting-ready.service.requires/{CHECK_UNIT}")
    machine.services.daemon_reload(machine.ctx)
    assert machine.systemctl("start", "systemd-nspawn@right.service") == 0
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 1


def test_a_unit_with_an_environment_of_its_own(tmp_path: Path) -> None:
    """A gate with POSIX mode, another output and an empty folder of its own refuses as any other,
    and the break-glass opens it.
    """
    unit = instance_of(NSPAWN, "odd")
    settings = (
        "[Service]\nEnvironment=POSIXLY_CORRECT=1\nStandardOutput=append:/run/odd.log\n"
        "TemporaryFileSystem=/etc/aks-flex-node\n"
    )
    with GatedMachine(tmp_path, overlap=True, prepare=more_machines(odd=settings)) as machine:
        machine.until(f"[[ $(systemctl is-active {unit}) == failed ]]")
        output = (machine.files.read("/run/odd.log") or b"").decode()
        assert len(refusal(unit).findall(output)) == 1
        # Another user could hold a lock that it can open.
        user = ["setpriv", "--reuid=65534", "--clear-groups", "flock", "--nonblock"]
        assert machine.run(*user, LOCK, "true", check=False).returncode
        machine.files.write("/etc/aks-flex-node/hostrouting.disabled", b"", mode=0o644)
        machine.until("grep -q '^up$' /run/odd.log")


def test_systemd_that_does_not_answer_opens_no_gate(tmp_path: Path) -> None:
    """A refused unit stays refused while systemd does not answer which drop-ins the unit has, as
    while it executes itself again.
    """
    late = instance_of(NSPAWN, "late")
    silent = (
        '#!/bin/sh\\n[ $2 != --property=DropInPaths ] || exit 1\\nexec /usr/bin/systemctl "$@"\\n'
    )
    folder = "/usr/local/sbin"  # the first that the gate's script searches
    prepare = f"mount -t tmpfs none {folder}; printf '{silent}' > {folder}/systemctl; chmod +x {folder}/systemctl\n"
    with GatedMachine(tmp_path, overlap=True, prepare=prepare) as machine:
        assert machine.systemctl("start", late) == 1
        assert "late" not in machine.payloads()


@pytest.mark.parametrize("looks_again", [False, True])
def test_a_stop_that_leaves_the_script_running(tmp_path: Path, looks_again: bool) -> None:
    """A stop of a unit with KillMode=process leaves its gate's script running, which does not hold
    the unit again, even if its last look has begun.
    """
    unit = instance_of(NSPAWN, "kept")
    with GatedMachine(
        tmp_path, overlap=True, prepare=more_machines(kept="[Service]\nKillMode=process")
    ) as machine:
        machine.until(f"[[ $(systemctl is-active {unit}) == failed ]]")
        cursor = machine.cursor()
        machine.run("systemctl", "start", "--no-block", unit)
        # The brackets keep pgrep from finding the shell that runs it.
        script = f"pgrep --full --delimiter , 'hostrouting-as[k].sh {unit}'"
        machine.until(script)
        if looks_again:
            machine.wait_for(refusal(unit), unit=unit, after=cursor)
            machine.run("systemd-run", "--unit=holder", "flock", LOCK, "sleep", "infinity")
            machine.until(f'pgrep --exact flock --parent "$({script})"')
        machine.run("systemctl", "stop", unit)
        machine.systemctl("stop", "holder")
        machine.until(f"! {script}")
        assert unit not in Gates(machine.services).held(machine.ctx)


def test_a_restart_without_delay_does_not_give_up(tmp_path: Path) -> None:
    """A gated unit that restarts without delay is not given up: a refusal takes so long that
    systemd's limit of starts is not met.

    The limit of 5 in 10 s is scaled to 2 in 4 s here.
    """
    hasty = "[Unit]\nStartLimitIntervalSec=4\nStartLimitBurst=2\n[Service]\nRestart=always\nRestartSec=100ms\n"
    prepare = f"cat > /etc/systemd/system/{NSPAWN}.d/60-hasty.conf <<'END'\n{hasty}END\n"
    with GatedMachine(tmp_path, prepare=prepare) as machine:
        # A boot is not over as long as one of two refused gates is about to start.
        machine.break_routing()
        machine.systemctl("stop", KUBE)
        machine.systemctl("reset-failed", KUBE)
        cursor = machine.cursor()
        machine.systemctl("start", "--no-block", KUBE)
        machine.wait_for(f"{KUBE}: Scheduled restart job, restart counter is at 2.", unit=KUBE)
        machine.mend_routing()
        machine.wait_until_up(after=cursor)
        assert "Start request repeated too quickly" not in "\n".join(
            machine.journal(f"--unit={KUBE}")
        )


def commands_by_hand(machine: GatedMachine, unit: str) -> list[str]:
    """Return those in the header of the drop-in that remove hostrouting."""
    shown = machine.run("systemctl", "cat", unit).stdout
    lines = (line.strip("# ") for line in shown.splitlines() if line.startswith("#     "))
    words = "rm ", "ip ", "systemctl stop", "systemctl daemon-reload"
    return [line for line in lines if line.startswith(words)]


def test_removing_by_hand(machine: GatedMachine) -> None:
    """The commands in the drop-in's header remove hostrouting, beginning with the installed config,
    and leave files of others.
    """
    pids = machine.pids()
    sections = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}, "watch": {"enabled": True}}
    config = HostRoutingConfig.from_mapping({**sections, "gates": GATES})
    machine.boot.install(machine.ctx, *STAND_INS, NewConfig(config=config))
    ConfigureWatch(config, host=machine.host).do(machine.ctx)
    assert machine.state("hostrouting-watch.timer").is_running
    machine.files.write("/etc/aks-flex-node/hostrouting-backup.json", b"{}", mode=0o644)
    machine.run("ip", "route", "add", "198.51.100.0/24", "dev", "lo", "proto", "142")
    commands = commands_by_hand(machine, KUBE)
    assert len(commands) == 15
    assert CONFIG_PATH in commands[0]
    machine.run("bash", "-ec", "\n".join(commands))
    assert machine.run("ip", "route", "show", "table", "all", "proto", "142").stdout == ""
    assert machine.files.names("/etc/aks-flex-node") == ["hostrouting-backup.json"]
    machine.run("rm", "-r", "/etc/aks-flex-node")
    assert machine.pids() == pids
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
    assert traces(machine) == ["/etc/systemd/system/kubelet.service.d"]


@pytest.mark.parametrize("way", ["reset", "break-glass", "by hand"])
def test_after_the_uninstall_of_upstream(machine: GatedMachine, way: str) -> None:
    """A gate under STRICT refuses its unit after upstream's uninstall removed /etc/aks-flex-node;
    the journal names a command that shows four ways to fix it, of which three need no config.
    """
    pids = machine.pids()
    machine.run("rm", "-rf", "/etc/aks-flex-node")
    late = "systemd-nspawn@late.service"
    assert machine.systemctl("start", late) == 1
    assert f"hostrouting: see: systemctl cat {late}" in machine.journal(f"--unit={late}")
    if way == "reset":
        Reset(HostRoutingConfig(), host=machine.host).do(machine.ctx)
    elif way == "break-glass":
        machine.run("touch", "/run/hostrouting.disabled")
    else:
        # As an operator pastes them: one that finds nothing ends nothing.
        machine.run("bash", "-c", "\n".join(commands_by_hand(machine, late)))
    assert machine.systemctl("start", late) == 0
    assert machine.state(late).is_running
    assert machine.pids() == pids


def traces(machine: GatedMachine) -> list[str]:
    """Return everything in the machine that hostrouting installed."""
    names = (
        "*hostrouting*",
        "static-routes*",
        "check-route-overlap*",
        "probe-snat*",
        "aks-flex-node",
        "kubelet.service.d",
    )
    tests = " -o ".join(f"-name '{name}'" for name in names)
    found = machine.run(
        "bash", "-c", f"find /etc /run \\( {tests} \\) -not -path '/run/host/*'"
    ).stdout.split()
    loaded = machine.run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", *names[:4]
    ).stdout
    # `nox -s coverage` mounts a folder of the checkout, which may be called hostrouting.
    return sorted(found) + [line for line in loaded.splitlines() if ".mount " not in line]


def test_a_changed_unit_of_hostrouting_opens_no_gate(tmp_path: Path) -> None:
    """A drop-in that makes systemd skip a unit of hostrouting at a boot does not open the gates."""
    skipped = f"mkdir {UNIT_DIRECTORY}/{CHECK_UNIT}.d\n"
    skipped += f"printf '[Unit]\\nConditionPathExists=/nowhere\\n' > {UNIT_DIRECTORY}/{CHECK_UNIT}.d/override.conf\n"
    with GatedMachine(tmp_path, overlap=True, prepare=skipped) as machine:
        assert machine.state("hostrouting-ready.service").result == "success"
        assert machine.payloads() == []
        assert any(map(refusal().fullmatch, machine.journal(f"--unit={KUBE}")))
