"""Recorded nodes: what one more costs, and how much memory a process of them takes."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.cases import OURS, Group, Result, Setting
from benchmarks.measure import Contest, Sample, printed

FLEET = "fleet"
PARSER = "json.loads"
LEGEND = """\
Fleet: microseconds of processor time for each of N recorded nodes with 64 routes, parsed and proven by one process;
the peak of memory is that of the process."""

_CHILD = Path(__file__).with_name("fleet_child.py")
_MOST = 10_000


def fleet(setting: Setting) -> list[Result]:
    """Measure fleets of each size."""
    sizes = [count for count in setting.sizes if min(1000, setting.sizes[-1]) <= count <= _MOST]
    each = {count: _measured(count) for count in sizes}
    peaks = (f"{peak / 1024:.0f} MB of {count:,}" for count, (_, peak) in each.items())
    contests = [Contest(count, samples, clock="cpu") for count, (samples, _) in each.items()]
    return [Result(FLEET, contests, [(OURS, PARSER)], f"peak {', '.join(peaks)}")]


def _measured(count: int) -> tuple[dict[str, list[Sample]], int]:
    wall, cpu, parser, peak = printed(sys.executable, str(_CHILD), str(count)).split()
    samples = {OURS: Sample(float(wall), float(cpu)), PARSER: Sample(float(parser), float(parser))}
    return {name: [sample] for name, sample in samples.items()}, int(peak)


GROUP = Group((FLEET,), fleet, LEGEND)
