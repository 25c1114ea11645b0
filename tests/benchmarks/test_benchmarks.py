from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fleet, storm, watch
from benchmarks.session import main
from support.kernel import needs_kernel
from support.needs import needs

pytestmark = pytest.mark.slow

#: Contenders of the cases that have several, at the sizes 10 and 30 or at their own.
CONTENDERS = {
    "install": "ours verified ip pyroute2",
    "lookup": "ours ip pyroute2",
    "dump, uniform": "ours ip",
    "dump, mixed": "ours ip",
    "ebtables rules": "ours tool",
    "boot, routes and check": "ours upstream",
    "boot, routes alone": "ours upstream",
    "start, routes in force": "ours upstream",
    "start, check alone": "ours upstream",
    "hostrouting check": "ours bare",
    "command, start": "file installed",
    "command, check": "file installed",
    "prove_egress": "total dump lookups freeing analysis",
    "boot check, announced fabric": "announced without",
    "hostrouting check, announced fabric": "announced without",
    "boot check, by family": "ipv4 ipv6 mixed",
    watch.CHANGES: " ".join(watch.KINDS),
    **dict.fromkeys(
        [watch.DELETION, watch.AT_ONCE, watch.IDLE, watch.LOOP, *storm.NAMES, *fleet.LIMITS, fleet.ROUTES], "ours"
    ),
    "hostrouting apply": "ours ip",
}


#: A command prefix: a machine whose /run is empty, and the file that lists the content of /run afterwards.
EMPTY_RUN = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /run || exit; left=$0; "$@" && ls -A /run > "$left"',
]


def run(*options: str, within: Sequence[str] = (), program: str = "run.py") -> subprocess.CompletedProcess[str]:
    file = str(Path(__file__).with_name(program))
    return subprocess.run([*within, sys.executable, file, *options], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of a very small run; the report that it prints is there as `text`, a page that it fills in as `page`."""
    file = tmp_path_factory.mktemp("benchmarks") / "bench.json"
    (page := file.with_name("page.md")).write_text("Above\n```text\nold\n```\nBelow\n")
    done = run("--quick", "--rounds", "1", "--sizes", "10", "30", "--json", str(file), "--page", str(page))
    assert done.returncode == 0, done.stderr
    written: dict[str, Any] = json.loads(file.read_text())
    return {**written, "text": done.stdout, "page": page.read_text()}


@needs("kernel", "ebtables-nft")
def test_every_case_has_every_contender_at_every_size(findings: dict[str, Any]) -> None:
    """Cases, sizes, contenders and their samples are all in the JSON, and the table shows them."""
    for name, case in findings["cases"].items():
        assert f"\n{name}" in findings["text"]
        for size in case["sizes"].values():
            assert set(CONTENDERS[name].split()) <= size["contenders"].keys()
            assert all(min(contender["wall_seconds"]) > 0 for contender in size["contenders"].values())
            assert size["ratios"] or name.startswith(("prove_egress", "watch", "storm", "fleet"))
    assert findings["cases"].keys() == CONTENDERS.keys()
    assert findings["cases"]["install"]["sizes"].keys() == {"10", "30"}


@needs_kernel
def test_memory_imports_machine_and_targets_are_reported(findings: dict[str, Any]) -> None:
    """Figures without a contest are there too; a target that this small run cannot judge says so."""
    assert findings["machine"]["kernel"]
    assert list(findings["memory"]["peak_kb"]) == ["bare", "imported", "built", "applied"]
    assert "import hostrouting" in findings["imports"]
    verdicts = {target["promise"]: target["verdict"] for target in findings["targets"]}
    assert verdicts["lookup, to C"] == "not measured"
    assert verdicts["import phases, over bare Python"] in {"ok", "MISSED"}
    assert all(promise in findings["text"] for promise in verdicts)
    above, block, below = findings["page"].split("```")
    assert (above, below) == ("Above\n", "\nBelow\n")
    assert block.startswith(f"text\n{findings['machine']['date']}\nLinux ")
    assert findings["text"].endswith(block.partition("\n\n")[2])


def test_the_processor_time_of_a_process_is_finer_than_a_tick() -> None:
    """It is the process's own clock, and not the ticks of /proc: an idle minute of watch has two or three of those."""
    ended = sum(os.times()[2:4])
    before = time.process_time()
    measured = watch.cpu(os.getpid()) - ended
    assert before <= measured + 1e-6
    assert measured - 1e-6 <= time.process_time()


@needs_kernel
def test_only_the_selected_cases_are_measured() -> None:
    """`--only` leaves the other cases out of the report, and their targets unjudged."""
    done = run("--quick", "--rounds", "1", "--sizes", "10", "--only", "dump")
    assert done.returncode == 0, done.stderr
    assert "dump, mixed" in done.stdout
    assert "install" not in done.stdout
    assert "MISSED" not in done.stdout


@needs_kernel
def test_the_pair_alone_leaves_nothing_on_this_machine(tmp_path: Path) -> None:
    """The boot scripts leave their markers under a /run of the benchmark's own; and the legend tells how to read it."""
    left = tmp_path / "left"
    done = run("--quick", "--rounds", "1", "--sizes", "10", "--only", "pair", within=[*EMPTY_RUN, str(left)])
    assert done.returncode == 0, done.stderr
    assert "aks-flex-node" not in left.read_text()
    assert "milliseconds of the whole work" in done.stdout
    assert "Microseconds an item" not in done.stdout


@pytest.fixture
def _without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as an ordinary user, so that no test of the options begins to measure."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)


@pytest.mark.usefixtures("_without_root")
@pytest.mark.parametrize(
    ("option", "why"),
    [
        *((f"--rounds={rounds}", "--rounds") for rounds in ("2", "0", "-1", "many")),
        ("--json=absent/bench.json", "there is no folder"),
        ("--page=absent.md", "it is no file with a block ```text"),
    ],
)
def test_a_wrong_option_is_refused_before_the_work(
    option: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option, such as an even number of rounds, is refused before the first measurement."""
    monkeypatch.setattr("sys.argv", ["run.py", option])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert why in capsys.readouterr().err


@pytest.mark.usefixtures("_without_root")
def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and a sentence, and nothing was tried."""
    monkeypatch.setattr("sys.argv", ["run.py"])
    assert main() == 2
    assert "needs root" in capsys.readouterr().err


@needs("kernel", "ebtables-nft")
def test_every_walk_ends_where_it_should() -> None:
    """Each of the four operations is traced in a new namespace, and reaches the kernel."""
    done = run("--files", program="walks.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("hostrouting/host/netlink/backend.py") == 4
