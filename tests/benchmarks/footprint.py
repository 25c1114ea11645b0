"""The costs of the library before it works, and at most: imports and memory."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks import world
from benchmarks.measure import BenchmarkError, Contest, contest, environment, program

from hostrouting.net.addresses import parse_ipv4

_MEMORY_CHILD: Final = Path(__file__).with_name("memory_child.py")
BARE: Final = "bare Python"
_MODULES: Final = ("phases", "hostrouting", "hostrouting.host.netlink", "pyroute2")


class Memory(NamedTuple):
    """Peaks in kB of a process that applies `items` routes with verification, by stage."""

    items: int
    peaks: Mapping[str, int]

    @property
    def megabytes(self) -> float:
        """The peak of all."""
        return max(self.peaks.values()) * 1024 / 1e6


class Imports(NamedTuple):
    """Process starts, one with each import and one with none."""

    contest: Contest

    def milliseconds(self, name: str) -> float:
        """The median of a whole process."""
        return self.contest.seconds(name) * 1e3

    def over_bare(self, name: str) -> float:
        """The median, over the rounds, of the import's time over bare Python, in milliseconds."""
        samples = self.contest.samples
        return 1e3 * median(
            one.wall - bare.wall for one, bare in zip(samples[name], samples[BARE], strict=True)
        )


def memory(items: int) -> Memory:
    """Measure in a fresh process."""
    world.clean()
    words = [world.DEVICE, items, world.FIRST, world.STEP, world.LENGTH, parse_ipv4(world.GATEWAY)]
    argv = [sys.executable, str(_MEMORY_CHILD), *map(str, words)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise BenchmarkError(
            f"applying {items} routes in a fresh process failed: {done.stderr.strip()[-500:]}"
        )
    world.check_installed(items)
    world.clean()
    return Memory(items, json.loads(done.stdout))


def imports(rounds: int) -> Imports:
    """Start Python with each import; the uncounted round before the first writes the bytecode."""
    imported = [f"import {module}" for module in _MODULES]
    contenders = [program(BARE, "-c", "pass"), *(program(text, "-c", text) for text in imported)]
    return Imports(contest(contenders, 1, rounds=rounds))
