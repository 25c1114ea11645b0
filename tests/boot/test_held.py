import subprocess

import pytest
from support.boot_units import NSPAWN, STATIC, departure_of, stand_in
from support.needs import needs

from hostrouting import HostFileError, UnitError
from hostrouting.boot import Boot, layout
from hostrouting.boot.gates import held_gates, release, release_ungated
from hostrouting.boot.layout import WAKE, read_asset
from hostrouting.testing import FakeHost
from phases import Context

GATES = "kubelet.service", r"systemd-nspawn@foo\x2dbar.service", "systemd-nspawn@kube1.service"
RETRY = "hostrouting-retry.service"


def refuse(host: FakeHost, ctx: Context) -> None:
    """Install a unit, and act as the drop-ins of refused gates."""
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    for gate in GATES:
        host.services.start(ctx, f"hostrouting-held@{gate}.service")


def test_release_wakes_the_retry(host: FakeHost, ctx: Context) -> None:
    """If a unit is held, `release` has the retry look, and does not replace it; otherwise it does
    nothing.
    """
    assert release(ctx, host) == []
    assert ("start", RETRY) not in host.services.operations.calls
    refuse(host, ctx)
    assert release(ctx, host) == list(GATES)
    calls = [call for call in host.services.operations.calls if call[1:] == (RETRY,)]
    assert (calls[-1:], ("stop", RETRY) in calls) == ([("start", RETRY)], False)
    assert host.files.exists(WAKE)


def test_a_gate_that_passes_by_itself_is_reported(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it passes: a unit that was held before is woken, or starts already."""
    refuse(host, ctx)
    [*others, unit] = GATES

    def pass_first() -> list[str]:
        host.services.stop(ctx, f"hostrouting-held@{unit}.service")
        host.services.start(ctx, unit)
        return [STATIC]

    monkeypatch.setattr(Boot, "installed_units", lambda _: pass_first())
    boot = Boot(host, gates=[NSPAWN])
    assert boot.release(ctx, GATES, is_right=True) == ([], [unit, *others])


def test_release_does_without_room_in_run(host: FakeHost, ctx: Context) -> None:
    """The retry looks by itself, a few seconds later."""
    refuse(host, ctx)
    host.files.fail_at(1, HostFileError("No space left on device"))
    assert release(ctx, host) == list(GATES)
    assert not host.files.exists(WAKE)


def test_only_what_is_no_gate_any_more_is_started(host: FakeHost, ctx: Context) -> None:
    """A gate stays held; a unit that is none is started, unless it is masked or gone; nothing is
    held twice.
    """
    host.files.tree.link("/etc/systemd/system/kubelet.service", "/dev/null")
    refuse(host, ctx)
    release_ungated(ctx, host.services)
    assert held_gates(ctx, host.services) == list(GATES[1:])
    Boot(host, gates=["x.service"]).install(ctx, stand_in(STATIC))
    assert held_gates(ctx, host.services) == []
    assert [host.services.state(ctx, gate).is_running for gate in GATES] == [False, True, True]


def test_a_unit_at_its_limit_of_starts_is_started(host: FakeHost, ctx: Context) -> None:
    """If systemd refuses the start, the failure is reset first."""
    refuse(host, ctx)
    drop_in = f"/etc/systemd/system/{NSPAWN}.d/10-hostrouting.conf"
    host.files.remove(drop_in)
    host.services.daemon_reload(ctx)
    begun = len(host.services.operations.calls)
    host.services.operations.fail(5, UnitError("Start request repeated too quickly"))
    release_ungated(ctx, host.services)
    calls = host.services.operations.calls[begun:]
    unit = GATES[1]
    assert [call for call in calls if call[1:] == (unit,)] == [
        ("state", unit),
        ("start", unit),
        ("stop", unit),
        ("start", unit),
    ]


def test_removing_the_last_unit_starts_held_units(host: FakeHost, ctx: Context) -> None:
    """With the last unit, systemd forgets the markers and the retry, and what was held is started."""
    refuse(host, ctx)
    Boot(host, gates=[NSPAWN]).install(ctx, departure_of(STATIC))
    assert held_gates(ctx, host.services) == []
    assert not host.services.state(ctx, RETRY).exists
    assert [host.services.state(ctx, gate).is_running for gate in GATES] == [False, True, True]


@needs("kernel", "bash")
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("", 1),
        ("DropInPaths=", 0),
        ("DropInPaths=/etc/systemd/system/kubelet.service.d/10-hostrouting.conf", 1),
    ],
)
def test_a_gate_holds_while_systemd_does_not_answer(answer: str, status: int) -> None:
    """As it does during a daemon-reexec; a unit without the drop-in is no gate any more. The list
    of units is lost here, so routing is not right.
    """
    script = """
    mount -t tmpfs none /run && mount -t tmpfs none /usr/local/sbin && mkdir /run/aks-flex-node
    printf '#!/bin/sh\necho "$ANSWER"\n' >/usr/local/sbin/systemctl
    printf '#!/bin/sh\n' >/usr/local/sbin/sleep && chmod +x /usr/local/sbin/*
    bash -p /dev/stdin kubelet.service
    """
    ask = read_asset(layout.__file__, "hostrouting-ask.sh")
    done = subprocess.run(
        ["unshare", "--mount", "env", f"ANSWER={answer}", "sh", "-c", script],
        input=ask,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"hostrouting.units is lost" in done.stdout) == (status, True)
