"""The benchmarks run, and their results are measured, reported, and written into a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.documents import ROOT
from support.kernel import needs_kernel
from support.processes import ended

from benchmarks.targets import PROMISES

pytestmark = pytest.mark.slow

#: A command prefix: a machine whose /run is empty, and the file that lists the content of /run
#: afterwards.
EMPTY_RUN = [
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs none /run || exit; left=$0; "$@" && ls -A /run > "$left"',
]


def run(*options: str, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    file = str(ROOT / "benchmarks/run.py")
    return ended(*within, sys.executable, file, *options)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of a very small run, with the printed report as `text`."""
    file = tmp_path_factory.mktemp("benchmarks") / "bench.json"
    options = ["--quick", "--rounds", "1", "--sizes", "10", "30", "--json", str(file)]
    done = run(*options)
    assert done.returncode == 0, done.stderr
    written: dict[str, Any] = json.loads(file.read_text())
    return {**written, "text": done.stdout}


@needs_kernel
def test_every_case_is_measured_at_every_size(findings: dict[str, Any]) -> None:
    """Each case of the benchmarks has a row in the report, and its sizes, contenders and samples in
    the JSON.
    """
    for name, case in findings["cases"].items():
        assert f"\n{name}" in findings["text"]
        for size in case["sizes"].values():
            assert all(
                min(contender["wall_seconds"]) > 0 for contender in size["contenders"].values()
            )
    assert findings["cases"]["hostrouting check"]["sizes"].keys() == {"10", "30"}
    assert findings["cases"].keys() == {row.case for row in PROMISES}


@needs_kernel
def test_machine_and_targets_are_reported(findings: dict[str, Any]) -> None:
    """The report has the machine and each target, one of a user's wait with its milliseconds by
    size; a target that this small run cannot judge is marked as not measured.
    """
    assert findings["machine"]["kernel"]
    targets = {target["promise"]: target for target in findings["targets"]}
    assert list(targets) == [row.promise for row in PROMISES]
    assert targets["apply of 10,000 routes, to ip -batch"]["verdict"] == "not measured"
    start = targets["gated start, 8 routes, 4 CIDRs, to upstream-style"]
    assert start["measured"] > 0
    assert list(start["milliseconds"]) == ["8"]
    assert all(promise in findings["text"] for promise in targets)


@needs_kernel
def test_a_page_has_the_promises(tmp_path: Path) -> None:
    """A run for a page writes the promises into the block of the page, and nothing else."""
    page = tmp_path / "page.md"
    page.write_text("Above\n```text\nold\n```\nBelow\n")
    options = ["--quick", "--rounds", "1", "--sizes", "10", "--only", "fleet"]
    done = run(*options, "--page", str(page))
    assert done.returncode == 0, done.stderr
    above, block, below = page.read_text().split("```")
    assert (above, below) == ("Above\n", "\nBelow\n")
    assert re.match(r"text\n\d{4}-\d\d-\d\d\nLinux ", block)
    assert done.stdout.endswith(block.partition("\n\n")[2])
    assert all(row.promise in block for row in PROMISES)


@needs_kernel
def test_gates_alone_leave_nothing_on_this_machine(tmp_path: Path) -> None:
    """A run of the gated starts alone leaves other cases out, and leaves no state in /run of this
    machine.
    """
    left = tmp_path / "left"
    options = ["--quick", "--rounds", "1", "--sizes", "10", "--only", "gate"]
    done = run(*options, within=[*EMPTY_RUN, str(left)])
    assert done.returncode == 0, done.stderr
    assert not {"aks-flex-node", "hostrouting"} & set(left.read_text().split())
    assert "\nGated starts: milliseconds" in done.stdout
    assert "Fleet: microseconds" not in done.stdout
