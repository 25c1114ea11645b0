"""Nodes on which a Watch runs in a thread: a fake one, or a network namespace with a fake disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import attrs
from support.kernel import connect
from support.run_nodes import own_routes

from hostrouting import Host, HostRoutingConfig, Watch
from hostrouting.testing import Node
from phases import Context
from phases.context import wait

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
OWN_ROUTES = [
    "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
    "172.16.2.0/24 via 10.225.0.1 dev eth1 proto 142",
]
SECONDS = 60


@attrs.frozen
class Running:
    """A Watch that runs in a thread."""

    ctx: Context
    thread: Thread
    errors: list[BaseException]

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until something holds. Events wake this; a line in the log has none, so it looks
        again by itself.
        """
        now = self.ctx.clock.monotonic
        end = now() + SECONDS
        while not wait(self.ctx, done, until=now() + 0.05):
            assert now() < end, f"not within {SECONDS} s"
            assert self.errors == []

    def ends(self) -> bool:
        """Return True if the Watch ends by itself."""
        self.thread.join(SECONDS)
        return not self.thread.is_alive()


@contextmanager
def running(watch: Watch) -> Iterator[Running]:
    """Run a Watch in a thread until the end of the block; it must end with its context, without an
    error.
    """
    ctx = Context()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            watch.do(ctx)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    try:
        yield Running(ctx, thread, errors)
    finally:
        ctx.cancel("the test ends")
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert errors == []


@attrs.frozen
class Watched:
    """A node on which a Watch runs."""

    host: Host
    node: Node
    _running: Running

    def own_routes(self) -> list[str]:
        return sorted(own_routes(self.host))

    def delete(self, text: str) -> None:
        """Let another program delete the route that `ip` shows so."""
        self.node.delete_route(
            next(route for route in self.host.routes.routes() if str(route) == text)
        )

    def until(self, done: Callable[[], bool]) -> None:
        self._running.until(done)

    def until_repaired(self, routes: list[str] | None = None) -> None:
        self.until(lambda: self.own_routes() == (OWN_ROUTES if routes is None else routes))


@contextmanager
def watching(host: Host, node: Node, config: HostRoutingConfig = CONFIG) -> Iterator[Watched]:
    """Run a Watch as `running` does; in the block its routes are in force."""
    with running(Watch(config, host=host)) as watch:
        watched = Watched(host, node, watch)
        watched.until_repaired()
        yield watched


def arrange(node: Node) -> None:
    connect(node, eth0="10.224.0.4/16", eth1="10.225.0.4/16")
