"""The keeper decides about thousands of events of other programs for each repair that it makes."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

import attrs
import pytest
from support.kept_routes import CHANGES, FOREIGN, OURS, ROUTE, Change, CountedNode, CountedRoutes, Kept, standing

from hostrouting.fib.model import resting
from hostrouting.host import OUR_PROTOCOL, AddressEvent, DeviceEvent, NexthopEvent, Route, RouteChange, RouteEvent
from hostrouting.net.addresses import Address
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import place
from hostrouting.static_routes.converge import read_records
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import NetworkEvent


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


EVENTS: list[NetworkEvent] = [
    RouteEvent("add", resting(Route.parse("10.9.0.0/16", gateway="10.224.0.9", dev="eth0", protocol=16))),
    DeviceEvent("set", Device("veth7", 7, up=True)),
    AddressEvent("set", "veth7", DeviceAddress.parse("10.9.0.1/24")),
]


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


def test_a_storm_leaves_room_for_other_lines_and_has_an_end(
    kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is written while repairs are left out, and the number of these follows without another repair."""
    clock = ManualClock()
    for _ in range(100):
        kept.keeper.act(Context(clock=clock))
        node.delete_route(next(route for route in node.routes() if route.protocol == OUR_PROTOCOL))
    for _ in range(4):
        node.insert_route(FOREIGN, verb="replace")
        kept.keeper.act(Context(clock=clock))
    assert [record.levelno for record in caplog.records if "is left in the place" in record.getMessage()] == [
        logging.ERROR
    ]
    clock.advance(60)
    kept.keeper.act(Context(clock=clock))
    assert "lines were left out" in caplog.messages[-1]


def test_a_displaced_route_that_cannot_return_is_told_once(
    node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Each repair tries it again, without another line, until its gateway is there and it returns."""
    host, clock = FakeHost(node), ManualClock()
    foreign = Route.parse("172.16.1.0/24", gateway="10.225.0.1", dev="eth0", protocol=16)
    node.add_address("eth0", "10.225.0.4/16")
    node.insert_route(foreign)
    with node.events.listen(Context()) as listener:
        Kept(node, listener, ROUTE, host=host).keeper.act(Context())
        node.remove_address("eth0", "10.225.0.4/16")
        caplog.clear()
        kept = Kept(node, listener, host=host)
        for _ in range(3):
            kept.keeper.act(Context(clock=clock))
            clock.advance(61)
        lines = [message.partition(": ")[0] for message in told(caplog)]
        assert lines == [f"displaced route '{foreign}' is not restored"]
        node.add_address("eth0", "10.225.0.4/16")
        kept.keeper.act(Context(clock=clock))
    assert str(foreign) in [str(route) for route in node.routes()]
    assert len(told(caplog)) == 1


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "is not restored" in message]


class TestPlaces:
    """Only what events name is looked at; all routes are read where they cannot tell."""

    @pytest.fixture
    def kept(self, kept: Kept, node: CountedNode) -> Kept:
        """A keeper whose routes are in force, on a node that counts its readings."""
        kept.keeper.act(Context())
        node.readings = 0
        return kept

    @pytest.fixture
    def node(self) -> CountedNode:
        node = CountedNode()
        for name, address in ("eth0", "10.224.0.4/16"), ("eth1", "10.225.0.4/16"):
            node.add_link(name)
            node.add_address(name, address)
        return node

    @pytest.mark.parametrize("change", CHANGES, ids=[name for name, _ in CHANGES])
    def test_a_change_of_one_route(self, kept: Kept, node: CountedNode, change: tuple[str, Change]) -> None:
        """A route that is deleted, or changed in its place, is restored without a reading of all routes."""
        _, make = change
        make(node)
        kept.catch_up()
        kept.keeper.act(Context())
        assert standing(node) == [str(OURS)]
        assert node.readings == 0
        assert kept.keeper.hear([]) == inf

    def test_a_displaced_route_is_recorded(self, kept: Kept, node: CountedNode) -> None:
        """A foreign route that replaced ours is on record, so that a reset restores it."""
        node.insert_route(FOREIGN, verb="replace")
        kept.catch_up()
        kept.keeper.act(Context())
        assert [str(route) for route in read_records(kept.host.files).routes] == [str(FOREIGN)]

    def test_another_program_is_faster(self, kept: Kept, node: CountedNode) -> None:
        """A change that does not fit the routes of its moment is refused; an event says why, and ours decides again."""
        node.delete_route(OURS)
        kept.catch_up()
        # Between the last look at the events and the change.
        node.steps.plan(1, lambda: node.insert_route(FOREIGN))
        kept.keeper.act(Context())
        assert standing(node) == [str(OURS)]
        assert node.readings == 0

    def test_a_foreign_route_goes_in_silence(self, kept: Kept, node: CountedNode) -> None:
        """A foreign route in our place goes with its device, which ours does not use: what is known is true again."""
        node.insert_route(attrs.evolve(FOREIGN, dev="eth1", gateway=Address.parse("10.225.0.9")), verb="append")
        kept.catch_up()
        node.set_up("eth1", up=False)
        kept.catch_up()
        kept.keeper.act(Context())
        node.delete_route(OURS)
        kept.catch_up()
        kept.keeper.act(Context())
        assert standing(node) == [str(OURS)]

    def test_a_source_address_goes(self, kept: Kept, node: CountedNode) -> None:
        """A foreign route goes with the address that it sends from, though it leaves by another device."""
        sends_from = attrs.evolve(FOREIGN, source=Address.parse("10.225.0.4").number)
        node.insert_route(sends_from, verb="append")
        kept.catch_up()
        node.remove_address("eth1", "10.225.0.4/16")
        kept.catch_up()
        kept.keeper.act(Context())
        assert node.readings > 0
        assert kept.keeper._known.at(place(OURS)) == (resting(OURS),)

    def test_a_device_is_renamed(self, kept: Kept, node: CountedNode, caplog: pytest.LogCaptureFixture) -> None:
        """The routes of a device follow it to a name that the config does not have, so ours waits, and that is said."""
        node.rename_link("eth0", "wan0")
        assert kept.keeper.hear(kept._listener.take()) == 0
        kept.keeper.act(Context())
        assert caplog.messages == [f"route '{OURS}' waits: there is no such device"]

    def test_a_nexthop_object_goes(self, kept: Kept, node: CountedNode) -> None:
        """Its routes go in silence, also the one that is left in our place; objects of other routes do not matter."""
        node.insert_route(attrs.evolve(FOREIGN, nexthop_id=7), verb="append")
        kept.catch_up()
        kept.keeper.act(Context())
        assert kept.keeper.hear([NexthopEvent("set", 8), NexthopEvent("remove", 8)]) == inf
        node.fib = node.fib.changed([RouteChange.remove(resting(attrs.evolve(FOREIGN, nexthop_id=7)))])
        assert kept.keeper.hear([NexthopEvent("remove", 7)]) == 0
        kept.keeper.act(Context())
        assert kept.keeper._known.at(place(OURS)) == (resting(OURS),)
