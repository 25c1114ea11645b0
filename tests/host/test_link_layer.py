"""The contract of `LinkLayer` on the fake and on the kernel, and facts that only the kernel can
show.
"""

import asyncio
import errno
import struct
import sys
from collections.abc import Iterator

import pytest
from host.contracts.link_layer import LinkLayerContract, LinkNode
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks, needs_bpf
from support.memory_links import MemoryLinks

from hostrouting.host import LinkLayer, Neighbour, RouteBackend, Station
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.device_codec import parse_stations
from hostrouting.host.netlink.frames import attribute
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.testing import KernelNode

POD_MAC = "12:34:56:78:9a:bc"


class TestMemoryLinkLayer(LinkLayerContract):
    """The contract on the fake."""

    @pytest.fixture
    def node(self) -> MemoryLinks:
        return MemoryLinks()

    @pytest.fixture
    def layer(self, node: MemoryLinks) -> LinkLayer:
        return node

    @pytest.fixture
    def backend(self, node: MemoryLinks) -> RouteBackend:
        return node.node


@needs_kernel
class TestNetlinkLinkLayer(LinkLayerContract):
    """The contract on the kernel."""

    @pytest.fixture
    def node(self) -> Iterator[KernelLinks]:
        with KernelNode.made() as made, KernelLinks(made) as links:
            yield links

    @pytest.fixture
    def backend(self, node: KernelLinks) -> RouteBackend:
        return NetlinkBackend(netns=node.name)

    @needs_bpf()
    def test_programs_of_both_directions_are_named(self, eth0: LinkNode, layer: LinkLayer) -> None:
        """See the contract."""
        super().test_programs_of_both_directions_are_named(eth0, layer)


# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelLinks]:
    with KernelNode.made() as made:
        links = KernelLinks(made)
        links.add_device(
            "azure0",
            kind="bridge",
            mac="02:00:00:00:0a:00",
            addresses=["10.240.0.4/16", "fd00:1::4/64"],
        )
        links.add_device("azv1", kind="veth", master="azure0")
        links.add_device("azv2", kind="veth")
        yield links


@pytest.fixture
def layer(node: KernelLinks) -> NetlinkLinkLayer:
    return NetlinkLinkLayer(netns=node.name)


def variety(node: KernelLinks) -> None:
    """Neighbours with every detail that `ip` can give them."""
    node.kernel.ip(f"neigh add 10.240.0.9 lladdr {POD_MAC} dev azure0 nud permanent")
    learnt = "dev azure0 nud permanent extern_learn protocol 44"
    node.kernel.ip(f"neigh add 10.240.0.10 lladdr {POD_MAC} {learnt}")
    node.kernel.ip(f"neigh add fd00:1::9 lladdr {POD_MAC} dev azure0 nud permanent router")
    node.kernel.ip(f"neigh add 10.240.0.11 lladdr {POD_MAC} dev azv2 nud stale")


def test_a_station_in_several_vlans_is_one() -> None:
    """A station in several VLANs is listed once.

    The messages are packed here, as not every kernel has VLANs.
    """
    entry = struct.pack("=BxxxiHBB", 7, 5, 0x2, 0, 0) + attribute(
        2, bytes.fromhex(POD_MAC.replace(":", ""))
    )
    entry += attribute(9, struct.pack("=I", 3))
    packed = [entry, *(entry + attribute(5, struct.pack("=H", vlan)) for vlan in (1, 33))]
    names = {3: "azure0", 5: "azv1"}
    assert parse_stations(packed, names, "azure0") == [Station(POD_MAC, "azv1")]
    assert parse_stations(packed, names, "azv1") == []


@needs_kernel
def test_neighbours_with_every_detail_are_removed(
    node: KernelLinks, layer: NetlinkLinkLayer
) -> None:
    """Neighbours are removed whatever flags and protocol they have, also one in use, which the
    kernel keeps as failed.
    """
    variety(node)
    send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('10.240.0.9', 9))"
    node.kernel.run(sys.executable, "-c", send)
    layer.remove_neighbours(layer.neighbours())
    assert layer.neighbours() == []


@needs_kernel
def test_an_agent_may_call_it_inside_its_event_loop(
    node: KernelLinks, layer: NetlinkLinkLayer
) -> None:
    """The link layer reads and changes neighbours in a coroutine, where pyroute2's own loop could
    not run.
    """
    variety(node)

    async def work() -> list[Neighbour]:
        known = layer.neighbours()
        layer.remove_neighbours(known)
        assert layer.stations("azure0")
        assert layer.classifiers("azure0") == ()
        return known

    assert asyncio.run(work()) != []
    assert layer.neighbours() == []


@needs_kernel
def test_without_privilege_nothing_is_changed(node: KernelLinks) -> None:
    """Neighbours can be read without privilege; changing them without privilege is a
    `PermissionDeniedError`.
    """
    node.add_neighbour("10.240.0.9", "azure0", POD_MAC)
    program = """
from hostrouting.exceptions import PermissionDeniedError
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
layer = NetlinkLinkLayer()
assert layer.stations("azure0")
try:
    layer.remove_neighbours(layer.neighbours())
except PermissionDeniedError as error:
    print(error, error.errno, len(layer.neighbours()))
"""
    assert node.kernel.run(*powerless(), sys.executable, "-c", program) == (
        f"removing neighbours needs root or CAP_NET_ADMIN {errno.EPERM} 1\n"
    )
