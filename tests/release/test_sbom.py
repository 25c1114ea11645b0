"""The bill of materials: it is that of this tree, and in the wheel."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.documents import ROOT

from hostrouting import __version__

BILL = "release/hostrouting.cdx.json"


def test_the_bill_is_that_of_this_tree() -> None:
    """A release, or a renewed lock, renews it: python release/sbom.py."""
    script = "import runpy; print(runpy.run_path('release/sbom.py')['document'](), end='')"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / BILL).read_text() == result


def test_the_bill_names_each_dependency_of_users() -> None:
    """Those of the project's metadata, each with its version in the lock."""
    bill = json.loads((ROOT / BILL).read_text())
    [listed] = re.findall(
        r"^dependencies = \[(.*?)\]",
        (ROOT / "pyproject.toml").read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    names = re.findall(r'"([a-z0-9]+)', listed)
    assert [component["name"] for component in bill["components"]] == names
    lock = (ROOT / "requirements.lock").read_text()
    assert all(
        f"{component['name']}=={component['version']} " in lock for component in bill["components"]
    )
    assert bill["metadata"]["component"]["version"] == __version__


@pytest.mark.slow
def test_the_wheel_has_the_bill(tmp_path: Path) -> None:
    """In its folder for such bills, as the specification of wheels requires."""
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run(list(map(str, words)), check=True)
    [wheel] = tmp_path.iterdir()
    name = f"hostrouting-{__version__}.dist-info/sboms/hostrouting.cdx.json"
    assert zipfile.ZipFile(wheel).read(name) == (ROOT / BILL).read_bytes()
