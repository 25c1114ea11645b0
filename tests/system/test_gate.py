"""The gate on real systemd: it holds units, lets them pass, and never disturbs a machine that runs."""

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, stand_in
from support.gated_machine import (
    GATES,
    KUBE,
    KUBELET,
    STAND_INS,
    GatedMachine,
    more_machines,
    refusal,
)

from hostrouting import HostRoutingConfig, Reset, UnitError, check_node
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import held_gates
from hostrouting.boot.intent import Intent
from hostrouting.boot.layout import INTENT_PATH, UNIT_DIRECTORY
from hostrouting.host.units import instance_of
from hostrouting.watch.unit import ConfigureWatch

CHECK_UNIT = f"{CHECK}.service"
APPLY = f"run: hostrouting apply {INTENT_PATH}"
#: A shell takes a file of NULs for a script without commands. A power cut may leave one.
NULS = "head -c 4096 /dev/zero"
PASSED = "hostrouting: routing is not checked: /etc/aks-flex-node/hostrouting.disabled exists"


@pytest.fixture
def machine(tmp_path: Path) -> Generator[GatedMachine]:
    """A machine whose routing was right at its boot: kube1 and the kubelet run."""
    with GatedMachine(tmp_path) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        yield machine


def test_ten_boots_are_ten_times_the_same(tmp_path: Path) -> None:
    """A machine never wins a race: ten of ten boots with an overlap start none, and ten without
    start all.
    """

    def boot(number: int) -> list[str]:
        (tmp_path / str(number)).mkdir()
        with GatedMachine(tmp_path / str(number), overlap=number % 2 == 0) as machine:
            return sorted(machine.payloads())

    # It builds the program: Python 3.11.2 has failed to parse modules in several threads at once.
    first = boot(0)
    with ThreadPoolExecutor(5) as pool:
        boots = [first, *pool.map(boot, range(1, 20))]
    assert boots == [[], ["kube1", "kubelet"]] * 10


def test_no_verb_disturbs_running_units(machine: GatedMachine) -> None:
    """Verbs on our units and findings of the check do not end running processes."""
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
    """While its file exists the gate does not check, and logs that; afterwards it holds again."""
    with GatedMachine(tmp_path, overlap=True) as machine:
        machine.files.write("/etc/aks-flex-node/hostrouting.disabled", b"", mode=0o644)
        machine.wait_until_up()
        assert PASSED in machine.journal(f"--unit={KUBE}")
        machine.files.remove("/etc/aks-flex-node/hostrouting.disabled")
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
        assert machine.state(KUBE).is_running


LOST = f"hostrouting-ask.sh is lost, or ended with {{}}; {APPLY}"
UNLISTED = f"/etc/aks-flex-node/hostrouting.units is lost or damaged; {APPLY}"
NO_TEXT = (
    f"it ended with 126, which proves nothing; {APPLY}: "
    + 2 * f"/etc/aks-flex-node/{CHECK}.sh: "
    + "cannot execute binary file"
)


@pytest.mark.parametrize(
    ("lose", "file", "output"),
    [
        ("rm", "hostrouting-ask.sh", LOST.format(127)),
        (f"{NULS} >", "hostrouting-ask.sh", LOST.format(126)),
        ("truncate -s 0", "hostrouting-ask.sh", LOST.format(127)),
        ("truncate -s 0", "hostrouting.units", UNLISTED),
        (f"{NULS} >", "hostrouting.units", UNLISTED),
        (f"{NULS} >", f"{CHECK}.sh", f"{CHECK}: {NO_TEXT}"),
    ],
)
def test_a_lost_file_holds_the_gate(
    machine: GatedMachine, lose: str, file: str, output: str
) -> None:
    """Without the script of the gates or the list of the units that it starts, or with an empty one
    or NULs, a unit is refused and held, also with NULs for the script of a unit; an apply starts it.
    """
    pids = machine.pids()
    machine.run("sh", "-c", f"{lose} /etc/aks-flex-node/{file}")
    late = "systemd-nspawn@late.service"
    assert machine.systemctl("start", late) == 1
    assert f"hostrouting: {late} is refused: {output}" in machine.journal(f"--unit={late}")
    assert machine.boot.install(machine.ctx, *STAND_INS)
    machine.wait_until_up(late)
    assert machine.pids() == pids


@pytest.mark.parametrize(
    "lose",
    [
        f"rm /etc/systemd/system/{CHECK_UNIT}; systemctl daemon-reload",
        f"ln -sf /dev/null /etc/systemd/system/{CHECK_UNIT}; systemctl daemon-reload",
        "truncate -s 0 /etc/aks-flex-node/check-route-overlap.sh",
    ],
)
def test_a_missing_file_holds_the_gate(machine: GatedMachine, lose: str) -> None:
    """Losing a unit file, or the text of a script, does not open the gate, and the journal names
    the unit.
    """
    machine.run("sh", "-c", lose)
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 1
    output = f"check-route-overlap: its unit file or script is lost or masked; {APPLY}"
    late = "systemd-nspawn@late.service"
    assert f"hostrouting: {late} is refused: {output}" in machine.journal(f"--unit={late}")
    # Nor does each later question have systemd fail to start it.
    cursor = machine.cursor()
    assert machine.run("/etc/aks-flex-node/hostrouting-ask.sh", check=False).stdout == f"{output}\n"
    assert [
        line for line in machine.journal(f"--after-cursor={cursor}") if CHECK_UNIT in line
    ] == []


def test_a_lost_link_opens_no_gate(machine: GatedMachine) -> None:
    """The list of the installed scripts decides the checks; a link is only for the boot."""
    machine.files.remove(f"{UNIT_DIRECTORY}/hostrouting-ready.service.requires/{CHECK_UNIT}")
    machine.services.daemon_reload(machine.ctx)
    assert machine.systemctl("start", "systemd-nspawn@right.service") == 0
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 1


def test_a_unit_with_an_environment_of_its_own(tmp_path: Path) -> None:
    """POSIX mode, another output and an empty folder change no answer, and the break-glass opens
    the gate.
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
        # Who cannot read the file of the answers cannot hold the lock of the gates.
        user = ["setpriv", "--reuid=65534", "--clear-groups", "flock", "--nonblock"]
        assert (
            machine.run(
                *user, "/run/aks-flex-node/hostrouting.answer", "true", check=False
            ).returncode
            != 0
        )
        machine.files.write("/etc/aks-flex-node/hostrouting.disabled", b"", mode=0o644)
        machine.until("grep -q '^up$' /run/odd.log")


def test_systemd_that_does_not_answer_opens_no_gate(tmp_path: Path) -> None:
    """While systemd executes itself anew, nothing shows that a refused unit is a gate, and it stays
    refused.
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


def test_a_stop_that_leaves_the_script_running(tmp_path: Path) -> None:
    """With KillMode=process a stop ends the start only, and the script that runs on does not hold
    the unit again.
    """
    unit = instance_of(NSPAWN, "kept")
    with GatedMachine(
        tmp_path, overlap=True, prepare=more_machines(kept="[Service]\nKillMode=process")
    ) as machine:
        machine.until(f"[[ $(systemctl is-active {unit}) == failed ]]")
        machine.run("systemctl", "start", "--no-block", unit)
        # The brackets keep pgrep from finding the shell that runs it.
        machine.until(f"pgrep -f 'hostrouting-as[k].sh {unit}'")
        machine.run("systemctl", "stop", unit)
        machine.until(f"! pgrep -f 'hostrouting-as[k].sh {unit}'")
        assert unit not in held_gates(machine.ctx, machine.services)


def test_a_restart_without_delay_does_not_give_up(tmp_path: Path) -> None:
    """The refusal takes so long that systemd's limit for starts (5 in 10 s; here scaled to 2 in 4
    s) is not met.
    """
    hasty = "[Unit]\nStartLimitIntervalSec=4\nStartLimitBurst=2\n[Service]\nRestart=always\nRestartSec=100ms\n"
    prepare = f"cat > /etc/systemd/system/{NSPAWN}.d/60-hasty.conf <<'END'\n{hasty}END\n"
    with GatedMachine(tmp_path, overlap=True, prepare=prepare) as machine:
        machine.wait_for(f"{KUBE}: Scheduled restart job, restart counter is at 2.", unit=KUBE)
        machine.mend_routing()
        machine.wait_until_up()
        assert "Start request repeated too quickly" not in "\n".join(
            machine.journal(f"--unit={KUBE}")
        )


def test_links_without_carrier_do_not_slow_the_boot(tmp_path: Path) -> None:
    """No unit of hostrouting waits for links that never come up, or wants network-online.target."""
    prepare = "for n in {0..5}; do ip link add ib$n type veth peer name peer$n; ip link set ib$n up; done\n"
    begin = time.monotonic()
    with GatedMachine(tmp_path, prepare=prepare) as machine:
        assert time.monotonic() - begin < 25
        assert machine.state("network-online.target").active_state == "inactive"
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]


def test_a_gate_that_starts_too_early_is_refused(machine: GatedMachine) -> None:
    """Before=network.target, directly or through others, makes a unit wait for itself."""
    early = "[Unit]\nBefore={}\n[Service]\nExecStart=/bin/true\n"
    machine.files.write(
        "/etc/systemd/system/early.service", early.format("second.service").encode(), mode=0o644
    )
    machine.files.write(
        "/etc/systemd/system/second.service", early.format("network.target").encode(), mode=0o644
    )
    machine.services.daemon_reload(machine.ctx)
    with pytest.raises(UnitError) as caught:
        Boot(machine.host, gates=[*GATES, "early.service"]).install(machine.ctx, STAND_INS[0])
    [first, _] = str(caught.value).splitlines()
    early_for = f"{CHECK_UNIT}, hostrouting-ready.service, network.target, {STATIC}.service"
    assert first == (
        f"early.service cannot be a gate: it is ordered before {early_for}, "
        "so that static-routes.service waits for it, and it would wait for static-routes.service"
    )
    assert not machine.files.exists("/etc/systemd/system/early.service.d")


def test_removing_by_hand(machine: GatedMachine) -> None:
    """The commands in the drop-in's header remove hostrouting, the intent first, and no file of
    others.
    """
    pids = machine.pids()
    sections = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}, "watch": {"enabled": True}}
    config = HostRoutingConfig.from_mapping({**sections, "gates": GATES})
    machine.boot.install(machine.ctx, *STAND_INS, Intent(config=config))
    ConfigureWatch(config, host=machine.host).do(machine.ctx)
    assert machine.state("hostrouting-watch.timer").is_running
    machine.files.write("/etc/aks-flex-node/hostrouting-backup.json", b"{}", mode=0o644)
    machine.run("ip", "route", "add", "198.51.100.0/24", "dev", "lo", "proto", "142")
    drop_in = machine.files.read(f"/etc/systemd/system/{NSPAWN}.d/10-hostrouting.conf") or b""
    lines = [
        line.strip("# ") for line in drop_in.decode().splitlines() if line.startswith("#     ")
    ]
    commands = [
        line
        for line in lines
        if line.startswith(("rm ", "ip ", "systemctl stop", "systemctl daemon-reload"))
    ]
    assert len(commands) == 14
    assert INTENT_PATH in commands[0]
    machine.run("bash", "-ec", "\n".join(commands))
    assert machine.run("ip", "route", "show", "table", "all", "proto", "142").stdout == ""
    assert machine.files.names("/etc/aks-flex-node") == ["hostrouting-backup.json"]
    machine.run("rm", "-r", "/run/aks-flex-node", "/etc/aks-flex-node")
    assert machine.pids() == pids
    machine.break_routing()
    assert machine.systemctl("start", "systemd-nspawn@late.service") == 0
    assert traces(machine) == ["/etc/systemd/system/kubelet.service.d"]


@pytest.mark.parametrize("way", ["reset", "break-glass", "by hand"])
def test_after_the_uninstall_of_upstream(machine: GatedMachine, way: str) -> None:
    """It removes /etc/aks-flex-node as a whole, and no gate. Under STRICT a unit is refused then, and
    the reason names three ways out, each of which works without that folder.
    """
    pids = machine.pids()
    machine.run("rm", "-rf", "/etc/aks-flex-node")
    late = "systemd-nspawn@late.service"
    assert machine.systemctl("start", late) == 1
    output = (
        f"hostrouting: {late} is refused: /etc/aks-flex-node is gone; apply a config, or do one of "
        "these: hostrouting reset; touch /run/hostrouting.disabled; the commands that systemctl cat "
        f"{late} shows"
    )
    assert output in machine.journal(f"--unit={late}")
    if way == "reset":
        Reset(HostRoutingConfig(), host=machine.host).do(machine.ctx)
    elif way == "break-glass":
        machine.run("touch", "/run/hostrouting.disabled")
    else:
        shown = machine.run("systemctl", "cat", late).stdout
        lines = (line.strip("# ") for line in shown.splitlines() if line.startswith("#     "))
        words = "rm ", "ip ", "systemctl stop", "systemctl daemon-reload"
        # As an operator pastes them: one that finds nothing ends nothing.
        machine.run("bash", "-c", "\n".join(line for line in lines if line.startswith(words)))
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


def findings(machine: GatedMachine) -> list[tuple[str, str, str]]:
    """Return the findings of `check` on gates and units; the files are stand-ins for those of a
    config.
    """
    config = HostRoutingConfig.from_mapping({"gates": list(GATES)})
    report = check_node(machine.ctx, config, machine.host, seconds=0)
    return [
        (each.severity, each.kind, each.subject)
        for each in report.findings
        if each.kind != "boot-file"
    ]


def test_a_machine_that_starts_is_not_an_error_of_the_node(tmp_path: Path) -> None:
    """A unit that checks for the first time is a note, a refused one an error, and one that has
    passed is no finding.
    """
    slow = stand_in(
        STATIC, "[[ ! -p /run/status ]] || { echo > /run/begun; read -r _ < /run/status; }\n"
    )
    with GatedMachine(tmp_path, units=(slow, STAND_INS[1])) as machine:
        machine.run("mkfifo", "/run/status", "/run/begun")
        machine.run("systemctl", "restart", "--no-block", KUBE)
        machine.run("cat", "/run/begun")
        assert findings(machine) == [("note", "held", KUBE)]
        machine.break_routing()
        machine.run("sh", "-c", "mv /run/status /run/resumed; echo > /run/resumed")
        machine.wait_for_failure(KUBE)
        assert findings(machine) == [("error", "held", KUBE), ("error", "failed-unit", CHECK_UNIT)]
        cursor = machine.cursor()
        machine.mend_routing()
        machine.wait_until_up(after=cursor)
        machine.wait_for_retry()
        assert findings(machine) == []


def test_a_unit_that_is_down_is_named(machine: GatedMachine) -> None:
    """A stopped unit that a target wants is a warning, but not one whose conditions do not hold, or
    that none wants.
    """
    machine.run("systemctl", "start", "systemd-nspawn@late.service")
    machine.run("systemctl", "stop", KUBE, KUBELET, "systemd-nspawn@late.service")
    assert findings(machine) == [("warning", "gate-down", KUBE), ("warning", "gate-down", KUBELET)]
    path = f"{UNIT_DIRECTORY}/{KUBELET}.d/override.conf"
    machine.files.write(path, b"[Unit]\nConditionPathExists=/nowhere\n", mode=0o644)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", KUBELET, KUBE)
    assert findings(machine) == []


def test_a_changed_unit_of_hostrouting_opens_no_gate(tmp_path: Path) -> None:
    """A drop-in whose condition is never met skips the unit at a boot, and the gates hold all the
    same.
    """
    skipped = f"mkdir {UNIT_DIRECTORY}/{CHECK_UNIT}.d\n"
    skipped += f"printf '[Unit]\\nConditionPathExists=/nowhere\\n' > {UNIT_DIRECTORY}/{CHECK_UNIT}.d/override.conf\n"
    with GatedMachine(tmp_path, overlap=True, prepare=skipped) as machine:
        assert machine.state("hostrouting-ready.service").result == "success"
        assert machine.payloads() == []
        assert any(map(refusal().fullmatch, machine.journal(f"--unit={KUBE}")))
