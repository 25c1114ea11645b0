"""The README's code and the examples: they run, and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(document: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def run(*argv: str) -> str:
    return subprocess.run([sys.executable, "-P", *argv], check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.parametrize("code", blocks("README.md"))
def test_the_readmes_code_runs(code: str) -> None:
    """Each block is a program of its own whose assertions hold."""
    run("-c", code)


def test_the_readme_fits_one_screen_of_reading() -> None:
    """Pitch, two commands, first code: nobody scrolls far for them."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_the_demo_tells_its_story() -> None:
    """The demo shows the trap, the refusals and the way out."""
    told = run("examples/demo.py")
    assert "172.16.8.1     -> 172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4" in told
    assert "nothing was changed: the rollback was verified by reading the routes back" in told
    assert "172.16.8.1     -> 172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142" in told
    assert "172.17.1.5     -> 172.17.0.0/16 dev ib1 proto kernel scope link src 172.17.1.4" in told


def test_the_custom_backend_passes_the_contract() -> None:
    """The example of a backend of one's own is one, by the contract suite."""
    told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/custom_backend.py")
    assert re.search(r"^\d+ passed", told, flags=re.MULTILINE)
