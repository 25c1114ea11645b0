"""The routing pair as nodes run it: boot scripts, whole commands, and the proof of a full table."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import world
from benchmarks.cases import IP, OURS, Result, Setting
from benchmarks.measure import (
    BenchmarkError,
    Contender,
    Contest,
    Sample,
    contest,
    in_process,
    process,
    program,
)
from benchmarks.timed_backend import TimedBackend
from support.images import make_image

from hostrouting import HostRoutingConfig, route_overlap, static_routes
from hostrouting.host import Address, Route, RouteChange
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_cidr

BOOT, MANY_AT_BOOT, COMPLETED, MANY_AGAIN, MANY_CIDRS, CHECK, PROOF, APPLY, APPLY_AGAIN = (
    "boot, routes and check",
    "boot, routes alone",
    "boot, without gateway",
    "start, routes in force",
    "start, check alone",
    "hostrouting check",
    "prove_egress",
    "hostrouting apply",
    "hostrouting apply, again",
)
UPSTREAM = "upstream"
WITHOUT_GATEWAY = "default"
ANALYSIS, KERNEL = "analysis", "kernel"
MANY_EXPECTED, FEW_EXPECTED = "1,000 CIDRs", "10 CIDRs"

LEGEND = """\
The routing pair: milliseconds of the whole work, not of an item, with the same rounds and ratios.
  boot      the rendered scripts, one bash after the other, against scripts that start one `ip` a route and one
            `ip | awk` a CIDR, look at one address of a CIDR, and know all gateways and devices; all is well. Of these
            and the next it is processor time, children included: the cost for a node that does much else at boot
            Without gateway, the default route names that of each route
  start     the same at a later start of a gated unit: the routes are in force, or are that and a CIDR each
  check     `python -m hostrouting check CONFIG`, start and imports included, by the number of its CIDRs
  proof     one call of prove_egress: kernel is the backend's part of it, analysis the rest
  apply     `hostrouting apply CONFIG` in a new process: validation, diff, verification and script, no gates.
            Routes go into the kernel's namespace; files and units below a folder, since systemd does not run there:
            `systemctl --root` enables, and nothing is reloaded. Against `ip -batch FILE` for the same routes alone"""

#: Of a node as the demo has it; the first one holds the routes.
CIDRS = ("11.0.0.0/16", "172.16.0.0/12", "10.244.0.0/16", "10.96.0.0/12")
AT_BOOT, MANY, PROVEN, APPLIED = 8, 1000, 900_000, 10_000
_PROVEN_CIDR = "11.0.0.0/8"
_PROVEN_LENGTH, _PROVEN_STEP = 28, 16
#: A full table is proven where the other cases have theirs, and not in a quick run.
_FULL = 100_000
_CHUNK = 100_000

#: Seconds a round: of these the median of few rounds has to do.
_FEW_ROUNDS, _SOME_ROUNDS = 3, 9

_RUN = Path("/run/aks-flex-node")
_APPLY_CHILD = Path(__file__).with_name("apply_child.py")

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
    world.clean()
    world.ip_batch([f"route add default via {world.GATEWAY} dev {world.DEVICE}"])
    measures: dict[str, Callable[[Setting], Result]] = {
        BOOT: _boot,
        **{name: partial(_many, name=name) for name in (MANY_AT_BOOT, MANY_AGAIN, MANY_CIDRS)},
        COMPLETED: _completed,
        CHECK: _check,
        PROOF: _proof,
        APPLY: partial(_apply, name=APPLY),
        APPLY_AGAIN: partial(_apply, name=APPLY_AGAIN),
    }
    try:
        return [measure(setting) for name, measure in measures.items() if setting.needs(name)]
    finally:
        world.sweep()
        world.ip_batch([f"route delete default via {world.GATEWAY} dev {world.DEVICE}"])


def _boot(setting: Setting) -> Result:
    config = _config(AT_BOOT, CIDRS)
    ours = [
        _file(setting, "static-routes.sh", static_routes.render_script(config)),
        _file(setting, "check-route-overlap.sh", route_overlap.render_script(config)),
    ]
    upstream = [_upstream_routes(setting, AT_BOOT), _upstream_check(setting, CIDRS)]
    scripts = {OURS: ours, UPSTREAM: upstream}
    measured = _scripts(scripts, AT_BOOT, rounds=setting.rounds(AT_BOOT), before=_fresh_boot)
    return Result(BOOT, [measured], [(OURS, UPSTREAM)], f"and {len(CIDRS)} CIDRs", whole=True)


def _many(setting: Setting, name: str) -> Result:
    """Measure one script with many routes, or with as many CIDRs."""
    count = min(MANY, max(setting.sizes))
    if name == MANY_CIDRS:
        cidrs = [route.destination for route in world.uniform(count)]
        ours = _file(
            setting, "check-route-overlap.sh", route_overlap.render_script(_config(0, cidrs))
        )
        upstream = _upstream_check(setting, cidrs)
    else:
        ours = _file(setting, "static-routes.sh", static_routes.render_script(_config(count)))
        upstream = _upstream_routes(setting, count)
    before = _fresh_boot if name == MANY_AT_BOOT else partial(_routes_in_force, count)
    rounds = min(_SOME_ROUNDS, setting.rounds(count))
    scripts = {OURS: [ours], UPSTREAM: [upstream]}
    measured = _scripts(scripts, count, rounds=rounds, before=before)
    return Result(name, [measured], [(UPSTREAM, OURS)], whole=True)


def _completed(setting: Setting) -> Result:
    """Measure the script of routes that a default route completes, beside that of the same ones."""
    count = min(MANY, max(setting.sizes))
    document = _document(count)
    complete = HostRoutingConfig.from_mapping(document)
    for route in document["staticRoutes"]["routes"]:
        del route["gateway"], route["dev"]
    open_ = HostRoutingConfig.from_mapping(document)
    scripts = {
        name: [_file(setting, f"{name}.sh", static_routes.render_script(config))]
        for name, config in ((WITHOUT_GATEWAY, open_), (OURS, complete))
    }
    rounds = min(_SOME_ROUNDS, setting.rounds(count))
    measured = _scripts(scripts, count, rounds=rounds, before=_fresh_boot)
    return Result(COMPLETED, [measured], [(WITHOUT_GATEWAY, OURS)], whole=True)


def _scripts(
    scripts: Mapping[str, Sequence[str]],
    count: int,
    *,
    rounds: int,
    before: Callable[[], None],
) -> Contest:
    world.demand_own_run()
    contenders = [Contender(name, partial(_in_turn, each)) for name, each in scripts.items()]
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
    count = min(APPLIED, max(setting.sizes))
    routes = world.uniform(count)
    world.fill(routes)
    contenders = []
    for name, number in ((MANY_EXPECTED, 1000), (FEW_EXPECTED, 10)):
        cidrs = [route.destination for route in routes[:number]]
        config = config_file(setting, 0, cidrs, name=f"{number}.json")
        contenders.append(program(name, "-m", "hostrouting", "check", config))
    measured = contest(contenders, count, rounds=min(_SOME_ROUNDS, setting.rounds(count)))
    return Result(CHECK, [measured], [(MANY_EXPECTED, FEW_EXPECTED)], whole=True)


def _proof(setting: Setting) -> Result:
    biggest = max(setting.sizes)
    count = PROVEN if biggest >= _FULL else biggest
    world.clean()
    for first in range(0, count, _CHUNK):
        NetlinkBackend().apply(_proven(first, min(first + _CHUNK, count)), verify=False)
    world.check_installed(count)
    rounds = [_prove_once(count) for _ in range(min(_FEW_ROUNDS, setting.rounds(count)) + 1)]
    analysis, kernel = zip(*rounds[1:], strict=True)
    measured = Contest(count, {ANALYSIS: analysis, KERNEL: kernel})
    world.clean()
    return Result(PROOF, [measured], [(ANALYSIS, KERNEL)], f"of {_PROVEN_CIDR}", whole=True)


def _proven(first: int, end: int) -> list[RouteChange]:
    gateway = Address.parse(world.GATEWAY)
    return [
        RouteChange.add(
            Route(
                network=world.FIRST + number * _PROVEN_STEP,
                prefix_length=_PROVEN_LENGTH,
                gateway=gateway,
                dev=world.DEVICE,
            )
        )
        for number in range(first, end)
    ]


def _prove_once(count: int) -> tuple[Sample, Sample]:
    """Return the analysis, and the backend's part."""
    backend = TimedBackend()

    def prove() -> None:
        report = route_overlap.prove_egress(backend, [_PROVEN_CIDR])
        if not report.ok or backend.asked <= count:
            raise BenchmarkError(
                f"the proof of {_PROVEN_CIDR} asked {backend.asked} questions and said: {report}"
            )

    whole, spent = in_process(prove)(), backend.spent
    return Sample(whole.wall - spent.wall, whole.cpu - spent.cpu), spent


def _apply(setting: Setting, name: str) -> Result:
    if shutil.which("systemctl") is None:
        return Result(name, [], [], "left out: there is no systemctl", whole=True)
    count = min(APPLIED, max(setting.sizes))
    config = config_file(setting, count)
    verb = "add" if name == APPLY else "replace"
    lines = "".join(f"route {verb} {route}\n" for route in world.uniform(count))
    batch = _file(setting, "batch", lines.encode())
    root = setting.folder / "root"

    def fresh_node() -> None:
        world.clean()
        shutil.rmtree(root, ignore_errors=True)
        make_image(root)

    contenders = [
        program(OURS, str(_APPLY_CHILD), str(root), "apply", config),
        Contender(IP, lambda: process(["ip", "-batch", batch])),
    ]
    fresh_node()
    if name == APPLY_AGAIN:
        contenders[0].run()
    measured = contest(
        contenders,
        count,
        rounds=min(_SOME_ROUNDS, setting.rounds(count)),
        before=fresh_node if name == APPLY else None,
        check=lambda: world.check_installed(count),
    )
    world.clean()
    return Result(name, [measured], [(OURS, IP)], whole=True)


def _document(count: int, cidrs: Sequence[str] = ()) -> dict[str, Any]:
    routes = [
        {"destination": route.destination, "gateway": world.GATEWAY, "dev": world.DEVICE}
        for route in world.uniform(count)
    ]
    # STRICT, so that an exit status of 0 means that all is well.
    return {
        "staticRoutes": {"enabled": count > 0, "routes": routes},
        "routeOverlap": {"expectedCidrs": list(cidrs), "mode": "STRICT"},
        "gates": [],
    }


def _config(count: int, cidrs: Sequence[str] = ()) -> HostRoutingConfig:
    return HostRoutingConfig.from_mapping(_document(count, cidrs))


def config_file(
    setting: Setting, count: int, cidrs: Sequence[str] = (), *, name: str = "config.json"
) -> str:
    """Write a config with so many routes, and return its path."""
    return _file(setting, name, json.dumps({"hostRouting": _document(count, cidrs)}).encode())


def _file(setting: Setting, name: str, content: bytes) -> str:
    path = setting.folder / name
    path.write_bytes(content)
    return str(path)
