"""Watch among other programs and runs for long: it never fights a run, ends in the right state, and
does not grow.

Each test has a sample here and a long form under the marker `soak`.
"""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import attrs
import pytest
from support.kernel import kernel_host, needs_kernel
from support.watched_nodes import (
    CONFIG,
    OWN_ROUTES,
    SECONDS,
    Watched,
    arrange,
    own_routes,
    running,
    watching,
)

from hostrouting import BackendError, Configure, HostRoutingConfig, Reset, Watch
from hostrouting.host import OUR_PROTOCOL, Host, Listener, RouteEvent
from hostrouting.testing import KernelNode
from phases import Context, execute
from phases.hosting import notify, wait

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


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the routes come back soon, though the churn deletes and replaces them all the time."""
    monkeypatch.setattr("hostrouting.base.pace.LONGEST_PAUSE", 0.01)


@pytest.fixture
def node() -> Iterator[KernelNode]:
    with KernelNode.made() as node:
        arrange(node)
        yield node


# --- beside runs


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


# --- among changers


def _disturb(random: Random, node: KernelNode) -> None:
    """Do one thing that another program may do; it may fail, as there is nothing to delete."""
    dev = random.choice(("eth0", "eth1"))
    number = {"eth0": 224, "eth1": 225}[dev]
    destination = f"172.16.{random.randint(1, 3)}.0/24"
    gateway = f"10.{number}.0.{random.randint(1, 9)}"
    words = [
        f"route del {destination}",
        f"route replace {destination} via {gateway} dev {dev} proto 142",
        f"route append {destination} via {gateway} dev {dev} proto boot metric {random.choice((0, 7))}",
        f"route add {destination} via {gateway} dev {dev} proto bird table {random.choice((254, 99))}",
        f"route flush table {random.choice(('main', '99'))}",
        f"addr del 10.{number}.0.4/16 dev {dev}",
        f"addr add 10.{number}.0.4/16 dev {dev}",
        f"addr add 10.{number}.0.{random.randint(10, 20)}/16 dev {dev}",
        f"link set {dev} down",
        f"link set {dev} up",
        f"rule add priority {random.randint(100, 103)} to 10.9.0.0/16 table 99",
        f"rule del priority {random.randint(100, 103)}",
    ]
    _try(node, random.choice(words))


def _try(node: KernelNode, words: str) -> None:
    with suppress(BackendError):
        node.ip(*words.split())


def _settle(node: KernelNode) -> None:
    """Give back what the routes need: devices, addresses, the kernel's own routes, and no foreign
    route in the way.
    """
    for dev, number in ("eth0", 224), ("eth1", 225):
        node.ip(f"addr flush dev {dev}")
        node.ip(f"link set {dev} up")
        node.ip(f"addr add 10.{number}.0.4/16 dev {dev}")
    for protocol in "boot", "bird":
        _try(node, f"route flush proto {protocol}")


def churn(changes: int, watched: Watched, node: KernelNode, *, seed: int) -> None:
    """Let another program change the node at random, and wait for the right state after every
    thirty changes.
    """
    random = Random(seed)
    for number in range(changes):
        _disturb(random, node)
        if number % 30 == 29:
            _settle(node)
            watched.until_repaired()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [60, pytest.param(20_000, marks=pytest.mark.soak)])
def test_random_churn(node: KernelNode, changes: int) -> None:
    """After random changes of routes, addresses, links and rules the routes of the config are in
    force; neither memory nor descriptors leak. A busy node has fewer than 20,000 in an hour.
    """
    with watching(kernel_host(node), node) as watched:
        churn(max(30, changes // 10), watched, node, seed=1)
        tracemalloc.start()
        try:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            descriptors = _descriptors()
            churn(changes, watched, node, seed=2)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # A look that is under way has a few more.
        watched.until(lambda: _descriptors() <= descriptors)
        # Bounded memories fill up; a leak of a hundred bytes a change is more than this in the long
        # form.
        assert grown < 2_000_000, f"{grown} bytes more after {changes} changes"
