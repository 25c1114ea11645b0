"""Gates that would be open unseen, shut for ever, or dangerous, as real systemd shows them."""

from functools import partial
from pathlib import Path

import pytest
from support.boot_units import NSPAWN, STATIC, stand_in_program
from support.gated_machine import (
    GATES,
    KUBE,
    STAND_INS,
    STRICT,
    GatedMachine,
    more_machines,
)

from hostrouting import OverlapMode
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import Gates, is_unsuitable
from hostrouting.exceptions import UnitError

UNITS = "/etc/systemd/system"
#: Settings of a service, and the fault that they make of it as a gate.
FAULTY = {
    "root.service": ("[Service]\nRootDirectory=/srv", "gate-root"),
    "image.service": ("[Service]\nRootImage=/srv.img", "gate-root"),
    "success.service": ("[Service]\nSuccessExitStatus=143 1", "gate-success"),
    "killed.service": ("[Service]\nSuccessExitStatus=SIGKILL", "gate-success"),
    "limit.service": ("[Unit]\nStartLimitAction=reboot", "gate-action"),
    "failure.service": ("[Unit]\nFailureAction=reboot-force", "gate-action"),
    "hasty.service": ("[Service]\nTimeoutStartSec=49", "gate-timeout"),
    "rebooting.service": ("[Unit]\nOnFailure=reboot.target", "gate-action"),
    "alias.service": ("[Unit]\nOnFailure=ctrl-alt-del.target", "gate-action"),
    "isolating.service": (
        "[Unit]\nOnFailure=multi-user.target\nOnFailureJobMode=isolate",
        "gate-action",
    ),
    "automatic.service": ("[Unit]\nRefuseManualStart=yes", "gate-manual"),
    "masked.service": ("", "gate-masked"),
    "queued.service": ("[Unit]\nJobTimeoutSec=59", "gate-job-timeout"),
    "patient.service": ("[Unit]\nJobTimeoutSec=1min\nOnFailure=multi-user.target", ""),
    "fine.service": ("[Service]\nTimeoutStartSec=50", ""),
    "endless.service": ("[Service]\nTimeoutStartSec=0", ""),
    "oneshot.service": ("[Service]\nType=oneshot", ""),
}


def test_a_unit_that_cannot_be_a_gate_is_refused(tmp_path: Path) -> None:
    """A unit that cannot be a gate is refused before any change, with the kind of its fault; one
    that is masked, or a gate with less help, is only reported.
    """
    with GatedMachine(tmp_path, units=()) as machine:
        for name, (settings, _) in FAULTY.items():
            text = f"{settings}\n[Service]\nExecStart=/bin/sleep infinity\n"
            machine.files.write(f"{UNITS}/{name}", text.encode(), mode=0o644)
        machine.files.remove(f"{UNITS}/masked.service")
        machine.run("systemctl", "mask", "--quiet", "masked.service")
        found = {
            fault.subject: fault
            for fault in Gates(machine.services, [*GATES, *FAULTY]).faults(machine.ctx)
        }
        assert {unit: fault.kind for unit, fault in found.items()} == {
            unit: kind for unit, (_, kind) in FAULTY.items() if kind
        }
        assert {unit for unit, fault in found.items() if not is_unsuitable(fault)} == {
            "masked.service",
            "queued.service",
        }
        for name in (unit for unit, fault in found.items() if is_unsuitable(fault)):
            boot = Boot(machine.host, gates=[*GATES, name])
            for call in boot.plan_install, boot.install:
                with pytest.raises(UnitError, match=rf"{name} cannot be a gate: it has "):
                    call(machine.ctx, STAND_INS[0])
        assert not machine.files.exists(f"{UNITS}/{STATIC}.service")
        # An earlier release has accepted them: an apply goes on.
        for name in (unit for unit, (_, kind) in FAULTY.items() if kind == "gate-manual"):
            gated = [*GATES, name]
            machine.files.write(f"{UNITS}/{name}.d/10-hostrouting.conf", b"", mode=0o644)
            machine.services.daemon_reload(machine.ctx)
            boot = Boot(machine.host, gates=gated)
            assert boot.install(machine.ctx, STAND_INS[0])
            assert [(each.kind, each.severity) for each in boot.findings(machine.ctx)] == [
                ("gate-manual", "warning")
            ]


def test_a_gate_that_is_open(tmp_path: Path) -> None:
    """A drop-in with an empty ExecStartPre= lets a machine start during an overlap, and is the
    fault gate-open of its unit.
    """
    with GatedMachine(tmp_path, overlap=True) as machine:
        assert Gates(machine.services, GATES).faults(machine.ctx) == []
        machine.files.write(
            f"{UNITS}/{KUBE}.d/override.conf", b"[Service]\nExecStartPre=\n", mode=0o644
        )
        machine.services.daemon_reload(machine.ctx)
        machine.systemctl("start", KUBE)
        assert machine.payloads() == ["kube1"]
        [fault] = Gates(machine.services, GATES).faults(machine.ctx)
        assert (fault.subject, fault.kind, is_unsuitable(fault)) == (KUBE, "gate-open", False)
        machine.files.write(
            f"{UNITS}/{NSPAWN}.d/override.conf", b"[Service]\nExecStartPre=\n", mode=0o644
        )
        machine.services.daemon_reload(machine.ctx)
        [fault] = Gates(machine.services, GATES).faults(machine.ctx)
        assert (fault.subject, fault.kind) == (NSPAWN, "gate-open")


def test_an_agent_that_no_gate_covers(tmp_path: Path) -> None:
    """An agent such as K3s that none of the gates covers is a warning under STRICT, with the gates
    that would hold the agent; an alias has the gate of its unit.
    """
    k3s = "k3s.service"
    with GatedMachine(tmp_path, overlap=True) as machine:
        text = b"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
        machine.files.write(f"{UNITS}/{k3s}", text, mode=0o644)
        machine.services.daemon_reload(machine.ctx)
        strict = partial(machine.boot.findings, machine.ctx, mode=OverlapMode.STRICT)
        assert [*strict()] == []
        machine.run("systemctl", "enable", "--quiet", k3s)
        [finding] = strict()
        assert str(finding) == (
            "warning: ungated-agent: k3s.service: starts regardless of routing, because it is not in "
            'hostRouting.gates; in hostRouting, write: "gates": ["systemd-nspawn@.service", '
            '"kubelet.service", "k3s.service"]'
        )
        machine.run("systemctl", "disable", "--quiet", k3s)
        assert machine.systemctl("start", k3s) == 0
        [finding] = strict()
        assert (finding.kind, finding.subject) == ("ungated-agent", k3s)
        machine.run("systemctl", "stop", k3s)
        gated = Boot(machine.host, gates=[*GATES, k3s])
        gated.install(machine.ctx, *STAND_INS, STRICT)
        assert machine.systemctl("start", k3s) == 1
        machine.run("systemctl", "enable", "--quiet", k3s)
        assert [*gated.findings(machine.ctx, mode=OverlapMode.STRICT)] == []
        alias = "snap.k8s.kubelet.service"
        machine.files.link(f"{UNITS}/{alias}", f"{UNITS}/kubelet.service")
        machine.services.daemon_reload(machine.ctx)
        assert machine.state(alias).drop_ins == machine.state("kubelet.service").drop_ins
        assert [*gated.findings(machine.ctx, mode=OverlapMode.STRICT)] == []


def test_a_gate_with_a_backslash_in_its_name(tmp_path: Path) -> None:
    """An instance with a backslash in its name can be a gate: a second install changes nothing, and
    the gate holds that instance alone.
    """
    gate = r"systemd-nspawn@foo\x2dbar.service"
    with GatedMachine(tmp_path, units=(), prepare=more_machines(foo__bar="")) as machine:
        stand_in_program(machine.files)
        boot = Boot(machine.host, gates=[gate])
        for unit in STAND_INS:
            assert boot.install(machine.ctx, unit)
            assert not boot.install(machine.ctx, unit)
            assert boot.plan_install(machine.ctx, unit) == []
        machine.break_routing()
        assert machine.systemctl("restart", gate) == 1
        assert machine.systemctl("restart", KUBE) == 0
