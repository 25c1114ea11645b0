"""Ordinary nodes stay right, live and as a record."""

import json
from pathlib import Path

import pytest
from support.announced_worlds import write_files
from support.fabric_files import record
from support.kernel import kernel_of, needs_kernel
from support.ordinary_nodes import BESIDE, NODES, OrdinaryNode
from support.overlap_worlds import ScriptRun, run_script
from support.patience import in_time

from hostrouting import prove_egress
from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.fleet.record import NodeRecord, take_record
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


#: Right nodes that the boot script leaves to the program, with the reason (docs/limits.md).
_NOT_PLAIN = {
    "a table for each of two NICs": "device (eth1)",
    "AWS' rules for pods of a second interface": "device (eth1)",
    "an advertised default route by a nexthop object": "row (default nhid 77 ",
    "wg-quick for all traffic": "device (wg0)",
    "services by a nexthop object": "row (10.96.0.0/12 nhid 20 ",
}


@pytest.mark.parametrize("name", NODES)
def test_it_is_right(name: str, tmp_path: Path) -> None:
    """The proof holds no ordinary node that is right; a record of it has the same findings. Most are
    plain.
    """
    ordinary = NODES[name]
    with KernelNode.made() as node, KernelNode.made() as beside:
        for command in ordinary.commands:
            program, _, words = command.replace(BESIDE, beside.name).partition(" ")
            if program == "sysctl":
                node.run("sysctl", "-qw", words)
            else:
                node.ip(program, words)
        fabric = _fabric(node, ordinary.pool)
        kernel = kernel_of(node)
        ran = _run_script(node, ordinary, tmp_path)
        recorded = NodeRecord.parse(take_record(in_time(), FakeHost(kernel)).to_line()).host
        reports = [
            prove_egress(
                routing,
                ordinary.cidrs,
                allowed_devs=DEFAULT_ALLOWED_DEVS,
                expected_devs=ordinary.expected,
                fabric=fabric,
            )
            for routing in (kernel, recorded.routes)
        ]
    assert reports[0].ok == ordinary.is_right, reports[0].lines()
    assert reports[1].lines() == reports[0].lines()
    reason = _NOT_PLAIN.get(name, "")
    assert ran.is_plain == (ordinary.is_right and not reason), ran.output
    assert reason in ran.output


def _run_script(node: KernelNode, ordinary: OrdinaryNode, folder: Path) -> ScriptRun:
    """Run the boot script, where RDMA is switched on if the node has a pool."""
    if ordinary.pool is not None:
        write_files(folder, _fabric(node, ordinary.pool))
    if ordinary.pool == "":
        (folder / POOL[1:]).write_bytes(record(b"HostName", b"a host"))
    options = {"expectedDevs": [*(ordinary.expected or ())]}
    return run_script(node, folder / "run", ordinary.cidrs, files=folder, options=options)


def _fabric(node: KernelNode, pool: str | None) -> Fabric:
    """Return what a pool announces for ib0, or for a device that comes later."""
    if not pool:
        return Fabric()
    links = json.loads(node.ip("-j link show"))
    of = {link["ifname"]: link["address"].replace(":", "").upper() for link in links}
    address = FabricAddress(of.get("ib0", "00155D33FF1D"), parse_ipv4(pool))
    return Fabric(addresses=(address,), source=POOL)
