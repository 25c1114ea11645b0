"""A part that is a file without a unit, since each boot reads it: a file of sysctl.d, for example."""

import pytest
from support.boot_units import STATIC, stand_in

from hostrouting.boot import steps as steps_of_boot
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import PART_NAMES, BootFile, BootUnit, UnitRemoval
from hostrouting.testing import FakeHost
from phases import Context

PATH = "/etc/sysctl.d/90-hostrouting.conf"
FILE = BootUnit(PATH, (BootFile(PATH, b"net.ipv4.conf.all.rp_filter = 2\n"),))
REMOVAL = UnitRemoval(PATH, ())
KUBELET = "kubelet.service"


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a section declare the file."""
    monkeypatch.setattr(steps_of_boot, "PART_NAMES", PART_NAMES | {PATH})


@pytest.fixture
def boot(host: FakeHost) -> Boot:
    return Boot(host, gates=(KUBELET,))


def test_it_is_installed_once(boot: Boot, host: FakeHost, ctx: Context) -> None:
    """A file without a unit is installed without a query of systemd about it, and a second run
    changes nothing.
    """
    assert boot.install(ctx, FILE)
    assert host.files.read(PATH) == FILE.files[0].content
    assert boot.plan_install(ctx, FILE) == []
    assert not boot.install(ctx, FILE)
    assert PATH not in str(host.services.operations.calls)


def test_a_changed_one_is_a_difference(boot: Boot, host: FakeHost, ctx: Context) -> None:
    """A file without a unit that was changed is a difference, and the next run writes it again."""
    boot.install(ctx, FILE)
    host.files.write(PATH, b"", mode=0o644)
    assert [str(change) for change in boot.plan_install(ctx, FILE)] == [f"~ {PATH}"]
    assert boot.install(ctx, FILE)
    assert host.files.read(PATH) == FILE.files[0].content


def test_it_leaves_beside_units_that_stay(boot: Boot, host: FakeHost, ctx: Context) -> None:
    """A file without a unit is removed once the config does not have its section, and the units next to it
    stay as they are.
    """
    unit = stand_in(STATIC)
    boot.install(ctx, unit)
    before = host.files.tree.snapshot()
    boot.install(ctx, unit, FILE)
    boot.install(ctx, unit, REMOVAL)
    assert host.files.tree.snapshot() == before


def test_a_part_that_is_not_named_stays(boot: Boot, host: FakeHost, ctx: Context) -> None:
    """A run that removes the part of one section leaves the file of another one."""
    unit = stand_in(STATIC)
    boot.install(ctx, unit, FILE)
    boot.install(ctx, UnitRemoval(unit.name, tuple(unit.paths)))
    assert host.files.exists(PATH)
