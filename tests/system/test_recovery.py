"""Recovery on real systemd: refused units come up once routing is right, and units that were
stopped stay down.
"""

import time
from pathlib import Path

import pytest
from support.boot_units import NSPAWN, STATIC, departure_of, stand_in
from support.gated_machine import (
    EARLY,
    KUBE,
    KUBELET,
    SLOW_CHECK,
    STAND_INS,
    STILL_WAITING,
    STRICT,
    GatedMachine,
    more_machines,
    refusal,
)
from support.patience import wait_until

from hostrouting.boot.gates import Gates
from hostrouting.boot.layout import GATE_LOCK, UNIT_DIRECTORY
from hostrouting.exceptions import UnitError

RETRY = "hostrouting-retry.service"
#: The distribution's unit without the settings that a oneshot must not have; its command is still
#: missing.
ONESHOT = "[Service]\nType=oneshot\nWatchdogSec=0\nRestartForceExitStatus=\nExecStart=\n"
#: Restart settings of a machine: those of the distribution (none) and those that operators write.
SETTINGS = {
    "none": "",
    "failure": "[Service]\nRestart=on-failure",
    "abnormal": "[Service]\nRestart=on-abnormal",
    "always": "[Service]\nRestart=always\nRestartSec=1",
    "few": "[Unit]\nStartLimitIntervalSec=60\nStartLimitBurst=2\n[Service]\nRestart=on-failure\nRestartSec=2",
    "slow": "[Unit]\nStartLimitIntervalSec=300\nStartLimitBurst=5\n[Service]\nRestart=on-failure\nRestartSec=10",
    # Its question is killed before it is answered.
    "impatient": "[Service]\nTimeoutStartSec=1",
    "oneshot": f"{ONESHOT}RemainAfterExit=yes\nExecStart=/bin/echo up",
    "exec": "[Service]\nType=exec",
    "with__dash": "",
}


def unit_of(name: str) -> str:
    return f"systemd-nspawn@{name.replace('__', chr(92) + 'x2d')}.service"


def held(machine: GatedMachine) -> list[str]:
    return Gates(machine.services).held(machine.ctx)


#: Routes that a gate checks until the test has read a line, and has written an exit status.
WAITING_CHECK = stand_in(
    STATIC,
    "[[ ! -p /run/status ]] || { echo > /run/begun; read -r status < /run/status; exit $status; }\n",
)


@pytest.mark.parametrize("again", [False, True])
def test_a_machine_at_its_gate_goes_on(tmp_path: Path, again: bool) -> None:
    """A unit whose gate is removed while it checks passes, because recovery would not start it
    later; if the gate is back before the answer, the unit is checked again and started later.
    """
    with GatedMachine(tmp_path, units=(WAITING_CHECK,)) as machine:
        machine.systemctl("stop", KUBE)
        machine.run("mkfifo", "/run/status", "/run/begun")
        cursor = machine.cursor()
        machine.systemctl("start", "--no-block", KUBE)
        machine.run("cat", "/run/begun")
        machine.boot.install(machine.ctx, departure_of(WAITING_CHECK))
        if again:
            machine.boot.install(machine.ctx, WAITING_CHECK)
        machine.run("sh", "-c", "mv /run/status /run/resumed; echo 11 > /run/resumed")
        if not again:
            # The pause of a refusal; a unit that systemd restarts by itself waits longer.
            machine.until("pgrep -xf 'sleep 3'")
        machine.wait_until_up(KUBE, after=cursor)
        machine.wait_for_retry()
        assert machine.state(KUBE).is_running
        assert held(machine) == []


def test_a_refused_unit_starts_with_or_without_restart(tmp_path: Path) -> None:
    """Every refused unit runs within 15 s after an operator has repaired the routing, with or
    without Restart=.
    """
    units = [unit_of(name) for name in SETTINGS]
    with GatedMachine(
        tmp_path,
        units=(STAND_INS[0], SLOW_CHECK),
        prepare=EARLY + more_machines(**SETTINGS),
        overlap=True,
    ) as machine:
        for unit in units:
            # The impatient one is killed before it gets an answer.
            failed = "timeout" if unit == unit_of("impatient") else "exit-code"
            machine.wait_for(f"{unit}: Failed with result '{failed}'.", unit=unit)
        machine.wait_for(
            f"{unit_of('few')}: Start request repeated too quickly.", unit=unit_of("few")
        )
        assert machine.payloads() == []
        assert set(held(machine)) >= {
            unit_of(name) for name in ("none", "few", "impatient", "with__dash")
        }
        since = time.monotonic()
        machine.mend_routing()
        for unit in units:
            machine.wait_until_up(unit)
        took = {unit: round(machine.up_since(unit) - since, 1) for unit in units}
        assert max(took.values()) < 15, took
        assert all(machine.state(unit).is_running for unit in units)
        machine.wait_for_retry()
        assert held(machine) == []
        machine.until("! systemctl is-failed --quiet check-route-overlap.service")
        # The end of the retry leaves the markers.
        assert machine.files.exists("/run/hostrouting/answer")


def test_a_unit_that_is_stopped_while_recovery_checks(tmp_path: Path) -> None:
    """A held unit that is stopped while recovery checks stays down, although the answer is that
    routing is right.
    """
    with GatedMachine(
        tmp_path, units=(WAITING_CHECK, STAND_INS[1]), prepare=EARLY, overlap=True
    ) as machine:
        machine.wait_for_failure(KUBE)
        machine.systemctl("stop", KUBELET)
        # It reads the states before it checks.
        machine.systemctl("restart", RETRY)
        machine.run("mkfifo", "/run/status", "/run/begun")
        machine.mend_routing()
        machine.run("cat", "/run/begun")
        machine.systemctl("stop", KUBE)
        machine.run("sh", "-c", "mv /run/status /run/resumed; echo 10 > /run/resumed")
        machine.wait_for_retry()
        machine.until("[[ ! $(systemctl list-jobs --no-legend) ]]")
        assert machine.payloads() == []


def test_an_answer_that_is_not_for_a_question(tmp_path: Path) -> None:
    """A gate does not take the answer of a check that began before the gate, nor that of a check
    during which an apply has begun.
    """
    check = "[[ ! -p /run/status ]] || { echo > /run/begun; read -r status < /run/status; exit $status; }"
    overlap = "[[ ! -e /etc/overlap ]] || exit 11"
    ask = "/etc/aks-flex-node/hostrouting-ask.sh '' STRICT > /dev/null"
    script = f"""{ask} & cat /run/begun
        {ask} & second=$!
        {ask} & third=$!
        until (($(pgrep --count --exact flock) == 2)); do sleep 0.1; done
        echo 10 > /run/status; cat /run/begun
        touch /etc/overlap {GATE_LOCK}; mv /run/status /run/resumed; echo 10 > /run/resumed
        wait $second; echo $?; wait $third; echo $?"""
    with GatedMachine(tmp_path, units=(stand_in(STATIC, f"{check}\n{overlap}\n"),)) as machine:
        machine.run("mkfifo", "/run/status", "/run/begun")
        assert machine.run("timeout", "30", "bash", "-c", script).stdout.split() == ["11", "11"]


@pytest.mark.parametrize("disturb", ["nothing", "kill", "apply"])
def test_dependents_of_a_gate_that_came_up_before(tmp_path: Path, disturb: str) -> None:
    """Units that require a gate start after it while another gate is still held, whatever becomes
    of the retry.

    The kubelet is up before the machine, because its gate was taken away, and put back.
    """
    needs = f"[Unit]\nRequires={KUBELET}\nAfter={KUBELET}\n[Service]\nExecStart=/bin/sh -c 'echo up; sleep 999'\n"
    prepare = f'printf "{needs}[Install]\\nWantedBy=multi-user.target\\n" > {UNIT_DIRECTORY}/needs.service\n'
    prepare += "systemctl enable --quiet needs.service\n"
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        # The retry has seen both.
        machine.wait_for(STILL_WAITING, unit=RETRY)
        drop_in = f"{UNIT_DIRECTORY}/{KUBELET}.d/10-hostrouting.conf"
        text = machine.files.read(drop_in) or b""
        machine.systemctl("kill", "--signal=STOP", RETRY)
        machine.files.remove(drop_in)
        machine.services.daemon_reload(machine.ctx)
        machine.wait_until_up(KUBELET)
        machine.run("systemctl", "stop", f"hostrouting-held@{KUBELET}.service")
        machine.files.write(drop_in, text, mode=0o644)
        machine.services.daemon_reload(machine.ctx)
        if disturb == "kill":
            machine.systemctl("kill", "--signal=KILL", RETRY)
        if disturb == "apply":
            assert machine.boot.release(machine.ctx, (), is_right=True) == ([], [KUBE])
        machine.systemctl("kill", "--signal=CONT", RETRY)
        machine.wait_until_up("needs.service")
        assert held(machine) == [KUBE]


def test_a_unit_that_is_started_without_its_gate(tmp_path: Path) -> None:
    """A held unit that is started without its gate runs, and is no longer held, though routing is
    still wrong.
    """
    with GatedMachine(tmp_path, overlap=True) as machine:
        machine.files.remove(f"/etc/systemd/system/{NSPAWN}.d/10-hostrouting.conf")
        machine.services.daemon_reload(machine.ctx)
        machine.run("systemctl", "start", KUBE)
        machine.until(f"! systemctl is-active --quiet hostrouting-held@{KUBE}.service")
        assert machine.state(KUBE).is_running


@pytest.mark.parametrize("has_gate", [True, False])
def test_a_unit_that_ends_runs_once(tmp_path: Path, has_gate: bool) -> None:
    """A held oneshot that is started behind the break glass, or after it lost its gate and routing
    is right, runs once.
    """
    short = more_machines(short=f"{ONESHOT}ExecStart=/bin/sh -c 'echo short >> /run/payloads'")
    with GatedMachine(tmp_path, prepare=short, overlap=True) as machine:
        if has_gate:
            machine.files.write("/run/hostrouting.disabled", b"", mode=0o644)
        else:
            machine.files.remove(f"/etc/systemd/system/{NSPAWN}.d/10-hostrouting.conf")
            machine.services.daemon_reload(machine.ctx)
            machine.mend_routing()
        machine.wait_until_up()
        machine.wait_for_retry()
        machine.until("[[ ! $(systemctl list-jobs --no-legend) ]]")
        assert machine.payloads().count("short") == 1
        assert held(machine) == []


def test_a_hundred_at_once(tmp_path: Path) -> None:
    """A hundred refused units, at their limit of starts, start after routing is right."""
    machines = {
        f"m{number}": "[Unit]\nStartLimitBurst=1\nStartLimitIntervalSec=1h" for number in range(100)
    }
    with GatedMachine(tmp_path, prepare=more_machines(**machines), overlap=True) as machine:
        assert len(held(machine)) > 100
        machine.mend_routing()
        for name in machines:
            machine.wait_until_up(unit_of(name))


def test_the_break_glass_of_the_kernel(tmp_path: Path) -> None:
    """The word hostrouting.disabled on the kernel's command line opens the gates, for a machine
    whose /etc is read-only.
    """
    prepare = (
        "echo quiet hostrouting.disabled > /run/cmdline; mount --bind /run/cmdline /proc/cmdline\n"
    )
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        assert sorted(machine.payloads()) == ["kube1", "kubelet"]
        assert held(machine) == []


def test_stopped_masked_or_disabled_units_stay_down(tmp_path: Path) -> None:
    """Recovery does not start a unit that was stopped, masked or disabled; one that is started by
    hand and refused again is held again.
    """
    machines = {
        "failed": "",
        "restarting": "[Service]\nRestart=on-failure\nRestartSec=300",
        "asking": "[Service]\nRestart=always",
        "masked": "",
        "disabled": "",
        "restarted": "[Service]\nRestart=always",
    }
    units = [unit_of(name) for name in machines]
    with GatedMachine(tmp_path, prepare=EARLY + more_machines(**machines), overlap=True) as machine:
        for unit in units:
            machine.wait_for(f"{unit}: Failed with result 'exit-code'.", unit=unit)
        assert machine.state(unit_of("restarting")).sub_state == "auto-restart"
        machine.wait_for(STILL_WAITING, unit=RETRY)
        # failed, restarting and asking.
        machine.run("systemctl", "stop", *units[:3])
        cursor = machine.cursor()
        machine.run("systemctl", "start", "--no-block", unit_of("asking"))
        machine.wait_for_refusal(unit_of("asking"), after=cursor)
        assert machine.state(unit_of("asking")).sub_state == "start-pre"
        machine.run("systemctl", "stop", unit_of("asking"))
        machine.run("systemctl", "mask", "--quiet", unit_of("masked"))
        # systemd restarts it all the same, until it is stopped.
        machine.run("systemctl", "disable", "--quiet", unit_of("disabled"), unit_of("restarted"))
        assert set(held(machine)).isdisjoint(units[:3])
        machine.mend_routing()
        machine.wait_until_up()
        machine.wait_until_up(unit_of("restarted"))
        machine.wait_for_retry()
        assert set(machine.payloads()) == {"kube1", "kubelet", "restarted"}
        # All but restarted.
        assert not any(machine.state(unit).is_running for unit in units[:-1])
        machine.break_routing()
        # The second one was never enabled.
        again = [unit_of("failed"), unit_of("late")]
        assert machine.systemctl("start", *again) == 1
        assert held(machine) == again
        machine.mend_routing()
        machine.wait_until_up(again[0])
        machine.wait_until_up(again[1])


def test_another_target(tmp_path: Path) -> None:
    """Held units are forgotten and recovery ends when a target is isolated, as by `systemctl
    rescue`.
    """
    quiet = "printf '[Unit]\\nAllowIsolate=yes\\nRequires=basic.target\\nAfter=basic.target\\n'"
    prepare = f"{quiet} > /etc/systemd/system/quiet.target\n"
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        machine.run("systemctl", "isolate", "quiet.target")
        # systemctl waits for the start of the target, and not for the ends of the units that it
        # ends.
        machine.until("[[ ! $(systemctl list-jobs --no-legend) ]]")
        assert held(machine) == []
        machine.until(f"[[ $(systemctl is-active {RETRY}) != deactivating ]]")
        assert machine.state(RETRY).active_state == "inactive"
        machine.mend_routing()
        assert machine.payloads() == []


def test_after_reset(tmp_path: Path) -> None:
    """Held units start when the last unit of hostrouting is removed, except those that were stopped
    or masked; no unit of hostrouting remains.
    """
    prepare = more_machines(stopped="", masked="", limited=SETTINGS["few"])
    with GatedMachine(tmp_path, overlap=True, prepare=prepare) as machine:
        machine.run("systemctl", "stop", unit_of("stopped"))
        machine.run("systemctl", "mask", "--quiet", unit_of("masked"))
        for stand_in in STAND_INS:
            machine.boot.install(machine.ctx, departure_of(stand_in))
        for unit in KUBE, KUBELET, unit_of("limited"):
            machine.wait_until_up(unit)
        assert sorted(machine.payloads()) == ["kube1", "kubelet", "limited"]
        assert (
            machine.run("systemctl", "list-units", "--all", "--no-legend", "hostrouting*").stdout
            == ""
        )


def test_shutdown_waits_for_nothing(tmp_path: Path) -> None:
    """A machine with a held gate powers off without waiting for routing."""
    with GatedMachine(tmp_path, overlap=True) as machine:
        machine.run("systemctl", "poweroff", check=False)
        machine.wait_for_end()


def test_units_that_fail_once_routing_is_right(tmp_path: Path) -> None:
    """Recovery makes three tries with a refused unit that now fails before its gate checks, and
    then drops it; it ignores a later failure of a unit that passed its gate.
    """
    unit, faulty = unit_of("with__dash"), unit_of("faulty")
    prepare = more_machines(with__dash="", faulty=f"{ONESHOT}ExecStart=/bin/false")
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        broken = b"[Service]\nExecStartPre=\nExecStartPre=/bin/false\n"
        machine.files.write(f"/etc/systemd/system/{unit}.d/80-broken.conf", broken, mode=0o644)
        machine.services.daemon_reload(machine.ctx)
        machine.mend_routing()
        machine.wait_until_up()
        machine.wait_for_retry()
        output = (
            f"hostrouting: {unit} is no longer held: it was started but never checked routing; "
        )
        assert f"{output}see: systemctl status {unit}" in machine.journal(f"--unit={RETRY}")
        lines = machine.journal(f"--unit={unit}")
        assert sum(line.startswith("Starting ") for line in lines) == 1 + 3
        machine.wait_for(
            f"{faulty}: Main process exited, code=exited, status=1/FAILURE", unit=faulty
        )
        lines = machine.journal(f"--unit={faulty}")
        assert sum(line.startswith("Starting ") for line in lines) == 1 + 1
        assert machine.state(faulty).active_state == "failed"
        assert held(machine) == []


def test_recovery_is_stopped_or_ends_while_a_unit_is_held(tmp_path: Path) -> None:
    """Recovery that is killed or ends by itself is started again by systemd while a unit is
    held.
    """
    script = "/etc/aks-flex-node/hostrouting-retry.sh"
    with GatedMachine(tmp_path, overlap=True) as machine:
        text = machine.files.read(script) or b""
        # With the priority of news: the unit's LogLevelMax= keeps lesser lines out of the
        # journal.
        machine.files.write(script, b"#!/bin/sh\necho '<5>early'\n", mode=0o755)
        # Not by a stop, which Upholds= may cancel.
        machine.run("systemctl", "kill", RETRY)
        machine.wait_for("early", unit=RETRY)
        machine.files.write(script, text, mode=0o755)
        machine.mend_routing()
        machine.wait_until_up()


def test_a_gate_that_starts_cancels_the_stop_of_recovery(tmp_path: Path) -> None:
    """An apply succeeds although starts of gates cancel its stop of recovery, as Upholds= may: the
    earlier run ends, and another one begins.
    """
    changed = stand_in(STATIC, "echo changed\n")
    with GatedMachine(tmp_path, units=(changed, *STAND_INS[1:]), overlap=True) as machine:
        machine.wait_for_refusal()
        drop_in = b"[Service]\nExecStopPost=/bin/sleep 1\n"
        machine.files.write(f"{UNIT_DIRECTORY}/{RETRY}.d/50-slow.conf", drop_in, mode=0o644)
        machine.run("systemctl", "daemon-reload")
        starts = "while sleep 0.1; do systemctl start --no-block $0; done"
        machine.run("systemd-run", "--unit=gates-start", "bash", "-c", starts, RETRY)
        with pytest.raises(UnitError, match="canceled"):
            machine.services.stop(machine.ctx, RETRY)
        machine.until(f"systemctl is-active --quiet {RETRY}")
        earlier = machine.state(RETRY).main_pid
        machine.boot.install(machine.ctx, *STAND_INS, STRICT)
        assert machine.state(RETRY).main_pid not in {0, earlier}
        machine.mend_routing()
        machine.wait_until_up()


def test_a_missing_script_shuts_no_gate(tmp_path: Path) -> None:
    """A gate checks and lets units pass without the script of recovery."""
    with GatedMachine(tmp_path) as machine:
        machine.files.remove("/etc/aks-flex-node/hostrouting-retry.sh")
        assert machine.systemctl("start", "systemd-nspawn@late.service") == 0


def test_systemd_executes_itself_anew(tmp_path: Path) -> None:
    """A held unit, and its gate, are still known after daemon-reexec and daemon-reload."""
    with GatedMachine(tmp_path, prepare=more_machines(other=""), overlap=True) as machine:
        for verb in "daemon-reexec", "daemon-reload":
            machine.run("systemctl", verb)
        machine.run("systemctl", "stop", unit_of("other"))
        # On a busy machine, the mark of a unit may still be starting.
        wait_until(lambda: held(machine) == [KUBELET, KUBE], "both units held")
        machine.mend_routing()
        machine.wait_until_up()
        machine.wait_for_retry()
        assert "other" not in machine.payloads()


# A restart of a unit restarts hostrouting-held@ of it, too; here that takes a second.
SLOW_MARK = f"""
mkdir -p {UNIT_DIRECTORY}/hostrouting-held@.service.d
printf '[Service]\\nExecStartPre=/bin/sleep 1\\n' > {UNIT_DIRECTORY}/hostrouting-held@.service.d/slow.conf
"""


def test_a_refusal_is_logged_once(tmp_path: Path) -> None:
    """Recovery logs the reason for held units once, and each refusal has a line of its own, as an
    error.
    """
    always = "[Service]\nRestart=always\nRestartSec=100ms"
    unit = unit_of("always")
    prepare = EARLY + more_machines(always=always) + SLOW_MARK
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        machine.wait_for(f"{unit}: Scheduled restart job, restart counter is at 2.", unit=unit)
        output = machine.journal(f"--unit={unit}", "--priority=err")
        assert sum(map(bool, map(refusal(unit).fullmatch, output))) >= 2
        assert machine.journal(f"--unit={RETRY}") == [STILL_WAITING]
