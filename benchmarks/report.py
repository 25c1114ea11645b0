"""The measurements: for people as tables, for programs as JSON."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import Result
from benchmarks.measure import Contest, printed
from benchmarks.targets import Target


class Findings(NamedTuple):
    """All that one run found."""

    machine: Mapping[str, Any]
    legends: Sequence[str]
    results: Mapping[str, Result]
    promises: Sequence[Target]


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
    }


def _first_line(*argv: str) -> str:
    return printed(*argv).partition("\n")[0]


def as_text(findings: Findings) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from _machine(findings.machine)
    yield from findings.legends
    for result in findings.results.values():
        yield ""
        yield f"{result.name}{f' ({result.remark})' if result.remark else ''}"
        yield from _table(result)
    yield ""
    yield from _targets(findings.promises)


def as_page(findings: Findings) -> Iterator[str]:
    """Yield the lines of the report that docs/performance.md shows: date and machine, and each
    promise.
    """
    yield findings.machine["date"]
    yield from _machine(findings.machine)
    yield ""
    yield from _targets(findings.promises)


def _machine(about: Mapping[str, Any]) -> Iterator[str]:
    yield f"Linux {about['kernel']}, {about['cpus']} CPUs ({about['processor']}), load {about['load_average'][0]:.1f}"
    yield f"Python {about['python']}, {about['iproute2']}, pyroute2 {about['pyroute2']}"


def _targets(targets: Sequence[Target]) -> Iterator[str]:
    yield "±: the middle half of what a figure is compared with; ms: the median of the time that passed, by size"
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
    heads = [f"{name:>13}" for name in contenders] + [
        f"{f'{one}/{other}':>20}" for one, other in ratios
    ]
    yield f"{'N':>9}{''.join(heads)}{'rounds':>8}"
    for contest in result.contests:
        cost = contest.milliseconds if result.whole else contest.microseconds_per_item
        costs = [
            f"{cost(name):13.2f}" if name in contest.samples else f"{'-':>13}"
            for name in contenders
        ]
        shown = [contest.ratio(*pair) for pair in ratios]
        shares = [f"{'-':>20}" if ratio is None else f"{ratio:20.2f}" for ratio in shown]
        yield f"{contest.items:9,}{''.join(costs)}{''.join(shares)}{_rounds(contest):8}"


def _rounds(contest: Contest) -> int:
    return len(next(iter(contest.samples.values())))


def _target(target: Target) -> str:
    row = target.row
    measured = "" if target.measured is None else f"{target.measured:.2f}{row.unit}"
    limit = f"<= {row.limit:g}{row.unit}" if row.limit else ""
    spread = "" if target.spread is None else f"±{50 * target.spread:.0f} %"
    waits = " / ".join(_milliseconds(one) for one in target.milliseconds.values())
    where = f"{waits} ms" if waits else target.where
    text = f"  {row.promise:66}{measured:>9}  {limit:9}{target.verdict:10}{spread:7}{where}"
    return text.rstrip()


def _milliseconds(time: float) -> str:
    return f"{time:,.0f}" if time >= 10 else f"{time:.1f}"


def as_json(findings: Findings) -> dict[str, Any]:
    """Return the report as JSON, with every sample."""
    return {
        "machine": dict(findings.machine),
        "cases": {
            name: {
                "remark": result.remark,
                "sizes": {str(contest.items): _samples(contest) for contest in result.contests},
            }
            for name, result in findings.results.items()
        },
        "targets": [_plain(target) for target in findings.promises],
    }


def _plain(target: Target) -> dict[str, Any]:
    return {
        "promise": target.row.promise,
        "measured": target.measured,
        "limit": target.row.limit,
        "unit": target.row.unit,
        "milliseconds": target.milliseconds,
        "verdict": target.verdict,
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
