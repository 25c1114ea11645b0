"""A watch over a fake node and over the kernel repairs what other programs do to the routes of a
config.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
from support.kernel import kernel_host, needs_kernel
from support.printed import FOLDER, NOT_REPAIRED
from support.run_nodes import own_routes, put_in_force
from support.watched_nodes import (
    CONFIG,
    OWN_ROUTES,
    Running,
    arrange,
    running,
    watching,
)

from hostrouting import Configure, HostRoutingConfig, Reset, StaticRoute, Watch, WatchConfig
from hostrouting.boot.installed_config import NewConfig
from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.boot.reconciler import InstalledConfig
from hostrouting.exceptions import BackendError
from hostrouting.host import OUR_PROTOCOL, Address, NextHop, Route, RouteChange
from hostrouting.testing import FakeHost, KernelNode, MemoryBackend
from hostrouting.testing.route_texts import route
from phases import Context, execute

FOREIGN = route("172.16.1.0/24 via 10.224.0.9 dev eth0 proto dhcp")


@pytest.fixture
def host() -> FakeHost:
    backend = MemoryBackend()
    arrange(backend)
    return FakeHost(backend)


def until_listening(watch: Running, host: FakeHost) -> None:
    watch.until(lambda: host.events.operations.calls != [])


@needs_kernel
def test_a_next_hop_of_the_default_route_revives() -> None:
    """A route without a device leaves through the first next hop that lives, also after that hop came
    back in silence.
    """
    third = route("172.16.3.0/24 via 10.224.0.1 dev eth0 proto 142")
    hops = (
        NextHop(Address.parse("10.224.0.1"), "eth0"),
        NextHop(Address.parse("10.225.0.1"), "eth1"),
    )
    incomplete = attrs.evolve(
        CONFIG.static_routes, routes=(StaticRoute(destination="172.16.3.0/24"),)
    )
    config = attrs.evolve(CONFIG, static_routes=incomplete)
    with KernelNode.made() as node:
        arrange(node)
        with watching(kernel_host(node), node) as watched:
            watched.host.files.write(CONFIG_PATH, NewConfig(config=config).file.content, mode=0o644)
            watched.delete(OWN_ROUTES[0])
            node.insert_route(Route(network=0, prefix_length=0, nexthops=hops, protocol=4))
            watched.until_repaired([str(third)])
            node.set_up("eth0", up=False)
            watched.until_repaired(["172.16.3.0/24 via 10.225.0.1 dev eth1 proto 142"])
            node.set_up("eth0", up=True)
            watched.until_repaired([str(third)])


def test_everything_is_read_again_after_lost_events(host: FakeHost) -> None:
    """A watch reads all routes again after events for which the kernel lacked room, and restores a
    route.
    """
    assert isinstance(host.routes, MemoryBackend)
    config = attrs.evolve(CONFIG, watch=WatchConfig(interval=86_400))
    with watching(host, host.routes, config) as watched:
        host.events.most = 0
        watched.delete(OWN_ROUTES[0])
        watched.until_repaired()


def test_while_another_run_holds_the_lock(host: FakeHost) -> None:
    """A watch waits for another run of hostrouting while events come, and repairs the routes as
    soon as that run ends, even if there were too many events.
    """
    assert isinstance(host.routes, MemoryBackend)
    config = attrs.evolve(CONFIG, watch=WatchConfig(interval=86_400))
    with watching(host, host.routes, config) as watched:
        host.lock.holder = 4242
        watched.delete(OWN_ROUTES[0])
        host.events.most = 0
        watched.delete(OWN_ROUTES[1])
        assert watched.own_routes() == []
        host.lock.holder = None
        watched.until_repaired()


class TestTrouble:
    """A watch survives failures of other parts of the node."""

    def test_a_failure_is_logged_once(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A repair that fails twice is logged as one error, and a later one succeeds."""
        monkeypatch.setattr("hostrouting.watch.duty._SECONDS_AFTER_A_FAILURE", 0.1)

        class Failing(MemoryBackend):
            left = 0

            def apply(self, changes: Sequence[RouteChange], **options: Any) -> None:
                self.left -= 1
                if self.left >= 0:
                    raise BackendError("no buffer space")
                super().apply(changes, **options)

        node = Failing()
        arrange(node)
        host = FakeHost(node)
        with watching(host, node) as watched:
            for text in OWN_ROUTES:
                # For one place, and for all.
                node.left = 2
                watched.delete(text)
                watched.until(lambda: node.left <= 0)
            host.routes.insert_route(FOREIGN, verb="replace")
            watched.until_repaired()
        messages = [message for message in caplog.messages if NOT_REPAIRED in message]
        assert messages == [f"{NOT_REPAIRED}no buffer space"]


class TestIntent:
    """A watch keeps the routes of the installed config."""

    @pytest.fixture
    def host(self, host: FakeHost) -> FakeHost:
        host.files.write(
            "/lib/systemd/system/kubelet.service", b"[Service]\nExecStart=/bin/true\n", mode=0o644
        )
        execute(Configure(CONFIG, host=host))
        return host

    def test_a_reset_ends_it(self, host: FakeHost, caplog: pytest.LogCaptureFixture) -> None:
        """A watch ends after a reset, and does not restore a route."""
        caplog.set_level(logging.INFO)
        with running(Watch(CONFIG, host=host)) as watch:
            until_listening(watch, host)
            execute(Reset(HostRoutingConfig(), host=host))
            assert watch.ends()
        assert own_routes(host) == []
        assert "hostrouting was reset, so there is nothing to keep any more" in caplog.messages

    def test_a_reset_before_the_first_repair(self, host: FakeHost) -> None:
        """A reset while the first repair of a watch waits for the lock ends the watch without a
        route.
        """
        with ExitStack() as held:
            held.enter_context(host.lock.hold(Context()))
            with running(Watch(CONFIG, host=host)) as watch:
                until_listening(watch, host)
                host.files.remove(CONFIG_PATH)
                for route in [
                    route for route in host.routes.routes() if route.protocol == OUR_PROTOCOL
                ]:
                    host.routes.delete_route(route)
                held.close()
                assert watch.ends()
        assert own_routes(host) == []

    @pytest.mark.parametrize(
        ("content", "step"),
        [
            (b"{", ": hostrouting apply CONFIG"),
            (b"{}", ": hostrouting apply CONFIG"),
            (None, FOLDER),
        ],
    )
    def test_a_damaged_intent(
        self, host: FakeHost, content: bytes | None, step: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A damaged config, or a folder in its place, is logged once with the next step, and the
        routes of the former config are kept.
        """
        with watching(host, host.routes) as watched:
            if content is None:
                host.files.remove(CONFIG_PATH)
                host.files.make_directory(CONFIG_PATH)
            else:
                put_in_force(host, content)
            for _ in range(2):
                watched.delete(OWN_ROUTES[0])
                watched.until_repaired()
        [damage] = [
            message
            for message in caplog.messages
            if "the installed config cannot be read" in message
        ]
        assert damage.endswith(step)

    def test_a_reset_after_a_config_that_was_never_read(self) -> None:
        """The removal of a config that came damaged, and was never read, is a reset."""
        files = FakeHost().files
        installed = InstalledConfig(HostRoutingConfig(), files, logging.getLogger("watch"))
        files.write(CONFIG_PATH, b"{", mode=0o644)
        installed.read()
        assert not installed.is_reset
        files.remove(CONFIG_PATH)
        installed.read()
        assert installed.is_reset
