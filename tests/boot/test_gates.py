import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, install_upstream, stand_in

from hostrouting import UnitError
from hostrouting.base.findings import NodeFinding
from hostrouting.boot import Boot
from hostrouting.boot.gates import broken_glass, gate_faults, gates_down, is_unsuitable
from hostrouting.testing import FakeHost
from phases import Context

UNITS = "/etc/systemd/system"
KUBELET = "kubelet.service"


def configured(host: FakeHost, unit: str, text: str) -> None:
    """Give a unit a drop-in that sorts after ours, as `systemctl edit` does."""
    host.files.write(f"{UNITS}/{unit}.d/override.conf", f"{text}\n".encode(), mode=0o644)


def faults(host: FakeHost, ctx: Context) -> list[NodeFinding]:
    return gate_faults(ctx, host.services, [NSPAWN])


def test_a_gate_as_it_should_be(host: FakeHost, ctx: Context) -> None:
    """Neither the distribution's unit, nor one that does not exist, has a fault, before and after
    the install.
    """
    gates = [NSPAWN, KUBELET]
    assert gate_faults(ctx, host.services, gates) == []
    Boot(host, gates=gates).install(ctx, stand_in(STATIC))
    assert gate_faults(ctx, host.services, gates) == []


@pytest.mark.parametrize("is_live", [True, False])
def test_an_open_gate(host: FakeHost, ctx: Context, is_live: bool) -> None:
    """An empty ExecStartPre= after ours takes it out: reported, on a machine and in an image, with a
    notice, and not refused.
    """
    where = FakeHost(is_live=is_live)
    where.files.write(
        f"/lib/systemd/system/{NSPAWN}",
        host.files.read(f"/lib/systemd/system/{NSPAWN}") or b"",
        mode=0o644,
    )
    configured(where, NSPAWN, "[Service]\nExecStartPre=\nExecStartPre=/bin/true")
    Boot(where, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    [fault] = faults(where, ctx)
    assert [notice.text for notice in Boot(where, gates=[NSPAWN]).notices(ctx)] == [fault.text]
    assert (fault.kind, is_unsuitable(fault)) == ("gate-open", False)
    assert fault.text == (
        "systemd-nspawn@.service: starts whatever the routes are: a later drop-in (systemctl edit makes such) empties "
        "ExecStartPre=; see: systemctl cat systemd-nspawn@.service; remove that line, or rename its file so that it "
        "sorts before 10-hostrouting.conf"
    )


def test_a_fault_names_the_instance_that_has_it(host: FakeHost, ctx: Context) -> None:
    """If the gate of one running instance is open, the fault names that instance and no other."""
    machine = "systemd-nspawn@kube1.service"
    configured(host, machine, "[Service]\nExecStartPre=")
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    for name in machine, "systemd-nspawn@kube2.service":
        host.services.start(ctx, name)
    assert [(fault.subject, fault.kind) for fault in faults(host, ctx)] == [(machine, "gate-open")]
    configured(host, NSPAWN, "[Service]\nExecStartPre=")
    host.services.daemon_reload(ctx)
    assert [(fault.subject, fault.kind) for fault in faults(host, ctx)] == [(NSPAWN, "gate-open")]


@pytest.mark.parametrize(
    ("section", "setting", "kind"),
    [
        ("Service", "RootDirectory=/srv", "gate-root"),
        ("Service", "RootImage=/srv.img", "gate-root"),
        ("Service", "SuccessExitStatus=1", "gate-success"),
        ("Unit", "StartLimitAction=reboot", "gate-action"),
        ("Unit", "FailureAction=reboot-force", "gate-action"),
        ("Service", "TimeoutStartSec=49", "gate-timeout"),
        ("Service", "TimeoutSec=500ms", "gate-timeout"),
    ],
)
def test_a_unit_that_cannot_be_a_gate_is_refused(
    host: FakeHost, ctx: Context, section: str, setting: str, kind: str
) -> None:
    """A unit that would be held for ever, or would reboot the node, is refused by install and plan
    without a change.
    """
    configured(host, NSPAWN, f"[{section}]\n{setting}")
    assert [(fault.kind, is_unsuitable(fault)) for fault in faults(host, ctx)] == [(kind, True)]
    before = host.files.tree.snapshot()
    boot = Boot(host, gates=[NSPAWN])
    for call in boot.install, boot.plan_install:
        with pytest.raises(
            UnitError, match=r"cannot be a gate.*\ncorrect it, or take it out of hostRouting\.gates"
        ):
            call(ctx, stand_in(STATIC))
    assert host.files.tree.snapshot() == before


def test_an_installed_gate_with_a_short_limit_is_warned_of(host: FakeHost, ctx: Context) -> None:
    """An earlier release took it: `check` and the apply name it, and nothing is refused."""
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    configured(host, NSPAWN, "[Service]\nTimeoutStartSec=33")
    host.services.daemon_reload(ctx)
    [fault] = faults(host, ctx)
    assert is_unsuitable(fault) is False
    assert str(fault) == (
        "warning: gate-timeout: systemd-nspawn@.service: has TimeoutStartSec=33, and a check of routing beside an "
        "apply may take 50 s; increase it"
    )
    boot = Boot(host, gates=[NSPAWN])
    assert fault in boot.notices(ctx)
    assert boot.install(ctx, stand_in(CHECK))


def test_a_unit_with_a_gate_that_is_down(host: FakeHost, ctx: Context) -> None:
    """It is a finding if an active target wants it, and neither its gate nor a mask keeps it down.

    An install over upstream's links does not start it later: it did not require upstream's units.
    """
    configured(host, NSPAWN, "[Install]\nWantedBy=machines.target")
    host.files.write("/lib/systemd/system/machines.target", b"[Unit]\n", mode=0o644)
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    machine = "systemd-nspawn@kube1.service"
    host.services.failing.add(machine)
    host.services.start(ctx, machine)
    assert not [*gates_down(ctx, host.services, [NSPAWN])]
    host.services.start(ctx, "machines.target")
    [down] = gates_down(ctx, host.services, [NSPAWN, KUBELET])
    assert str(down) == (
        "warning: gate-down: systemd-nspawn@kube1.service: is failed (exit-code), although machines.target wants it, "
        "and is not held; see: systemctl status systemd-nspawn@kube1.service"
    )
    install_upstream(host.files)
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    held = f"hostrouting-held@{machine}.service"
    assert held not in host.services.started
    host.services.start(ctx, held)
    assert not [*gates_down(ctx, host.services, [NSPAWN])]


def test_why_every_gate_is_open(host: FakeHost) -> None:
    """Two files open every gate, as /etc may be read-only, and so does a word on the kernel's
    command line.
    """
    assert broken_glass(host.files) is None
    host.files.write("/proc/cmdline", b"quiet nohostrouting.disabled\n", mode=0o444)
    assert broken_glass(host.files) is None
    host.files.write("/proc/cmdline", b"quiet hostrouting.disabled\n", mode=0o444)
    assert broken_glass(host.files) == "hostrouting.disabled is on the command line of the kernel"
    for path in "/run/hostrouting.disabled", "/etc/aks-flex-node/hostrouting.disabled":
        host.files.write(path, b"", mode=0o644)
        assert broken_glass(host.files) == f"{path} exists"
