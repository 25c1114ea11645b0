from __future__ import annotations

from typing import TYPE_CHECKING

from support.boot_units import NSPAWN, STATIC, departure_of, stand_in

from hostrouting.boot import Boot
from hostrouting.boot.held import forget, held_gates, release

if TYPE_CHECKING:
    from hostrouting.testing import FakeHost
    from phases import Context

GATES = ("kubelet.service", r"systemd-nspawn@foo\x2dbar.service", "systemd-nspawn@kube1.service")
RETRY = "hostrouting-retry.service"


def refuse(host: FakeHost, ctx: Context) -> None:
    """Install a unit, and act as the drop-ins of refused gates."""
    Boot(host, gates=[NSPAWN]).install(ctx, stand_in(STATIC))
    for gate in GATES:
        host.services.start(ctx, f"hostrouting-held@{gate}.service")


def test_held_units_are_listed(host: FakeHost, ctx: Context) -> None:
    """Held plain units, instances and names with a backslash are listed; in an image or before an install, none."""
    assert held_gates(ctx, host.services) == []
    refuse(host, ctx)
    assert held_gates(ctx, host.services) == list(GATES)


def test_release_has_the_retry_begin_afresh(host: FakeHost, ctx: Context) -> None:
    """`release` restarts the retry if a unit is held, and otherwise does not touch it."""
    assert release(ctx, host.services) == []
    assert ("start", RETRY) not in host.services.operations.calls
    refuse(host, ctx)
    assert release(ctx, host.services) == list(GATES)
    calls = [call for call in host.services.operations.calls if call[1:] == (RETRY,)]
    assert calls[-2:] == [("stop", RETRY), ("start", RETRY)]


def test_forget(host: FakeHost, ctx: Context) -> None:
    """Held units are named once, and no unit is held or watched any more."""
    refuse(host, ctx)
    release(ctx, host.services)
    assert forget(ctx, host.services) == list(GATES)
    assert forget(ctx, host.services) == []
    assert not host.services.state(ctx, RETRY).is_running


def test_removing_the_last_unit_forgets_held_units(host: FakeHost, ctx: Context) -> None:
    """With the last unit, systemd forgets the held units and their markers."""
    refuse(host, ctx)
    Boot(host, gates=[NSPAWN]).install(ctx, departure_of(stand_in(STATIC)))
    assert held_gates(ctx, host.services) == []
    assert not host.services.state(ctx, RETRY).exists
