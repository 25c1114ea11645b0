"""The packages for Debian and for distributions with rpm, in copies of a Debian that has only its own Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from support.documents import ROOT
from support.needs import needs, require
from support.systemd_box import SystemdBox

from hostrouting import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.thorough, needs("root", "dpkg-deb", "rpmbuild", "debootstrap")]

NEWER: Final = "99.0.0"
_PYTHON: Final = ("{}.{}".format(*sys.version_info), sys.executable)
_SYSTEM: Final = "python3,systemd,systemd-container,dbus,iproute2,nftables,procps,rpm"
#: Enters a copy of a tree that ends with the command.
_IN_A_COPY: Final = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay none "$1/root" -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work"
mkdir -p "$1/root/packages"
mount --bind "$3" "$1/root/packages"
mount -t proc none "$1/root/proc"
exec chroot "$1/root" sh -ec "$4"
"""


def build(folder: Path, *, source: Path = ROOT, umask: int = -1) -> Path:
    """Build both packages from the sources below a folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    words = [sys.executable, str(source / "release/packages.py"), str(folder), *_PYTHON]
    subprocess.run(words, check=True, env=environment, umask=umask)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both packages, and with those of a newer version."""
    source = tmp_path_factory.mktemp("source")
    for name in ("hostrouting", "phases", "release"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CHANGELOG.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, source)
    version = source / "hostrouting/__init__.py"
    version.write_text(version.read_text().replace(f'"{__version__}"', f'"{NEWER}"'))
    folder = build(tmp_path_factory.mktemp("packages"))
    return build(folder, source=source)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("debian") / "root"
    words = ["debootstrap", "--variant=minbase", f"--include={_SYSTEM}", "bookworm", str(folder)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (folder := tmp_path / "copy").mkdir()
    return folder


def in_a_copy(script: str, *, tree: Path, packages: Path, scratch: Path) -> list[str]:
    """Run a script of sh in a copy of a tree; return the lines of its output."""
    words = ["unshare", "--mount", "sh", "-c", _IN_A_COPY, "sh", str(scratch), str(tree), str(packages), script]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def test_two_builds_are_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Neither package has the time, the folder, the user or the umask of its build in it."""
    for built in build(tmp_path / "again", umask=0o077).iterdir():
        assert built.read_bytes() == (packages / built.name).read_bytes(), built.name


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """Before anything is built; the sentence says which packages of Debian have the tools."""
    environment = {**os.environ, "PATH": str(tmp_path), "SOURCE_DATE_EPOCH": "1700000000"}
    words = [sys.executable, str(ROOT / "release/packages.py"), str(tmp_path / "out")]
    told = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (
        1,
        "there is no program dpkg-deb and no rpmbuild, which the packages need (Debian: dpkg, rpm)\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_leaves_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a package, or one without the other, could be published by mistake."""
    (programs := tmp_path / "bin").mkdir()
    (failing := programs / "rpmbuild").write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path / "built")
    assert list((tmp_path / "built").iterdir()) == []


@needs("lintian")
def test_lintian_finds_no_error(packages: Path) -> None:
    """Debian's own rules for packages hold."""
    words = ["lintian", "--fail-on", "error", "--allow-root", str(packages / f"hostrouting_{__version__}-1_all.deb")]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


class Commands(NamedTuple):
    """The commands of a package's tool."""

    install: str
    upgrade: str
    remove: str
    files: str


KINDS: Final = {
    "deb": Commands(
        install=f"dpkg -i /packages/hostrouting_{__version__}-1_all.deb",
        upgrade=f"dpkg -i /packages/hostrouting_{NEWER}-1_all.deb",
        remove="dpkg -r hostrouting; dpkg -P hostrouting",
        files="dpkg -L hostrouting",
    ),
    # Debian has rpm, but its Python is no package of rpm's.
    "rpm": Commands(
        install=f"rpm -i --nodeps /packages/hostrouting-{__version__}-1.noarch.rpm",
        upgrade=f"rpm -U --nodeps /packages/hostrouting-{NEWER}-1.noarch.rpm",
        remove="rpm -e hostrouting",
        files="rpm -ql hostrouting",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_installed_upgraded_and_removed(kind: str, tree: Path, packages: Path, scratch: Path) -> None:
    """It runs at once, is replaced by a newer one, and leaves no file of its own."""
    commands = KINDS[kind]
    script = f"""
        ({commands.install}) >/dev/null; hostrouting --version
        ({commands.upgrade}) >/dev/null; hostrouting --version
        ({commands.files}) | while read -r path; do test -d "$path" || echo "$path"; done > /files
        ({commands.remove}) >/dev/null
        while read -r path; do test ! -e "$path" || echo "$path is left"; done < /files
        wc -l < /files
    """
    first, second, *left, count = in_a_copy(script, tree=tree, packages=packages, scratch=scratch)
    assert (first, second) == (f"hostrouting {__version__}", f"hostrouting {NEWER}")
    assert left == []
    assert int(count) >= 7


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_leaves_a_configured_node_and_says_how_to_reset(
    kind: str, tree: Path, packages: Path, scratch: Path
) -> None:
    """Nobody loses the routing of a node by removing a program."""
    script = f"""
        ({KINDS[kind].install}) >/dev/null
        mkdir -p /etc/aks-flex-node && echo kept > /etc/aks-flex-node/hostrouting.json
        {KINDS[kind].remove}
        cat /etc/aks-flex-node/hostrouting.json
    """
    *told, kept = in_a_copy(script, tree=tree, packages=packages, scratch=scratch)
    assert kept == "kept"
    assert any("run 'hostrouting reset' before you remove it" in line for line in told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_names_only_a_watch_that_needs_the_package(
    kind: str, tree: Path, packages: Path, scratch: Path
) -> None:
    """The watch may run the command of another installation, which the removal leaves."""
    script = f"""
        unit=/etc/systemd/system/hostrouting-watch.service
        mkdir -p /etc/aks-flex-node /etc/systemd/system && touch /etc/aks-flex-node/hostrouting.json
        for command in /usr/bin/hostrouting /opt/agent/bin/hostrouting; do
            ({KINDS[kind].install}) >/dev/null
            echo "ExecStart=$command watch" > "$unit"
            echo "$command"
            {KINDS[kind].remove}
        done
    """
    told = in_a_copy(script, tree=tree, packages=packages, scratch=scratch)
    first, second = told.index("/usr/bin/hostrouting"), told.index("/opt/agent/bin/hostrouting")
    assert any("cannot start again" in line for line in told[first:second])
    assert not any("cannot start again" in line for line in told[second:])


_NETWORK: Final = """
ip link add eth0 type veth peer name peer0; ip link set peer0 up
ip addr add 10.224.0.4/16 dev eth0; ip link set eth0 up; ip route add default via 10.224.0.1
"""
_OVERLAP: Final = """
ip link add mesh0 type veth peer name peer1; ip link set mesh0 up; ip link set peer1 up
ip route add 172.16.8.0/22 dev mesh0
"""
_GATE: Final = """
cat > /etc/systemd/system/kubelet.service <<END
[Service]
Type=exec
ExecStart=/bin/sleep infinity
END
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sf ../kubelet.service /etc/systemd/system/multi-user.target.wants/
"""


@pytest.fixture
def installed(tree: Path, packages: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield a tree in which the package for Debian is installed."""
    require("systemd")
    copy = tmp_path / "node"
    # Not shutil, which reads a device to its end.
    subprocess.run(["cp", "--archive", tree, copy], check=True)
    shutil.copy(packages / f"hostrouting_{__version__}-1_all.deb", copy)
    subprocess.run(["chroot", copy, "dpkg", "-i", f"/hostrouting_{__version__}-1_all.deb"], check=True)
    yield copy
    shutil.rmtree(copy)


def test_a_node_with_nothing_but_the_package(installed: Path, tmp_path: Path) -> None:
    """Apply, a reboot that is held and one that starts, and a reset, by the distribution's Python alone."""
    routes = {"enabled": True, "routes": [{"destination": "172.20.0.0/16"}]}
    config = {"staticRoutes": routes, "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"}}
    (installed / "config.json").write_text(json.dumps({**config, "gates": ["kubelet.service"]}))
    image = tmp_path / "image"
    with SystemdBox(tree=installed, prepare=_GATE + _NETWORK) as box:
        box.run("hostrouting", "apply", "/config.json")
        assert "via 10.224.0.1" in box.run("ip", "route", "show", "172.20.0.0/16").stdout
        # What the machine has on its disk; its systemd/ is all from this run.
        for folder in ("etc/aks-flex-node", "etc/systemd/system"):
            shutil.copytree(Path(box.root, folder), image / folder, symlinks=True, ignore=_masks)
    with SystemdBox(tree=installed, image=image, prepare=_NETWORK + _OVERLAP) as box:
        assert box.run("systemctl", "is-active", "kubelet.service", check=False).returncode != 0
        assert Path(box.root, "run/aks-flex-node/route-overlap.detected").exists()
    with SystemdBox(tree=installed, image=image, prepare=_NETWORK) as box:
        box.run("systemctl", "is-active", "kubelet.service")
        assert "via 10.224.0.1" in box.run("ip", "route", "show", "172.20.0.0/16").stdout
        box.run("hostrouting", "check", "/config.json")
        box.run("hostrouting", "reset")
        assert box.run("ip", "route", "show", "172.20.0.0/16").stdout == ""
        assert not Path(box.root, "etc/aks-flex-node/hostrouting.json").exists()


def test_a_watch_that_runs_outlives_the_package_and_gets_the_next_one(installed: Path) -> None:
    """After a removal it reads modules of its file still; an installation restarts it, waiting for no other run."""
    config = {"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}, "watch": {"enabled": True, "mode": "service"}}
    (installed / "config.json").write_text(json.dumps(config))
    unit = "hostrouting-watch.service"
    with SystemdBox(tree=installed, prepare=_NETWORK) as box:
        box.run("hostrouting", "apply", "/config.json")
        # Waits until it is ready.
        box.run("systemctl", "start", unit)
        first = box.run("systemctl", "show", "--property=MainPID", unit).stdout
        box.run("dpkg", "--remove", "hostrouting")
        box.run("sh", "-ec", _OVERLAP)
        box.wait_for("If these devices are meant to carry the addresses, allow them instead:", unit=unit, timeout=30)
        assert box.run("systemctl", "show", "--property=MainPID", unit).stdout == first
        package = f"/hostrouting_{__version__}-1_all.deb"
        box.run("timeout", "60", "flock", "/run/hostrouting.lock", "dpkg", "--install", package)
        # Waits for the restart.
        box.run("systemctl", "start", unit)
        assert box.run("systemctl", "show", "--property=MainPID", unit).stdout != first


def test_an_installation_on_a_node_without_a_watch_has_nothing_to_restart(installed: Path) -> None:
    """Nor does it complain of that, at the first installation or at an upgrade."""
    with SystemdBox(tree=installed) as box:
        again = box.run("dpkg", "--install", f"/hostrouting_{__version__}-1_all.deb")
        box.run("dpkg", "--remove", "hostrouting")
        first = box.run("dpkg", "--install", f"/hostrouting_{__version__}-1_all.deb")
        assert (again.stderr, first.stderr) == ("", "")


def _masks(folder: str, names: list[str]) -> list[str]:
    """Return the units that every machine masks by itself."""
    links = (name for name in names if Path(folder, name).is_symlink())
    return [name for name in links if str(Path(folder, name).readlink()) == "/dev/null"]
