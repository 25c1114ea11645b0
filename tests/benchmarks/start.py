"""Starts by the number of their instructions, which does not depend on the load of the machine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import pair, world
from benchmarks.cases import OURS, Result, Setting
from benchmarks.measure import BenchmarkError, Contest, Sample, environment, ran
from support.images import make_image

AGENT, CHECK = NAMES = "imports of an agent", "hostrouting check, applied"
BARE, ATTRS = "bare Python", "import attrs"

LEGEND = """\
Starts: millions of instructions of a whole process, children excluded (valgrind --tool=callgrind).
  imports   what an agent writes: from hostrouting import Configure, HostRoutingConfig, Host
  check     `hostrouting check CONFIG` of an applied config with 8 routes and 4 CIDRs; all is well"""

_IMPORTS = "from hostrouting import Configure, HostRoutingConfig, Host"
_CHILD = Path(__file__).with_name("apply_child.py")
#: A permanent entry, so that `check` does not wait for the answer of a gateway.
_NEIGHBOUR = f"{world.GATEWAY} dev {world.DEVICE}"


def start(setting: Setting) -> list[Result]:
    """Count the instructions of both, and of what they are compared with."""
    if shutil.which("valgrind") is None:
        ratios = ((AGENT, (OURS, BARE)), (CHECK, (OURS, ATTRS)))
        return [
            Result(name, [], [ratio], "left out: there is no valgrind", whole=True)
            for name, ratio in ratios
        ]
    return [
        _compared(AGENT, ["-c", _IMPORTS], BARE, "pass"),
        _checked(setting),
    ]


def _checked(setting: Setting) -> Result:
    root = setting.folder / "applied"
    make_image(root)
    config = pair.config_file(setting, pair.AT_BOOT, pair.CIDRS)
    words = [str(_CHILD), str(root)]
    world.clean()
    world.ip_batch(
        [
            f"neigh replace {_NEIGHBOUR} lladdr 02:00:00:00:00:02 nud permanent",
            f"route add default via {_NEIGHBOUR}",
        ]
    )
    try:
        _run([sys.executable, *words, "apply", config])
        return _compared(CHECK, [*words, "check", config], ATTRS, ATTRS)
    finally:
        world.clean()
        world.ip_batch([f"route delete default via {_NEIGHBOUR}", f"neigh delete {_NEIGHBOUR}"])


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
