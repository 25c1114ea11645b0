"""A watch that a signal ends gives up a reading, and never stops in the middle of a repair."""

import os
import signal
from collections.abc import Sequence

import attrs
import pytest
from support.run_nodes import own_routes
from support.watched_nodes import CONFIG, OWN_ROUTES, arrange

from hostrouting import RouteOverlapConfig, Watch
from hostrouting.host import IPV4, ObservedRoute, Route, RouteChange
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context, Serial, Task, run, with_timeout
from phases.hosting import cancel_on_signals, reason_of

SECONDS = 60
PROVEN = attrs.evolve(CONFIG, route_overlap=RouteOverlapConfig(expected_cidrs=("172.16.0.0/12",)))


class LongReadings(MemoryBackend):
    """A node with so many routes that its readings and batches last; SIGTERM comes in the middle of
    one of these.
    """

    def __init__(self, *, signalled: int) -> None:
        super().__init__()
        self.left = signalled
        self.changes: list[str] = []
        self.is_whole = False

    def last(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(100_000):
                pass
            self.is_whole = True

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        self.last()
        return super().routes(family)

    def apply(self, changes: Sequence[RouteChange], *, verify: bool = True) -> None:
        self.last()
        super().apply(changes, verify=verify)
        self.changes += map(str, changes)


def watched(node: LongReadings) -> None:
    with cancel_on_signals(Context(timeout=2 * SECONDS)) as ctx:
        Watch(PROVEN, host=FakeHost(node)).do(ctx)
    assert reason_of(ctx) == "SIGTERM"


@pytest.mark.parametrize("signalled", [1, 2, 3])
def test_a_run_that_sigterm_ends_is_ok(signalled: int) -> None:
    """A run of a watch that SIGTERM ends is ok and not degraded, be it in a reading, in a batch, or
    inside other tasks.
    """
    for is_inside in False, True:
        node = LongReadings(signalled=signalled)
        arrange(node)
        node.left = signalled
        watch: Task = Watch(PROVEN, host=FakeHost(node))
        watch = with_timeout(Serial(watch), SECONDS) if is_inside else watch
        report = run(watch, handle_signals=True)
        assert node.left <= 0
        assert report.status == "ok"
        assert not report.degraded
        assert report.error is None


def test_a_run_whose_deadline_ends_a_watch_is_ok() -> None:
    """A watch that its deadline ends is ok, as one that a signal ends."""
    watch = Watch(PROVEN, host=FakeHost())
    for limited in watch, with_timeout(watch, 0.05):
        assert run(limited, timeout=0.1).status == "ok"


def test_the_reading_of_a_proof_is_given_up() -> None:
    """SIGTERM during the reading of a check ends the watch before the reading is complete."""
    node = LongReadings(signalled=1)
    arrange(node)
    # The repair finds its routes in force and changes nothing.
    for route in CONFIG.static_routes.routes:
        node.insert_route(Route.parse(route.destination, gateway=route.gateway, dev=route.dev))
    node.left = 2
    watched(node)
    assert not node.is_whole


def test_a_repair_that_has_begun_ends() -> None:
    """SIGTERM during the batch of a repair does not stop the batch."""
    node = LongReadings(signalled=2)
    arrange(node)
    watched(node)
    assert node.is_whole
    assert own_routes(FakeHost(node)) == OWN_ROUTES
