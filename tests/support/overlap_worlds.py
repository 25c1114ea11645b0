"""Random nodes for the overlap proof, the verdict of a report on each address, and the boot script
run on a node.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import attrs
from hypothesis import strategies as st
from support import small_world
from support.markers import verdict_of
from support.routers import add_pair, unplug
from support.small_world import pick

from hostrouting import BackendError, HostRoutingConfig, OverlapReport
from hostrouting.host import Address, NextHop, Route, Rule
from hostrouting.host.ports import Routing
from hostrouting.net.addresses import netmask, parse_cidr, parse_ipv4
from hostrouting.net.routes import LOCAL_TABLE, MAIN_TABLE, SCOPE_HOST, SCOPE_UNIVERSE
from hostrouting.route_overlap import render_script
from hostrouting.route_overlap.parts import CidrPart, looked_up
from hostrouting.route_overlap.report import departure_of
from hostrouting.route_overlap.snapshot import RoutingSnapshot
from hostrouting.testing import KernelNode, MemoryBackend

#: Small enough to ask about every address, in the places where the small world's routes, rules and
#: addresses meet.
CIDRS = (
    "10.1.0.0/24",
    "10.1.0.0/30",
    "10.1.0.8/29",
    "10.2.0.0/30",
    "10.3.0.0/29",
    "10.1.255.240/28",
    "192.168.7.0/25",
)
#: As on the links of an unnumbered node.
_UNNUMBERED = Address.parse("fe80::1")
_INSIDE = ("10.1.0.0/24", "10.1.255.240/28", "192.168.7.0/25")


#: Runs a program where /run/netns has a file that is not a namespace, as a CNI that crashed leaves
#: it.
AMONG_DEBRIS = (
    *("unshare", "--mount", "sh", "-ec"),
    'mount -t tmpfs none /run/netns; touch /run/netns/stale; exec "$@"',
    "sh",
)


class World(NamedTuple):
    """The operations on a node, in this order; those that the node refuses are left out."""

    addresses: list[tuple[str, tuple[str, str | None]]]
    routes: list[Route]
    rules: Sequence[Rule] = ()
    #: To be proven, and the devices by which they may leave.
    cidrs: Sequence[str] = ()
    allowed: tuple[str, ...] = ()
    #: A bit for each route that may stand behind another one of its place.
    repeated: int = -1
    #: A device that goes down when all else is done.
    down: str | None = None
    #: A device without carrier, and whether it has one until all else is done (in a kernel only).
    unplugged: tuple[str, bool] | None = None
    #: The kernel passes over next hops by a device without carrier.
    ignores_unplugged: bool = False

    def arrange(self, node: MemoryBackend | KernelNode) -> None:
        """Make it so."""
        lost, is_lost_later = self.unplugged or ("", False)
        for dev in small_world.DEVICES:
            if dev == lost and isinstance(node, KernelNode):
                add_pair(node, dev, carrier=is_lost_later)
            else:
                node.add_link(dev)
            if self.ignores_unplugged and isinstance(node, KernelNode):
                node.run("sysctl", "-qw", f"net.ipv4.conf.{dev}.ignore_routes_with_linkdown=1")
        for dev, (address, peer) in self.addresses:
            with suppress(BackendError):
                node.add_address(dev, address, peer=peer)
        for number, route in enumerate(self.routes):
            with suppress(BackendError, ValueError):
                node.insert_route(route, verb="append" if self.repeated >> number & 1 else "add")
        for rule in self.rules:
            with suppress(BackendError):
                node.add_rule(rule)
        if is_lost_later and isinstance(node, KernelNode):
            unplug(node, lost)
        if self.down:
            node.set_up(self.down, up=False)


@st.composite
def _inner_routes(draw: st.DrawFn) -> Route:
    """A route that begins and ends inside one of the CIDRs."""
    network, length = parse_cidr(pick(draw, *_INSIDE))
    length = draw(st.integers(length, 32))
    address = network + draw(st.integers(0, 255)) & netmask(length)
    kind = pick(draw, *["unicast"] * 4, "blackhole", "unreachable", "prohibit", "throw", "local")
    return Route(
        network=address,
        prefix_length=length,
        dev=draw(small_world.devices()) if kind in {"unicast", "local"} else None,
        metric=pick(draw, 0, 0, 100),
        table=255 if kind == "local" else pick(draw, 254, 254, 100),
        protocol=3,
        kind=kind,
    )


@st.composite
def _rare_routes(draw: st.DrawFn) -> Route:
    """A route with an IPv6 gateway, which keeps no state of its link, or one of which a lookup says
    EINVAL.
    """
    route = draw(_inner_routes().filter(lambda one: one.kind == "unicast"))
    if draw(st.booleans()):
        return attrs.evolve(route, gateway=_UNNUMBERED, scope=SCOPE_UNIVERSE)
    return attrs.evolve(route, table=LOCAL_TABLE, scope=SCOPE_HOST)


@st.composite
def _rare_defaults(draw: st.DrawFn) -> list[Route]:
    """Default routes with an IPv6 gateway, alone and beside another next hop."""
    single = Route.parse("0.0.0.0/0", gateway=str(_UNNUMBERED), dev="e0", protocol=16)
    legs = (NextHop(_UNNUMBERED, "e0"), NextHop(draw(st.sampled_from([_UNNUMBERED, None])), "e1"))
    several = Route.parse("0.0.0.0/0", nexthops=legs, protocol=3)
    behind = Route.parse("0.0.0.0/0", dev="e1", metric=100, protocol=3)
    return draw(st.sampled_from([[single], [several], [single, behind], [several, behind]]))


@st.composite
def _defaults(draw: st.DrawFn) -> list[Route]:
    gateway = Address.parse("10.1.0.200")
    legs = (NextHop(gateway, "e0"), NextHop(Address.parse("192.168.7.254"), "e1", weight=2))
    single = Route.parse("0.0.0.0/0", gateway=str(gateway), dev="e0", protocol=16)
    shape = draw(
        st.sampled_from(
            ["single"] * 6 + ["metric", "multipath", "multipath", "link", "ours", "refused", "none"]
        )
    )
    return {
        "single": [single],
        "metric": [
            Route.parse("0.0.0.0/0", dev="e1", metric=200, protocol=3),
            Route.parse("0.0.0.0/0", gateway=str(gateway), dev="e0", metric=100, protocol=16),
        ],
        "multipath": [Route.parse("0.0.0.0/0", nexthops=legs, protocol=3), single],
        "ours": [Route.parse("0.0.0.0/0", dev="e1"), attrs.evolve(single, metric=100)],
        "refused": [
            Route.parse("0.0.0.0/0", kind="blackhole", protocol=3),
            attrs.evolve(single, metric=100),
        ],
        "link": [Route.parse("0.0.0.0/0", dev="e0", protocol=3)],
        "none": [],
    }[shape]


def _is_asked_about(route: Route) -> bool:
    # The kernel sends from no address of a local route outside table local (a connect to one ends
    # with EINVAL), and the proof does not look at that: it asks with a source only where a rule
    # selects by one.
    is_elsewhere = route.kind == "local" and route.table != LOCAL_TABLE
    return bool(route.prefix_length or route.table != MAIN_TABLE) and not is_elsewhere


@st.composite
def worlds(draw: st.DrawFn, *, rare: bool = False) -> World:
    """A node with devices e0 to e2, and the CIDRs to be proven on it.

    With `rare`, it may have IPv6 gateways, devices without carrier, and routes with `scope host`:
    for a kernel, which the node in memory does not follow in all of this.
    """
    pairs = st.tuples(small_world.devices(), small_world.addresses())
    addresses = [("e0", ("10.1.0.1/16", None)), *draw(st.lists(pairs, max_size=4))]
    routes = draw(st.lists(small_world.routes(protocols=(3,)) | _inner_routes(), max_size=8))
    rules = draw(st.lists(small_world.rules(), max_size=3))
    if rare:
        routes = draw(st.permutations([*routes, *draw(st.lists(_rare_routes(), max_size=2))]))
    return World(
        addresses=addresses,
        routes=[
            *draw(_defaults() | _rare_defaults() if rare else _defaults()),
            *filter(_is_asked_about, routes),
        ],
        rules=rules,
        cidrs=draw(st.lists(st.sampled_from(CIDRS), min_size=1, max_size=3, unique=True)),
        allowed=pick(draw, (), (), ("e1",), ("e[12]",)),
        down=draw(st.none() | st.none() | st.none() | small_world.devices()),
        unplugged=draw(st.none() | st.tuples(small_world.devices(), st.booleans()))
        if rare
        else None,
        ignores_unplugged=rare and draw(st.booleans()),
    )


def claimed(report: OverlapReport, cidr: str) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the verdict of a report on each address of a CIDR: kind and devices; every address at
    most once.
    """
    said: dict[int, tuple[str, tuple[str, ...]]] = {}
    [one] = [one for one in report.cidrs if one.cidr == cidr]
    for finding in one.findings:
        for address in range(parse_ipv4(finding.first), parse_ipv4(finding.last) + 1):
            assert address not in said
            said[address] = finding.kind, finding.devs
    return said


class ScriptRun(NamedTuple):
    """The exit status of the boot script, its output, and the content of its files."""

    status: int
    output: str
    markers: dict[str, str]

    @property
    def is_plain(self) -> bool:
        """True if the script itself has answered. Without the program it answers nothing else."""
        assert self.status in {10, 12}, self.output
        assert (self.status == 12) == ("cannot be proven here: " in self.output), self.output
        return self.status == 10

    def must_follow(self, report: OverlapReport) -> None:
        """Assert that a yes is one of the proof, too, in its words. It may name more devices: of
        routes that decide only under conditions.
        """
        if not self.is_plain:
            return
        assert report.ok, (self.output, report.lines())
        head = departure_of([part.cidr for part in report.cidrs])
        said = self.markers["route-overlap.ok"].removeprefix(head).removesuffix("\n")
        assert {*said.strip().split(", ")} >= {*(report.carriers or report.expected_devs)}


def run_script(
    node: KernelNode,
    folder: Path,
    cidrs: Sequence[str],
    *,
    mode: str = "STRICT",
    allowed: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    waits: int = 0,
    second: float = 1,
    through: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    files: Path | None = None,
    after: Sequence[str] = (),
    program: Path | None = None,
) -> ScriptRun:
    """Run the rendered script, but with another folder for its files, and less patience.

    `through` is a command that runs the command which follows it. `options` are further keys of
    routeOverlap. The files of the cloud's agent and of devices are read below `files`. Each second
    that it waits is so long. `program` is a script of bash in the place of the program; without it,
    there is none, and no Python.
    """
    section = {
        "expectedCidrs": list(cidrs),
        "mode": mode,
        "allowedDevs": list(allowed),
        **(options or {}),
    }
    document = {"routeOverlap": section, "after": list(after)}
    text = render_script(HostRoutingConfig.from_mapping(document)).decode()
    places = {
        "/run/aks-flex-node": str(folder),
        "waits=30\n": f"waits={waits}\n",
        "read -rt 1 ": f"read -rt {second} ",
        "/etc/aks-flex-node/hostrouting.zip": str(program or "/nonexistent/hostrouting.zip"),
        "python=/usr/bin/python3": "python=/nonexistent/python3",
    }
    if program:
        places['"$python" -I -S "$program"'] = '"$program"'
        places["--kill-after=1 10 "] = "--kill-after=0.2 5 "
    if files:
        found = ("/etc/waagent.conf", "/var/lib/hyperv/", "/sys/class/net/", "/sys/class/infini")
        places |= {path: f"{files}{path}" for path in found}
    for place, value in places.items():
        assert place in text, place
        text = text.replace(place, value)
    # Found by the PATH of the tests, which may have another bash, and not by that of the script.
    bash = shutil.which("bash") or ""
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    with NamedTemporaryFile("w", dir=folder.parent) as script:
        script.write(text)
        script.flush()
        Path(script.name).chmod(0o644)
        done = subprocess.run(
            [
                "nsenter",
                f"--net=/run/netns/{node.name}",
                *through,
                "env",
                *variables,
                bash,
                "-p",
                script.name,
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    markers = (
        {path.name: verdict_of(path.name, path.read_text()) for path in sorted(folder.iterdir())}
        if folder.exists()
        else {}
    )
    return ScriptRun(done.returncode, done.stdout + done.stderr, markers)


def parts_of(backend: Routing, cidr: str) -> list[CidrPart]:
    """Return every part into which the proof cuts a CIDR, fine or not."""
    [parts] = looked_up(RoutingSnapshot(backend), [cidr]).parts
    return parts
