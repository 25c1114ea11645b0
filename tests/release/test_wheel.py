"""Wheel and sources, which are the same bytes from any folder, with the bill of materials."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.documents import ROOT

from hostrouting import __version__

BILL = "release/hostrouting.cdx.json"


def test_the_bill_has_the_versions_of_the_lock() -> None:
    """The bill of materials has the versions of the lock and of the project; otherwise run nox -s
    sbom.
    """
    bill = json.loads((ROOT / BILL).read_text())
    parts = [f"{part['name']}=={part['version']}" for part in bill["components"]]
    lines = (ROOT / ".ci/users.lock").read_text().splitlines()
    locked = [line.split()[0] for line in lines if "==" in line and "win32" not in line]
    assert parts == locked
    assert {f"{part} \\" for part in parts} <= set(
        (ROOT / "requirements.lock").read_text().splitlines()
    )
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("hostrouting", __version__)


@pytest.mark.slow
def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """Two builds of wheel and sources are the same bytes, whatever the time, the folder and the
    umask.

    The wheel has the bill in its folder for such bills, as the specification of wheels requires.
    """
    program = Path(sys.executable).with_name("hatchling")
    patterns = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    ignore = shutil.ignore_patterns(".git", *patterns)
    built = []
    for name, umask in ("one", 0o022), ("far/away/another", 0o077):
        # The files of the copy are of now.
        source = shutil.copytree(
            ROOT, tmp_path / name, ignore=ignore, copy_function=shutil.copyfile
        )
        subprocess.run([program, "build"], cwd=source, check=True, umask=umask, capture_output=True)
        built.append({path.name: path.read_bytes() for path in (source / "dist").iterdir()})
    assert built[0] == built[1]
    wheel = tmp_path / f"one/dist/hostrouting-{__version__}-py3-none-any.whl"
    bill = f"hostrouting-{__version__}.dist-info/sboms/hostrouting.cdx.json"
    assert zipfile.ZipFile(wheel).read(bill) == (ROOT / BILL).read_bytes()
