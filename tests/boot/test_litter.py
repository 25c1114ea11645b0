"""The next run removes the leftovers of killed runs and nothing else, and leaves folders that are
mount points.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.boot_units import CHECK, NSPAWN, STATIC, departure_of, stand_in
from support.command_line import ROUTES
from support.needs import needs
from support.patience import at_once
from support.run_nodes import PROBES, node

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.boot.boot import Boot
from hostrouting.boot.layout import READY_WANTS, STARTING_LINKS
from hostrouting.testing import FakeHost
from phases import Context

UNITS = "etc/systemd/system"
UNDER_WAY = ".{}.hostrouting-0123456789abcdef"


def reset(host: Host | FakeHost) -> None:
    """Remove everything as `reset` does, which gets no gates."""
    gone = [departure_of(name) for name in (STATIC, CHECK)]
    Boot(host, gates=[]).install(Context(timeout=60), *gone)


@pytest.mark.parametrize("again", ["apply", "reset"])
def test_files_under_way_go_from_all_our_folders(tmp_path: Path, again: str) -> None:
    """An install and a reset remove unfinished files from all our folders, and a folder of links
    that a killed run left empty.
    """
    host = Host.offline(tmp_path)
    boot = Boot(host, gates=[NSPAWN])
    boot.install(Context(timeout=60), stand_in(STATIC))
    scripts = [
        path for path in (tmp_path / "etc/aks-flex-node").glob("hostrouting-*") if path.is_dir()
    ]
    folders = [
        UNITS,
        "etc/aks-flex-node",
        f"{UNITS}/hostrouting-ready.service.requires",
        f"{UNITS}/multi-user.target.wants",
        f"{UNITS}/{NSPAWN}.d",
        *(str(path.relative_to(tmp_path)) for path in scripts),
    ]
    assert len(folders) == 6
    for folder in folders:
        (tmp_path / folder / UNDER_WAY.format("gone.service")).write_text("half")
        (tmp_path / folder / UNDER_WAY.format("link")).symlink_to("/nowhere")
    (tmp_path / UNITS / "hostrouting-ready.service.wants").mkdir()
    if again == "apply":
        assert boot.install(Context(timeout=60), stand_in(STATIC)) is False
    else:
        reset(host)
        assert not list(tmp_path.rglob("*hostrouting*"))
    assert not [*tmp_path.rglob(".*"), *tmp_path.rglob("hostrouting-ready.service.wants")]


@pytest.mark.parametrize("gate", [NSPAWN, "kubelet.service"])
def test_an_empty_folder_of_a_gate_goes(gate: str) -> None:
    """A reset removes the folder of a usual gate that a killed run left empty, and leaves a foreign
    one.
    """
    host = FakeHost()
    host.files.write(f"/lib/systemd/system/{gate}", b"[Service]\nExecStart=/bin/true\n", mode=0o644)
    ctx = Context(timeout=60)
    Boot(host, gates=[gate]).install(ctx, stand_in(STATIC))
    host.files.tree.make_directory("/etc/systemd/system/theirs.service.d")
    host.services.fail_at(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        reset(host)
    host.files.tree.make_directory(f"/etc/systemd/system/{gate}.d")
    reset(host)
    assert host.files.tree.names("/etc/systemd/system") == ["theirs.service.d"]


def test_our_empty_folders_are_removed_by_a_run_without_changes() -> None:
    """A run that changes nothing else removes the empty folders of a run that was killed after its
    last removal. The folder of upstream's agent in /run stays.
    """
    host = FakeHost()
    for folder in (
        "/etc/aks-flex-node",
        "/run/aks-flex-node",
        "/run/hostrouting",
        "/etc/systemd/system/hostrouting-ready.service.requires",
    ):
        host.files.tree.make_directory(folder)
    reset(host)
    assert host.files.tree.names("/etc") == ["systemd"]
    assert host.files.tree.names("/run") == ["aks-flex-node"]
    assert host.files.tree.names("/etc/systemd/system") == []


def test_a_folder_of_links_goes_with_the_last_one() -> None:
    """A reset removes a folder of links that a killed run left empty, and leaves one with a link of
    another program.
    """
    host = FakeHost()
    host.files.tree.make_directory("/etc/systemd/system/timers.target.wants")
    foreign_link = "/etc/systemd/system/multi-user.target.wants/theirs.service"
    host.files.link(foreign_link, "/lib/systemd/system/theirs.service")
    Boot(host, gates=[]).install(Context(timeout=60), stand_in(STATIC))
    assert host.files.exists("/etc/systemd/system/timers.target.wants")
    reset(host)
    assert host.files.tree.names("/etc/systemd/system") == ["multi-user.target.wants"]
    assert host.files.exists(foreign_link)


@pytest.mark.parametrize("mode", ["timer", "service"])
def test_the_folders_of_links_are_known(mode: str) -> None:
    """Each folder with a link by which a boot starts a unit of hostrouting is one that a reset
    looks at.
    """
    host = node()
    host.files.write("/usr/bin/hostrouting", b"#!/bin/sh\n", mode=0o755)
    section = {**ROUTES, **PROBES, "watch": {"enabled": True, "mode": mode}}
    Configure(HostRoutingConfig.from_mapping({"gates": [], **section}), host=host).do(at_once())
    unit_files = "/etc/systemd/system"
    folders = {f"{unit_files}/{name}" for name in host.files.names(unit_files)}
    linked = {folder for folder in folders if folder.endswith(".wants")}
    assert "/etc/systemd/system/multi-user.target.wants" in linked
    assert linked - {READY_WANTS} <= {*STARTING_LINKS}


MOUNTED = """
import sys
from hostrouting.boot.boot import Boot
from hostrouting.host import Host
sys.path[:0] = sys.argv[2:]
from support.boot_units import NSPAWN, STATIC, stand_in
from boot.test_litter import reset
from phases import Context
host = Host.offline(sys.argv[1])
for text in ("one", "two"):
    Boot(host, gates=[NSPAWN]).install(Context(timeout=60), stand_in(STATIC, f"echo {text}\\n"))
assert host.files.read("/etc/aks-flex-node/static-routes.sh").endswith(b"echo two\\nexit 10\\n")
reset(host)
"""


@needs("root")
@pytest.mark.parametrize("mounted", ["etc/aks-flex-node", f"{UNITS}/{NSPAWN}.d", "etc"])
def test_a_mount_point_stays(tmp_path: Path, mounted: str) -> None:
    """An apply, an apply of another config and a reset succeed over a mount point, which stays as
    an empty folder.
    """
    (tmp_path / mounted).mkdir(parents=True)
    folder = tmp_path / mounted
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    command = [sys.executable, "-c", MOUNTED, str(tmp_path), *sys.path]
    subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", disk, folder, *command], check=True
    )
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert folder.is_dir()
