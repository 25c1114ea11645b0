from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import fleet, pair, storm, watch
from benchmarks.cases import Setting
from benchmarks.measure import BenchmarkError
from benchmarks.session import main
from support.kernel import needs_kernel
from support.needs import needs

pytestmark = pytest.mark.slow

#: Cases that have one size each, and their contenders.
PAIR = {
    "boot, routes and check": {"8": {"ours", "upstream"}},
    "boot, routes alone": {"30": {"ours", "upstream"}},
    "start, routes in force": {"30": {"ours", "upstream"}},
    "start, check alone": {"30": {"ours", "upstream"}},
    "hostrouting check": {"50": {"ours", "bare"}},
    "command, start": {"1": {"file", "installed"}},
    "command, check": {"1": {"file", "installed"}},
    "prove_egress": {"30": {"total", "dump", "lookups", "freeing", "analysis"}},
    "boot check, announced fabric": {"8": {"announced", "without"}},
    "hostrouting check, announced fabric": {"8": {"announced", "without"}},
    "boot check, by family": {"8": {"ipv4", "ipv6", "mixed"}},
    watch.DELETION: {"1000": {"ours"}, "10000": {"ours"}},
    watch.CHANGES: {"1000": set(watch.KINDS)},
    watch.AT_ONCE: {"1000": {"ours"}},
    watch.IDLE: {"1000": {"ours"}},
    watch.LOOP: {"1000": {"ours"}},
    **{name: {"30": {"ours"}} for name in storm.NAMES},
    **{name: {"30": {"ours"}} for name in fleet.LIMITS},
    fleet.ROUTES: {"64": {"ours"}, "1000": {"ours"}},
    "hostrouting apply": {"30": {"ours", "ip"}} if shutil.which("systemctl") else {},
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
    c = {"C"} if shutil.which("cc") else set()
    everybody = {
        "install": {"ours", "verified", "ip", "pyroute2"} | c,
        "lookup": {"ours", "ip", "pyroute2"} | c,
        "dump, uniform": {"ours", "ip"} | c,
        "dump, mixed": {"ours", "ip"} | c,
        "ebtables rules": {"ours", "tool"},
    }
    assert {
        name: {items: set(one["contenders"]) for items, one in case["sizes"].items()}
        for name, case in findings["cases"].items()
    } == {
        name: {"10": contenders | ({"each"} if name == "ebtables rules" else set()), "30": contenders}
        for name, contenders in everybody.items()
    } | PAIR
    for name, case in findings["cases"].items():
        assert f"\n{name}" in findings["text"]
        for one in case["sizes"].values():
            samples = [contender["wall_seconds"] for contender in one["contenders"].values()]
            assert all(len(each) == 1 for each in samples) or name in watch.NAMES
            assert all(min(each) > 0 for each in samples)
            assert one["ratios"] or name.startswith(("prove_egress", "watch", "storm", "fleet"))


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
def test_the_proof_is_taken_apart_without_remainder(findings: dict[str, Any]) -> None:
    """The time outside of the backend is the analysis."""
    parts = findings["cases"]["prove_egress"]["sizes"]["30"]["contenders"]
    seconds = {name: part["wall_seconds"][0] for name, part in parts.items()}
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))


@needs_kernel
def test_the_pair_alone_leaves_nothing_on_this_machine(tmp_path: Path) -> None:
    """The boot scripts leave their markers under a /run of the benchmark's own; and the legend tells how to read it."""
    done = run(
        "--quick", "--rounds", "1", "--sizes", "10", "--only", "pair", within=[*EMPTY_RUN, str(tmp_path / "left")]
    )
    assert done.returncode == 0, done.stderr
    assert "aks-flex-node" not in (tmp_path / "left").read_text()
    assert "milliseconds of the whole work" in done.stdout
    assert "Microseconds an item" not in done.stdout
    verdicts = [line for line in done.stdout.splitlines() if line.endswith((" ok", " MISSED"))]
    assert [line.split("  ")[1] for line in verdicts] == [
        "boot scripts of 8 routes and 4 CIDRs, to upstream-style ones",
        "hostrouting check of 4 CIDRs among 50 routes, whole process",
    ]


def test_boot_scripts_run_only_in_a_separate_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No boot script runs in a namespace that an operator made by hand, without a separate /run."""
    monkeypatch.setattr("benchmarks.world.ip_batch", lambda _lines: None)
    for name in "clean", "sweep":
        monkeypatch.setattr(f"benchmarks.world.{name}", lambda: None)
    with pytest.raises(BenchmarkError, match="own /run"):
        pair.pair(Setting([10], lambda _count: 1, tmp_path, None, 0))


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
