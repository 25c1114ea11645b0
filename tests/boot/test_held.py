"""Units that their gates hold are started by the retry, or when the gate goes."""

from contextlib import nullcontext

import pytest
from support.boot_units import NSPAWN, STATIC, departure_of, stand_in

from hostrouting.boot.boot import Boot
from hostrouting.boot.gates import Gates
from hostrouting.boot.layout import unit_path
from hostrouting.config.sections import GATE_UNITS
from hostrouting.exceptions import UnitError
from hostrouting.testing import FakeHost
from phases import Context

GATES = "kubelet.service", r"systemd-nspawn@foo\x2dbar.service", "systemd-nspawn@kube1.service"
RETRY = "hostrouting-retry.service"


def refuse(host: FakeHost, ctx: Context) -> None:
    """Install a unit, and act as the drop-ins of refused gates."""
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    for gate in GATES:
        host.services.start(ctx, f"hostrouting-held@{gate}.service")


def test_release_starts_the_retry(host: FakeHost, ctx: Context) -> None:
    """`release` starts the retry if a unit is held, and does not stop one that runs; without a held
    unit it does nothing.
    """
    boot = Boot(host)
    assert boot.release(ctx, (), is_right=True) == ([], [])
    assert ("start", RETRY) not in host.services.operations.calls
    refuse(host, ctx)
    assert boot.release(ctx, (), is_right=True) == ([], [*GATES])
    calls = [call for call in host.services.operations.calls if call[1:] == (RETRY,)]
    assert calls[-1:] == [("start", RETRY)]
    assert ("stop", RETRY) not in calls
    # Units that somebody has removed by hand do not open the gates that are left.
    for name in GATE_UNITS:
        host.files.remove(unit_path(name))
    assert boot.held(ctx) == [*GATES]


def test_a_gate_that_passes_by_itself_is_reported(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit whose gate passes by itself during a run is reported as released, with those that the
    retry starts.
    """
    refuse(host, ctx)
    [*others, unit] = GATES

    def pass_first() -> list[str]:
        host.services.stop(ctx, f"hostrouting-held@{unit}.service")
        host.services.start(ctx, unit)
        return [STATIC]

    monkeypatch.setattr(Boot, "installed_units", lambda _: pass_first())
    boot = Boot(host, gates=[NSPAWN])
    assert boot.release(ctx, GATES, is_right=True) == ([], [unit, *others])


def test_a_held_unit_that_tries_again_is_not_released(host: FakeHost, ctx: Context) -> None:
    """A held unit that tries again while a run fails stays listed as held."""
    refuse(host, ctx)
    host.services.start(ctx, GATES[-1])
    boot = Boot(host, gates=[NSPAWN])
    assert boot.release(ctx, GATES, is_right=False) == ([*GATES], [])


def test_only_what_is_not_a_gate_any_more_is_started(host: FakeHost, ctx: Context) -> None:
    """A held unit stays down while it has a gate, and is started once it has none, unless it is
    masked.
    """
    host.files.tree.link("/etc/systemd/system/kubelet.service", "/dev/null")
    refuse(host, ctx)
    assert Gates(host.services).release_ungated(ctx) == []
    assert Gates(host.services).held(ctx) == list(GATES[1:])
    Boot(host, gates=["x.service"]).install(ctx, stand_in(STATIC))
    assert Gates(host.services).held(ctx) == []
    assert [host.services.state(ctx, gate).is_running for gate in GATES] == [False, True, True]


def test_a_unit_that_cannot_start_holds_no_unit_after_it(
    host: FakeHost, ctx: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """A held unit that requires a masked one stays down with a warning, and the next unit and what
    waited are started.
    """
    host.files.write(
        "/lib/systemd/system/kubelet.service", b"[Unit]\nRequires=masked.service\n", mode=0o644
    )
    host.files.tree.link("/etc/systemd/system/masked.service", "/dev/null")
    refuse(host, ctx)
    host.files.write("/lib/systemd/system/needs.target", b"[Unit]\n", mode=0o644)
    host.services.start(ctx, "hostrouting-waits@needs.target.service")
    Boot(host, gates=[NSPAWN]).install(ctx, departure_of(STATIC))
    assert Gates(host.services).held(ctx) == []
    up = [host.services.state(ctx, name).is_running for name in (*GATES, "needs.target")]
    assert up == [False, True, True, True]
    [warning] = caplog.messages
    assert warning.startswith("a held unit did not start; fix this and start it: ")
    assert "Unit masked.service is masked." in warning


def test_a_reset_starts_what_waited(host: FakeHost, ctx: Context) -> None:
    """A reset starts what waited for a gate after the gates, unless it is masked, up or cannot
    start, and removes all marks.
    """
    refuse(host, ctx)
    names = ("broken.service", "masked.service", "needs.target", "up.service")
    for name in names:
        host.files.write(f"/lib/systemd/system/{name}", b"[Unit]\n", mode=0o644)
        host.services.start(ctx, f"hostrouting-waits@{name}.service")
    host.files.write(
        "/lib/systemd/system/broken.service", b"[Unit]\nRequires=gone.service\n", mode=0o644
    )
    host.services.start(ctx, "up.service")
    host.files.tree.link("/etc/systemd/system/masked.service", "/dev/null")
    begun = len(host.services.started)
    Boot(host, gates=[NSPAWN]).install(ctx, departure_of(STATIC))
    # The first of GATES has no unit file here.
    assert host.services.started[begun:] == [*GATES[1:], "needs.target"]
    assert host.services.loaded(ctx, "hostrouting-waits@.service") == []


def test_with_a_gate_left_the_retry_starts_what_waited(host: FakeHost, ctx: Context) -> None:
    """An install that replaces a gate by another one leaves the mark of a unit to the retry, as the
    unit may wait for another gate.
    """
    refuse(host, ctx)
    host.files.write("/lib/systemd/system/needs.target", b"[Unit]\n", mode=0o644)
    mark = "hostrouting-waits@needs.target.service"
    host.services.start(ctx, mark)
    Boot(host, gates=["x.service"]).install(ctx, stand_in(STATIC))
    assert "needs.target" not in host.services.started
    [state] = host.services.loaded(ctx, "hostrouting-waits@.service")
    assert state.name == mark
    assert state.is_running


def with_retry_running(host: FakeHost, ctx: Context) -> tuple[Boot, int]:
    """Return an installed boot, and the process of its retry."""
    boot = Boot(host, gates=["kubelet.service"])
    boot.install(ctx, stand_in(STATIC))
    host.services.start(ctx, RETRY)
    return boot, host.services.state(ctx, RETRY).main_pid


@pytest.mark.parametrize("refusals", [3, 4])
def test_a_stop_of_the_retry_that_gates_cancel_is_tried_again(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """A stop of the retry that gates cancel is tried again while the same run goes on, four times
    at most.
    """
    boot, earlier = with_retry_running(host, ctx)
    stop = host.services.stop
    canceled = [UnitError("Job for it canceled.")] * refusals

    def stop_or_not(ctx: Context, unit: str) -> None:
        if unit == RETRY and canceled:
            raise canceled.pop()
        stop(ctx, unit)

    monkeypatch.setattr(host.services, "stop", stop_or_not)
    with nullcontext() if refusals == 3 else pytest.raises(UnitError, match="canceled"):
        boot.install(ctx, stand_in(STATIC, "echo changed\n"))
    is_same = host.services.state(ctx, RETRY).main_pid == earlier
    assert is_same == (refusals == 4)


def test_a_stop_that_is_canceled_once_the_run_has_ended_is_done(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop of the retry that is cancelled once a later run has begun is done, since that run
    reads the new files.
    """
    boot, earlier = with_retry_running(host, ctx)
    stop = host.services.stop

    def stop_and_start(ctx: Context, unit: str) -> None:
        stop(ctx, unit)
        if unit == RETRY:
            host.services.start(ctx, RETRY)
            raise UnitError("Job for it canceled.")

    monkeypatch.setattr(host.services, "stop", stop_and_start)
    boot.install(ctx, stand_in(STATIC, "echo changed\n"))
    assert host.services.state(ctx, RETRY).main_pid != earlier
