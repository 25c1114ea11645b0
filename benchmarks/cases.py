"""What all cases share: the amount of measuring, and the form of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Contender, Contest, program

OURS, IP = "ours", "ip"

COMMAND = Path(__file__).with_name("apply_child.py")


class Setting(NamedTuple):
    """The amount of measuring, and the tools for it."""

    sizes: Sequence[int]
    rounds: Callable[[int], int]
    folder: Path
    #: The names of the results that are needed.
    needed: frozenset[str]

    def results(self, measures: Mapping[str, Callable[[], Result]]) -> list[Result]:
        """Measure the needed ones of these results."""
        return [measure() for name, measure in measures.items() if name in self.needed]


class Result(NamedTuple):
    """A case's contests, one for each number of items, and the ratios that its table shows."""

    name: str
    contests: Sequence[Contest]
    ratios: Sequence[tuple[str, str]]
    remark: str = ""
    #: The unit of the table: milliseconds of the whole work instead of microseconds an item.
    whole: bool = False


class Group(NamedTuple):
    """Results that are measured together, and the report's sentences about their tables."""

    names: Sequence[str]
    measure: Callable[[Setting], Sequence[Result]]
    legend: str


def command(name: str, root: Path, *words: str) -> Contender:
    """Make a contender of the `hostrouting` command, with the files and units below a folder."""
    return program(name, str(COMMAND), str(root), *words)
