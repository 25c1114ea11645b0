"""Watch beside runs never fights one, and ends with a reset."""

from collections.abc import Iterator

import attrs
import pytest
from support.kernel import kernel_host, needs_kernel
from support.watched_nodes import (
    CONFIG,
    OWN_ROUTES,
    SECONDS,
    arrange,
    own_routes,
    running,
)

from hostrouting import Configure, HostRoutingConfig, Reset, Watch
from hostrouting.host import OUR_PROTOCOL, Host, Listener, RouteEvent
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


def apply(config: HostRoutingConfig, host: Host, listener: Listener, watch: Watch) -> None:
    """Apply a config; the watch then looks at all routes, and changes none."""
    execute(Configure(config, host=host))
    wanted = own_routes(host)
    listener.take()
    looks = Context(timeout=SECONDS)
    done: list[bool] = []

    def read() -> HostRoutingConfig:
        # The task calls this in the round after the one that is under way.
        done.append(True)
        notify(looks)
        return config

    for _ in range(2):
        done.clear()
        watch.reload(read)
        assert wait(looks, lambda: bool(done), until=looks.deadline)
    events = [event for event in listener.take() if isinstance(event, RouteEvent)]
    assert [event for event in events if event.route.protocol == OUR_PROTOCOL] == []
    assert own_routes(host) == wanted


@pytest.mark.parametrize("rounds", [3, pytest.param(500, marks=pytest.mark.soak)])
def test_watch_beside_runs(node: KernelNode, rounds: int) -> None:
    """After each apply a watch beside it changes no own route; after a reset it ends, and all
    of them are gone.
    """
    host = kernel_host(node)
    with host.events.listen(Context()) as listener:
        for _ in range(rounds):
            watch = Watch(CONFIG, host=host)
            execute(Configure(CONFIG, host=host))
            with running(watch) as running_watch:
                for config, wanted in (CONFIG, OWN_ROUTES), (OTHER, OTHERS), (CONFIG, OWN_ROUTES):
                    apply(config, host, listener, watch)
                    assert own_routes(host) == wanted
                execute(Reset(HostRoutingConfig(), host=host))
                assert running_watch.ends()
            assert own_routes(host) == []
