"""One run of the benchmarks, from the command line to the report."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import (
    cases,
    fabric,
    families,
    fleet,
    footprint,
    one_file,
    pair,
    report,
    start,
    storm,
    sweep,
    watch,
    world,
)
from benchmarks.measure import BenchmarkError, printed
from benchmarks.targets import targets

_CASES: Mapping[str, Callable[[cases.Setting], list[cases.Result]]] = {
    "install": cases.install,
    "lookup": cases.lookup,
    "dump": cases.dump,
    "pair": pair.pair,
    "one-file": one_file.one_file,
    "start": start.start,
    "fabric": fabric.fabric,
    "families": families.families,
    "sweep": sweep.sweep,
    "watch": watch.watch,
    "storm": storm.storm,
    "fleet": fleet.fleet,
}
_NAMES = (*_CASES, "memory")
#: The place of the report in a page.
_BLOCK = re.compile(r"^```text\n.*?^```$", flags=re.MULTILINE | re.DOTALL)
_SOURCE = Path(__file__).with_name("yardstick.c")

#: Rounds by the number of items: the shorter the work, the noisier, and the cheaper to repeat.
_ROUNDS = {10: 31, 1000: 31, 10_000: 21, 100_000: 9}
_QUICK_ROUNDS = {10: 7, 1000: 7, 10_000: 5}


def main() -> int:
    """Measure the cases that the command line names."""
    options = _options()
    obstacle = world.why_not()
    if obstacle is not None:
        print(f"The benchmarks cannot run here: {obstacle}.", file=sys.stderr)
        return 2
    if options.outside is None:
        world.start_inside(sys.argv)
    if options.outside == world.namespace():
        print(
            "The benchmarks cannot run here: they did not get a separate network namespace.",
            file=sys.stderr,
        )
        return 2
    try:
        findings = _measure(options)
    except BenchmarkError as error:
        print(f"The benchmarks found something wrong instead of slow: {error}", file=sys.stderr)
        return 1
    print(*report.as_text(findings), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(findings), indent=1) + "\n")
    if options.page is not None:
        block = "\n".join(("```text", *report.as_page(findings), "```"))
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(_BLOCK.sub(lambda _: block, text), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Measure this library against C and ip."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write machine and targets into its block ```text"
    )
    parser.add_argument(
        "--quick", action="store_true", help="at most 10,000 items, and fewer rounds"
    )
    parser.add_argument(
        "--only", nargs="+", choices=_NAMES, default=_NAMES, metavar="NAME", help=", ".join(_NAMES)
    )
    parser.add_argument(
        "--rounds", type=_odd, metavar="N", help="so many rounds of everything, an odd number"
    )
    parser.add_argument("--sizes", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--outside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json is not None and not options.json.parent.is_dir():
        # Now, and not after minutes of work.
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    if options.page is not None and not (
        options.page.is_file() and _BLOCK.search(options.page.read_text())
    ):
        parser.error(f"--page {options.page}: it is no file with a block ```text")
    return options


def _odd(text: str) -> int:
    number = int(text)
    if number < 1 or number % 2 == 0:
        raise argparse.ArgumentTypeError(
            f"{number} is not an odd number: a median is one of its samples"
        )
    return number


def _measure(options: argparse.Namespace) -> report.Findings:
    by_size = _QUICK_ROUNDS if options.quick else _ROUNDS
    sizes: Sequence[int] = sorted(set(options.sizes or by_size))
    about = report.machine()

    def rounds(count: int) -> int:
        return options.rounds or next(
            (some for most, some in by_size.items() if count <= most), min(by_size.values())
        )

    with tempfile.TemporaryDirectory(prefix="hostrouting-bench-") as folder:
        setting = cases.Setting(sizes, rounds, Path(folder), _compiled(Path(folder)), world.build())
        results: dict[str, cases.Result] = {}
        sources: dict[str, str] = {}

        def measure(names: Iterable[str], only: Iterable[str] = ()) -> None:
            for name in names:
                _tell(name)
                for result in _CASES[name](setting._replace(only=frozenset(only))):
                    if result.contests or result.name not in results:
                        results[result.name], sources[result.name] = result, name

        measure(name for name in _CASES if name in options.only)
        memory = None
        if "memory" in options.only:
            _tell("memory")
            memory = footprint.memory(max(sizes))
        missed = [row.case for row in targets(results, memory) if row.verdict == "MISSED"]
        # A slow phase of the machine misses rows that a second measurement, alone, keeps.
        measure(dict.fromkeys(sources[case] for case in missed if case), only=filter(None, missed))
    return report.Findings(about, results, memory, targets(results, memory))


def _tell(name: str) -> None:
    # To stderr: minutes without a word look like a hang.
    print(f"measuring {name} ...", file=sys.stderr, flush=True)


def _compiled(folder: Path) -> Path | None:
    if shutil.which("cc") is None:
        return None
    program = folder / "yardstick"
    printed("cc", "-O2", "-o", str(program), str(_SOURCE))
    return program
