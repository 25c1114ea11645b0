"""Watch keeps and proves IPv6 beside IPv4: links that flap, places that others share, late
advertisements.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import pytest
from support.kernel import needs_kernel
from support.routers import Prefix, Router, WiredNode
from support.watched_nodes import Running, kernel_host, running

from hostrouting import HostRoutingConfig
from hostrouting.host import OUR_PROTOCOL
from hostrouting.net.routes import Route
from hostrouting.node.watch import Watch
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context

OURS = Route.parse("fd00:1::/64", gateway="fd00:9::1", dev="eth0", metric=1)
TEXT = "fd00:1::/64 via fd00:9::1 dev eth0 proto 142 metric 1"
WANTED = {"destination": "fd00:1::/64", "gateway": "fd00:9::1", "dev": "eth0"}
IPV4_ROUTE = {"destination": "172.16.1.0/24", "gateway": "10.224.0.1", "dev": "eth0"}


def config_of(*routes: dict[str, str], **more: object) -> HostRoutingConfig:
    section = {"staticRoutes": {"enabled": True, "routes": list(routes)}} if routes else {}
    return HostRoutingConfig.from_mapping({**section, **more})


def ours(node: WiredNode) -> list[str]:
    return node.ip(f"-6 route show proto {OUR_PROTOCOL}").splitlines()


def until_kept(watch: Running, node: WiredNode) -> None:
    watch.until(lambda: len(ours(node)) == 1)


def test_a_fake_node(caplog: pytest.LogCaptureFixture) -> None:
    """A route of either family comes back, and a reload brings the other family."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_address("eth0", "fd00:9::4/64")
    host = FakeHost(node)
    watch = Watch(config_of(IPV4_ROUTE), host=host)

    def standing() -> list[str]:
        return [
            str(route) for family in node.families for route in node.routes_of(OUR_PROTOCOL, family)
        ]

    with running(watch) as running_watch:
        running_watch.until(lambda: len(standing()) == 1)
        watch.reload(lambda: config_of(IPV4_ROUTE, WANTED))
        running_watch.until(lambda: standing()[1:] == [TEXT])
        for _ in range(3):
            node.delete_route(OURS)
            running_watch.until(lambda: standing()[1:] == [TEXT])
        watch.reload(lambda: config_of(IPV4_ROUTE))
        running_watch.until(lambda: len(standing()) == 1)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@contextmanager
def wired(*devs: str) -> Iterator[WiredNode]:
    with WiredNode.made() as node:
        node.add_links(*devs)
        node.ip("address add 10.224.0.4/16 dev eth0")
        node.add_route("default", gateway="10.224.0.1", dev="eth0")
        # A neighbour that is no router ends its default route.
        node.far.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
        yield node


@needs_kernel
def test_a_link_that_flaps(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel deletes routes with their link, and says so: that is no contest, and they are back
    with an address.
    """
    with wired("eth0") as node:
        node.hold("eth0", "fd00:9::4/64")
        with running(Watch(config_of(WANTED), host=kernel_host(node))) as watch:
            for _ in range(6):
                until_kept(watch, node)
                node.set_up("eth0", up=False)
                assert ours(node) == []
                node.set_up("eth0")
                node.hold("eth0", "fd00:9::4/64")
            until_kept(watch, node)
    assert "within an hour" not in caplog.text


@needs_kernel
def test_a_place_that_another_program_takes(caplog: pytest.LogCaptureFixture) -> None:
    """Its route stays and is named; ours returns when the place is empty. A merge by `append` is
    found, too.
    """
    with wired("eth0") as node:
        node.hold("eth0", "fd00:9::4/64")
        with running(Watch(config_of(WANTED), host=kernel_host(node))) as watch:
            until_kept(watch, node)
            other = ("fd00:1::/64", "via", "fd00:9::7", "dev", "eth0", "metric", "1")
            node.ip("-6 route replace", *other)
            watch.until(lambda: "waits" in caplog.text)
            assert "via fd00:9::7" in node.ip("-6 route show fd00:1::/64")
            node.ip("-6 route delete", *other)
            until_kept(watch, node)
            caplog.clear()
            node.ip("-6 route append", *other)
            watch.until(lambda: "fd00:9::7" in caplog.text)


@attrs.frozen
class Proven:
    """A wired node whose watch proves an IPv6 address."""

    node: WiredNode
    router: Router
    _watch: Running
    _exists: Callable[[str], bool]

    def until(self, marker: str) -> None:
        other = {MARKER_OK: MARKER_DETECTED, MARKER_DETECTED: MARKER_OK}[marker]
        self._watch.until(lambda: self._exists(marker) and not self._exists(other))

    def is_quiet_for(self, seconds: float) -> bool:
        """Return True if there is no alarm for some seconds."""
        ctx = Context()
        return not ctx.wait(
            lambda: self._exists(MARKER_DETECTED), until=ctx.clock.monotonic() + seconds
        )


@pytest.fixture
def proven(caplog: pytest.LogCaptureFixture) -> Iterator[Proven]:
    caplog.set_level(logging.INFO)
    watched = {"enabled": True, "interval": "3s"}
    config = config_of(routeOverlap={"expected": ["aws-ipv6"]}, watch=watched)
    with wired("eth0", "rdma0") as node, node.router("eth0") as router:
        router.advertise(lifetime=3, options=[Prefix("fd00:5::/64")])
        host = kernel_host(node)
        with running(Watch(config, host=host)) as watch:
            found = Proven(node, router, watch, host.files.exists)
            found.until(MARKER_OK)
            yield found


@needs_kernel
@pytest.mark.slow
def test_a_renewal_is_no_alarm_and_an_end_is_one(proven: Proven) -> None:
    """No event tells of a renewal, nor for long of an end: the watch wakes when the route would
    end, and looks.
    """
    for _ in range(5):
        assert proven.is_quiet_for(1)
        proven.router.advertise(lifetime=3)
    proven.until(MARKER_DETECTED)
    # The kernel still shows it.
    assert "expires -" in proven.node.ip("-6 route show default")
    proven.router.advertise()
    proven.until(MARKER_OK)


@needs_kernel
@pytest.mark.slow
def test_the_next_advertisement_mends_a_loss(proven: Proven) -> None:
    """The kernel deletes what it learned when any device forwards: no alarm for an interval, a
    router may mend it.
    """
    proven.router.advertise()
    proven.until(MARKER_OK)
    proven.node.switch(rdma0__forwarding=1)
    assert proven.node.ip("-6 route show default") == ""
    assert proven.is_quiet_for(2)
    proven.router.advertise()
    assert proven.is_quiet_for(4)
    proven.node.switch(rdma0__forwarding=1)
    proven.until(MARKER_DETECTED)


@needs_kernel
@pytest.mark.slow
def test_a_better_router_of_the_fabric(proven: Proven) -> None:
    """Its default route decides, and is an alarm at once; so is a link that went down, as no router
    mends that.
    """
    proven.router.advertise()
    with proven.node.router("rdma0") as fabric:
        fabric.advertise(preference="high")
        proven.until(MARKER_DETECTED)
        fabric.advertise(lifetime=0)
        proven.until(MARKER_OK)
    proven.node.set_up("eth0", up=False)
    proven.until(MARKER_DETECTED)
