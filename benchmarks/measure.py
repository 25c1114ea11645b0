"""Samples, fair rounds, and the figures computed from them."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any, Literal, NamedTuple, TypeVar

_Turn = TypeVar("_Turn")


class BenchmarkError(Exception):
    """A contender did not do its work: its time means nothing."""


class Sample(NamedTuple):
    """Seconds that passed, and seconds of processor time that the contender itself used."""

    wall: float
    cpu: float


class Contender(NamedTuple):
    """One way to do the work; `run` does it once. Some take part in small contests only."""

    name: str
    run: Callable[[], Sample]


class Contest(NamedTuple):
    """The time of all contenders for the same `items`, round by round: seconds that passed, or of
    processor time.
    """

    items: int
    samples: Mapping[str, Sequence[Sample]]
    clock: Literal["wall", "cpu"] = "wall"

    def seconds(self, name: str) -> float:
        """The median of a contender's rounds."""
        return median(self._rounds(name))

    def _rounds(self, name: str) -> list[float]:
        return [sample.cpu if self.clock == "cpu" else sample.wall for sample in self.samples[name]]

    def milliseconds(self, name: str) -> float:
        """The same for the whole work."""
        return self.seconds(name) * 1e3

    def wait(self, name: str) -> float:
        """The median of the milliseconds that passed."""
        return median(sample.wall for sample in self.samples[name]) * 1e3

    def microseconds_per_item(self, name: str) -> float:
        """The same for one route or address."""
        return self.seconds(name) / self.items * 1e6

    def spread(self, name: str) -> float | None:
        """The range of the middle half of a contender's rounds, as a part of their median."""
        rounds = self._rounds(name)
        if len(rounds) < 4:
            return None
        low, middle, high = quantiles(rounds, n=4)
        return (high - low) / middle

    def ratio(self, name: str, to: str) -> float | None:
        """The median of the rounds' ratios: a slow phase of the machine slows both sides of a
        round.
        """
        if name not in self.samples or to not in self.samples:
            return None
        return median(
            one / other for one, other in zip(self._rounds(name), self._rounds(to), strict=True)
        )


def rotated(turns: Sequence[_Turn], number: int) -> Iterator[_Turn]:
    """Yield the turns of a round: the first of a round is the last of the next, so none always
    follows the same one.
    """
    first = number % len(turns)
    yield from turns[first:]
    yield from turns[:first]


def contest(
    contenders: Sequence[Contender],
    items: int,
    *,
    rounds: int,
    before: Callable[[], None] | None = None,
    check: Callable[[], None] | None = None,
) -> Contest:
    """Let the contenders take turns; `before` each, untimed, the world is put in order.

    The round before the first warms caches up and is not counted; in it, `check` examines the
    result of each contender.
    """
    samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in rotated(contenders, number):
            if before is not None:
                before()
            sample = contender.run()
            if number > 0:
                samples[contender.name].append(sample)
            elif check is not None:
                check()
    return Contest(items, samples)


#: The exit status of a boot script where a gate may start.
_MAY_START = 10


def ran(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it must succeed, or be a boot script that lets a gate start."""
    done = subprocess.run(argv, check=False, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode not in {0, _MAY_START}:
        raise BenchmarkError(
            f"{' '.join(argv)} failed ({done.returncode}): {done.stderr.strip()[-500:]}"
        )
    return done


def process(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> Sample:
    """Time a whole process, its start included; its output goes nowhere."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    ran(argv, stdout=subprocess.DEVNULL, env=env, cwd=cwd)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Sample(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def program(name: str, *words: str) -> Contender:
    """Make a contender of a program of Python: it runs outside of this folder, where the names of
    our own modules would be taken for others'.
    """
    argv = [sys.executable, *words]
    return Contender(name, partial(process, argv, env=environment(), cwd="/"))


def printed(*argv: str, **options: Any) -> str:
    """Return what a program prints."""
    return ran(argv, stdout=subprocess.PIPE, **options).stdout


def environment() -> dict[str, str]:
    """This process's, in which children may keep their bytecode."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
