"""Starts by the number of their instructions, which does not depend on the load of the machine."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pair, world
from benchmarks.cases import OURS, Result, Setting
from benchmarks.measure import BenchmarkError, Contest, Sample, environment, ran
from support.images import make_image

AGENT, CHECK, PROGRAM = NAMES = (
    "imports of an agent",
    "hostrouting check, applied",
    "program of a boot, check",
)
BARE, ATTRS = "bare Python", "import attrs"

LEGEND = """\
Starts: millions of instructions of a whole process, children excluded (valgrind --tool=callgrind).
  imports   what an agent writes: from hostrouting import Configure, HostRoutingConfig, Host
  check     `hostrouting check CONFIG` of an applied config with 8 routes and 4 CIDRs; all is well
  program   what a boot script runs where it is not plain, in the same world"""

_IMPORTS = "from hostrouting import Configure, HostRoutingConfig, Host"
#: The program of a generation; `rule` is why a script asks it.
_BOOT = ["-I", "-S", "/etc/aks-flex-node/hostrouting.zip", "check", "rule"]
#: The prefix of a command that has the files of an image; what it writes is gone afterwards.
_WITH_FILES = [
    *("unshare", "--mount", "sh", "-ec"),
    """
    mount -t tmpfs none /run
    mkdir /run/changes /run/work /run/aks-flex-node
    mount -t overlay -o lowerdir=/etc,upperdir=/run/changes,workdir=/run/work none /etc
    rm -rf /etc/aks-flex-node
    cp -a "$0/etc/aks-flex-node" /etc/
    exec "$@"
    """,
]
_CHILD = Path(__file__).with_name("apply_child.py")
#: A permanent entry, so that `check` does not wait for the answer of a gateway.
_NEIGHBOUR = f"{world.GATEWAY} dev {world.DEVICE}"


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
        return [
            _compared(CHECK, [*words, "check", config], ATTRS, ATTRS),
            _compared(PROGRAM, _BOOT, ATTRS, ATTRS, within=[*_WITH_FILES, str(root)]),
        ]
    finally:
        world.clean()
        world.ip_batch([f"route delete default via {_NEIGHBOUR}", f"neigh delete {_NEIGHBOUR}"])


def _compared(
    name: str, words: list[str], other: str, text: str, *, within: Sequence[str] = ()
) -> Result:
    samples = {OURS: [_counted(words, within)], other: [_counted(["-c", text])]}
    return Result(name, [Contest(1, samples)], [(OURS, other)], whole=True)


def _counted(words: list[str], within: Sequence[str] = ()) -> Sample:
    """Count a run; the run before it writes the bytecode."""
    _run([*within, sys.executable, *words])
    callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    counted = re.search(r"Collected : (\d+)", _run([*within, *callgrind, sys.executable, *words]))
    if counted is None:
        raise BenchmarkError("valgrind printed no number of instructions")
    # The tables show thousandths of a Sample.
    return Sample(*[int(counted[1]) / 1e9] * 2)


def _run(argv: list[str]) -> str:
    env = {**environment(), "PYTHONHASHSEED": "0"}
    return ran(argv, stdout=subprocess.DEVNULL, env=env, cwd="/").stderr
