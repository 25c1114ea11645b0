"""The routing under announced addresses against the kernel's, after the addresses were really added."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import small_world
from support.kernel import needs_kernel
from support.overlap_worlds import claimed, run_script, worlds

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_ipv4
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress, agent_mac
from hostrouting.testing import KernelNode, MemoryBackend

if TYPE_CHECKING:
    from pathlib import Path

    from support.overlap_worlds import World

    from hostrouting.host.ports import Routing

_EXAMPLES = {"wheel": 10, "soak": 2000, "hunt": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 60)

_ABSENT = "00155D33FF1D"
_LINE = re.compile(r"(?P<cidr>\S+): (?P<kind>\S+) (?P<first>[\d.]+)-(?P<last>[\d.]+)(?: by (?P<devs>\S+))?(?: \(.*\))?")

#: Devices of the node, and one that comes later; addresses in the places where the small world meets.
_announced = st.lists(
    st.tuples(
        st.sampled_from([*small_world.DEVICES, "late0"]),
        st.sampled_from(["10.1.0.5", "10.1.0.77", "10.1.255.241", "10.2.0.1", "10.3.0.4", "192.168.7.9"]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda pair: pair[1],
)


def connect(node: KernelNode | MemoryBackend, announced: list[tuple[str, str]]) -> None:
    """Do as the agent does: set each device up, add each address, and go on if it is there already."""
    for dev, address in announced:
        with suppress(BackendError):
            node.add_link(dev)
        node.set_up(dev)
        with suppress(BackendError):
            node.add_address(dev, f"{address}/16")


def as_fabric(backend: Routing, announced: list[tuple[str, str]]) -> Fabric:
    """The announcement of these addresses, by the hardware addresses of the devices."""
    macs = {device.name: agent_mac(device.name, device.mac) for device in backend.links()}
    return Fabric(
        addresses=tuple(FabricAddress(macs.get(dev) or _ABSENT, parse_ipv4(own)) for dev, own in announced), source=POOL
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


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), announced=_announced)
def test_announced_equals_connected(world: World, announced: list[tuple[str, str]]) -> None:
    """The addresses that the proof finds under announced addresses are those that it finds once they are there."""
    with KernelNode.made() as node:
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        before = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed, fabric=as_fabric(kernel, announced))
        connect(node, announced)
        after = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed)
    for cidr in (report.cidr for report in after.cidrs):
        said, true = claimed(before, cidr), claimed(after, cidr)
        assert said.keys() == true.keys()
        for address, (kind, _) in said.items():
            assert kind == "announced" or kind == true[address][0], format_ipv4(address)


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(world=worlds(), announced=_announced)
def test_the_boot_script_finds_the_same(world: World, announced: list[tuple[str, str]], tmp_path: Path) -> None:
    """Under announced addresses the boot script finds the same addresses, with the same devices, as the proof."""
    with KernelNode.made() as node:
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        fabric = as_fabric(kernel, announced)
        report = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed, fabric=fabric)
        write_files(tmp_path, fabric)
        shutil.rmtree(tmp_path / "markers", ignore_errors=True)
        ran = run_script(node, tmp_path / "markers", world.cidrs, allowed=world.allowed, files=tmp_path)
    assert ran.status == (0 if report.ok else 1), ran.output
    lines = ran.markers.get("route-overlap.detected", "").splitlines()
    by_script = [_LINE.fullmatch(line) for line in lines]
    by_python = [_LINE.fullmatch(line) for line in report.lines()]
    assert [found and found.groups() for found in by_script] == [found and found.groups() for found in by_python]
    assert "line " not in ran.output, ran.output
