"""The routing under announced addresses against the kernel's, after the addresses were really added."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.kernel import needs_kernel
from support.overlap_worlds import claimed, worlds

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.addresses import format_ipv4, parse_ipv4
from hostrouting.route_overlap import prove_egress
from hostrouting.route_overlap.assumed import Assumed
from hostrouting.route_overlap.fabric import Fabric, agent_mac
from hostrouting.testing import KernelNode, MemoryBackend, strategies

if TYPE_CHECKING:
    from support.overlap_worlds import World

    from hostrouting.host.ports import Routing

_EXAMPLES = {"wheel": 10, "soak": 2000, "hunt": 500}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 60)

#: Devices of the node, and one that comes later; addresses in the places where the small world meets.
_announced = st.lists(
    st.tuples(
        st.sampled_from([*strategies.DEVICES, "late0"]),
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
    return Fabric(addresses=tuple((macs.get(dev, "00155D33FF1D"), parse_ipv4(own)) for dev, own in announced))


@needs_kernel
@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), announced=_announced)
def test_announced_equals_connected(world: World, announced: list[tuple[str, str]]) -> None:
    """The addresses that the proof finds under announced addresses are those that it finds once they are there."""
    with KernelNode.made() as node:
        world.arrange(node)
        kernel = NetlinkBackend(netns=node.name)
        before = prove_egress(Assumed(kernel, as_fabric(kernel, announced)), world.cidrs, allowed_devs=world.allowed)
        connect(node, announced)
        after = prove_egress(kernel, world.cidrs, allowed_devs=world.allowed)
    for cidr in (report.cidr for report in after.cidrs):
        said, true = claimed(before, cidr), claimed(after, cidr)
        assert {format_ipv4(a): k for a, (k, _) in said.items()} == {format_ipv4(a): k for a, (k, _) in true.items()}
