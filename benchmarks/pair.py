"""The routing pair as nodes run it: boot scripts, and a check of many CIDRs."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.images import make_image

from benchmarks import world
from benchmarks.cases import OURS, Group, Result, Setting, command
from benchmarks.measure import (
    BenchmarkError,
    Contender,
    Contest,
    Sample,
    contest,
    process,
    program,
    ran,
)
from hostrouting import HostRoutingConfig
from hostrouting.net.addresses import format_ipv4, parse_cidr
from hostrouting.route_overlap import script as route_overlap_script
from hostrouting.static_routes import script as static_routes_script

BOOT, MANY_AT_BOOT, COMPLETED, MANY_AGAIN, MANY_CIDRS, CHECK = NAMES = (
    "boot, routes and check",
    "boot, routes alone",
    "boot, without gateway",
    "start, routes in force",
    "start, check alone",
    "check, by CIDRs",
)
UPSTREAM = "upstream"
BY_PROGRAM = "program"
WITHOUT_GATEWAY = "default"
MANY_EXPECTED, FEW_EXPECTED = "1,000 CIDRs", "10 CIDRs"

LEGEND = """\
The routing pair: milliseconds of the whole work, not of an item, with the same rounds and ratios.
  boot      the rendered scripts, one bash after the other, against scripts that start one `ip` a route and one
            `ip | awk` a CIDR, look at one address of a CIDR, and have all gateways and devices; all is well. Of these
            and the next it is processor time, children included: the cost for a node that does much else at boot
            program: the same where a route has a next hop of its own, so the scripts run the program of a boot
            Without gateway, the default route names that of each route
  start     the same at a later start of a gated unit: the routes are in force, or are that and a CIDR each
  check     `python -m hostrouting check CONFIG`, start and imports included, by the number of its CIDRs"""

#: Of a node as the demo has it; the first one holds the routes.
CIDRS = ("11.0.0.0/16", "172.16.0.0/12", "10.244.0.0/16", "10.96.0.0/12")
AT_BOOT, MANY, CHECKED = 8, 1000, 10_000
#: Seconds a round: of these the median of few rounds has to do.
_MOST_ROUNDS = 9

_RUN = Path("/run/aks-flex-node")
_GENERATION = Path("/etc/aks-flex-node")
#: Right, and not plain.
_NEXT_HOP = f"nexthop add id 7 via {world.GATEWAY} dev {world.DEVICE}"
_OF_NEXT_HOP = "route add 172.16.8.0/22 nhid 7"

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


def pair(setting: Setting) -> list[Result]:
    """Everything of the pair, with a default route as every node has one."""
    world.demand_own_run()
    world.clean()
    measures: dict[str, Callable[[Setting], Result]] = {
        BOOT: _boot,
        **{name: partial(_many, name=name) for name in (MANY_AT_BOOT, MANY_AGAIN, MANY_CIDRS)},
        COMPLETED: _completed,
        CHECK: _check,
    }
    try:
        with world.default_route():
            return setting.results({name: partial(one, setting) for name, one in measures.items()})
    finally:
        world.sweep()


def _boot(setting: Setting) -> Result:
    config = _config(AT_BOOT, CIDRS)
    rendered = [
        _file(setting, "static-routes.sh", static_routes_script.render_script(config)),
        _file(setting, "check-route-overlap.sh", route_overlap_script.render_script(config)),
    ]
    upstream = [_upstream_routes(setting, AT_BOOT), _upstream_check(setting, CIDRS)]
    contenders = [
        Contender(OURS, partial(_in_turn, rendered)),
        Contender(BY_PROGRAM, partial(_not_plain, rendered)),
        Contender(UPSTREAM, partial(_in_turn, upstream)),
    ]
    rounds = setting.rounds(AT_BOOT)
    with applied(setting, AT_BOOT, CIDRS):
        _demand_the_program(rendered)
        measured = _started(contenders, AT_BOOT, rounds=rounds, before=_fresh_boot)
    ratios = [(OURS, UPSTREAM), (BY_PROGRAM, UPSTREAM)]
    return Result(BOOT, [measured], ratios, f"and {len(CIDRS)} CIDRs", whole=True)


def _demand_the_program(scripts: Sequence[str]) -> None:
    with _next_hop():
        traces = [ran(["bash", "-x", script]).stderr for script in scripts]
    if "hostrouting.zip check" not in traces[-1]:
        raise BenchmarkError("the boot check does not run the program of a boot")


def _not_plain(scripts: Sequence[str]) -> Sample:
    with _next_hop():
        return _in_turn(scripts)


@contextmanager
def _next_hop() -> Iterator[None]:
    world.ip_batch([_NEXT_HOP, _OF_NEXT_HOP])
    try:
        yield
    finally:
        # Its route goes with it.
        world.ip_batch(["nexthop delete id 7"])


@contextmanager
def applied(setting: Setting, count: int, cidrs: Sequence[str]) -> Iterator[Path]:
    """Apply a config, and have its generation where a boot has it, until the end of the block; yield
    the folder with all files.
    """
    world.demand_own_run()
    root = setting.folder / "applied"
    make_image(root)
    command(OURS, root, "apply", config_file(setting, neighbours(count), cidrs)).run()
    shutil.copytree(root / str(_GENERATION.relative_to("/")), _GENERATION, symlinks=True)
    try:
        yield root
    finally:
        shutil.rmtree(_GENERATION)
        world.clean()


def _many(setting: Setting, name: str) -> Result:
    """Measure one script with many routes, or with as many CIDRs."""
    count = min(MANY, max(setting.sizes))
    if name == MANY_CIDRS:
        cidrs = [route.destination for route in world.uniform(count)]
        rendered = _file(
            setting, "check-route-overlap.sh", route_overlap_script.render_script(_config(0, cidrs))
        )
        upstream = _upstream_check(setting, cidrs)
    else:
        rendered = _file(
            setting, "static-routes.sh", static_routes_script.render_script(_config(count))
        )
        upstream = _upstream_routes(setting, count)
    before = _fresh_boot if name == MANY_AT_BOOT else partial(_routes_in_force, count)
    rounds = min(_MOST_ROUNDS, setting.rounds(count))
    scripts = {OURS: [rendered], UPSTREAM: [upstream]}
    measured = _scripts(scripts, count, rounds=rounds, before=before)
    return Result(name, [measured], [(UPSTREAM, OURS)], whole=True)


def _completed(setting: Setting) -> Result:
    """Measure the script of routes that a default route completes, beside that of the same ones."""
    count = min(MANY, max(setting.sizes))
    scripts = {
        name: [_file(setting, f"{name}.sh", static_routes_script.render_script(config))]
        for name, config in (
            (WITHOUT_GATEWAY, _config(count, complete=False)),
            (OURS, _config(count)),
        )
    }
    rounds = min(_MOST_ROUNDS, setting.rounds(count))
    measured = _scripts(scripts, count, rounds=rounds, before=_fresh_boot)
    return Result(COMPLETED, [measured], [(WITHOUT_GATEWAY, OURS)], whole=True)


def _scripts(
    scripts: Mapping[str, Sequence[str]],
    count: int,
    *,
    rounds: int,
    before: Callable[[], None],
) -> Contest:
    contenders = [Contender(name, partial(_in_turn, each)) for name, each in scripts.items()]
    return _started(contenders, count, rounds=rounds, before=before)


def _started(
    contenders: Sequence[Contender], count: int, *, rounds: int, before: Callable[[], None]
) -> Contest:
    return contest(
        contenders,
        count,
        rounds=rounds,
        before=before,
        check=lambda: world.check_installed(count, world.EVERYBODYS),
    )._replace(clock="cpu")


def _fresh_boot() -> None:
    world.sweep()
    shutil.rmtree(_RUN, ignore_errors=True)
    _RUN.mkdir()


def _routes_in_force(count: int) -> None:
    _fresh_boot()
    # An earlier start in this boot has left its message.
    (_RUN / "static-routes.told").touch()
    world.fill(world.uniform(count))


def _in_turn(scripts: Sequence[str]) -> Sample:
    """Each runs in a new process, as systemd starts them."""
    samples = [process(["bash", script]) for script in scripts]
    return Sample(sum(sample.wall for sample in samples), sum(sample.cpu for sample in samples))


def _upstream_routes(setting: Setting, count: int) -> str:
    lines = [
        f"{route.destination} {world.GATEWAY} {world.DEVICE}\n" for route in world.uniform(count)
    ]
    return _file(
        setting, "upstream-routes.sh", _UPSTREAM_ROUTES.replace("@ROUTES@", "".join(lines)).encode()
    )


def _upstream_check(setting: Setting, cidrs: Sequence[str]) -> str:
    probes = [format_ipv4(parse_cidr(cidr)[0] + 1) for cidr in cidrs]
    return _file(
        setting, "upstream-check.sh", _UPSTREAM_CHECK.replace("@PROBES@", " ".join(probes)).encode()
    )


def _check(setting: Setting) -> Result:
    count = min(CHECKED, max(setting.sizes))
    routes = world.uniform(count)
    world.fill(routes)
    contenders = []
    for name, number in ((MANY_EXPECTED, 1000), (FEW_EXPECTED, 10)):
        cidrs = [route.destination for route in routes[:number]]
        config = config_file(setting, (), cidrs, name=f"{number}.json")
        contenders.append(program(name, "-m", "hostrouting", "check", config))
    measured = contest(contenders, count, rounds=min(_MOST_ROUNDS, setting.rounds(count)))
    return Result(CHECK, [measured], [(MANY_EXPECTED, FEW_EXPECTED)], whole=True)


def _document(
    networks: Sequence[str],
    cidrs: Sequence[str] = (),
    *,
    gateway: str | None = world.GATEWAY,
    gates: Sequence[str] = (),
) -> dict[str, Any]:
    way = {"gateway": gateway, "dev": world.DEVICE} if gateway else {}
    routes = [{"destination": network, **way} for network in networks]
    # STRICT, so that an exit status of 0 means that all is well.
    return {
        "staticRoutes": {"enabled": bool(routes), "routes": routes},
        "routeOverlap": {"expectedCidrs": list(cidrs), "mode": "STRICT"},
        "gates": list(gates),
    }


def neighbours(count: int) -> list[str]:
    """Return the networks of uniform routes."""
    return [route.destination for route in world.uniform(count)]


def _config(count: int, cidrs: Sequence[str] = (), *, complete: bool = True) -> HostRoutingConfig:
    gateway = world.GATEWAY if complete else None
    return HostRoutingConfig.from_mapping(_document(neighbours(count), cidrs, gateway=gateway))


def config_file(
    setting: Setting,
    networks: Sequence[str],
    cidrs: Sequence[str] = (),
    *,
    gateway: str | None = world.GATEWAY,
    gates: Sequence[str] = (),
    name: str = "config.json",
) -> str:
    """Write a config with routes to these networks, and return its path.

    Without a gateway, the default route completes them.
    """
    document = {"hostRouting": _document(networks, cidrs, gateway=gateway, gates=gates)}
    return _file(setting, name, json.dumps(document).encode())


def batch_file(setting: Setting, count: int) -> str:
    """Write the additions of so many routes for `ip`, and return the path."""
    lines = "".join(f"route add {route}\n" for route in world.uniform(count))
    return _file(setting, f"batch-{count}", lines.encode())


def _file(setting: Setting, name: str, content: bytes) -> str:
    path = setting.folder / name
    path.write_bytes(content)
    return str(path)


GROUP = Group(NAMES, pair, LEGEND)
