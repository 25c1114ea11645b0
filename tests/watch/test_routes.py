"""The keeper decides about thousands of events of other programs for each repair that it makes."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

import pytest

from hostrouting.config import HostRoutingConfig, StaticRoute, StaticRoutesConfig
from hostrouting.fib.model import resting
from hostrouting.host import OUR_PROTOCOL, AddressEvent, DeviceEvent, Route, RouteEvent
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.watch.installed import InstalledConfig
from hostrouting.watch.routes import RouteKeeper
from phases import Context
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import Listener, NetworkEvent


ROUTE = StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0")


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


class CountedRoutes(tuple[StaticRoute, ...]):
    """The routes of a config; they count how often all of them are looked at."""

    __slots__ = ()
    passes = 0

    def __iter__(self) -> Iterator[StaticRoute]:
        CountedRoutes.passes += 1
        return super().__iter__()


EVENTS: list[NetworkEvent] = [
    RouteEvent("add", resting(Route.parse("10.9.0.0/16", gateway="10.224.0.9", dev="eth0", protocol=16))),
    DeviceEvent("set", Device("veth7", 7, up=True)),
    AddressEvent("set", "veth7", DeviceAddress.parse("10.9.0.1/24")),
]


class Kept:
    """A keeper of routes that no run has installed."""

    def __init__(self, node: MemoryBackend, listener: Listener, *routes: StaticRoute) -> None:
        host, logger = FakeHost(node), logging.getLogger("keeper")
        self._listener = listener
        config = HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=CountedRoutes(routes)))
        self.keeper = RouteKeeper(host, logger, InstalledConfig(config, host.files, logger), self.catch_up)

    def catch_up(self) -> None:
        self.keeper.hear(self._listener.take())


@pytest.fixture
def kept(node: MemoryBackend) -> Iterator[Kept]:
    with node.events.listen(Context()) as listener:
        yield Kept(node, listener, ROUTE)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_costs_the_same_however_many_routes_there_are(event: NetworkEvent, kept: Kept) -> None:
    """An event of another program concerns no route, and is found not to without a look at each of them."""
    kept.keeper.act(Context())
    before = CountedRoutes.passes
    assert kept.keeper.hear([event]) == inf
    assert CountedRoutes.passes == before


def test_a_route_that_is_deleted_all_the_time_fills_no_log(
    kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten repairs a second have sixty lines a minute, and one more that says how many were left out."""
    clock = ManualClock()
    for _ in range(601):
        kept.keeper.act(Context(clock=clock))
        node.delete_route(next(route for route in node.routes() if route.protocol == OUR_PROTOCOL))
        clock.advance(0.1)
    assert caplog.messages[:60] == ["repaired: + 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"] * 60
    assert caplog.messages[60].startswith("540 lines were left out")
    assert len(caplog.messages) == 62
