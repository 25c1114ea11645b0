"""A watch keeps and checks IPv6 next to IPv4: links that flap, places that others share, late
advertisements.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from support.kernel import connect, kernel_host, needs_kernel
from support.routers import Prefix, WiredNode
from support.watched_nodes import Running, running

from hostrouting import HostRoutingConfig, Watch
from hostrouting.boot.installed_config import NewConfig
from hostrouting.host import IPV6, OUR_PROTOCOL, ObservedRoute
from hostrouting.route_overlap.script import MARKER_DETECTED, MARKER_OK
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context
from phases.context import wait

WANTED = {"destination": "fd00:1::/64", "gateway": "fd00:9::1", "dev": "eth0"}


def config_of(*routes: dict[str, str], **more: object) -> HostRoutingConfig:
    section = {"staticRoutes": {"enabled": True, "routes": list(routes)}} if routes else {}
    return HostRoutingConfig.from_mapping({**section, **more})


def own_routes(node: WiredNode) -> list[str]:
    return node.ip(f"-6 route show proto {OUR_PROTOCOL}").splitlines()


def until_kept(watch: Running, node: WiredNode) -> None:
    watch.until(lambda: len(own_routes(node)) == 1)


def test_another_config_brings_the_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that brings another family brings a new listener for its events, and a route that is
    deleted before that listener begins is restored at once.
    """
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16")
    node.add_address("eth0", "fd00:9::4/64")
    host = FakeHost(node)
    ipv4 = {"destination": "172.16.1.0/24", "gateway": "10.224.0.1", "dev": "eth0"}
    seldom = {"watch": {"enabled": True, "interval": "1h"}}
    watch = Watch(config_of(ipv4, **seldom), host=host)
    listen = host.events.listen
    deleted = list[ObservedRoute]()

    def late(ctx: Context, *, families: Sequence[int]) -> object:
        for route in node.routes_of(OUR_PROTOCOL, IPV6):
            deleted.append(route)
            node.delete_route(route.to_route())
        return listen(ctx, families=families)

    monkeypatch.setattr(host.events, "listen", late)
    with running(watch) as running_watch:
        running_watch.until(lambda: node.routes_of(OUR_PROTOCOL) != [])
        other = NewConfig(config=config_of(WANTED, **seldom)).file
        host.files.write(other.path, other.content, mode=other.mode)
        node.delete_route(node.routes_of(OUR_PROTOCOL)[0].to_route())
        running_watch.until(lambda: deleted != [] and node.routes_of(OUR_PROTOCOL, IPV6) == deleted)


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
    """A route that the kernel deletes with its link is back once the link has its address, and six
    times of that are not a contest.
    """
    with wired("eth0") as node:
        node.hold("eth0", "fd00:9::4/64")
        with running(Watch(config_of(WANTED), host=kernel_host(node))) as watch:
            for _ in range(6):
                until_kept(watch, node)
                node.set_up("eth0", up=False)
                assert own_routes(node) == []
                node.set_up("eth0")
                node.hold("eth0", "fd00:9::4/64")
            until_kept(watch, node)
    assert "within an hour" not in caplog.text


@needs_kernel
def test_a_place_that_another_program_takes(caplog: pytest.LogCaptureFixture) -> None:
    """A foreign IPv6 route in the place of an own one stays and is named, and the own route returns
    when the place is empty.

    A foreign next hop that `append` merges into the own route is logged.
    """
    with wired("eth0") as node:
        node.hold("eth0", "fd00:9::4/64")
        with running(Watch(config_of(WANTED), host=kernel_host(node))) as watch:
            until_kept(watch, node)
            other = "fd00:1::/64", "via", "fd00:9::7", "dev", "eth0", "metric", "1"
            node.ip("-6 route replace", *other)
            watch.until(lambda: "waits" in caplog.text)
            assert "via fd00:9::7" in node.ip("-6 route show fd00:1::/64")
            node.ip("-6 route delete", *other)
            until_kept(watch, node)
            caplog.clear()
            node.ip("-6 route append", *other)
            watch.until(lambda: "fd00:9::7" in caplog.text)


@needs_kernel
@pytest.mark.slow
def test_the_next_advertisement_mends_a_loss() -> None:
    """A default route that the kernel deletes when a device forwards is an alarm only after an
    interval, since the next advertisement of a router may bring it back.
    """
    watched = {"enabled": True, "interval": "6s"}
    config = config_of(routeOverlap={"expected": ["aws-ipv6"]}, watch=watched)
    with wired("eth0", "rdma0") as node, node.router("eth0") as router:
        router.advertise(options=[Prefix("fd00:5::/64")])
        host = kernel_host(node)
        with running(Watch(config, host=host)) as watch:

            def is_alarmed() -> bool:
                return host.files.exists(MARKER_DETECTED)

            def is_quiet_for(seconds: float) -> bool:
                ctx = Context()
                return not wait(ctx, is_alarmed, until=ctx.clock.monotonic() + seconds)

            watch.until(lambda: host.files.exists(MARKER_OK))
            node.switch(rdma0__forwarding=1)
            assert node.ip("-6 route show default") == ""
            assert is_quiet_for(1)
            router.advertise()
            watch.until(lambda: node.ip("-6 route show default") != "")
            assert is_quiet_for(7)
            node.switch(rdma0__forwarding=1)
            watch.until(is_alarmed)
