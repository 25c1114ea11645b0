"""Single cases of announced addresses, in the kernel: routes, rules and devices that meet them."""

import os
import shutil
from pathlib import Path

import attrs
import pytest
from support.announced_worlds import LINE, Announced, both_answers, write_files
from support.kernel import needs_kernel
from support.overlap_worlds import World, run_script

from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import Address, parse_cidr, parse_ipv4
from hostrouting.net.routes import NextHop, Route
from hostrouting.net.rules import Rule
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import KernelNode


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
    found = [LINE.fullmatch(line) for line in lines]
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
def test_the_first_address_of_a_network_before_linux_5_14(tmp_path: Path) -> None:
    """Where it is a broadcast address, as that of the loopback device, no route takes it from the fabric."""
    announced = Announced([("e1", "10.3.0.4")])
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT, _to("10.3.0.0/29", dev="e0")], [], [], ()).arrange(node)
        node.ip("route", "replace", "broadcast", "127.0.0.0", "dev", "lo", "table", "local")
        fabric = announced.as_fabric(NetlinkBackend(netns=node.name))
        by_python, ran = both_answers(node, fabric, tmp_path, ["10.3.0.0/31"])
    [finding] = by_python.cidrs[0].findings
    assert (finding.kind, finding.last, finding.own) == ("announced", "10.3.0.0", ("10.3.0.0",))
    assert "10.3.0.0/31: announced 10.3.0.0-10.3.0.0 by e1" in ran.markers["route-overlap.detected"]


@needs_kernel
@pytest.mark.parametrize("dev", ["e0", "e1", "e2", "late0"])
@pytest.mark.parametrize("table", ["main", "77"])
def test_rules_that_suppress_a_group(dev: str, table: str, tmp_path: Path) -> None:
    """A group may suppress an announced route. That is not followed: too much is found, and nothing is missed."""
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
        assert prove_egress(kernel, ["10.3.8.0/22"]).ok or not by_python.ok
    assert ran.status == (0 if by_python.ok else 1), ran.output


@pytest.mark.slow
@needs_kernel
def test_waiting_for_the_pool_reads_no_tables(tmp_path: Path) -> None:
    """However large the tables are, the boot script takes no longer for a wait than the seconds that it waits."""
    runs = tmp_path / "runs"
    program = tmp_path / "bin/ip"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\necho run >> {runs}\nexec {shutil.which("ip")} "$@"\n')
    program.chmod(0o755)
    infiniband = 'mount -t tmpfs none /sys/class; mkdir -p /sys/class/infiniband/mlx5_0; exec "$@"'
    with KernelNode.made() as node:
        World([_E0], [_DEFAULT], [], [], ()).arrange(node)
        write_files(tmp_path, Fabric())
        (tmp_path / POOL[1:]).write_bytes(b"")
        for waits in (1, 3):
            folder = tmp_path / f"run{waits}"
            folder.mkdir()
            ran = run_script(
                node,
                folder,
                ["10.3.8.0/22"],
                files=tmp_path,
                waits=waits,
                environment={"PATH": f"{program.parent}:{os.environ['PATH']}"},
                through=["unshare", "--mount", "bash", "-ec", infiniband, "--"],
            )
            assert "warning: no fabric is announced" in ran.output
            assert ran.markers["waited"] == f"{waits}\n"
            with runs.open() as lines:
                assert len(list(lines)) == 2, ran.output
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
    devs = ("e1", "e2") if is_first else ("e2", "e1")
    assert (finding.kind, finding.devs, finding.dev) == ("announced", devs, "e2")
    assert f"announced 10.3.8.0-10.3.11.255 by {','.join(devs)} (" in ran.markers["route-overlap.detected"]


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
    assert (finding.kind, finding.devs) == ("announced", ("f1", "f2"))
    assert finding.dev == ("f2" if "f1" in allowed else "f1")
    assert "announced 10.3.8.0-10.3.11.255 by f1,f2 (" in ran.markers["route-overlap.detected"]


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
    """Where only own addresses are found, no route is proposed, or said to be not in force; and never the fabric."""
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
    assert "No route takes 10.3.0.4, 10.3.0.5 from the fabric" in report.advice
    assert not [words for words in ("staticRoutes", "not in force", "would fix") if words in report.advice]
    assert f"{cidr}: announced 10.3.0.4-10.3.0.5 by e1,e2 (" in ran.markers["route-overlap.detected"]
    assert report.allowance == ""


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
