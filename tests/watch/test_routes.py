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

    from hostrouting.host import NetworkEvent


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


def keeper_of(node: MemoryBackend, *routes: StaticRoute, host: FakeHost | None = None) -> RouteKeeper:
    """Return a keeper of routes that no run has installed."""
    host, logger = host or FakeHost(node), logging.getLogger("keeper")
    config = HostRoutingConfig(static_routes=StaticRoutesConfig(enabled=True, routes=CountedRoutes(routes)))
    return RouteKeeper(host, logger, InstalledConfig(config, host.files, logger))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_costs_the_same_however_many_routes_there_are(event: NetworkEvent, node: MemoryBackend) -> None:
    """An event of another program concerns no route, and is found not to without a look at each of them."""
    keeper = keeper_of(node, ROUTE)
    keeper.act(Context())
    before = CountedRoutes.passes
    assert keeper.hear([event]) == inf
    assert CountedRoutes.passes == before


def test_a_route_that_is_deleted_all_the_time_fills_no_log(
    node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten repairs a second have sixty lines a minute, and one more that says how many were left out."""
    clock = ManualClock()
    keeper = keeper_of(node, ROUTE)
    for _ in range(601):
        keeper.act(Context(clock=clock))
        node.delete_route(next(route for route in node.routes() if route.protocol == OUR_PROTOCOL))
        clock.advance(0.1)
    assert caplog.messages[:60] == ["repaired: + 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"] * 60
    assert caplog.messages[60].startswith("540 lines were left out")
    assert len(caplog.messages) == 62


def test_a_displaced_route_that_cannot_return_is_told_once(
    node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Each repair tries it again, without another line, until its gateway is there and it returns."""
    host = FakeHost(node)
    foreign = Route.parse("172.16.1.0/24", gateway="10.225.0.1", dev="eth0", protocol=16)
    node.add_address("eth0", "10.225.0.4/16")
    node.insert_route(foreign)
    keeper_of(node, ROUTE, host=host).act(Context())
    node.remove_address("eth0", "10.225.0.4/16")
    caplog.clear()
    keeper = keeper_of(node, host=host)
    for _ in range(3):
        keeper.act(Context())
    assert [message.partition(": ")[0] for message in told(caplog)] == [f"displaced route '{foreign}' is not restored"]
    node.add_address("eth0", "10.225.0.4/16")
    keeper.act(Context())
    assert str(foreign) in [str(route) for route in node.routes()]
    assert len(told(caplog)) == 1


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "is not restored" in message]
