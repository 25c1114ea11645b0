"""Services that connect networks after the boot has begun, on real systemd: the check waits for
those in `after`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.gated_machine import (
    CONNECT,
    EARLY,
    GATES,
    KUBE,
    KUBELET,
    SMALL_NODE,
    GatedMachine,
    applied,
    refusal,
)
from support.hurried import hurried
from support.printed import NOT_ENDED, STRICT_HOLDS, WITHOUT_IT

from hostrouting import Configure, Host, HostRoutingConfig, check_node, node_status
from hostrouting.node.plan_report import planned_report
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from phases import Context, run

UNIT = "fabric.service"
CHECK = "check-route-overlap"
#: It runs until the test lets it end.
HANG = "until [ -e /run/go ]; do sleep .1; done"
FAIL_ONCE = "sleep 1; [ -e /run/once ] || { touch /run/once; exit 1; }"
RESTARTED = "Restart=on-failure\nRestartSec=1"


def config(mode: str) -> dict[str, object]:
    return {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": mode}, "after": [UNIT]}


def from_agent(host: Host) -> None:
    """Apply the whole config of an agent, whose list has the unit, to an image."""
    whole = {
        "hostRouting": {**config("STRICT"), "after": None, "gates": list(GATES)},
        "bootstrap": {"additionalRequiredServices": [UNIT]},
    }
    parsed = HostRoutingConfig.from_mapping(whole)
    run(Configure(parsed, host=host, force=True)).raise_for_failure()


def machine_of(
    folder: Path,
    program: str | None,
    mode: str,
    *,
    settings: str = "",
    arrange: Callable[[Host], None] | None = None,
    prepare: str = "",
) -> GatedMachine:
    """A node with a oneshot that connects its fabric; None stands for a node without it."""
    units = "/etc/systemd/system"
    text = f"""\
cat > {units}/{UNIT} <<'END'
[Unit]
ConditionPathExists=!/etc/skip
[Service]
Type=oneshot
ExecStart=/bin/sh -c '{program}'
{settings}
END
mkdir -p {units}/multi-user.target.wants
ln -s ../{UNIT} {units}/multi-user.target.wants/
"""
    prepare = SMALL_NODE + EARLY + ("" if program is None else text) + prepare
    arrange = arrange or applied(**config(mode))
    return GatedMachine(folder, units=(), arrange=arrange, prepare=prepare)


@pytest.mark.parametrize(
    ("program", "settings", "mode", "arrange"),
    [
        (f"sleep 3; {CONNECT}", "RemainAfterExit=yes", "STRICT", None),
        (f"{FAIL_ONCE}; {CONNECT}", RESTARTED, "STRICT", None),
        (f"sleep 3; {CONNECT}", "", "STRICT", from_agent),
        (f"sleep 3; {CONNECT}", "", "WARN", None),
    ],
    ids=["stays", "fails and is restarted", "ends, and is of the agent's list", "WARN"],
)
def test_routing_is_proven_after_the_unit_has_connected(
    tmp_path: Path,
    program: str,
    settings: str,
    mode: str,
    arrange: Callable[[Host], None] | None,
) -> None:
    """An overlap of a network that a unit of the list connects seconds after the boot is found, and
    holds the gates under STRICT.
    """
    with machine_of(tmp_path, program, mode, settings=settings, arrange=arrange) as machine:
        if mode == "WARN":
            machine.wait_until_up(KUBELET)
        else:
            machine.wait_for_failure(KUBE)
            assert machine.payloads() == []
        assert b"172.16.8.0/22: overlap" in (machine.files.read(MARKER_DETECTED) or b"")


@pytest.mark.parametrize(
    ("program", "word"), [(HANG, "activating (start)"), ("exit 1", "failed (exit-code)")]
)
class TestAUnitThatDoesNotConnect:
    """A unit of the list that hangs, or fails for good; `hurried` makes the wait of the boot one
    second.
    """

    def test_warn_goes_on(self, tmp_path: Path, program: str, word: str) -> None:
        """Under WARN the kubelet starts next to a unit that does not connect, with a warning that
        `check` repeats.
        """
        with hurried(), machine_of(tmp_path, program, "WARN") as machine:
            machine.wait_until_up(KUBELET)
            text = f"{UNIT}: is {word}: {NOT_ENDED}; see: systemctl status '{UNIT}'"
            assert f"warning: {text}" in machine.journal(f"--identifier={CHECK}")
            report = node_status(machine.ctx, machine.host)
            late = [finding for finding in report.check.findings if finding.kind == "late-unit"]
            assert [str(finding) for finding in late] == [f"warning: late-unit: {text}"]
            assert report.ok
            assert machine.systemctl("restart", KUBE) == 0

    def test_strict_holds_until_it_connects(self, tmp_path: Path, program: str, word: str) -> None:
        """Under STRICT a boot, a start and an apply are refused while a unit does not connect, with
        that reason; the retry starts the gates afterwards.
        """
        with hurried(), machine_of(tmp_path, program, "STRICT") as machine:
            text = f"{UNIT}: is {word}: {NOT_ENDED}; see: systemctl status '{UNIT}'"
            machine.wait_for(refusal(KUBELET, text), unit=KUBELET)
            assert machine.systemctl("start", KUBE) == 1
            marker = (machine.files.read(MARKER_DETECTED) or b"").decode()
            assert (marker, machine.payloads()) == (f"{text}\n", [])
            status = node_status(machine.ctx, machine.host)
            assert status.sentence.startswith(f"wrong: {UNIT}: is {word}: {NOT_ENDED}")
            assert [str(kind) for kind in status.check.findings if kind.kind == "late-unit"] == [
                f"error: late-unit: {text}"
            ]
            whole = HostRoutingConfig.from_mapping({**config("STRICT"), "gates": list(GATES)})
            task = Configure(whole, host=machine.host)
            lines = planned_report(whole, task.planned(machine.ctx).forecast).lines()
            assert lines[1].startswith(f"{UNIT}: is {word}: {NOT_ENDED}")
            assert lines[-1] == f"{STRICT_HOLDS}{', '.join(GATES)}"
            report = run(task, Context(timeout=60))
            assert text in str(report.error)
            machine.files.write("/run/go", b"", mode=0o644)
            machine.run("mkdir", "-p", f"/run/systemd/system/{UNIT}.d")
            machine.files.write(
                f"/run/systemd/system/{UNIT}.d/mend.conf",
                b"[Service]\nExecStart=\nExecStart=/bin/true\n",
                mode=0o644,
            )
            machine.run("systemctl", "daemon-reload")
            machine.run("systemctl", "start", UNIT)
            machine.wait_until_up(KUBELET)
            machine.wait_until_up(KUBE)
            assert machine.files.exists(MARKER_OK)


@pytest.mark.parametrize(
    ("program", "settings", "command", "word"),
    [
        (
            "exit 1",
            "Restart=on-failure\nRestartSec=60",
            f"systemctl stop {UNIT}",
            "inactive (exit-code)",
        ),
        ("exit 1", "", f"systemctl reset-failed {UNIT}", "inactive (dead)"),
        (
            HANG,
            "",
            f"ln -sf /dev/null /etc/systemd/system/{UNIT}; systemctl daemon-reload",
            "activating (start)",
        ),
    ],
    ids=["stopped after a failure", "its failure is forgotten", "masked while it starts"],
)
def test_a_unit_that_has_not_connected_holds(
    tmp_path: Path, program: str, settings: str, command: str, word: str
) -> None:
    """A unit of the list that ended without success, or that runs though it is masked, holds the
    gates under STRICT.
    """
    with hurried(), machine_of(tmp_path, program, "STRICT", settings=settings) as machine:
        machine.wait_for_failure(KUBE)
        machine.run("sh", "-ec", command)
        assert machine.systemctl("start", KUBE) == 1
        status = node_status(machine.ctx, machine.host)
        assert status.sentence.startswith(f"wrong: {UNIT}: is {word}: {NOT_ENDED}")
        marker = (machine.files.read(MARKER_DETECTED) or b"").decode()
        assert marker.startswith(f"{UNIT}: is {word}: {NOT_ENDED}")


@pytest.mark.parametrize(
    ("program", "settings", "prepare", "word"),
    [
        (None, "", "", "not-found"),
        (None, "", f"ln -s /dev/null /etc/systemd/system/{UNIT}", "masked"),
        (HANG, "", "touch /etc/skip", "skipped"),
        (HANG, "ExecCondition=/bin/false", "", "skipped"),
    ],
)
def test_a_unit_that_never_starts_holds_nothing(
    tmp_path: Path, program: str | None, settings: str, prepare: str, word: str
) -> None:
    """A unit of the list that is absent, masked or skipped does not hold the gates under STRICT,
    and is a warning that `check` repeats.
    """
    with machine_of(tmp_path, program, "STRICT", settings=settings, prepare=prepare) as machine:
        machine.wait_until_up(KUBELET)
        text = f"{UNIT}: is {word}, {WITHOUT_IT}; see: systemctl status '{UNIT}'"
        journal = machine.journal(f"--identifier={CHECK}")
        assert f"warning: {text}" in journal
        assert not [line for line in journal if line.startswith("waiting")]
        whole = HostRoutingConfig.from_mapping(config("STRICT"))
        report = check_node(machine.ctx, whole, machine.host)
        assert f"warning: spared-unit: {text}" in map(str, report.findings)
        assert report.ok
