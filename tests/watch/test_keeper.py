"""The keeper decides about thousands of events of other programs for each repair that it makes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from hostrouting.config import StaticRoute
from hostrouting.fib.model import resting
from hostrouting.host import AddressEvent, DeviceEvent, Route, RouteEvent
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.watch.keeper import RouteKeeper
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import NetworkEvent


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


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_costs_the_same_however_many_routes_there_are(event: NetworkEvent) -> None:
    """An event of another program concerns no route, and is found not to without a look at each of them."""
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    keeper = RouteKeeper(FakeHost(node), logging.getLogger("keeper"))
    keeper.repair(Context(), CountedRoutes([StaticRoute(destination="172.16.1.0/24", gateway="10.224.0.1", dev="eth0")]))
    before = CountedRoutes.passes
    assert not keeper.concerns(event)
    assert CountedRoutes.passes == before
