"""A watch never fights a run next to it, and ends with a reset."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from support.kernel import kernel_host, needs_kernel
from support.run_nodes import own_routes
from support.watched_nodes import (
    CONFIG,
    OWN_ROUTES,
    SECONDS,
    arrange,
    running,
)

from hostrouting import Configure, HostRoutingConfig, Reset, Watch
from hostrouting.host import OUR_PROTOCOL, Host, Listener
from hostrouting.net.events import RouteEvent
from hostrouting.static_routes.reconcile import Routes, read
from hostrouting.testing import KernelNode
from phases import Context, execute
from phases.context import notify, wait

pytestmark = needs_kernel

#: Without the second route, and with another gateway for the first one.
OTHER = attrs.evolve(
    CONFIG,
    static_routes=attrs.evolve(
        CONFIG.static_routes,
        routes=(attrs.evolve(CONFIG.static_routes.routes[0], gateway="10.224.0.2"),),
    ),
)
OTHERS = ["172.16.1.0/24 via 10.224.0.2 dev eth0 proto 142"]


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        arrange(node)
        yield node


class Looks:
    """The looks of a watch at all routes."""

    def __init__(self, node: KernelNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = node
        self._ctx = Context(timeout=SECONDS)
        self._count = 0
        monkeypatch.setattr("hostrouting.static_routes.plan.read", self._read)

    def _read(self, *given: Any) -> Routes:
        self._count += 1
        notify(self._ctx)
        return read(*given)

    def wait(self) -> None:
        """Return after a look that began after this call: another default route causes each."""
        for verb in "add", "delete":
            before = self._count
            self._node.run("ip", "route", verb, "blackhole", "default", "metric", "4000")
            assert wait(self._ctx, lambda: self._count > before, until=self._ctx.deadline)  # noqa: B023


def apply(config: HostRoutingConfig, host: Host, listener: Listener, looks: Looks) -> None:
    """Apply a config; the watch then looks at all routes, and changes none."""
    execute(Configure(config, host=host))
    wanted = own_routes(host)
    listener.take()
    looks.wait()
    events = [event for event in listener.take() if isinstance(event, RouteEvent)]
    assert [event for event in events if event.route.protocol == OUR_PROTOCOL] == []
    assert own_routes(host) == wanted


@pytest.mark.parametrize("rounds", [3, pytest.param(500, marks=pytest.mark.soak)])
def test_watch_beside_runs(node: KernelNode, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch leaves the own routes of an apply next to it as they are, and ends after a reset,
    which removes all of them.
    """
    host = kernel_host(node)
    looks = Looks(node, monkeypatch)
    with host.events.listen(Context()) as listener:
        for _ in range(rounds):
            watch = Watch(CONFIG, host=host)
            execute(Configure(CONFIG, host=host))
            with running(watch) as running_watch:
                for config, wanted in (CONFIG, OWN_ROUTES), (OTHER, OTHERS), (CONFIG, OWN_ROUTES):
                    apply(config, host, listener, looks)
                    assert own_routes(host) == wanted
                execute(Reset(HostRoutingConfig(), host=host))
                assert running_watch.ends()
            assert own_routes(host) == []
