"""Gates: the units that cannot be a gate, the faults of installed gates, and since when gates hold
units.
"""

from unittest.mock import patch

import pytest
from support.boot_units import NSPAWN, STATIC, install_upstream, stand_in
from support.patience import at_once
from support.printed import START_AGAIN, STARTS_NOT

from hostrouting.base.findings import NodeFinding
from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import Gates, is_starting, is_unsuitable, why_gates_are_open
from hostrouting.exceptions import UnitError
from hostrouting.host.units import UnitState
from hostrouting.testing import FakeHost, MemoryServices
from phases import Context
from phases.testing import ManualClock

UNITS = "/etc/systemd/system"
KUBELET = "kubelet.service"


def configured(host: FakeHost, unit: str, text: str) -> None:
    """Give a unit a drop-in that sorts after the gate's, as `systemctl edit` does."""
    host.files.write(f"{UNITS}/{unit}.d/override.conf", f"{text}\n".encode(), mode=0o644)


def faults(host: FakeHost, ctx: Context) -> list[NodeFinding]:
    return Gates(host.services, [NSPAWN]).faults(ctx)


def test_a_gate_as_it_should_be(host: FakeHost, ctx: Context) -> None:
    """A gate of the distribution's unit, or of one that does not exist, is without a fault before
    and after the install.
    """
    gates = [NSPAWN, KUBELET]
    assert Gates(host.services, gates).faults(ctx) == []
    Boot(host, gates=gates).install(ctx, stand_in(STATIC))
    assert Gates(host.services, gates).faults(ctx) == []


def test_a_gate_of_a_masked_unit(host: FakeHost, ctx: Context) -> None:
    """A gate of a masked unit, which never starts, is a note with the command that unmasks the
    unit.
    """
    host.files.link(f"{UNITS}/{KUBELET}", "/dev/null")
    [fault] = Gates(host.services, [KUBELET]).faults(ctx)
    assert (fault.kind, fault.severity) == ("gate-masked", "note")
    assert fault.command == f"systemctl unmask {KUBELET}"
    assert f"run: {fault.command}, or remove it from hostRouting.gates" in fault.text


@pytest.mark.parametrize("is_live", [True, False])
def test_an_open_gate(host: FakeHost, ctx: Context, is_live: bool) -> None:
    """A gate that a later drop-in disables by an empty ExecStartPre= is reported as open, on a
    machine and in an image, and is not refused.
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
    assert fault.kind == "gate-open"
    assert not is_unsuitable(fault)
    assert fault.text == (
        "systemd-nspawn@.service: starts regardless of routing, because a later drop-in (as systemctl edit creates) "
        "empties ExecStartPre=; see: systemctl cat systemd-nspawn@.service; remove that line, or rename its file so that it "
        "sorts before 10-hostrouting.conf"
    )


def test_a_fault_names_the_instance_that_has_it(host: FakeHost, ctx: Context) -> None:
    """A fault names the running instance whose gate is open, and the template if the gate of each
    is.
    """
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
        ("Service", "SuccessExitStatus=143 SIGKILL", "gate-success"),
        ("Unit", "StartLimitAction=reboot", "gate-action"),
        ("Unit", "FailureAction=reboot-force", "gate-action"),
        ("Service", "TimeoutStartSec=49", "gate-timeout"),
        ("Service", "TimeoutSec=500ms", "gate-timeout"),
        ("Unit", "OnFailure=alarm.service reboot.target", "gate-action"),
        ("Unit", "OnFailure=systemd-poweroff.service", "gate-action"),
        ("Unit", "OnFailure=alarm.service\nOnFailureJobMode=isolate", "gate-action"),
        ("Unit", "OnFailure=rescue.target\nOnFailure=alarm.service", "gate-action"),
        ("Unit", "OnFailure=alarm.service\nOnFailureIsolate=yes", "gate-action"),
        ("Unit", "RefuseManualStart=yes", "gate-manual"),
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
            UnitError, match=r"cannot be a gate.*\ncorrect it, or remove it from hostRouting\.gates"
        ):
            call(ctx, stand_in(STATIC))
    assert host.files.tree.snapshot() == before


@pytest.mark.parametrize(
    "setting",
    [
        "OnFailure=alarm.service multi-user.target",
        "OnFailureJobMode=isolate",
        "RefuseManualStart=no",
        "JobTimeoutSec=0",
        "JobTimeoutSec=60",
        "[Service]\nTimeoutStartSec=0",
    ],
)
def test_settings_that_do_no_harm(host: FakeHost, ctx: Context, setting: str) -> None:
    """A unit is without a fault if its failure starts a unit, or would isolate one that is not
    named, and if its timeout is long or infinite.
    """
    configured(host, NSPAWN, f"[Unit]\n{setting}")
    assert faults(host, ctx) == []


@pytest.mark.parametrize(
    ("setting", "kind", "reason"),
    [
        (
            "[Service]\nTimeoutStartSec=33",
            "gate-timeout",
            (
                "should not be a gate: it has TimeoutStartSec=33, but a check of routing during an apply may take "
                "50 s; increase it; correct it, or remove it from hostRouting.gates"
            ),
        ),
        (
            "OnFailure=alarm.service\nOnFailure=reboot.target",
            "gate-action",
            (
                "should not be a gate: it has OnFailure=alarm.service reboot.target, which a refusal would trigger at "
                "every boot; correct it, or remove it from hostRouting.gates"
            ),
        ),
        (
            "RefuseManualStart=yes",
            "gate-manual",
            (
                "should not be a gate: it has RefuseManualStart=yes, so nothing can start it once routing is "
                "healthy; correct it, or remove it from hostRouting.gates"
            ),
        ),
    ],
)
def test_a_later_rule_leaves_installed_gates(
    host: FakeHost, ctx: Context, setting: str, kind: str, reason: str
) -> None:
    """An installed gate that a later release would refuse can be applied again, with a warning; a
    new one is refused.
    """
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    for unit in NSPAWN, KUBELET:
        host.files.write(f"/lib/systemd/system/{unit}", b"[Service]\n", mode=0o644)
        configured(host, unit, f"[Unit]\n{setting}")
    host.services.daemon_reload(ctx)
    boot = Boot(host, gates=[NSPAWN])
    assert not boot.install(ctx, stand_in(STATIC))
    assert [str(notice) for notice in boot.notices(ctx)] == [f"warning: {kind}: {NSPAWN}: {reason}"]
    with pytest.raises(UnitError, match=r"^kubelet\.service cannot be a gate: it has "):
        Boot(host, gates=[NSPAWN, KUBELET]).install(ctx, stand_in(STATIC))


@pytest.mark.parametrize("setting", ["JobTimeoutSec", "JobRunningTimeoutSec"])
def test_a_short_timeout_of_the_job(host: FakeHost, ctx: Context, setting: str) -> None:
    """A short timeout of the job is a warning, and the unit becomes a gate."""
    configured(host, NSPAWN, f"[Unit]\n{setting}=59")
    [fault] = faults(host, ctx)
    assert str(fault) == (
        f"warning: gate-job-timeout: {NSPAWN}: has {setting}=59, so systemd may cancel its start while it waits "
        "for routing; increase it to 60 s or more"
    )
    assert Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))


@pytest.mark.parametrize("wanting", ["WantedBy", "RequiredBy"])
def test_a_unit_with_a_gate_that_is_down(host: FakeHost, ctx: Context, wanting: str) -> None:
    """A unit with a gate that is down is a finding if an active target wants it and its gate does
    not hold it. Its step is a start, an unmask, or, after too many starts, a reset of its failures,
    without which a start fails.

    An install over upstream's links does not start such a unit later.
    """
    # As of a unit whose conditions systemd has not tested.
    untested = "[Unit]\nConditionResult=no\nConditionTimestampMonotonic=0\n"
    configured(host, NSPAWN, f"{untested}[Install]\n{wanting}=machines.target")
    host.files.write("/lib/systemd/system/machines.target", b"[Unit]\n", mode=0o644)
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    machine = "systemd-nspawn@kube1.service"
    host.services.failing.add(machine)
    host.services.start(ctx, machine)
    assert not [*Gates(host.services, [NSPAWN]).down(ctx)]
    host.services.start(ctx, "machines.target")
    [down] = Gates(host.services, [NSPAWN, KUBELET]).down(ctx)
    assert str(down) == (
        "warning: gate-failed: systemd-nspawn@kube1.service: is failed (exit-code), although machines.target wants it, "
        "and is not held; run: systemctl start systemd-nspawn@kube1.service"
    )
    state = host.services.state(ctx, machine)
    for verb, found in (
        ("reset-failed", state._replace(result="start-limit-hit")),
        ("unmask", state._replace(load_state="masked")),
    ):
        with patch.object(host.services, "loaded", return_value=[found]):
            [down] = Gates(host.services, [NSPAWN]).down(ctx)
        assert down.command == f"systemctl {verb} systemd-nspawn@kube1.service"
    install_upstream(host.files)
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    held = f"hostrouting-held@{machine}.service"
    assert held not in host.services.started
    host.services.start(ctx, held)
    assert not [*Gates(host.services, [NSPAWN]).down(ctx)]


def test_a_socket_that_failed_with_its_gate(host: FakeHost, ctx: Context) -> None:
    """A socket that has failed with its gate is a warning, which does not refuse an apply; a path
    that waits is not a finding.
    """
    configured(host, NSPAWN, "[Unit]\nTriggeredBy=machines.socket machines.path")
    for name in "machines.socket", "machines.path":
        host.files.write(f"/lib/systemd/system/{name}", b"[Unit]\n", mode=0o644)
    host.services.failing.add("machines.socket")
    host.services.start(ctx, "machines.socket")
    host.services.start(ctx, "machines.path")
    [fault] = faults(host, ctx)
    assert str(fault) == (
        f"warning: failed-trigger: machines.socket: has failed (exit-code) {STARTS_NOT}"
        f"systemd-nspawn@.service; see: systemctl status machines.socket; {START_AGAIN}"
    )
    assert not is_unsuitable(fault)


class Starting(MemoryServices):
    """A systemd that starts a unit: `sub_state` is how far it has come."""

    sub_state = ""

    def state(self, ctx: Context, unit: str) -> UnitState:
        """See `MemoryServices.state`."""
        return (
            super().state(ctx, unit)._replace(active_state="activating", sub_state=self.sub_state)
        )


@pytest.mark.parametrize(
    ("sub_state", "is_refused"), [("start", False), ("start-post", False), ("auto-restart", True)]
)
def test_a_unit_that_has_passed_its_gate_is_not_refused(
    host: FakeHost, ctx: Context, sub_state: str, *, is_refused: bool
) -> None:
    """A unit whose own programs run has passed its gate; one that systemd restarts by itself has
    been refused.
    """
    services = Starting(host.files.tree)
    services.sub_state = sub_state
    assert Gates(services).is_refused_now(ctx, NSPAWN) == is_refused


@pytest.mark.parametrize(
    ("age", "restarts", "is_refused"), [(49, 0, None), (49, 1, True), (51, 0, True)]
)
def test_a_unit_whose_gate_checks_is_refused_unless_it_is_the_first_check(
    host: FakeHost, age: int, restarts: int, *, is_refused: bool | None
) -> None:
    """Whether a unit is refused is unknown in its first check, as long as a check may take. systemd
    has restarted a unit after a refusal.
    """
    ctx = at_once()
    ctx.sleep(age)
    mark = "[Service]\nActiveEnterTimestampMonotonic=1\n"
    host.files.write(f"{UNITS}/hostrouting-held@{KUBELET}.service", mark.encode(), mode=0o644)
    text = f"[Service]\nNRestarts={restarts}\n"
    host.files.write(f"{UNITS}/{KUBELET}", text.encode(), mode=0o644)
    services = Starting(host.files.tree)
    services.sub_state = "start-pre"
    assert Gates(services).is_refused_now(ctx, KUBELET) is is_refused


@pytest.mark.parametrize(("job", "starts"), [("", False), ("0", False), ("17", True)])
def test_a_unit_with_a_job_starts(host: FakeHost, ctx: Context, job: str, *, starts: bool) -> None:
    """A unit with a job starts, though it is down until systemd comes to the job."""
    host.files.write(f"{UNITS}/{KUBELET}", f"[Service]\nJob={job}\n".encode(), mode=0o644)
    assert is_starting(ctx, host.services, KUBELET) is starts


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ("NRestarts=0\nActiveExitTimestampMonotonic=20000000", 90.0),
        ("NRestarts=2\nActiveExitTimestampMonotonic=20000000", 20.0),
        (
            # Each restart by systemd renews the time of a start.
            "NRestarts=2\nActiveExitTimestampMonotonic=0\nInactiveExitTimestampMonotonic=80000000",
            0.0,
        ),
    ],
)
def test_since_when_a_unit_is_held(
    host: FakeHost, ctx: Context, times: str, seconds: float
) -> None:
    """A unit is held since the start of its mark; one that systemd restarts is held since it ran
    last, or since the boot if it never ran.
    """
    # The fake returns what the file of a unit has.
    mark = "[Service]\nActiveEnterTimestampMonotonic=90000000\n"
    host.files.write(f"{UNITS}/{KUBELET}", f"[Service]\n{times}\n".encode(), mode=0o644)
    host.files.write(f"{UNITS}/hostrouting-held@{KUBELET}.service", mark.encode(), mode=0o644)
    assert Gates(host.services).held_since(ctx, KUBELET) == seconds


def test_which_units_their_gates_have_refused(host: FakeHost, ctx: Context) -> None:
    """Where a mark is masked or has failed, a unit was refused if it failed with an exit status
    before its payload ran, and not if it starts, was killed, or has no gate. Where marks work, an
    operator has stopped such a unit.
    """
    Boot(host, gates=[KUBELET]).install(ctx, stand_in(STATIC))
    text = b"[Service]\nInactiveExitTimestampMonotonic=5\n"
    host.files.write(f"{UNITS}/{KUBELET}", text, mode=0o644)
    state = host.services.state(ctx, KUBELET)
    refused = state._replace(active_state="failed", result="exit-code")
    starts, killed = refused._replace(active_state="activating"), refused._replace(result="signal")
    gates = Gates(host.services, [KUBELET])
    with patch.object(host.services, "loaded", return_value=[refused]):
        assert gates.unmarked(ctx) == []
    mark = refused._replace(name=f"hostrouting-held@{KUBELET}.service")
    with patch.object(host.services, "loaded", side_effect=[[mark], [refused]]):
        assert gates.unmarked(ctx) == [KUBELET]
    host.files.link(f"{UNITS}/hostrouting-held@.service", "/dev/null")
    for each in refused, starts, killed, refused._replace(drop_ins=frozenset()):
        with patch.object(host.services, "loaded", return_value=[each]):
            assert gates.unmarked(ctx) == ([KUBELET] if each is refused else []), each


@pytest.mark.parametrize(
    ("times", "is_crashing"),
    [
        # It is down, or never came up.
        ("NRestarts=3\nExecMainExitTimestampMonotonic=90000000", True),
        # It is up for some seconds, or in its gate.
        ("NRestarts=3\nActiveExitTimestampMonotonic=90000000", True),
        ("NRestarts=2\nActiveExitTimestampMonotonic=90000000", False),
        # It is refused, or has been up since.
        ("NRestarts=3\nActiveExitTimestampMonotonic=84000000", False),
        ("NRestarts=3", False),
    ],
)
def test_a_unit_that_fails_by_itself(host: FakeHost, times: str, is_crashing: bool) -> None:
    """A unit fails by itself if systemd has restarted it three times, and it ended less than 15
    seconds ago or has reached its limit of starts.
    """
    clock = ManualClock()
    clock.advance(100.0 - clock.monotonic())
    host.files.write(f"{UNITS}/{KUBELET}", f"[Service]\n{times}\n".encode(), mode=0o644)
    ctx = Context(clock=clock)
    state = host.services.state(ctx, KUBELET)
    assert Gates(host.services).is_crashing(ctx, state) is is_crashing
    given_up = state._replace(result="start-limit-hit")
    assert Gates(host.services).is_crashing(ctx, given_up) is ("NRestarts=3" in times)


def test_why_every_gate_is_open(host: FakeHost) -> None:
    """Each of two files opens every gate, one of them in /run, as /etc may be read-only, and so
    does a word on the kernel's command line.
    """
    assert why_gates_are_open(host.files) is None
    host.files.write("/proc/cmdline", b"quiet nohostrouting.disabled\n", mode=0o444)
    assert why_gates_are_open(host.files) is None
    host.files.write("/proc/cmdline", b"quiet hostrouting.disabled\n", mode=0o444)
    assert why_gates_are_open(host.files) == "hostrouting.disabled is on the kernel's command line"
    # Each is named before those above.
    for path in "/run/hostrouting.disabled", "/etc/aks-flex-node/hostrouting.disabled":
        host.files.write(path, b"", mode=0o644)
        assert why_gates_are_open(host.files) == f"{path} exists"
