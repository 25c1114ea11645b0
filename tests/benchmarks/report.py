"""The measurements: for people as tables, for programs as JSON."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import fabric, families, fleet, one_file, pair, start, storm, sweep, watch
from benchmarks.cases import Result
from benchmarks.footprint import Memory
from benchmarks.measure import Contest, printed
from benchmarks.targets import Target

_LEGEND = """\
Microseconds an item (a route, an address), medians of rounds in which all contenders take turns. A ratio is the
median of the rounds' ratios, so it is not exactly that of the two columns.
  ours      the library called in this process: values in, values out, opening its socket included
  verified  the same, with the routes read back (the default of apply)
  C         yardstick.c: the largest batches that pay, one barrier, no values made; times itself, without its start
  ip        `ip -batch FILE` or `ip -4 route show table all`: the whole process, which is how it is used"""


class Findings(NamedTuple):
    """All that one run found."""

    machine: Mapping[str, Any]
    results: Mapping[str, Result]
    memory: Memory | None
    targets: Sequence[Target]


def machine() -> dict[str, Any]:
    """Return the description of the machine."""
    models = re.findall(
        r"^model name\s*: (.*)$",
        Path("/proc/cpuinfo").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    return {
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": models[0] if models else platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "iproute2": _first_line("ip", "-V"),
        "pyroute2": version("pyroute2"),
        "cc": _first_line("cc", "--version") if shutil.which("cc") else None,
    }


def _first_line(*argv: str) -> str:
    return printed(*argv).partition("\n")[0]


def as_text(findings: Findings) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from _machine(findings.machine)
    if findings.machine["cc"] is None:
        yield "No cc here: the C column is left out."
    rooms = (one_file, start, fabric, families, sweep, watch, storm, fleet)
    own = {name for room in rooms for name in room.NAMES}
    kinds = {result.whole for name, result in findings.results.items() if name not in own}
    if False in kinds:
        yield _LEGEND
    if True in kinds:
        yield pair.LEGEND
    yield from (room.LEGEND for room in rooms if findings.results.keys() & {*room.NAMES})
    for result in findings.results.values():
        yield ""
        yield f"{result.name}{f' ({result.remark})' if result.remark else ''}"
        yield from _table(result)
    if findings.memory is not None:
        peaks = ", ".join(
            f"{stage} {kilobytes * 1024 / 1e6:.1f}"
            for stage, kilobytes in findings.memory.peaks.items()
        )
        yield ""
        yield f"memory: peak in MB of a fresh process that applies {findings.memory.items:,} routes, by stage: {peaks}"
    yield ""
    yield from _targets(findings.targets)


def as_page(findings: Findings) -> Iterator[str]:
    """Yield the lines of the report that docs/performance.md shows: date and machine, and each
    target.
    """
    yield findings.machine["date"]
    yield from _machine(findings.machine)
    yield ""
    yield from _targets(findings.targets)


def _machine(about: Mapping[str, Any]) -> Iterator[str]:
    yield f"Linux {about['kernel']}, {about['cpus']} CPUs ({about['processor']}), load {about['load_average'][0]:.1f}"
    yield f"Python {about['python']}, {about['iproute2']}, pyroute2 {about['pyroute2']}"


def _targets(targets: Sequence[Target]) -> Iterator[str]:
    yield "targets (of several N: for N >= 1,000, at the worst N; ±: the middle half of what it is compared with)"
    yield from map(_target, targets)


def _table(result: Result) -> Iterator[str]:
    contenders = list(
        dict.fromkeys(name for contest in result.contests for name in contest.samples)
    )
    ratios = [
        pair
        for pair in result.ratios
        if any(contest.ratio(*pair) is not None for contest in result.contests)
    ]
    heads = [f"{name:>10}" for name in contenders] + [
        f"{f'{one}/{other}':>14}" for one, other in ratios
    ]
    yield f"{'N':>9}{''.join(heads)}{'rounds':>8}"
    for contest in result.contests:
        cost = contest.milliseconds if result.whole else contest.microseconds_per_item
        costs = [
            f"{cost(name):10.2f}" if name in contest.samples else f"{'-':>10}"
            for name in contenders
        ]
        shown = [contest.ratio(*pair) for pair in ratios]
        shares = [f"{'-':>14}" if ratio is None else f"{ratio:14.2f}" for ratio in shown]
        yield f"{contest.items:9,}{''.join(costs)}{''.join(shares)}{_rounds(contest):8}"


def _rounds(contest: Contest) -> int:
    return len(next(iter(contest.samples.values())))


def _target(target: Target) -> str:
    measured = "" if target.measured is None else f"{target.measured:.2f}{target.unit}"
    limit = f"{'>=' if target.at_least else '<='} {target.limit:g}{target.unit}"
    spread = "" if target.spread is None else f"±{50 * target.spread:.0f} %"
    text = (
        f"  {target.promise:70}{measured:>9}  {limit:10}{target.verdict:8}{spread:7}{target.where}"
    )
    return text.rstrip()


def as_json(findings: Findings) -> dict[str, Any]:
    """Return the report as JSON, with every sample."""
    memory = findings.memory
    return {
        "machine": dict(findings.machine),
        "cases": {
            name: {
                "remark": result.remark,
                "sizes": {str(contest.items): _samples(contest) for contest in result.contests},
            }
            for name, result in findings.results.items()
        },
        "memory": None
        if memory is None
        else {"items": memory.items, "peak_kb": dict(memory.peaks)},
        "targets": [{**target._asdict(), "verdict": target.verdict} for target in findings.targets],
    }


def _samples(contest: Contest) -> dict[str, Any]:
    return {
        "contenders": {
            name: {
                "wall_seconds": [sample.wall for sample in samples],
                "cpu_seconds": [sample.cpu for sample in samples],
            }
            for name, samples in contest.samples.items()
        }
    }
