"""The packages for Debian and for distributions with rpm, in copies of a Debian that has only its
own Python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.documents import ROOT
from support.fleets import fleet
from support.needs import needs
from support.trees import DEB, RPM, build_packages, make_tree

from hostrouting import __version__

pytestmark = [pytest.mark.slow, needs("root", "dpkg-deb", "rpmbuild", "debootstrap")]

DOCUMENTS = "/usr/share/doc/hostrouting"
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "docs/reference.md",
    "docs/decisions/README.md",
    "examples/image.py",
)
MANUAL = (
    "/usr/share/man/man1/hostrouting.1.gz",
    "/usr/share/man/man5/hostrouting.json.5.gz",
)
NEWER = "99.0.0"
#: Enters a copy of a tree that ends with the command.
_IN_A_COPY = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay none "$1/root" -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work"
mkdir -p "$1/root/packages"
mount --bind "$3" "$1/root/packages"
mount -t proc none "$1/root/proc"
exec chroot "$1/root" sh -ec "$4"
"""


NO_RPM = f"{RPM} needs rpmbuild (Debian: apt-get install rpm)"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both packages, those of a newer version, and recorded nodes.

    In `make dist`, both packages are those that it has built.
    """
    source = tmp_path_factory.mktemp("source")
    for name in "docs", "examples", "hostrouting", "phases", "release":
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "SECURITY.md",
        "requirements.lock",
    ):
        shutil.copy(ROOT / name, source)
    version = source / "hostrouting/__init__.py"
    version.write_text(version.read_text().replace(f'"{__version__}"', f'"{NEWER}"'))
    folder = tmp_path_factory.mktemp("packages")
    if os.environ.get("HYPOTHESIS_PROFILE") == "dist":
        for name in DEB, RPM:
            shutil.copy(ROOT / "dist" / name, folder)
    else:
        build_packages(folder)
    (folder / "nodes").write_bytes(b"\n".join(fleet(3)))
    return build_packages(folder, source=source)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(
        "bookworm", tmp_path_factory.mktemp("debian") / "root", "python3", "iproute2", "rpm"
    )


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (folder := tmp_path / "copy").mkdir()
    return folder


def in_a_copy(script: str, *, tree: Path, packages: Path, scratch: Path) -> list[str]:
    """Run a script of sh in a copy of a tree; return the lines of its output."""
    words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        _IN_A_COPY,
        "sh",
        str(scratch),
        str(tree),
        str(packages),
        script,
    ]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def test_two_builds_are_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """Two builds of the packages are the same bytes, whatever the time, the folder, the user and
    the umask.
    """
    for built in build_packages(tmp_path / "again", umask=0o077).iterdir():
        assert built.read_bytes() == (packages / built.name).read_bytes(), built.name


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """A missing tool is named with Debian's package that has it, and no package is built."""
    (programs := tmp_path / "bin").mkdir()
    (programs / "dpkg-deb").symlink_to(str(shutil.which("dpkg-deb")))
    environment = {**os.environ, "PATH": str(programs), "SOURCE_DATE_EPOCH": "1700000000"}
    words = [sys.executable, str(ROOT / "release/packages.py"), str(tmp_path / "out")]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == ["no package was built:", NO_RPM]
    assert not (tmp_path / "out").exists()


def test_a_build_that_fails_leaves_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that fails leaves neither package, as half of a package, or one of two, could be
    published by mistake.
    """
    (programs := tmp_path / "bin").mkdir()
    (failing := programs / "rpmbuild").write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(subprocess.CalledProcessError):
        build_packages(tmp_path / "built")
    assert list((tmp_path / "built").iterdir()) == []


@needs("lintian")
def test_lintian_finds_no_error(packages: Path) -> None:
    """Lintian finds no error in the package for Debian."""
    words = ["lintian", "--fail-on", "error", "--allow-root", str(packages / DEB)]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


class Commands(NamedTuple):
    """The commands of a package's tool."""

    install: str
    upgrade: str
    remove: str
    files: str


KINDS = {
    "deb": Commands(
        install=f"dpkg -i /packages/{DEB}",
        upgrade=f"dpkg -i /packages/hostrouting_{NEWER}-1_all.deb",
        remove="dpkg -r hostrouting; dpkg -P hostrouting",
        files="dpkg -L hostrouting",
    ),
    # Debian has rpm, but its Python is no package of rpm's.
    "rpm": Commands(
        install=f"rpm -i --nodeps /packages/{RPM}",
        upgrade=f"rpm -U --nodeps /packages/hostrouting-{NEWER}-1.noarch.rpm",
        remove="rpm -e hostrouting",
        files="rpm -ql hostrouting",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_installed_upgraded_and_removed(
    kind: str, tree: Path, packages: Path, scratch: Path
) -> None:
    """A package runs after its installation, has its documents, is replaced by a newer one, and
    leaves none of its files when it is removed.
    """
    commands = KINDS[kind]
    script = f"""
        ({commands.install}) >/dev/null; hostrouting --version
        hostrouting check --from /packages/nodes | tail -n 1
        ({commands.upgrade}) >/dev/null; hostrouting --version
        ({commands.files}) | while read -r path; do test -d "$path" || echo "$path"; done > /files
        ({commands.remove}) >/dev/null
        (cat /files; echo {DOCUMENTS}) | while read -r path; do test ! -e "$path" || echo "$path is left"; done
        cat /files
    """
    first, checked, second, *files = in_a_copy(
        script, tree=tree, packages=packages, scratch=scratch
    )
    assert first == f"hostrouting {__version__}"
    assert checked == "of 3 nodes 1 are bad"
    assert second == f"hostrouting {NEWER}"
    assert [line for line in files if line.endswith(" left")] == []
    assert {"/usr/bin/hostrouting", *MANUAL, *(f"{DOCUMENTS}/{name}" for name in PAGES)} <= set(
        files
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_leaves_a_configured_node_and_prints_how_to_reset(
    kind: str, tree: Path, packages: Path, scratch: Path
) -> None:
    """A removal of the package leaves the installed config, so that a node does not lose its
    routing, and prints the command for a reset.
    """
    script = f"""
        ({KINDS[kind].install}) >/dev/null
        mkdir -p /etc/aks-flex-node && echo kept > /etc/aks-flex-node/hostrouting.json
        {KINDS[kind].remove}
        cat /etc/aks-flex-node/hostrouting.json
    """
    *lines, kept = in_a_copy(script, tree=tree, packages=packages, scratch=scratch)
    assert kept == "kept"
    assert any("run 'hostrouting reset' before you remove it" in line for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_names_only_a_watch_that_needs_the_package(
    kind: str, tree: Path, packages: Path, scratch: Path
) -> None:
    """A removal warns of a watch that cannot start again only if the watch runs the command of the
    package.
    """
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
    lines = in_a_copy(script, tree=tree, packages=packages, scratch=scratch)
    first = lines.index("/usr/bin/hostrouting")
    second = lines.index("/opt/agent/bin/hostrouting")
    assert any("cannot start again" in line for line in lines[first:second])
    assert not any("cannot start again" in line for line in lines[second:])
