"""Ordinary nodes stay right, live and as a record."""

import json

import pytest
from support.kernel import kernel_of, needs_kernel
from support.ordinary_nodes import BESIDE, NODES, OrdinaryNode
from support.patience import in_time

from hostrouting import prove_egress
from hostrouting.config import DEFAULT_ALLOWED_DEVS
from hostrouting.fleet.record import NodeRecord, take_record
from hostrouting.net.addresses import parse_ipv4
from hostrouting.route_overlap.fabric import POOL, Fabric, FabricAddress
from hostrouting.testing import FakeHost, KernelNode

pytestmark = needs_kernel


@pytest.mark.parametrize("ordinary", NODES.values(), ids=NODES)
def test_it_is_right(ordinary: OrdinaryNode) -> None:
    """The proof holds no ordinary node that is right; a record of it has the same findings."""
    with KernelNode.made() as node, KernelNode.made() as beside:
        for command in ordinary.commands:
            program, _, words = command.replace(BESIDE, beside.name).partition(" ")
            if program == "sysctl":
                node.run("sysctl", "-qw", words)
            else:
                node.ip(program, words)
        fabric = _fabric(node, ordinary.pool)
        kernel = kernel_of(node)
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


def _fabric(node: KernelNode, pool: str | None) -> Fabric:
    """Return what a pool announces for ib0, or for a device that comes later."""
    if not pool:
        return Fabric()
    links = json.loads(node.ip("-j link show"))
    of = {link["ifname"]: link["address"].replace(":", "").upper() for link in links}
    address = FabricAddress(of.get("ib0", "00155D33FF1D"), parse_ipv4(pool))
    return Fabric(addresses=(address,), source=POOL)
