"""The most memory that the library takes."""

import json
import sys
from pathlib import Path

from benchmarks import world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import Contest, Sample, environment, printed
from hostrouting.net.addresses import parse_ipv4

MEMORY = "memory"
#: The last stage.
APPLIED = "applied"
LEGEND = """\
Memory: the peak in MB of a fresh process that applies N routes, by stage."""

_CHILD = Path(__file__).with_name("memory_child.py")


def memory(setting: Setting) -> list[Result]:
    """Measure in a fresh process."""
    world.clean()
    count = setting.sizes[-1]
    words = [world.DEVICE, count, world.FIRST, world.STEP, world.LENGTH, parse_ipv4(world.GATEWAY)]
    argv = [sys.executable, str(_CHILD), *map(str, words)]
    peaks = json.loads(printed(*argv, env=environment()))
    world.check_installed(count)
    world.clean()
    # The tables show thousandths of a Sample.
    samples = {stage: [Sample(*[peak * 1024 / 1e9] * 2)] for stage, peak in peaks.items()}
    return [Result(MEMORY, [Contest(count, samples)], [], whole=True)]


def megabytes(measured: Contest) -> float:
    """Return the peak of all stages."""
    return measured.milliseconds(APPLIED)


GROUP = Group((MEMORY,), memory, LEGEND)
