"""What a user waits for: plan, apply and check as whole processes, of few and of many routes."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from support.images import make_image

from benchmarks import world
from benchmarks.cases import COMMAND, IP, Group, Result, Setting, command
from benchmarks.measure import (
    Contender,
    Contest,
    Sample,
    contest,
    environment,
    process,
    program,
    rotated,
)
from benchmarks.nodes import CIDRS, batch_file, config_file, neighbours

PLAN, APPLY, CHECK = NAMES = ("hostrouting plan", "hostrouting apply", "hostrouting check")
#: In the order in which a node meets them.
_VERBS = {PLAN: "plan", APPLY: "apply", CHECK: "check"}
ATTRS = "import attrs"
#: The forms of the routes: with gateway and device, or with those of the default route; and IPv6.
COMPLETE, COMPLETED, IPV6 = "complete", "default", "ipv6"
#: CIDRs without routes of their own, which leave through the right device or through another one.
CIDRS_CHECK = "hostrouting check, by CIDRs"
RIGHT, WRONG = "right", "wrong"

LEGEND = """\
Commands: milliseconds of processor time of a whole process, children included, on a new node, in this order. Each node expects four CIDRs, the first around 256 of its routes, and has no gates. Routes go into the
kernel's namespace; files and units below a folder, since systemd does not run there: `systemctl --root` enables, and
nothing is reloaded.
  complete  each route has its gateway and its device
  default   no route has them: they are those of the default route
  ipv6      as complete, of IPv6
  ip        `ip -batch FILE` for the same routes alone
  attrs     Python and the library that all values need, for the commands of 10 routes
By CIDRs: so many CIDRs are expected, and no route leads to them but the default route.
  right     they leave through the device of the default route
  wrong     they leave through another one, which `check` would fix by as many routes"""

MOST = 10_000
#: A round takes seconds.
_MOST_ROUNDS = 9
_CIDRS = {IPV6: ("fd01::/56", "fd02::/16", "fd03::/48", "2001:db8::/32")}
#: The device and the address by which wrong CIDRs leave.
_ELSEWHERE = "12.255.0.1/8 dev bench2"
_ENDS_WITH_1 = ["sh", "-c", '"$@"; [ $? = 1 ]', "sh"]


class _Turn(NamedTuple):
    """A contender's turn on a new node; `run` returns a sample for each result."""

    routes: int
    name: str
    run: Callable[[], Mapping[str, Sample]]


def commands(setting: Setting) -> list[Result]:
    """Let all sizes and forms take turns in the same rounds."""
    if shutil.which("systemctl") is None:
        return [
            Result(name, [], [], "left out: there is no systemctl", whole=True)
            for name in (*NAMES, CIDRS_CHECK)
        ]
    with world.default_routes():
        results = setting.results({CIDRS_CHECK: lambda: _by_cidrs(setting)})
        if not setting.needed.isdisjoint(NAMES):
            results += _verbs(setting)
    world.clean()
    return results


def _verbs(setting: Setting) -> list[Result]:
    sizes = [count for count in setting.sizes if count <= MOST]
    turns = [turn for count in sizes for turn in _turns(setting, count)]
    samples: dict[tuple[str, int], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for number in range(min(_MOST_ROUNDS, setting.rounds(sizes[-1])) + 1):
        for turn in rotated(turns, number):
            world.clean()
            found = turn.run()
            world.check_installed(0 if turn.name == ATTRS else turn.routes)
            # The first round warms caches up.
            for result in NAMES if number > 0 else ():
                samples[result, turn.routes][turn.name].append(found[result])
    ratios = [(COMPLETE, IP), (COMPLETED, COMPLETE), (IPV6, COMPLETE)]
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
    networks = neighbours(count)
    forms: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
        COMPLETE: (networks, {}),
        COMPLETED: (networks, {"gateway": None}),
        IPV6: (_of_ipv6(count), {"gateway": world.IPV6_GATEWAY}),
    }
    for name, (own, more) in forms.items():
        cidrs = _CIDRS.get(name, CIDRS)
        config = config_file(setting, own, cidrs, name=f"{name}-{count}.json", **more)
        yield _Turn(count, name, partial(_on_new_node, setting.folder / "root", config))
    batch = batch_file(setting, count)
    yield _Turn(count, IP, lambda: dict.fromkeys(NAMES, process(["ip", "-batch", batch])))
    start = program(ATTRS, "-c", ATTRS)
    yield _Turn(count, ATTRS, lambda: dict.fromkeys(NAMES, start.run()))


def _of_ipv6(count: int) -> list[str]:
    return [f"fd01:0:0:{number:x}::/64" for number in range(count)]


def _on_new_node(root: Path, config: str) -> dict[str, Sample]:
    shutil.rmtree(root, ignore_errors=True)
    make_image(root)
    return {name: command(name, root, verb, config).run() for name, verb in _VERBS.items()}


def _by_cidrs(setting: Setting) -> Result:
    """Check a new node that expects many CIDRs and has no routes of the config."""
    root = setting.folder / "root"
    make_image(root)
    world.clean()
    world.ip_batch([f"address add {_ELSEWHERE}"])
    contests = []
    for count in (count for count in setting.sizes if count <= MOST):
        kinds = {
            RIGHT: neighbours(count),
            WRONG: [network.replace("11.", "12.", 1) for network in neighbours(count)],
        }
        contenders = []
        for kind, cidrs in kinds.items():
            config = config_file(setting, (), cidrs, name=f"{kind}-{count}.json")
            argv = [sys.executable, str(COMMAND), str(root), "check", config]
            argv = _ENDS_WITH_1 + argv if kind == WRONG else argv
            run = partial(process, argv, env=environment(), cwd="/")
            contenders.append(Contender(kind, run))
        rounds = min(_MOST_ROUNDS, setting.rounds(count))
        contests.append(contest(contenders, count, rounds=rounds)._replace(clock="cpu"))
    world.ip_batch([f"address delete {_ELSEWHERE}"])
    return Result(CIDRS_CHECK, contests, [(WRONG, RIGHT)], whole=True)


GROUP = Group((*NAMES, CIDRS_CHECK), commands, LEGEND)
