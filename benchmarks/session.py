"""One run of the benchmarks, from the command line to the report."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import cases, commands, fleet, gate, report, storm, watch, world
from benchmarks.measure import BenchmarkError
from benchmarks.targets import PROMISES, judged

_GROUPS: Mapping[str, cases.Group] = {
    "gate": gate.GROUP,
    "commands": commands.GROUP,
    "watch": watch.GROUP,
    "storm": storm.GROUP,
    "fleet": fleet.GROUP,
}
#: The place of the report in a page.
_BLOCK = re.compile(r"^```text\n.*?^```$", flags=re.MULTILINE | re.DOTALL)

#: Rounds by the number of items: the shorter the work, the noisier, and the cheaper to repeat.
_ROUNDS = {10: 31, 1000: 31, 10_000: 21}
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
        prog="run.py", description="Measure this library against ip and bash scripts."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write the promises into its block ```text",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=_GROUPS,
        default=list(_GROUPS),
        metavar="NAME",
        help=", ".join(_GROUPS),
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

    groups = {name: group for name, group in _GROUPS.items() if name in options.only}
    results: dict[str, cases.Result] = {}
    with tempfile.TemporaryDirectory(prefix="hostrouting-bench-") as folder:
        world.build()

        def measure(needed: frozenset[str]) -> None:
            setting = cases.Setting(sizes, rounds, Path(folder), needed)
            for name, group in groups.items():
                if needed.isdisjoint(group.names):
                    continue
                _announce(name)
                results.update({result.name: result for result in group.measure(setting)})

        measure(frozenset(row.case for row in PROMISES))
        missed = [target for target in judged(PROMISES, results) if target.verdict == "MISSED"]
        # A slow phase of the machine misses rows that a second measurement, alone, keeps.
        measure(frozenset(target.row.case for target in missed))
    legends = dict.fromkeys(
        group.legend for group in groups.values() if results.keys() & set(group.names)
    )
    return report.Findings(about, list(legends), results, judged(PROMISES, results))


def _announce(name: str) -> None:
    # To stderr: minutes without a word look like a hang.
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
