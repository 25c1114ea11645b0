"""Starts by the number of their instructions, which does not depend on the load of the machine."""

import os
import re
import shutil
import subprocess
import sys

from benchmarks import gate, nodes, world
from benchmarks.cases import COMMAND, OURS, Group, Result, Setting
from benchmarks.measure import BenchmarkError, Contest, Sample, environment, ran
from hostrouting.boot.layout import PROGRAM_PATH

AGENT, CHECK, PROGRAM = NAMES = (
    "imports of an agent",
    "hostrouting check, applied",
    "program of a boot, ask",
)
BARE, ATTRS = "bare Python", "import attrs"

LEGEND = """\
Starts: millions of instructions of a whole process, children excluded (valgrind --tool=callgrind).
  imports   what an agent writes: from hostrouting import Configure, HostRoutingConfig, Host
  check     `hostrouting check` of an applied config with 8 routes and 4 CIDRs; all is well
  program   what a gate runs, in the same world"""

_IMPORTS = "from hostrouting import Configure, HostRoutingConfig, Host"


def start(setting: Setting) -> list[Result]:
    """Count the instructions of both, and of what they are compared with."""
    if shutil.which("valgrind") is None:
        ratios = ((AGENT, (OURS, BARE)), (CHECK, (OURS, ATTRS)), (PROGRAM, (OURS, ATTRS)))
        return [
            Result(name, [], [ratio], "left out: there is no valgrind", whole=True)
            for name, ratio in ratios
        ]
    return [
        _compared(AGENT, ["-c", _IMPORTS], BARE, "pass"),
        *_checked(setting),
    ]


def _checked(setting: Setting) -> list[Result]:
    world.clean()
    config = nodes.config_file(setting, nodes.neighbours(gate.FEW), nodes.CIDRS)
    with world.default_route():
        root = nodes.applied(setting, config, "start")
        with nodes.in_force(root):
            world.fill(world.uniform(gate.FEW))
            asked = ["-I", "-S", os.path.realpath(PROGRAM_PATH), "ask", "STRICT"]
            return [
                _compared(CHECK, [str(COMMAND), str(root), "check"], ATTRS, ATTRS),
                _compared(PROGRAM, asked, ATTRS, ATTRS),
            ]


def _compared(name: str, words: list[str], other: str, text: str) -> Result:
    samples = {OURS: [_counted(words)], other: [_counted(["-c", text])]}
    return Result(name, [Contest(1, samples)], [(OURS, other)], whole=True)


def _counted(words: list[str]) -> Sample:
    """Count a run; the run before it writes the bytecode."""
    _run([sys.executable, *words])
    callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    counted = re.search(r"Collected : (\d+)", _run([*callgrind, sys.executable, *words]))
    if counted is None:
        raise BenchmarkError("valgrind printed no number of instructions")
    # The tables show thousandths of a Sample.
    return Sample(*[int(counted[1]) / 1e9] * 2)


def _run(argv: list[str]) -> str:
    env = {**environment(), "PYTHONHASHSEED": "0"}
    return ran(argv, stdout=subprocess.DEVNULL, env=env, cwd="/").stderr


GROUP = Group(NAMES, start, LEGEND)
