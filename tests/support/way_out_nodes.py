"""A node in memory or in the kernel, and the check of its way out; in the kernel the program of a
boot must give the same answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.kernel import connect
from support.overlap_answers import may_start

from hostrouting import HostRoutingConfig
from hostrouting.host import Address, NextHop, Route
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.route_overlap.report import OverlapReport
from hostrouting.route_overlap.waiting import check_with_wait
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from phases import Context


class WayOutNode:
    """A node with eth0 and eth1, without routes; `node` is there to arrange more."""

    def __init__(self, node: MemoryBackend | KernelNode) -> None:
        self.node = node

    def links(self, *devs: str, dead: str = "") -> None:
        """Add devices, each with the address behind its name, or with its usual one; one may be
        without a carrier.
        """
        for text in devs:
            dev, _, address = text.partition(" ")
            self.node.add_link(dev, carrier=dev != dead)
            self.node.add_address(dev, address or ADDRESSES[dev])

    def default(self, *devs: str, metric: int = 0) -> None:
        """Add a default route by each of the devices; the gateway is the first address of the
        network of the device.
        """
        hops = tuple(NextHop(Address.parse(GATEWAYS[dev]), dev) for dev in devs)
        way: dict[str, Any] = {"nexthops": hops}
        if len(hops) == 1:
            way = {"gateway": hops[0].gateway, "dev": hops[0].dev}
        route = Route(network=0, prefix_length=0, metric=metric, protocol=16, **way)
        self.node.insert_route(route, verb="append")

    def prove(self, *cidrs: str, **section: object) -> OverlapReport:
        """Return the report of the check; in the kernel the program of a boot must give the
        same answer.
        """
        mapping = {"expectedCidrs": list(cidrs), "mode": "STRICT", **section}
        config = HostRoutingConfig.from_mapping({"routeOverlap": mapping})
        routes = (
            NetlinkBackend(netns=self.node.name) if isinstance(self.node, KernelNode) else self.node
        )
        report = check_with_wait(Context(), config, FakeHost(routes), seconds=0)
        if isinstance(self.node, KernelNode):
            assert may_start(self.node, cidrs, options=section) == report.ok
        return report


#: By device, the router on its link.
GATEWAYS = {"eth0": "10.224.0.1", "eth1": "10.225.0.1", "ib0": "172.16.0.1", "cni0": "10.244.0.1"}
ADDRESSES = {
    "eth0": "10.224.0.4/16",
    "eth1": "10.225.0.4/16",
    "ib0": "172.16.1.4/16",
    "cni0": "10.244.0.1/24",
}


@contextmanager
def dead_default() -> Iterator[KernelNode]:
    """Enter a node with a default route through eth0, and one of a higher metric by eth1, which has no
    carrier and which the kernel passes over.
    """
    with KernelNode.made() as node:
        connect(node, eth0="10.224.0.4/16")
        node.add_link("eth1", carrier=False)
        node.add_address("eth1", "10.225.0.4/16")
        node.run("sysctl", "-qw", "net.ipv4.conf.eth1.ignore_routes_with_linkdown=1")
        arrange(
            node,
            "default via 10.224.0.1 dev eth0 metric 100",
            "default via 10.225.0.1 dev eth1 metric 200",
        )
        assert "default via 10.225.0.1 dev eth1 metric 200 dead linkdown" in node.ip("route show")
        yield node
