"""Recorded nodes: what one more costs, and how much memory a process of them takes."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.cases import OURS, Result, Setting
from benchmarks.measure import Contest, Sample, printed

#: By family, with the limit as a multiple of the parser alone.
LIMITS = {"fleet, IPv4": 15, "fleet, both families": 18}
PARSER = "json.loads"
ROUTES = "fleet, routes of a node"
PARENT = "fleet, two workers"
WORKERS = "workers"
NAMES = (*LIMITS, ROUTES, PARENT)
LEGEND = """\
Fleet: microseconds of processor time for each of N recorded nodes with 64 routes, parsed and proven by one process, and
for each route of a node with N; the peak of memory is that of the process. With two workers: of the parent, and of both."""

_CHILD = Path(__file__).with_name("fleet_child.py")
_SIZES = (64, 1000, 8000, 64_000)
#: Nodes for two workers.
_MOST = 10_000


def fleet(setting: Setting) -> list[Result]:
    """Measure fleets of each size, and one node with many routes."""
    found = []
    for families, name in enumerate(LIMITS, 1):
        each = {
            count: _measured(count, 64, families)
            for count in setting.sizes
            if count >= min(1000, setting.sizes[-1])
        }
        remark = "peak " + ", ".join(
            f"{peak / 1024:.0f} MB of {count:,}" for count, (_, peak) in each.items()
        )
        contests = [Contest(count, samples, clock="cpu") for count, (samples, _) in each.items()]
        found.append(Result(name, contests, [(OURS, PARSER)], remark))
    sizes = [size for size in _SIZES if size <= max(1000, setting.sizes[-1])]
    ours = {size: {OURS: _measured(1, size, 1)[0][OURS]} for size in sizes}
    many = [Contest(size, samples, clock="cpu") for size, samples in ours.items()]
    count = min(_MOST, setting.sizes[-1])
    both, _ = _measured(count, 64, 1, jobs=2)
    shared = Contest(count, both, clock="cpu")
    return [*found, Result(ROUTES, many, []), Result(PARENT, [shared], [(OURS, WORKERS)])]


def _measured(
    count: int, routes: int, families: int, jobs: int = 1
) -> tuple[dict[str, list[Sample]], int]:
    argv = [sys.executable, str(_CHILD), *map(str, (count, routes, families, jobs))]
    wall, cpu, parser, peak, _, workers = printed(*argv).split()
    samples = {OURS: Sample(float(wall), float(cpu)), PARSER: Sample(float(parser), float(parser))}
    if jobs > 1:
        samples[WORKERS] = Sample(float(wall), float(workers))
    return {name: [sample] for name, sample in samples.items()}, int(peak)
