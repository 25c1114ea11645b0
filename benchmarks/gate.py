"""The start of a gated unit: its routes are repaired, and its CIDRs are checked."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from benchmarks import nodes, world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import Contender, Contest, Sample, contest, printed, process
from hostrouting.boot import program
from hostrouting.boot.layout import ASK_PATH, GENERATION_LINK, PROGRAM_PATH, SCRIPT_PATHS
from hostrouting.boot.steps import Generation, contents_in_force
from hostrouting.host.files.store import RootedFiles
from hostrouting.net.addresses import format_ipv4, parse_cidr

START, COLD, MEMORY = NAMES = ("gated start", "gated start, cold cache", "gated start, memory")
SIMPLE, POLICY = "simple", "policy"
MANY_SIMPLE, MANY_POLICY = "1,000", "1,000 policy"
STALE, RENEWED = "stale", "renewed"
UNITS, UPSTREAM = "units", "upstream"
DROPPED, CACHED = "dropped", "cached"

LEGEND = """\
Gated starts: milliseconds of processor time, children included, of `hostrouting-ask.sh GATE STRICT` with 8 routes in
force and 4 CIDRs; all is well.
  simple    nothing but the default route and the routes of the config
  policy    a rule sends packets from the node's own address to a table of their own
  1,000     the same two nodes with 1,000 routes
  stale     simple, and the program has the bytecode of another Python, so its sources are compiled, and a program with
            bytecode of this Python is left for later starts
  renewed   a later start
  units     simple, the scripts of the two units that run at a boot
  upstream  scripts in the style of upstream: one `ip` a route, and one `ip | awk` for an address of each CIDR
Cold cache: milliseconds that passed, after the kernel dropped its page cache, and after another start.
Memory: MB of the largest process, for N routes."""

FEW, MANY = 8, 1000
_ASK = (ASK_PATH, "kubelet.service", "STRICT")
_STATE = Path("/run/hostrouting")
_DROP = Path("/proc/sys/vm/drop_caches")
#: Each needs a second.
_MOST_COLD_ROUNDS = 9
#: Prints the kilobytes of the largest process among those of a command. A process begins with the
#: memory of the one that starts it, so that is a small one.
_PEAK = """\
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""

_UPSTREAM_ROUTES = """\
#!/bin/bash
set -u
failed=0
while read -r destination gateway dev; do
  if ! ip route replace "$destination" via "$gateway" dev "$dev"; then
    echo "cannot set the route to $destination" >&2
    failed=1
  fi
done <<'ROUTES'
@ROUTES@ROUTES
exit "$failed"
"""
_UPSTREAM_CHECK = """\
#!/bin/bash
set -u
dev_of() {
  awk '{ for (i = 1; i < NF; i++) if ($i == "dev") { print $(i + 1); exit } }'
}
expected=$(ip -4 route show default | dev_of)
failed=0
for probe in @PROBES@; do
  dev=$(ip -4 route get "$probe" | dev_of)
  if [[ $dev != "$expected" ]]; then
    echo "$probe leaves by $dev, not by $expected" >&2
    failed=1
  fi
done
exit "$failed"
"""


class _Node(NamedTuple):
    """A node whose routes are in force, as a boot has left it."""

    image: Path
    routes: int = FEW
    has_policy: bool = False

    def run(self, *commands: Sequence[str]) -> Sample:
        """Run each in a new process, as systemd starts them."""
        with self.arranged():
            samples = [process(["bash", "-p", *words]) for words in commands]
        return Sample(sum(sample.wall for sample in samples), sum(sample.cpu for sample in samples))

    @contextmanager
    def arranged(self) -> Iterator[None]:
        """Have the node until the end of the block."""
        # Upstream's scripts replace the routes by their own.
        world.sweep()
        world.fill(world.uniform(self.routes))
        nodes.put_in_force(self.image)
        with _policy() if self.has_policy else nullcontext():
            yield


@contextmanager
def _policy() -> Iterator[None]:
    """Give packets from the node's own address a table of their own, by the same device."""
    table = f"default via {world.GATEWAY} dev {world.DEVICE} table 100"
    rule = f"from {world.ADDRESS} lookup 100"
    world.ip_batch([f"route add {table}", f"rule add {rule}"])
    try:
        yield
    finally:
        world.ip_batch([f"rule delete {rule}", f"route delete {table}"])


def gate(setting: Setting) -> list[Result]:
    """Measure the starts on nodes with a default route."""
    world.demand_own_run()
    world.clean()
    with world.default_route():
        few, many = (_applied(setting, count) for count in (FEW, MANY))
        with nodes.in_force(few):
            return setting.results(
                {
                    START: lambda: _starts(setting, few, many),
                    COLD: lambda: _cold(setting, few),
                    MEMORY: lambda: _memory(few, many),
                }
            )


def megabytes(measured: Contest) -> float:
    """Return the peak of the node that needs most."""
    return max(map(measured.milliseconds, measured.samples))


def _applied(setting: Setting, count: int) -> Path:
    config = nodes.config_file(setting, nodes.neighbours(count), nodes.CIDRS)
    return nodes.applied(setting, config, f"applied-{count}")


def _starts(setting: Setting, few: Path, many: Path) -> Result:
    simple = _Node(few)
    started = {
        SIMPLE: simple,
        POLICY: _Node(few, has_policy=True),
        MANY_SIMPLE: _Node(many, MANY),
        MANY_POLICY: _Node(many, MANY, has_policy=True),
    }
    stale = _Node(_with_stale_bytecode(few))
    contenders = [
        *(Contender(name, partial(node.run, _ASK)) for name, node in started.items()),
        Contender(STALE, lambda: _without_renewed(stale)),
        Contender(RENEWED, lambda: _with_renewed(stale)),
        Contender(UNITS, lambda: simple.run(*([script] for script in SCRIPT_PATHS))),
        Contender(UPSTREAM, partial(simple.run, *_upstream(setting))),
    ]
    measured = contest(contenders, FEW, rounds=setting.rounds(FEW))._replace(clock="cpu")
    ratios = [(SIMPLE, UPSTREAM), (POLICY, UPSTREAM), (STALE, SIMPLE), (UNITS, SIMPLE)]
    return Result(START, [measured], ratios, f"and {len(nodes.CIDRS)} CIDRs", whole=True)


def _with_stale_bytecode(image: Path) -> Path:
    """Return a copy of an image whose program was made by a Python of another version."""
    other = image.with_name("stale")
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(image, other, symlinks=True)
    files = RootedFiles(str(other))
    with patch.object(program, "MAGIC_NUMBER", bytes(4)):
        content = program.new_program(os.path.realpath(sys.executable))
    generation = Generation(contents_in_force(files) | {PROGRAM_PATH: content})
    for file in generation.files:
        files.write(file.path, file.content, mode=file.mode)
    files.link(GENERATION_LINK, generation.name)
    return other


def _renewed() -> list[Path]:
    return [*_STATE.glob("*.zip")]


def _without_renewed(node: _Node) -> Sample:
    for file in _renewed():
        file.unlink()
    return node.run(_ASK)


def _with_renewed(node: _Node) -> Sample:
    if not _renewed():
        node.run(_ASK)
    return node.run(_ASK)


def _upstream(setting: Setting) -> list[list[str]]:
    ways = [f"{route.destination} {world.GATEWAY} {world.DEVICE}\n" for route in world.uniform(FEW)]
    probes = [format_ipv4(parse_cidr(cidr)[0] + 1) for cidr in nodes.CIDRS]
    texts = {
        "upstream-routes.sh": _UPSTREAM_ROUTES.replace("@ROUTES@", "".join(ways)),
        "upstream-check.sh": _UPSTREAM_CHECK.replace("@PROBES@", " ".join(probes)),
    }
    return [[nodes.write(setting, name, text)] for name, text in texts.items()]


def _cold(setting: Setting, image: Path) -> Result:
    try:
        _drop_caches()
    except OSError:
        return Result(COLD, [], [], "left out: the page cache cannot be dropped", whole=True)
    node = _Node(image)
    contenders = [
        Contender(DROPPED, lambda: _after_a_drop(node)),
        Contender(CACHED, partial(node.run, _ASK)),
    ]
    rounds = min(_MOST_COLD_ROUNDS, setting.rounds(FEW))
    return Result(COLD, [contest(contenders, FEW, rounds=rounds)], [(DROPPED, CACHED)], whole=True)


def _drop_caches() -> None:
    os.sync()
    _DROP.write_text("1")


def _after_a_drop(node: _Node) -> Sample:
    with node.arranged():
        _drop_caches()
        return process(["bash", "-p", *_ASK])


def _memory(few: Path, many: Path) -> Result:
    contests = []
    for count, image in (FEW, few), (MANY, many):
        peaks = {}
        for name in SIMPLE, POLICY:
            with _Node(image, count, has_policy=name == POLICY).arranged():
                peak = printed(sys.executable, "-c", _PEAK, "bash", "-p", *_ASK)
            # The tables show thousandths of a Sample.
            peaks[name] = [Sample(*[int(peak) * 1024 / 1e9] * 2)]
        contests.append(Contest(count, peaks))
    return Result(MEMORY, contests, [], whole=True)


GROUP = Group(NAMES, gate, LEGEND)
