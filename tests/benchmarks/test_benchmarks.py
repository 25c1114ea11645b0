from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fleet, storm, watch
from support.kernel import needs_kernel
from support.needs import needs

pytestmark = pytest.mark.slow

#: A command prefix: a machine whose /run is empty, and the file that lists the content of /run
#: afterwards.
EMPTY_RUN = [
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs none /run || exit; left=$0; "$@" && ls -A /run > "$left"',
]


def run(
    *options: str, within: Sequence[str] = (), program: str = "run.py"
) -> subprocess.CompletedProcess[str]:
    file = str(Path(__file__).with_name(program))
    return subprocess.run(
        [*within, sys.executable, file, *options], check=False, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of a very small run; the report that it prints is there as `text`, a page that it
    fills in as `page`.
    """
    file = tmp_path_factory.mktemp("benchmarks") / "bench.json"
    (page := file.with_name("page.md")).write_text("Above\n```text\nold\n```\nBelow\n")
    options = ["--quick", "--rounds", "1", "--sizes", "10", "30", "--json"]
    done = run(*options, str(file), "--page", str(page))
    assert done.returncode == 0, done.stderr
    written: dict[str, Any] = json.loads(file.read_text())
    return {**written, "text": done.stdout, "page": page.read_text()}


@needs("kernel", "ebtables-nft")
def test_every_case_is_measured_at_every_size(findings: dict[str, Any]) -> None:
    """Cases, sizes, contenders and their samples are in the JSON, and the table shows the cases."""
    for name, case in findings["cases"].items():
        assert f"\n{name}" in findings["text"]
        for size in case["sizes"].values():
            assert all(
                min(contender["wall_seconds"]) > 0 for contender in size["contenders"].values()
            )
    assert findings["cases"]["install"]["sizes"].keys() == {"10", "30"}
    assert {
        *storm.NAMES,
        *fleet.NAMES,
        *watch.NAMES,
        "install",
        "lookup",
        "prove_egress",
    } <= findings["cases"].keys()


@needs_kernel
def test_memory_machine_and_targets_are_reported(findings: dict[str, Any]) -> None:
    """Figures without a contest are there too; a target that this small run cannot judge says so."""
    assert findings["machine"]["kernel"]
    assert list(findings["memory"]["peak_kb"]) == ["bare", "imported", "built", "applied"]
    verdicts = {target["promise"]: target["verdict"] for target in findings["targets"]}
    assert verdicts["lookup, to C"] == "not measured"
    assert verdicts["boot check with 8 announced networks, to without"] in {"ok", "MISSED"}
    assert all(promise in findings["text"] for promise in verdicts)
    above, block, below = findings["page"].split("```")
    assert (above, below) == ("Above\n", "\nBelow\n")
    assert block.startswith(f"text\n{findings['machine']['date']}\nLinux ")
    assert findings["text"].endswith(block.partition("\n\n")[2])


@needs_kernel
def test_the_pair_alone_leaves_nothing_on_this_machine(tmp_path: Path) -> None:
    """The boot scripts leave their markers in the benchmark's /run; other cases and their targets
    are left out.
    """
    left = tmp_path / "left"
    options = ["--quick", "--rounds", "1", "--sizes", "10", "--only", "pair"]
    done = run(*options, within=[*EMPTY_RUN, str(left)])
    assert done.returncode == 0, done.stderr
    assert "aks-flex-node" not in left.read_text()
    assert "milliseconds of the whole work" in done.stdout
    assert "Microseconds an item" not in done.stdout
    assert "install" not in done.stdout


@needs_kernel
def test_every_walk_ends_where_it_should() -> None:
    """Each of the operations is traced in a new namespace, and reaches the kernel."""
    done = run("--files", program="walks.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("hostrouting/host/netlink/backend.py") == 2
