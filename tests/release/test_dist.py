"""The files that `make dist` has built: each is complete, can be installed, and runs.

test_packages.py installs the packages.
"""

import calendar
import hashlib
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT, blocks
from support.fleets import fleet
from support.processes import ended
from support.trees import DEB, RPM

from hostrouting import __version__

pytestmark = pytest.mark.dist

DIST = ROOT / "dist"
BILL = "hostrouting.cdx.json"
WHEEL = f"hostrouting-{__version__}-py3-none-any.whl"
SOURCES = f"hostrouting-{__version__}.tar.gz"
PYZ = "hostrouting.pyz"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def pythons() -> Iterator[tuple[str, str]]:
    """Yield the version and the path of each supported Python of this machine."""
    for line in ended(ROOT / ".ci/pythons", check=True).stdout.splitlines():
        version, _, path = line.partition(" ")
        yield version, path


def assert_works(folder: Path, *command: str | Path) -> None:
    """Assert that a command has the version of this project, and finds the fault of a recorded
    node.
    """
    (nodes := folder / "nodes").write_bytes(b"\n".join(fleet(3)))
    assert ended(*command, "--version", cwd="/").stdout == f"hostrouting {__version__}\n"
    checked = ended(*command, "check", "--from", nodes, cwd="/")
    assert checked.stdout.splitlines()[-1] == "of 3 nodes 1 are bad"
    assert checked.returncode == 1


def test_the_sums_are_those_of_all_files() -> None:
    """SHA256SUMS has the sum of each file, and there is no other file."""
    files = {path.name: path.read_bytes() for path in DIST.iterdir()}
    sums = files.pop("SHA256SUMS").decode()
    assert files.keys() == {WHEEL, SOURCES, PYZ, DEB, RPM, BILL}
    assert sums.splitlines() == [
        f"{hashlib.sha256(files[name]).hexdigest()}  {name}" for name in sorted(files)
    ]


def test_the_wheel_has_two_packages_and_the_bill() -> None:
    """The wheel has hostrouting, phases, and the bill of materials where the specification of
    wheels expects it; the bill next to the wheel is the same.
    """
    wheel = zipfile.ZipFile(DIST / WHEEL)
    metadata = f"hostrouting-{__version__}.dist-info"
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names} == {"hostrouting", "phases", metadata}
    bill = (ROOT / "release" / BILL).read_bytes()
    assert wheel.read(f"{metadata}/sboms/{BILL}") == (DIST / BILL).read_bytes() == bill


def test_the_wheel_runs_on_each_python(tmp_path: Path) -> None:
    """In a new environment of each Python, the wheel and its dependencies run the command, and the
    example of the README.
    """
    for version, python in pythons():
        folder = tmp_path / version
        ended(python, "-m", "venv", folder, check=True)
        mine = folder / "bin/python"
        for words in (("--require-hashes", "-r", ROOT / ".ci/users.lock"), (DIST / WHEEL,)):
            ended(mine, *PIP, "install", "--no-deps", *words, check=True)
        ended(mine, *PIP, "check", check=True)
        assert_works(tmp_path, folder / "bin/hostrouting")
        [example] = blocks("README.md")
        shown = ended(mine, "-I", "-c", example, check=True, cwd="/").stdout
        assert shown.startswith("ok           configure ")


def test_the_sources_build_the_same_wheel(tmp_path: Path) -> None:
    """A build of the sources at the time of the release gives the wheel of the release."""
    entry = zipfile.ZipFile(DIST / WHEEL).infolist()[0]
    epoch = str(calendar.timegm(entry.date_time))
    settings = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    words = ("--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, DIST / SOURCES)
    ended(sys.executable, *PIP, "wheel", *words, check=True, env=settings)
    assert (tmp_path / WHEEL).read_bytes() == (DIST / WHEEL).read_bytes()


def test_the_single_file_runs_on_each_python(tmp_path: Path) -> None:
    """Each Python without a package runs the single file."""
    for _, python in pythons():
        assert_works(tmp_path, python, "-IS", DIST / PYZ)
