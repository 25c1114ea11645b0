"""An apply that fails, is interrupted or runs out of time next to gates that restart: no payload
starts on a node that is wrong afterwards.

HOSTROUTING_ROUNDS is the number of such applies in each test.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.gated_machine import GATES, KUBE, KUBELET, STRICT, GatedMachine
from support.printed import ROUTING_UNKNOWN
from support.systemd_box import require_program
from system.matrix import Node
from system.troubles import RUN_FULL, config

from hostrouting import HostRoutingConfig
from hostrouting.boot.installed_config import NewConfig

ROUNDS = int(os.environ.get("HOSTROUTING_ROUNDS", "2"))
#: So many steps of an apply precede its commit.
STEPS = 14
#: The fabric takes its CIDR: the gates are held. Its route is for another network.
WRONG = {
    **config("172.16.8.0/22"),
    "staticRoutes": {"enabled": True, "routes": [{"destination": "192.168.77.0/24"}]},
}
RIGHT = config("172.16.8.0/22")
#: A note of each start that passed a gate; /run may be full. Restarts without a limit.
_NOTES = r"""
for unit in systemd-nspawn@kube1.service kubelet.service; do
    mkdir -p /etc/systemd/system/$unit.d
    printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStartPre=/bin/sh -c "echo %%n >> /var/started"\n' \
        > /etc/systemd/system/$unit.d/90-note.conf
done
"""
GATE_SCRIPT = "/etc/aks-flex-node/hostrouting-ask.sh"
#: Both gates restart, and the script checks as the retry does, all the time.
_RESTARTS = f"""
while [[ ! -e /var/stop ]]; do
    {GATE_SCRIPT} '' STRICT > /dev/null 2>&1
    [[ $? != 10 ]] || echo right >> /var/started
done &
while [[ ! -e /var/stop ]]; do
    systemctl restart --no-block kubelet.service systemd-nspawn@kube1.service
    sleep .5
done
wait
"""
_EMPTY_RUN = "rm -f /run/filling && mount -o remount,size=256m /run"


@contextmanager
def restarting(node: Node) -> Generator[None]:
    """Restart both gates, again and again."""
    with subprocess.Popen([*node.enter, "bash", "-c", _RESTARTS]) as process:
        try:
            yield
        finally:
            node.files.write("/var/stop", b"", mode=0o644)
            process.wait()


def started(node: Node) -> str:
    """Return the units that passed their gate."""
    return (node.files.read("/var/started") or b"").decode()


def failing_apply(node: Node, trouble: str, number: int) -> subprocess.CompletedProcess[str]:
    """Apply the right config in a trouble."""
    if trouble == "--timeout 0.5":
        return node.apply("new", *trouble.split())
    if trouble == "Ctrl-C":
        return node.apply("new", step=1 + number * STEPS // ROUNDS, by=signal.SIGINT)
    node.bash(RUN_FULL)
    try:
        return node.apply("new")
    finally:
        node.bash(_EMPTY_RUN)


@pytest.mark.parametrize("trouble", ["/run is full", "Ctrl-C", "--timeout 0.5"])
def test_no_payload_starts_on_a_node_that_is_wrong(tmp_path: Path, trouble: str) -> None:
    """No payload starts next to applies that would make the node right and are undone; both units
    start after one that succeeds.
    """
    require_program()
    with Node(tmp_path, mode="STRICT", earlier=True, installed=WRONG, trouble=_NOTES) as node:
        node.prepare_configs(new=RIGHT)
        undone = 0
        with restarting(node):
            for number in range(ROUNDS):
                result = failing_apply(node, trouble, number)
                live = node.live(wrong=WRONG, new=RIGHT)
                if trouble == "--timeout 0.5" and live == "new":
                    # It was fast enough, or ran out of time after its commit.
                    break
                assert result.returncode, result.stderr
                undone += "undone: " in result.stderr
                assert live == "wrong"
                assert started(node) == ""
        # One that runs out of time may not have begun, and on a full /run it does not begin.
        assert undone or trouble != "Ctrl-C"
        assert node.apply("new").returncode == 0
        for unit in KUBE, KUBELET:
            node.until(f"systemctl is-active --quiet {unit}", unit=unit)


LOCK = "/etc/aks-flex-node/hostrouting.lock"
APPLY = "an apply is in progress and may still be undone"
RETRY = "hostrouting-retry.service"
WARN = NewConfig(config=HostRoutingConfig.from_mapping({"gates": list(GATES)}))


@contextmanager
def locked(machine: GatedMachine) -> Generator[None]:
    """Hold the lock as an apply does, which renews its time: a gate may look just now."""
    argv = [*machine.enter, "flock", LOCK, "sh", "-c", f"touch {LOCK}; echo held; read _"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as apply:
        assert apply.stdout is not None
        assert apply.stdout.readline() == "held\n"
        try:
            yield
        finally:
            apply.communicate("\n")


def run_as_gate(machine: GatedMachine, *arguments: str) -> tuple[int, str]:
    """Return the exit status of the script that gates run, and its output."""
    # A gate that has lost its parent is stopped, and prints nothing.
    script = '"$@"; exit $?'
    result = machine.run("bash", "-c", script, "bash", GATE_SCRIPT, *arguments, check=False)
    return result.returncode, result.stdout


def test_what_becomes_of_a_gate_beside_an_apply(tmp_path: Path) -> None:
    """A gate waits for an apply under way, and lets its unit start once it has ended.

    After 16 s a gate under STRICT refuses, and one under WARN starts its unit with a warning. The
    retry waits as long.
    """
    with GatedMachine(tmp_path) as machine:
        with locked(machine):
            assert run_as_gate(machine, "", "STRICT") == (12, f"{APPLY}\n")
            assert run_as_gate(machine, KUBELET, "WARN") == (
                12,
                f"<4>hostrouting: {KUBELET} {ROUTING_UNKNOWN}: {APPLY}\n",
            )
            refusal = f"<3>hostrouting: {KUBELET} is refused: {APPLY}\n"
            assert run_as_gate(machine, KUBELET, "STRICT") == (12, refusal)
            machine.services.stop(machine.ctx, KUBE)
            began = machine.payloads()
            machine.systemctl("start", "--no-block", KUBE)
            machine.until("pgrep -f '[f]lock --shared --timeout 16 8'", unit=KUBE)
            assert machine.payloads() == began
        machine.until(f"systemctl is-active --quiet {KUBE}", unit=KUBE)
        machine.wait_for_retry()
        assert not [line for line in machine.journal(f"--unit={KUBE}") if "is refused" in line]


def test_a_lock_that_is_lost_or_no_file(tmp_path: Path) -> None:
    """A gate without a lock file passes, as no apply can be under way; with a lock that cannot be
    opened its answer is unknown.
    """
    with GatedMachine(tmp_path) as machine:
        machine.run("rm", LOCK)
        assert run_as_gate(machine, "", "STRICT") == (10, "")
        machine.run("mkdir", LOCK)
        status, text = run_as_gate(machine, "", "STRICT")
        assert status == 12
        assert text.startswith(f"{LOCK} cannot be opened; run: ")


@pytest.mark.parametrize("installed", [STRICT, WARN], ids=["STRICT", "WARN"])
def test_a_lock_that_is_held_for_ever_holds_no_gate_under_warn(
    tmp_path: Path, installed: NewConfig
) -> None:
    """A lock that is held for ever keeps a refused unit down under STRICT, with the reason in the
    journal; under WARN the unit starts after the wait of a gate.
    """
    with GatedMachine(tmp_path, installed=installed, overlap=True) as machine:
        machine.wait_for_refusal()
        # That of a run, for which a gate that looks just now takes the lock again.
        machine.files.write("/run/hostrouting.lock", b"", mode=0o600)
        with locked(machine):
            machine.mend_routing()
            machine.wait_for(f"hostrouting: units are held: {APPLY}", unit=RETRY)
            if installed is WARN:
                machine.wait_until_up()
            else:
                assert machine.payloads() == []
                log = machine.journal(f"--unit={RETRY}")
                assert [line for line in log if "hostrouting: starting " in line] == []
