"""What a user waits for: plan, apply and check as whole processes, of few and of many routes."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import world
from benchmarks.cases import IP, Group, Result, Setting, command
from benchmarks.measure import Contest, Sample, process, rotated
from benchmarks.pair import CIDRS, batch_file, config_file
from support.images import make_image

PLAN, APPLY, AGAIN, CHECK = NAMES = (
    "hostrouting plan",
    "hostrouting apply",
    "hostrouting apply, again",
    "hostrouting check",
)
#: In the order in which a node meets them.
_VERBS = {PLAN: "plan", APPLY: "apply", AGAIN: "apply", CHECK: "check"}
#: The forms of the routes: with gateway and device, or completed from the default route.
COMPLETE, COMPLETED = "complete", "default"

LEGEND = """\
Commands: milliseconds of processor time of a whole process, children included, on a new node, in this order; `again` has
nothing to change. Each node expects four CIDRs and has no gates. Routes go into the kernel's namespace; files and units below a folder, since systemd does
not run there: `systemctl --root` enables, and nothing is reloaded.
  complete  each route has its gateway and its device
  default   no route has them: they are those of the default route
  ip        `ip -batch FILE` for the same routes alone"""

MOST = 10_000
#: A round takes seconds.
_MOST_ROUNDS = 9


class _Turn(NamedTuple):
    """A contender's turn on a new node; `run` returns a sample for each result."""

    items: int
    name: str
    run: Callable[[], Mapping[str, Sample]]


def commands(setting: Setting) -> list[Result]:
    """Let all sizes and forms take turns in the same rounds."""
    if shutil.which("systemctl") is None:
        return [
            Result(name, [], [], "left out: there is no systemctl", whole=True) for name in NAMES
        ]
    sizes = [count for count in setting.sizes if count <= MOST]
    turns = [turn for count in sizes for turn in _turns(setting, count)]
    samples: dict[tuple[str, int], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    with world.default_route():
        for number in range(min(_MOST_ROUNDS, setting.rounds(sizes[-1])) + 1):
            for turn in rotated(turns, number):
                world.clean()
                found = turn.run()
                world.check_installed(turn.items)
                # The first round warms caches up.
                for result in NAMES if number > 0 else ():
                    samples[result, turn.items][turn.name].append(found[result])
    world.clean()
    ratios = [(COMPLETE, IP), (COMPLETED, COMPLETE)]
    return [
        Result(
            name,
            [Contest(count, samples[name, count], clock="cpu") for count in sizes],
            ratios,
            whole=True,
        )
        for name in NAMES
    ]


def _turns(setting: Setting, count: int) -> Iterator[_Turn]:
    for name in COMPLETE, COMPLETED:
        config = config_file(
            setting, count, CIDRS, complete=name == COMPLETE, name=f"{name}-{count}.json"
        )
        yield _Turn(count, name, partial(_on_new_node, setting.folder / "root", config))
    batch = batch_file(setting, count)
    yield _Turn(count, IP, lambda: dict.fromkeys(NAMES, process(["ip", "-batch", batch])))


def _on_new_node(root: Path, config: str) -> dict[str, Sample]:
    shutil.rmtree(root, ignore_errors=True)
    make_image(root)
    return {name: command(name, root, verb, config).run() for name, verb in _VERBS.items()}


GROUP = Group(NAMES, commands, LEGEND)
