"""Units that require a gate, on real systemd: a refusal leaves them down, and they start after the
gate.
"""

from pathlib import Path
from time import monotonic

import pytest
from support.boot_units import NSPAWN, departure_of
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
)
from support.printed import START_AGAIN, STARTS_NOT

from hostrouting import HostRoutingConfig, Reset
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import Gates
from hostrouting.boot.layout import UNIT_DIRECTORY

OTHER = "systemd-nspawn@other.service"
RETRY = "hostrouting-retry.service"
_SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n"
_WANTED = "[Install]\nWantedBy=multi-user.target\n"


def requiring(unit: str, word: str = "Requires", service: str = _SERVICE) -> str:
    """Return a unit that requires another one in one of systemd's ways."""
    return f"[Unit]\n{word}={unit}\nAfter={unit}\nAllowIsolate=yes\n{service}{_WANTED}"


#: Every way in which a unit requires a gate.
UNITS = {
    "requires.service": requiring(KUBE),
    "binds.service": requiring(KUBE, "BindsTo"),
    "requisite.service": requiring(KUBE, "Requisite"),
    "part.service": requiring(KUBE, "PartOf"),
    "needs.target": requiring(KUBE, service=""),
    "behind.service": requiring("needs.target"),
    "chain-1.service": requiring(KUBE),
    r"chain\x2d2.service": requiring("chain-1.service"),
    "chain-3.service": requiring(r"chain\x2d2.service", "BindsTo"),
    # Its gate starts again by itself.
    "helper.service": requiring(KUBELET),
}
#: An operator stops it while its gate is held.
STOPPED = {"stopped.service": requiring(KUBE)}


def written(units: dict[str, str], *, folder: str = UNIT_DIRECTORY) -> str:
    """Return bash that writes and enables units."""
    files = [f"cat > '{folder}/{name}' <<'END'\n{text}END\n" for name, text in units.items()]
    return "".join([*files, f"systemctl enable --quiet {quoted(units)}\n"])


def quoted(units: dict[str, str]) -> str:
    return " ".join(f"'{name}'" for name in units)


def wait_until_all(machine: GatedMachine, units: dict[str, str], state: str) -> None:
    machine.until(f"[[ $(systemctl is-active {quoted(units)} | sort -u) == {state} ]]")


def waiting(machine: GatedMachine) -> set[str]:
    """The units that are marked as waiting."""
    states = machine.services.loaded(machine.ctx, "hostrouting-waits@.service")
    names = (state.name for state in states if state.is_running)
    return {name.removeprefix("hostrouting-waits@").removesuffix(".service") for name in names}


#: Commands that leave units down, on a node whose routing is right.
VERBS = {
    "start": f"systemctl stop {KUBE} {KUBELET}; systemctl start --no-block {quoted(UNITS | STOPPED)}",
    "restart": f"systemctl restart --no-block {KUBE} {KUBELET}",
    "isolate": f"systemctl stop {KUBE} {KUBELET}; systemctl isolate --no-block multi-user.target",
}


@pytest.mark.parametrize("verb", ["boot", *VERBS])
def test_whoever_waited_is_started(tmp_path: Path, verb: str) -> None:
    """All units that required a refused gate are up within 15 s after routing is right, except one
    that was stopped meanwhile; no mark remains.
    """
    prepare = EARLY * (verb == "boot") + written(UNITS | STOPPED)
    with GatedMachine(tmp_path, prepare=prepare, overlap=verb == "boot") as machine:
        cursor = None
        if verb != "boot":
            wait_until_all(machine, UNITS | STOPPED, "active")
            machine.break_routing()
            cursor = machine.cursor()
            machine.run("bash", "-c", VERBS[verb])
        machine.wait_for(f"{KUBE}: Failed with result 'exit-code'.", unit=KUBE, after=cursor)
        down = {name: text for name, text in UNITS.items() if name != "part.service"}
        wait_until_all(machine, down | STOPPED, "inactive")
        assert waiting(machine) >= {*down, *STOPPED}
        machine.run("systemctl", "stop", *STOPPED)
        assert waiting(machine).isdisjoint(STOPPED)
        since = monotonic()
        machine.mend_routing()
        wait_until_all(machine, UNITS, "active")
        took = {unit: round(machine.up_since(unit) - since, 1) for unit in UNITS}
        assert max(took.values()) < 15, took
        machine.wait_for_retry()
        assert (waiting(machine), Gates(machine.services).held(machine.ctx)) == (set(), [])
        assert machine.state("stopped.service").active_state == "inactive"
        # Their jobs were those of the gate, too, and not of a later look.
        late = "hostrouting: starting requires.service: no gate holds what it requires"
        assert late not in machine.journal(f"--unit={RETRY}")


def test_what_an_operator_takes_down_stays_down(tmp_path: Path) -> None:
    """A waiting unit that is masked, disabled or stopped, or whose gate is, stays down, as do units
    that require it or that a started target wants.
    """
    units = {
        "masked.service": requiring(KUBE),
        "behind-masked.service": requiring("masked.service"),
        "disabled.service": requiring(KUBE),
        "of-disabled.service": requiring(OTHER),
        "of-stopped.service": requiring(KUBELET, "Requisite"),
        # It never had a job.
        "never.service": requiring(KUBE).replace("multi-user", "never"),
        "wanted.service": f"[Unit]\nBefore=on.target\n{_SERVICE}[Install]\nWantedBy=on.target\n",
        "on.target": requiring(KUBE, service=""),
        "plain.service": requiring(KUBE),
    }
    prepare = more_machines(other="") + written(units, folder="/lib/systemd/system")
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        assert waiting(machine) == {*units} - {"wanted.service", "never.service"}
        # The retry has seen that they were enabled.
        machine.wait_for(STILL_WAITING, unit=RETRY)
        machine.run("systemctl", "stop", "wanted.service", KUBELET)
        machine.run("systemctl", "mask", "--quiet", "masked.service")
        machine.run("systemctl", "disable", "--quiet", "disabled.service", OTHER)
        machine.mend_routing()
        wait_until_all(machine, {"plain.service": "", "on.target": ""}, "active")
        machine.wait_for_retry()
        states = {unit: machine.state(unit).active_state for unit in units}
        assert states == dict.fromkeys(units, "inactive") | {
            "plain.service": "active",
            "on.target": "active",
        }
        assert waiting(machine) == set()
        assert not machine.state(OTHER).is_running


def test_a_target_of_a_gate_that_restarts(tmp_path: Path) -> None:
    """A target that waits for a gate which restarts later is not started with other gates, since
    its own gate may be refused.
    """
    prepare = f"printf '[Service]\\nRestartSec=1h\\n' > {UNIT_DIRECTORY}/{KUBELET}.d/70-late.conf\n"
    prepare += written({"on.target": requiring(KUBELET, service="")})
    with GatedMachine(tmp_path, prepare=EARLY + prepare, overlap=True) as machine:
        machine.until(f"[[ $(systemctl show --property=SubState {KUBELET}) == *=auto-restart ]]")
        assert waiting(machine) == {"on.target"}
        machine.mend_routing()
        machine.wait_until_up()
        machine.until(f"! systemctl is-active --quiet hostrouting-held@{KUBE}.service")
        machine.until("pgrep -f 'hostrouting-as[k].sh  STRICT'")
        assert machine.state("on.target").active_state == "inactive"
        machine.run("systemctl", "restart", KUBELET)
        wait_until_all(machine, {"on.target": ""}, "active")


def test_each_runs_once(tmp_path: Path) -> None:
    """A waiting oneshot is started once, whether its process succeeds or fails."""
    short = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo %n >> /run/ran; exit 0'\n"
    units = {
        "short.service": requiring(KUBE, service=short),
        "broken.service": requiring(KUBE, service=short.replace("exit 0", "exit 1")),
    }
    with GatedMachine(tmp_path, prepare=written(units), overlap=True) as machine:
        assert waiting(machine) == {*units}
        machine.mend_routing()
        machine.wait_until_up()
        machine.wait_for_retry()
        machine.until("[[ ! $(systemctl list-jobs --no-legend) ]]")
        ran = (machine.files.read("/run/ran") or b"").decode().split()
        assert sorted(ran) == ["broken.service", "short.service"]
        assert waiting(machine) == set()


@pytest.mark.parametrize("trouble", ["impatient", "lost"])
def test_a_question_without_an_answer(tmp_path: Path, trouble: str) -> None:
    """The units that wait for a gate start after it, even if its check was killed or its script was
    lost.
    """
    units = {"requires.service": requiring(KUBE), "needs.target": requiring(KUBE, service="")}
    gate_script = "/etc/aks-flex-node/hostrouting/hostrouting-ask.sh"
    more = {
        "impatient": f"printf '[Service]\\nTimeoutStartSec=2\\n' > {UNIT_DIRECTORY}/{NSPAWN}.d/70-now.conf\n",
        "lost": f"mv {gate_script} /run/gate.sh\n",
    }
    with GatedMachine(
        tmp_path,
        units=(STAND_INS[0], SLOW_CHECK),
        prepare=EARLY + written(units) + more[trouble],
        overlap=True,
    ) as machine:
        result = "timeout" if trouble == "impatient" else "exit-code"
        machine.wait_for(f"{KUBE}: Failed with result '{result}'.", unit=KUBE)
        assert waiting(machine) == {*units}
        if trouble == "lost":
            machine.run("cp", "/run/gate.sh", gate_script)
        machine.mend_routing()
        wait_until_all(machine, units, "active")


@pytest.mark.parametrize(
    "accident", ["rm -rf /etc/aks-flex-node", "chmod -R 644 /etc/aks-flex-node"]
)
def test_the_scripts_of_a_gate_are_out_of_reach(tmp_path: Path, accident: str) -> None:
    """The units that waited for a gate without its scripts start after the apply that fixes them."""
    with GatedMachine(tmp_path, prepare=written(UNITS)) as machine:
        wait_until_all(machine, UNITS, "active")
        # At its end it stops the marks of the boot.
        machine.wait_for_retry()
        machine.run("bash", "-c", accident)
        cursor = machine.cursor()
        machine.run("systemctl", "restart", "--no-block", KUBE, KUBELET)
        machine.wait_for(f"{KUBE}: Failed with result 'exit-code'.", unit=KUBE, after=cursor)
        assert waiting(machine) >= {*UNITS} - {"part.service"}
        held = machine.boot.held(machine.ctx)
        machine.boot.install(machine.ctx, *STAND_INS, STRICT)
        machine.boot.release(machine.ctx, held, is_right=True)
        wait_until_all(machine, UNITS, "active")


def test_a_reset_while_a_gate_pauses(tmp_path: Path) -> None:
    """A reset while a refused gate pauses lets the gate pass, and the units that waited for it
    start.
    """
    with GatedMachine(tmp_path, prepare=written(UNITS)) as machine:
        wait_until_all(machine, UNITS, "active")
        machine.break_routing()
        cursor = machine.cursor()
        machine.run("systemctl", "restart", "--no-block", KUBE, KUBELET)
        machine.wait_for_refusal(after=cursor)
        Reset(HostRoutingConfig(), host=machine.host).do(machine.ctx)
        machine.wait_for(f"hostrouting: {KUBE} is no longer a gate", unit=KUBE, after=cursor)
        wait_until_all(machine, UNITS, "active")


def test_an_isolate_while_a_gate_pauses(tmp_path: Path) -> None:
    """Units that wait for a gate are marked again after an isolate that stopped their marks."""
    with GatedMachine(tmp_path, prepare=written(UNITS)) as machine:
        wait_until_all(machine, UNITS, "active")
        machine.break_routing()
        cursor = machine.cursor()
        machine.run("systemctl", "restart", "--no-block", KUBE, KUBELET)
        machine.wait_for_refusal(after=cursor)
        machine.run("systemctl", "isolate", "--no-block", "multi-user.target")
        machine.wait_for(f"{KUBE}: Failed with result 'exit-code'.", unit=KUBE, after=cursor)
        assert waiting(machine) >= {*UNITS} - {"part.service", "helper.service"}
        machine.mend_routing()
        wait_until_all(machine, UNITS, "active")


@pytest.mark.parametrize("leaves", ["gate", "all"])
def test_the_gate_goes(tmp_path: Path, leaves: str) -> None:
    """A unit that waited for a gate that leaves the config, or for one of a reset node, starts with
    any routes; a unit that waits for another gate, or was stopped, stays down.
    """
    with GatedMachine(tmp_path, prepare=written(UNITS | STOPPED), overlap=True) as machine:
        # The retry has seen both gates.
        machine.wait_for(STILL_WAITING, unit=RETRY)
        machine.run("systemctl", "stop", *STOPPED)
        started = dict(UNITS)
        if leaves == "gate":
            assert Boot(machine.host, gates=[KUBELET]).install(machine.ctx, STAND_INS[0])
            del started["helper.service"]
        else:
            for one in STAND_INS:
                machine.boot.install(machine.ctx, departure_of(one))
        wait_until_all(machine, started, "active")
        assert machine.state("stopped.service").active_state == "inactive"
        if leaves == "gate":
            machine.until("! systemctl is-active --quiet hostrouting-waits@needs.target.service")
            assert waiting(machine) == {"helper.service"}
            assert Gates(machine.services).held(machine.ctx) == [KUBELET]
        else:
            known = ("systemctl", "list-units", "--all", "--no-legend", "hostrouting*")
            assert machine.run(*known).stdout == ""


def test_a_start_that_passes_logs_nothing(tmp_path: Path) -> None:
    """A start on a right node logs nothing of hostrouting."""
    with GatedMachine(tmp_path, prepare=written(UNITS)) as machine:
        wait_until_all(machine, UNITS, "active")
        machine.run("systemctl", "restart", KUBE)
        machine.wait_for_retry()
        wait_until_all(machine, UNITS, "active")
        assert [line for line in machine.journal() if "hostrouting" in line] == []


def test_sockets_and_paths_that_fail_with_their_gate(tmp_path: Path) -> None:
    """A path unit whose refused service reaches its limit of starts fails, which is a warning with
    the next step.
    """
    units = {
        "kubelet.path": "[Path]\nPathExists=/etc/overlap\n[Install]\nWantedBy=multi-user.target\n"
    }
    once = "[Unit]\\nStartLimitBurst=1\\nStartLimitIntervalSec=1h\\n[Service]\\nRestart=no\\n"
    prepare = f"printf '{once}' > {UNIT_DIRECTORY}/{KUBELET}.d/70-once.conf\n" + written(units)
    with GatedMachine(tmp_path, prepare=prepare, overlap=True) as machine:
        machine.until("systemctl is-failed --quiet kubelet.path")
        [fault] = Gates(machine.services, [KUBELET]).faults(machine.ctx)
        assert str(fault) == (
            f"warning: failed-trigger: kubelet.path: has failed (unit-start-limit-hit) {STARTS_NOT}kubelet.service; see: systemctl status kubelet.path; {START_AGAIN}"
        )
