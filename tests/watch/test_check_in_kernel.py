"""A watch checks the expected CIDRs in network namespaces: a carrier that goes, devices, rules,
storms of routes.
"""

import logging
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import attrs
import pytest
from support.kernel import kernel_host, needs_kernel
from support.kernel_links import KernelLinks
from support.watched_nodes import running

from hostrouting import Host, HostRoutingConfig, Watch
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import KernelNode
from hostrouting.testing.contracts.routes import arrange

pytestmark = needs_kernel

CONFIG = HostRoutingConfig.from_mapping(
    {
        "routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]},
        "watch": {"enabled": True, "interval": "2s"},
    }
)


@attrs.frozen
class Watched:
    """A namespace in which a Watch runs."""

    host: Host
    node: KernelNode
    until: Callable[[Callable[[], bool]], None]

    def until_marked(self, text: str) -> None:
        """Wait for a marker with this text; that of a good check is `ok`."""
        exists = self.host.files.exists
        read = self.host.files.read
        if text == "ok":
            self.until(lambda: exists(MARKER_OK) and not exists(MARKER_DETECTED))
        else:
            self.until(lambda: text in (read(MARKER_DETECTED) or b"").decode())


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Iterator[Watched]:
    caplog.set_level(logging.INFO)
    with KernelNode.made() as node, KernelLinks(node) as links:
        links.add_device("eth0", addresses=["10.224.0.4/16"])
        links.add_device("ib0")
        arrange(node, "default via 10.224.0.1 dev eth0")
        host = kernel_host(node)
        with running(Watch(CONFIG, host=host)) as watch:
            found = Watched(host, node, watch.until)
            found.until_marked("ok")
            yield found


@pytest.mark.slow
def test_the_carrier_goes_and_returns(watched: Watched) -> None:
    """A default route through a device without a carrier is a dead end, until the carrier returns."""
    for _ in range(2):
        watched.node.ip("link set eth0-far down")
        watched.until_marked("dead-end")
        watched.node.ip("link set eth0-far up")
        watched.until_marked("ok")


@pytest.mark.slow
def test_devices_and_rules(watched: Watched) -> None:
    """The findings about a device end with the device; a rule to a table of the fabric is a finding
    until it is deleted.
    """
    arrange(watched.node, "172.16.4.0/24 dev ib0")
    watched.until_marked("172.16.4.0-172.16.4.255 through ib0")
    watched.node.remove_link("ib0")
    watched.until_marked("ok")
    arrange(watched.node, "172.16.0.0/12 dev eth0-far table 100")
    watched.node.ip("rule add to 172.16.9.0/24 lookup 100")
    watched.until_marked("172.16.9.0-172.16.9.255 through eth0-far")
    watched.node.ip("rule delete to 172.16.9.0/24")
    watched.until_marked("ok")


def storm(node: KernelNode, seed: int, count: int) -> None:
    """Change few places at random; the kernel refuses a part."""
    random = Random(seed)
    verbs = ["add", "append", "prepend", "replace", "delete"]
    lines = [
        f"route {random.choice(verbs)} 172.16.{random.randrange(8)}.0/{random.choice([24, 25])} "
        f"via 10.224.0.{random.randrange(1, 5)} metric {random.choice([0, 50])}"
        for _ in range(count)
    ]
    command = ["ip", "-n", node.name, "-force", "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)


def test_a_nexthop_object(watched: Watched) -> None:
    """A finding about a route by a nexthop object ends with the object, whose routes the kernel
    deletes in silence.
    """
    watched.node.ip("nexthop add id 7 dev ib0")
    watched.node.ip("route add 172.16.9.0/24 nhid 7")
    watched.until_marked("172.16.9.0-172.16.9.255 through ib0")
    watched.node.ip("nexthop delete id 7")
    watched.until_marked("ok")


def test_a_setting(watched: Watched) -> None:
    """A route without carrier that `ignore_routes_with_linkdown` revives in silence is a finding."""
    watched.node.ip("route add 172.16.9.0/24 dev ib0")
    watched.until_marked("172.16.9.0-172.16.9.255 through ib0")
    watched.node.ip("link set ib0-far down")
    watched.node.run("sysctl", "-qw", "net.ipv4.conf.ib0.ignore_routes_with_linkdown=1")
    watched.until_marked("ok")
    watched.node.run("sysctl", "-qw", "net.ipv4.conf.ib0.ignore_routes_with_linkdown=0")
    watched.until_marked("172.16.9.0-172.16.9.255 through ib0")


@pytest.mark.slow
def test_a_storm_of_two_programs(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """While two programs change the same places, nothing is logged, and a route that comes
    afterwards is checked.
    """
    with ThreadPoolExecutor() as pool:
        for _ in range(4):
            list(pool.map(storm, [watched.node] * 2, (1, 2), (3000, 3000)))
    arrange(watched.node, "172.16.200.0/24 dev ib0")
    watched.until_marked("172.16.200.0-172.16.200.255 through ib0")
    assert caplog.text.count(": overlap") == 1
