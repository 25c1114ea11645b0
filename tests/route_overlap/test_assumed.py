"""The routing under announced addresses against the kernel's, after the addresses were really added."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support import small_world
from support.kernel import needs_kernel
from support.overlap_worlds import ScriptRun, World, claimed, parts_of, run_script, worlds

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Address, bounds, format_ipv4, parse_cidr, parse_ipv4
from hostrouting.net.routes import NextHop, Route
from hostrouting.net.rules import Rule
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.assumed import Assumed
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress, agent_mac
from hostrouting.testing import KernelNode, MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hostrouting.host.ports import Routing
    from hostrouting.route_overlap import OverlapReport

_EXAMPLES = {"wheel": 10, "soak": 2000, "hunt": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 60)

_ABSENT = "00155D33FF1D"
_LINE = re.compile(r"(?P<cidr>\S+): (?P<kind>\S+) (?P<first>[\d.]+)-(?P<last>[\d.]+)(?: by (?P<devs>\S+))?(?: \(.*\))?")

#: A name that a shell and the batches of `ip` would split, expand or cut.
_ODD = "*o'd\"d#0"
_NETWORKS = ("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "192.168.0.0/16")


class Announced(NamedTuple):
    """What will be connected: addresses by device, each in a /16, or networks of the config."""

    addresses: Sequence[tuple[str, str]] = ()
    networks: Sequence[str] = ()
    #: True if the device with the odd name is up before.
    odd_is_up: bool = False

    def prepare(self, node: KernelNode | MemoryBackend) -> None:
        """Add the device that the world does not have."""
        node.add_link(_ODD, up=self.odd_is_up)

    def connect(self, node: KernelNode) -> None:
        """Do as the agent does: set each device up, add each address, and go on if it is there already."""
        for dev, address in self.addresses:
            with suppress(BackendError):
                node.add_link(dev)
            node.set_up(dev)
            with suppress(BackendError):
                node.add_address(dev, f"{address}/16")
        for number, cidr in enumerate(self.networks):
            node.add_link(f"list{number}")
            # As for an address that is not known.
            own = ("dev", f"list{number}", "scope", "link", "proto", "kernel")
            with suppress(BackendError):
                node.ip("route", "append", cidr, *own)
            if int(cidr.partition("/")[2]) < 31:
                with suppress(BackendError):
                    node.ip("route", "append", "broadcast", format_ipv4(bounds(cidr)[1]), *own, "table", "local")

    def as_fabric(self, backend: Routing) -> Fabric:
        """The announcement, by the hardware addresses of the devices."""
        if self.networks:
            return Fabric(networks=tuple(self.networks), source="routeOverlap.fabric")
        macs = {device.name: agent_mac(device.name, device.mac) for device in backend.links()}
        return Fabric(
            addresses=tuple(FabricAddress(macs.get(dev) or _ABSENT, parse_ipv4(own)) for dev, own in self.addresses),
            source=POOL,
        )


#: Devices of the node, and one that comes later; addresses in the places where the small world meets.
_addresses = st.lists(
    st.tuples(
        st.sampled_from([*small_world.DEVICES, _ODD, "late0"]),
        st.sampled_from(["10.1.0.1", "10.1.0.5", "10.1.0.77", "10.1.255.241", "10.2.0.1", "10.3.0.4", "192.168.7.9"]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda pair: pair[1],
)
_cidrs = st.sampled_from(
    [
        *_NETWORKS,
        "10.0.0.0/8",
        "10.1.0.0/24",
        "10.1.0.8/29",
        "10.1.0.4/31",
        "10.1.0.6/32",
        "10.1.128.0/17",
        "192.168.7.0/26",
    ]
)
_networks = st.lists(_cidrs, min_size=1, max_size=2, unique=True)
_announced = st.builds(Announced, _addresses, odd_is_up=st.booleans()) | st.builds(
    Announced, networks=_networks, odd_is_up=st.booleans()
)


@st.composite
def _rules(draw: st.DrawFn) -> Rule:
    """A rule that suppresses routes, goes on elsewhere, does nothing, or selects one of the places."""
    action = draw(st.sampled_from(["lookup"] * 5 + ["goto", "nop"]))
    places = st.sampled_from([*small_world.DESTINATIONS, "10.1.0.64/26", "10.1.255.255/32"]).map(parse_cidr)
    is_lookup = action == "lookup"
    return Rule(
        priority=draw(st.sampled_from([1, 50, 100, 32765, 32766, 32767, 40000])),
        action=action,
        table=draw(st.sampled_from([254, 254, 254, 255, 100, 1000])) if is_lookup else 0,
        source=parse_cidr(draw(st.sampled_from(["0.0.0.0/0", "0.0.0.0/0", "10.1.0.0/16", "10.1.0.1/32"]))),
        destination=draw(st.just((0, 0)) | places),
        inverted=draw(st.sampled_from([False, False, False, True])),
        goto=draw(st.sampled_from([32766, 32767, 40000, 50000])) if action == "goto" else None,
        suppress_prefix_length=draw(st.none() | st.sampled_from([0, 8, 15, 16, 24])) if is_lookup else None,
    )


@st.composite
def _equal_routes(draw: st.DrawFn) -> Route:
    """A route to a network that may be announced."""
    network, length = parse_cidr(draw(_cidrs))
    kind = draw(st.sampled_from(["unicast"] * 5 + ["throw", "blackhole", "unreachable"]))
    return Route(
        network=network,
        prefix_length=length,
        dev=draw(small_world.devices()) if kind == "unicast" else None,
        metric=draw(st.sampled_from([0, 0, 100])),
        table=draw(st.sampled_from([254, 254, 254, 100])),
        protocol=3,
        kind=kind,
        tos=draw(st.sampled_from([0, 0, 0, 8])),
    )


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    world = draw(worlds())
    return world._replace(
        routes=[*world.routes, *draw(st.lists(_equal_routes(), max_size=3))],
        rules=[*world.rules, *draw(st.lists(_rules(), max_size=3))],
        allowed=draw(st.sampled_from([world.allowed, world.allowed, ("?o*",)])),
    )


def write_files(root: Path, fabric: Fabric) -> None:
    """Write the files from which the agent takes this fabric."""
    pairs = [f"{mac}:{format_ipv4(address)}" for mac, address in fabric.addresses]
    value = "|".join([f"NUMPAIRS:{len(pairs)}", *pairs])
    for path, content in {
        "/etc/waagent.conf": b"OS.EnableRDMA=y\n",
        "/var/lib/waagent/SharedConfig.xml": b'<Instance rdmaIPv4Address="172.16.1.4" rdmaMacAddress="00155D33FF1D"/>',
        POOL: b"IPoIB_Data".ljust(512, b"\0") + value.encode().ljust(2048, b"\0"),
    }.items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def both_answers(
    node: KernelNode,
    fabric: Fabric,
    folder: Path,
    cidrs: Sequence[str] = ("10.3.8.0/22",),
    *,
    allowed: Sequence[str] = (),
    expected: Sequence[str] | None = None,
    routes: Sequence[dict[str, str]] = (),
) -> tuple[OverlapReport, ScriptRun]:
    """Let the proof and the boot script answer under an announced fabric; the script reads its files below `folder`."""
    write_files(folder, fabric)
    kernel = NetlinkBackend(netns=node.name)
    report = prove_egress(kernel, cidrs, allowed_devs=allowed, expected_devs=expected, fabric=fabric)
    options = {"fabric": list(fabric.networks)} if fabric.networks else {}
    if expected is not None:
        options["expectedDevs"] = list(expected)
    markers = folder / "markers"
    shutil.rmtree(markers, ignore_errors=True)
    ran = run_script(node, markers, cidrs, allowed=allowed, routes=routes, files=folder, options=options)
    return report, ran


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(world=_worlds(), announced=_announced)
def test_announced_equals_connected(world: World, announced: Announced) -> None:
    """The addresses that the proof finds under announced addresses are those that it finds once they are there."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        before = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed, fabric=announced.as_fabric(kernel))
        announced.connect(node)
        after = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed)
    for cidr in (report.cidr for report in after.cidrs):
        said, true = claimed(before, cidr), claimed(after, cidr)
        assert said.keys() == true.keys()
        for address, (kind, _) in said.items():
            assert kind == "announced" or kind == true[address][0], format_ipv4(address)


def _addresses_in(findings: Iterable[re.Match[str] | None]) -> set[tuple[str, int]]:
    return {
        (found["cidr"], address)
        for found in findings
        if found
        for address in range(parse_ipv4(found["first"]), parse_ipv4(found["last"]) + 1)
    }


def _sources(backend: Routing, cidr: str) -> dict[tuple[int, object], list[int]]:
    """Return the sources from which the node may send, by address and deciding route."""
    return {
        (address, part.plain.route): [source for _, source in part.answers]
        for part in parts_of(backend, cidr)
        for address in range(part.first, part.last + 1)
    }


def _sends_as_before(backend: Routing, fabric: Fabric, cidrs: Sequence[str]) -> bool:
    """Return True if new addresses change the source by no route that is there today."""
    then = Assumed(backend, fabric)
    both = [(_sources(backend, cidr), _sources(then, cidr)) for cidr in cidrs]
    return all(now[key] == later[key] for now, later in both for key in now.keys() & later.keys())


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(world=_worlds(), announced=_announced)
def test_the_boot_script_finds_the_same(world: World, announced: Announced, tmp_path: Path) -> None:
    """Under announced addresses the boot script finds the same addresses, with the same devices, as the proof."""
    with KernelNode.made() as node:
        announced.prepare(node)
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        fabric = announced.as_fabric(kernel)
        # Where a rule selects by source, the script asks the kernel with the source of today. A route without one, by a
        # device that gets an address or has none, may send from a new one. Only the model knows that.
        assume(_sends_as_before(kernel, fabric, world.cidrs))
        report, ran = both_answers(node, fabric, tmp_path, world.cidrs, allowed=world.allowed)
    assert ran.status == (0 if report.ok else 1), ran.output
    lines = ran.markers.get("route-overlap.detected", "").splitlines()
    by_script = [_LINE.fullmatch(line) for line in lines]
    by_python = [_LINE.fullmatch(line) for line in report.lines()]
    if announced.networks and any(rule.source[1] for rule in world.rules):
        # The address from which the node will send by a network of the config is not known: the proof takes another of
        # the node's, and the script none. So a finding of one may be of another kind, but none is missed.
        assert _addresses_in(by_script) == _addresses_in(by_python)
    else:
        assert [found and found.groups() for found in by_script] == [found and found.groups() for found in by_python]
        assert not report.ok or ran.markers["route-overlap.ok"] == f"{report.verdict}\n"
    assert "line " not in ran.output, ran.output


def _to(cidr: str, *, dev: str | None = None, kind: str = "unicast", table: int = 254) -> Route:
    network, length = parse_cidr(cidr)
    return Route(network=network, prefix_length=length, dev=dev, kind=kind, table=table, protocol=3)


_E0 = ("e0", ("10.1.0.1/16", None))
_DEFAULT = _to("0.0.0.0/0", dev="e0")
_REFUSING = _to("10.3.0.6/32", kind="blackhole")
_THROW = World([_E0], [_DEFAULT, _to("10.3.0.0/31", kind="throw", table=255)], [], ["10.3.0.0/29"], ())
_WIDE = World([_E0], [_DEFAULT, _to("10.0.0.0/8", dev="e0", table=255), _REFUSING], [], ["10.3.0.0/29"], ())
_TWO_HOPS = Route(
    network=0,
    prefix_length=0,
    protocol=3,
    nexthops=(NextHop(None, "e0"), NextHop(Address.parse("192.168.7.254"), "e1")),
)
_DOWN = World(
    [_E0, ("e2", ("10.2.0.1/32", "10.2.0.2")), ("e2", ("10.1.0.9/24", None))],
    [_DEFAULT, _REFUSING],
    [],
    ["10.2.0.0/30", "10.1.0.8/29"],
    (),
    down="e2",
)


@needs_kernel
@pytest.mark.parametrize(
    ("world", "parted", "dev", "expected"),
    [
        pytest.param(_THROW, False, "late0", ["no-route 10.3.0.0", "announced 10.3.0.2"], id="throw-in-both"),
        pytest.param(_THROW, True, "late0", ["announced 10.3.0.0"], id="throw-in-local"),
        pytest.param(
            _WIDE, False, "late0", ["announced 10.3.0.0", "blocked 10.3.0.6", "announced 10.3.0.7"], id="wide-in-both"
        ),
        pytest.param(_WIDE, True, "late0", ["announced 10.3.0.4"], id="wide-in-local"),
        pytest.param(
            World([_E0, ("e1", ("192.168.7.1/24", None))], [_TWO_HOPS], [], ["10.2.0.0/30"], (), down="e0"),
            False,
            "e1",
            [],
            id="next-hop-down",
        ),
        pytest.param(
            _DOWN,
            False,
            "e2",
            ["local 10.2.0.1", "announced 10.2.0.2", "announced 10.1.0.8", "local 10.1.0.9", "announced 10.1.0.10"],
            id="down",
        ),
    ],
)
def test_routes_that_meet_announced_ones(
    world: World, parted: bool, dev: str, expected: list[str], tmp_path: Path
) -> None:
    """The boot script tells one table from two, and knows which routes a device brings that is down."""
    announced = Announced([(dev, "10.3.0.4")])
    with KernelNode.made() as node:
        world.arrange(node)
        if parted:
            node.add_rule(Rule(9, table=77, destination=parse_cidr("192.0.2.1/32")))
            node.remove_rule(Rule(9, table=77, destination=parse_cidr("192.0.2.1/32")))
        write_files(tmp_path, announced.as_fabric(NetlinkBackend(netns=node.name)))
        ran = run_script(node, tmp_path / "markers", world.cidrs, files=tmp_path)
    lines = ran.markers.get("route-overlap.detected", "").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    assert [one and f"{one['kind']} {one['first']}" for one in found] == expected, ran.output


@needs_kernel
def test_an_address_that_is_there_brings_no_route(tmp_path: Path) -> None:
    """A device that is up and has its announced address gets no connected route again, if that was removed."""
    announced = Announced([("e1", "10.3.0.4")])
    with KernelNode.made() as node:
        World([_E0, ("e1", ("10.3.0.4/16", None))], [_DEFAULT], [], [], ()).arrange(node)
        node.ip("route", "del", "10.3.0.0/16")
        kernel = NetlinkBackend(netns=node.name)
        by_python, ran = both_answers(node, announced.as_fabric(kernel), tmp_path)
        announced.connect(node)
        assert prove_egress(kernel, ["10.3.8.0/22"]).ok
    assert by_python.ok
    assert ran.markers == {"route-overlap.ok": "10.3.8.0/22 leaves by e0\n"}, ran.output


@needs_kernel
@pytest.mark.parametrize("dev", ["e0", "e1", "e2", "late0"])
@pytest.mark.parametrize("table", ["main", "77"])
def test_rules_that_suppress_a_group(dev: str, table: str, tmp_path: Path) -> None:
    """A rule suppresses an announced route, or another one, if its device is in the group, and no other route."""
    announced = Announced([("late0" if dev == "late0" else "e1", "10.3.0.4")])
    group = "0" if dev == "late0" else "5"
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT, _to("10.0.0.0/8", dev="e0", table=77)], [], [], ()).arrange(node)
        if dev != "late0":
            node.ip("link", "set", dev, "group", group)
        node.ip("rule", "add", "pref", "100", "lookup", table, "suppress_ifgroup", group)
        node.ip("rule", "add", "pref", "101", "lookup", "77" if table == "main" else "main")
        kernel = NetlinkBackend(netns=node.name)
        by_python, ran = both_answers(node, announced.as_fabric(kernel), tmp_path)
        announced.connect(node)
        assert prove_egress(kernel, ["10.3.8.0/22"]).ok == by_python.ok
    assert ran.status == (0 if by_python.ok else 1), ran.output


@needs_kernel
def test_waiting_for_the_pool_reads_no_tables(tmp_path: Path) -> None:
    """However large the tables are, the boot script takes no longer for a wait than the seconds that it waits."""
    runs = tmp_path / "runs"
    program = tmp_path / "bin/ip"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\necho run >> {runs}\nexec {shutil.which("ip")} "$@"\n')
    program.chmod(0o755)
    young = (
        f"echo '12.3 4.5' > {tmp_path}/uptime; mount --bind {tmp_path}/uptime /proc/uptime; "
        'mount -t tmpfs none /sys/class; mkdir -p /sys/class/infiniband/mlx5_0; exec "$@"'
    )
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT], [], [], ()).arrange(node)
        write_files(tmp_path, Fabric())
        (tmp_path / POOL[1:]).write_bytes(b"")
        for waits in (1, 3):
            ran = run_script(
                node,
                tmp_path / f"markers{waits}",
                ["10.3.8.0/22"],
                files=tmp_path,
                waits=waits,
                environment={"PATH": f"{program.parent}:{os.environ['PATH']}"},
                through=["unshare", "--mount", "bash", "-ec", young, "--"],
            )
            assert "warning: no fabric is announced" in ran.output
            with runs.open() as lines:
                assert len(list(lines)) == 3, ran.output
            runs.unlink()


@needs_kernel
def test_an_expected_device_of_the_fabric_is_set_up(tmp_path: Path) -> None:
    """An expected device that is down leads out once the agent has set it up."""
    announced = Announced([("e1", "10.3.0.4")])
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT], [], [], (), down="e1").arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        by_python, ran = both_answers(node, announced.as_fabric(kernel), tmp_path, expected=["e0", "e1"])
        announced.connect(node)
        assert prove_egress(kernel, ["10.3.8.0/22"], expected_devs=["e0", "e1"]).ok
    assert by_python.ok
    assert ran.status == 0, ran.output


@needs_kernel
@pytest.mark.parametrize("is_first", [True, False])
def test_an_allowed_device_may_come_second(is_first: bool, tmp_path: Path) -> None:
    """Of two devices in one network either may get its address first, so it is not enough that one is allowed."""
    pairs = [("e1", "10.3.0.4"), ("e2", "10.3.0.5")]
    announced = Announced(pairs if is_first else pairs[::-1])
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT], [], [], ()).arrange(node)
        fabric = announced.as_fabric(NetlinkBackend(netns=node.name))
        by_python, ran = both_answers(node, fabric, tmp_path, allowed=["e1"])
    [(_, finding)] = by_python.findings
    assert (finding.kind, finding.devs, finding.dev) == ("announced", ("e2", "e1"), "e2")
    assert "announced 10.3.8.0-10.3.11.255 by e2,e1 (" in ran.markers["route-overlap.detected"]


@needs_kernel
@pytest.mark.parametrize("allowed", [(), ("f1",), ("f2",)])
def test_devices_with_one_hardware_address(allowed: tuple[str, ...], tmp_path: Path) -> None:
    """Each of them gets the address, as the agent goes through the devices: a child of an IPoIB device, for example."""
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT], [], [], ()).arrange(node)
        for dev in ("f1", "f2"):
            node.ip("link", "add", dev, "address", "00:15:5d:33:ff:1d", "type", "bridge")
        fabric = Fabric(addresses=(FabricAddress("00155D33FF1D", parse_ipv4("10.3.0.4")),), source=POOL)
        by_python, ran = both_answers(node, fabric, tmp_path, allowed=allowed)
    [(_, finding)] = by_python.findings
    devs = ("f2", "f1") if "f1" in allowed else ("f1", "f2")
    assert (finding.kind, finding.devs) == ("announced", devs)
    assert f"announced 10.3.8.0-10.3.11.255 by {','.join(devs)} (" in ran.markers["route-overlap.detected"]


@needs_kernel
@pytest.mark.parametrize(
    ("network", "found"),
    [("10.3.0.4/32", ["10.3.0.4"]), ("10.3.0.4/31", ["10.3.0.4"]), ("0.0.0.0/4", []), ("0.0.0.0/0", [])],
)
def test_networks_of_any_length(network: str, found: list[str], tmp_path: Path) -> None:
    """A network of one address counts, and one that begins in 0.0.0.0/8 does not, as the kernel never connects it.

    The boot script says the same as the proof, and neither takes the one address for the node's own.
    """
    default = Route(network=0, prefix_length=0, dev="e0", metric=9, protocol=3)
    world = World([_E0], [default], [], ["10.3.0.0/29"], ())
    with KernelNode.made() as node:
        world.arrange(node)
        fabric = Fabric(networks=(network,), source="routeOverlap.fabric")
        report, ran = both_answers(node, fabric, tmp_path, world.cidrs)
    assert [(finding.kind, finding.first, finding.own) for _, finding in report.findings] == [
        ("announced", address, ()) for address in found
    ]
    assert ran.markers.get("route-overlap.detected", "").splitlines() == report.lines()


@needs_kernel
@pytest.mark.parametrize("cidr", ["10.3.0.4/31", "10.3.0.0/24"])
def test_addresses_that_no_route_takes(cidr: str, tmp_path: Path) -> None:
    """Where only own addresses are found, neither reading proposes a route, or says that one is not in force.

    Any of the two devices may get its address first, so both are to be allowed.
    """
    announced = Announced([("e1", "10.3.0.4"), ("e2", "10.3.0.5")])
    default = Route(network=0, prefix_length=0, gateway=Address.parse("10.1.0.8"), dev="e0", protocol=3)
    routed = attrs.evolve(default, network=parse_cidr("10.3.0.0/24")[0], prefix_length=24, protocol=142)
    world = World([_E0], [default, routed] if cidr == "10.3.0.0/24" else [default], [], [cidr], ())
    with KernelNode.made() as node:
        world.arrange(node)
        fabric = announced.as_fabric(NetlinkBackend(netns=node.name))
        routes = [{"destination": "10.3.0.0/24"}] if cidr == "10.3.0.0/24" else []
        report, ran = both_answers(node, fabric, tmp_path, world.cidrs, routes=routes)
    assert [(one.first, one.last) for _, one in report.findings] == [("10.3.0.4", "10.3.0.5")]
    told = "No route takes 10.3.0.4, 10.3.0.5 from the fabric"
    for advice in (report.advice, ran.output):
        assert told in advice
        assert not [words for words in ("staticRoutes", "not in force", "would fix", "way to fix") if words in advice]
    assert report.advice.endswith('"allowedDevs": ["e1", "e2"]}')


@needs_kernel
def test_a_fabric_with_the_network_of_the_node() -> None:
    """The gateway stays on the link of e0, though the fabric takes the other addresses of its network.

    The suggested route is taken by the kernel when the fabric is there, and mends the finding.
    """
    announced = Announced([("e1", "10.1.3.4")])
    with KernelNode.made() as node:
        node.add_link("e0")
        node.add_link("e1")
        node.ip("address", "add", "10.1.0.4/16", "dev", "e0", "metric", "100")
        node.ip("route", "add", "default", "via", "10.1.0.1", "dev", "e0", "metric", "100")
        kernel = NetlinkBackend(netns=node.name)
        report = prove_egress(kernel, ["10.1.9.0/24"], fabric=announced.as_fabric(kernel))
        assert [finding.kind for _, finding in report.findings] == ["announced"]
        [route] = report.suggested_routes
        announced.connect(node)
        assert prove_egress(kernel, ["10.1.9.0/24"]).suggested_routes == (route,)
        node.ip("route", "add", route.destination, "via", route.gateway, "dev", route.dev)
        assert prove_egress(kernel, ["10.1.9.0/24"]).ok
