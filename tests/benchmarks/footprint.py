"""The most memory that the library takes."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks import world
from benchmarks.measure import environment, printed

from hostrouting.net.addresses import parse_ipv4

_MEMORY_CHILD = Path(__file__).with_name("memory_child.py")


class Memory(NamedTuple):
    """Peaks in kB of a process that applies `items` routes with verification, by stage."""

    items: int
    peaks: Mapping[str, int]

    @property
    def megabytes(self) -> float:
        """The peak of all."""
        return max(self.peaks.values()) * 1024 / 1e6


def memory(items: int) -> Memory:
    """Measure in a fresh process."""
    world.clean()
    words = [world.DEVICE, items, world.FIRST, world.STEP, world.LENGTH, parse_ipv4(world.GATEWAY)]
    argv = [sys.executable, str(_MEMORY_CHILD), *map(str, words)]
    peaks = json.loads(printed(*argv, env=environment()))
    world.check_installed(items)
    world.clean()
    return Memory(items, peaks)
