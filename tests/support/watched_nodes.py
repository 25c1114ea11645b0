"""Nodes on which a Watch runs in a thread: a fake one, or a network namespace with a fake disk."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

import attrs

from hostrouting import HostRoutingConfig
from hostrouting.host import OUR_PROTOCOL, Host
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.events import NetlinkEvents
from hostrouting.testing import FakeHost
from hostrouting.watch import Watch
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostrouting.testing import KernelNode
    from hostrouting.testing.node import Node

__all__ = ["CONFIG", "OURS", "SECONDS", "Watched", "arrange", "kernel_host", "watching"]

CONFIG = HostRoutingConfig.from_mapping(
    {
        "staticRoutes": {
            "enabled": True,
            "routes": [
                {"destination": "172.16.1.0/24", "gateway": "10.224.0.1", "dev": "eth0"},
                {"destination": "172.16.2.0/24", "gateway": "10.225.0.1", "dev": "eth1"},
            ],
        }
    }
)
OURS = ["172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142", "172.16.2.0/24 via 10.225.0.1 dev eth1 proto 142"]
SECONDS = 60


@attrs.frozen
class Watched:
    """A node on which a Watch runs."""

    host: Host
    node: Node
    ctx: Context

    def ours(self) -> list[str]:
        return sorted(str(route) for route in self.host.routes.routes() if route.protocol == OUR_PROTOCOL)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until something holds. Events wake this; a line in the log has none, so it looks again by itself."""
        now = self.ctx.clock.monotonic
        end = now() + SECONDS
        while not self.ctx.wait(done, until=now() + 0.05):
            assert now() < end, f"not within {SECONDS} s; ours are {self.ours()}"

    def until_repaired(self, ours: list[str] | None = None) -> None:
        self.until(lambda: self.ours() == (OURS if ours is None else ours))


@contextmanager
def watching(host: Host, node: Node, config: HostRoutingConfig = CONFIG) -> Iterator[Watched]:
    """Run a Watch in a thread until the end of the block; it must end with its context, without an error."""
    ctx = Context()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            Watch(config, host=host).do(ctx)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    watched = Watched(host, node, ctx)
    try:
        watched.until(lambda: bool(errors) or watched.ours() == OURS)
        yield watched
    finally:
        ctx.cancel("the test ends")
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert errors == []


def arrange(node: Node) -> None:
    for name, address in ("eth0", "10.224.0.4/16"), ("eth1", "10.225.0.4/16"):
        node.add_link(name)
        node.add_address(name, address)


def kernel_host(node: KernelNode) -> Host:
    """Return a host with the routes and events of a namespace, and a disk in memory."""
    fake = FakeHost()
    return Host(
        routes=NetlinkBackend(netns=node.name),
        events=NetlinkEvents(netns=node.name),
        files=fake.files,
        lock=fake.lock,
        services=fake.services,
    )
