"""The start of a gated unit: its routes are repaired, and its CIDRs are checked."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import nodes, world
from benchmarks.cases import Group, Result, Setting
from benchmarks.measure import Contender, Contest, Sample, contest, printed, process
from hostrouting.boot.layout import ASK_PATH
from hostrouting.net.addresses import format_ipv4, parse_cidr

START, MEMORY = NAMES = ("gated start", "gated start, memory")
SIMPLE, POLICY = "simple", "policy"
MANY_SIMPLE, MANY_POLICY = "1,000", "1,000 policy"
UPSTREAM = "upstream"

LEGEND = """\
Gated starts: milliseconds of processor time, children included, of `hostrouting-ask.sh GATE STRICT` with 8 routes in
force and 4 CIDRs; all is well.
  simple    nothing but the default route and the routes of the config
  policy    a rule sends packets from the node's own address to a table of their own
  1,000     the same two nodes with 1,000 routes
  upstream  scripts in the style of upstream: one `ip` a route, and one `ip | awk` for an address of each CIDR
Memory: MB of the largest process, for N routes."""

FEW, MANY = 8, 1000
_ASK = (ASK_PATH, "kubelet.service", "STRICT")
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
    echo "$probe leaves through $dev, not through $expected" >&2
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
    contenders = [
        *(Contender(name, partial(node.run, _ASK)) for name, node in started.items()),
        Contender(UPSTREAM, partial(simple.run, *_upstream(setting))),
    ]
    measured = contest(contenders, FEW, rounds=setting.rounds(FEW))._replace(clock="cpu")
    ratios = [(SIMPLE, UPSTREAM), (POLICY, UPSTREAM)]
    return Result(START, [measured], ratios, f"and {len(nodes.CIDRS)} CIDRs", whole=True)


def _upstream(setting: Setting) -> list[list[str]]:
    ways = [f"{route.destination} {world.GATEWAY} {world.DEVICE}\n" for route in world.uniform(FEW)]
    probes = [format_ipv4(parse_cidr(cidr)[0] + 1) for cidr in nodes.CIDRS]
    texts = {
        "upstream-routes.sh": _UPSTREAM_ROUTES.replace("@ROUTES@", "".join(ways)),
        "upstream-check.sh": _UPSTREAM_CHECK.replace("@PROBES@", " ".join(probes)),
    }
    return [[nodes.write(setting, name, text)] for name, text in texts.items()]


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
