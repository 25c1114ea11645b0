"""The reconciler of the routes decides about thousands of events of other programs for each repair that
it makes.
"""

import logging
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, TypeAlias

import attrs
import pytest
from support.kept_routes import FOREIGN, OWN_ROUTE, ROUTE, CountedNode, Kept, standing
from support.printed import NO_DEVICE, UNTIL_REMOVED

from hostrouting import StaticRoute
from hostrouting.host import OUR_PROTOCOL, Address, Device, DeviceAddress, NetworkEvent, Route
from hostrouting.net.events import AddressEvent, DeviceEvent, RouteEvent
from hostrouting.net.routes import resting
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange
from hostrouting.testing.route_texts import route
from phases import Context, run, task
from phases.testing import ManualClock

ADDRESS = Address.parse("10.224.0.4").number


def _moved(node: MemoryBackend) -> None:
    node.delete_route(OWN_ROUTE)
    node.insert_route(attrs.evolve(OWN_ROUTE, metric=7))


Change: TypeAlias = "Callable[[MemoryBackend], None]"


def _put(route: Route, verb: str, **fields: Any) -> Change:
    return lambda node: node.insert_route(attrs.evolve(route, **fields), verb=verb)


#: The changes of another program to our route.
CHANGES: list[tuple[str, Change]] = [
    ("deleted", lambda node: node.delete_route(OWN_ROUTE)),
    ("gateway", _put(FOREIGN, "replace", protocol=OUR_PROTOCOL)),
    ("source", _put(OWN_ROUTE, "replace", source=ADDRESS)),
    ("scope", _put(OWN_ROUTE, "replace", scope=200)),
    ("metric", _moved),
    ("foreign instead", _put(FOREIGN, "replace")),
    ("foreign before", _put(FOREIGN, "prepend")),
    ("second of hostrouting", _put(FOREIGN, "append", protocol=OUR_PROTOCOL)),
    ("same but foreign", _put(OWN_ROUTE, "replace", protocol=16)),
]


def own_route_leads(node: MemoryBackend) -> bool:
    """Return True if our route is the first to its destination, and the only one of hostrouting."""
    routes = [route for route in MemoryBackend.routes(node) if route.network == OWN_ROUTE.network]
    return [route.fulfils(OWN_ROUTE) for route in routes if route.protocol == OUR_PROTOCOL] == [
        routes[0].fulfils(OWN_ROUTE)
    ]


OTHER_OWN = attrs.evolve(FOREIGN, protocol=OUR_PROTOCOL)


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


EVENTS: list[NetworkEvent] = [
    RouteEvent("add", resting(route("10.9.0.0/16 via 10.224.0.9 dev eth0 proto dhcp"))),
    DeviceEvent("set", Device("veth7", 7, up=True)),
    AddressEvent("set", "veth7", DeviceAddress.parse("10.9.0.1/24")),
]


@pytest.fixture
def kept(node: MemoryBackend) -> Iterator[Kept]:
    with node.events.listen(Context()) as listener:
        yield Kept(node, listener, ROUTE)


def test_a_run_keeps_no_list_of_the_repairs(kept: Kept) -> None:
    """The repairs of a watch are not in the report of its run, which may last for a year."""
    report = run(task("watch")(kept.reconciler.act), Context(clock=ManualClock()))
    assert report.error is None
    assert report.changes == ()
    assert [str(each) for each in kept.host.routes.routes() if each.protocol == OUR_PROTOCOL] == [
        "172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
    ]


class TestContest:
    """Another program takes the place of an own route again and again, which is a contest."""

    @staticmethod
    def warning(how: str) -> str:
        return (
            f"route '{OWN_ROUTE}' was replaced or deleted 4 times within an hour (last {how}): from now on it "
            "comes back after pauses of 1 s to 60 s; to keep it away, remove it from the config or stop the watch"
        )

    @staticmethod
    def taken(kept: Kept, node: MemoryBackend, clock: ManualClock, change: Change) -> float:
        """Take the place, and let the reconciler act until the own route is the first again; return the
        seconds that it took.
        """
        change(node)
        kept.catch_up()
        began = clock.monotonic()
        while True:
            seconds = kept.act(clock)
            if standing(node)[:1] == [str(OWN_ROUTE)]:
                return clock.monotonic() - began
            clock.advance(seconds)

    @staticmethod
    def drop_foreign(node: MemoryBackend) -> None:
        """Delete the foreign routes, by full description."""
        for present in node.routes():
            if present.network == OWN_ROUTE.network and present.protocol == FOREIGN.protocol:
                node.delete_route(present)

    @staticmethod
    def pausing(kept: Kept, node: MemoryBackend) -> ManualClock:
        """Take the place so often that the route pauses; return the clock."""
        clock = ManualClock()
        kept.act(clock)
        for _ in range(4):
            node.delete_route(OWN_ROUTE)
            kept.catch_up()
            kept.act(clock)
        return clock

    @pytest.mark.parametrize(
        ("change", "how"),
        [
            (lambda node: node.delete_route(OWN_ROUTE), "deleted"),
            (
                lambda node: node.insert_route(FOREIGN, verb="replace"),
                f"replaced by route '{FOREIGN}'",
            ),
            (
                lambda node: node.insert_route(OTHER_OWN, verb="replace"),
                f"replaced by route '{OTHER_OWN}'",
            ),
        ],
        ids=["deleted", "replaced", "replaced by an own one"],
    )
    def test_pauses(
        self,
        kept: Kept,
        node: MemoryBackend,
        caplog: pytest.LogCaptureFixture,
        change: Change,
        how: str,
    ) -> None:
        """An own route that another program deletes or replaces comes back at once three times
        within an hour, then after pauses that double, with one error.
        """
        clock = ManualClock()
        kept.act(clock)

        def again(node: MemoryBackend) -> None:
            change(node)
            self.drop_foreign(node)

        pauses = [self.taken(kept, node, clock, again) for _ in range(8)]
        assert pauses == [0, 0, 0, 1, 2, 4, 8, 16]
        errors = [
            record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
        ]
        assert errors == [self.warning(how)]

    @pytest.mark.parametrize(
        ("comm", "program"), [(b"bird\n", "bird"), (None, "a program that ended")]
    )
    def test_the_warning_names_the_program(
        self, kept: Kept, caplog: pytest.LogCaptureFixture, comm: bytes | None, program: str
    ) -> None:
        """The error about a contested route names the netlink port of the program that deleted it,
        and its process if that still runs.
        """
        if comm:
            kept.host.files.write("/proc/812/comm", comm, mode=0o644)
        clock = ManualClock()
        kept.act(clock)
        for _ in range(4):
            [deleted] = kept.host.routes.routes_of(OUR_PROTOCOL)
            kept.host.routes.delete_route(deleted)
            kept.catch_up()
            kept.reconciler.receive([RouteEvent("remove", deleted, 812)])
            kept.act(clock)
        assert caplog.messages[-1] == self.warning(f"deleted by {program}, netlink port 812")

    def test_the_longest_pause_and_the_end(
        self, kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The longest pause of a contest is a minute; its end after a quiet hour is logged, and
        the count begins again.
        """
        clock = ManualClock()
        kept.act(clock)
        pauses = [
            self.taken(kept, node, clock, lambda node: node.delete_route(OWN_ROUTE))
            for _ in range(20)
        ]
        assert max(pauses) == 60
        assert kept.reconciler.state == "routes in force: 1"
        clock.advance(3600)
        with caplog.at_level(logging.INFO):
            kept.act(clock)
        assert caplog.messages[-1] == f"route '{OWN_ROUTE}' was not replaced or deleted for an hour"
        assert self.taken(kept, node, clock, lambda node: node.delete_route(OWN_ROUTE)) == 0

    def test_a_contest_has_no_end_while_changes_go_on(
        self, kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The end of a contest is not logged if the route is deleted again before an hour is over,
        though there are few deletions within the last hour by then.
        """
        caplog.set_level(logging.INFO)
        clock = ManualClock()
        kept.act(clock)
        for seconds in 0, 0, 0, 0, 3500, 200:
            clock.advance(seconds)
            self.taken(kept, node, clock, lambda node: node.delete_route(OWN_ROUTE))
        assert not [message for message in caplog.messages if message.endswith("for an hour")]

    def test_the_state_meanwhile(self, kept: Kept, node: MemoryBackend) -> None:
        """A route that pauses is not in force; neither a repair of other routes nor a change in its
        place makes it return sooner or later.
        """
        clock = self.pausing(kept, node)
        assert (
            kept.reconciler.state
            == "routes in force: 0, taken by another program again and again: 1"
        )
        kept.reconciler.lose()
        assert kept.act(clock) == 1
        for _ in range(2):
            node.insert_route(FOREIGN)
            node.insert_route(attrs.evolve(FOREIGN, gateway=OWN_ROUTE.gateway), verb="replace")
            self.drop_foreign(node)
            kept.catch_up()
            assert kept.act(clock) == 1
        assert standing(node) == []

    @pytest.mark.parametrize(
        "change",
        [
            lambda node: node.insert_route(attrs.evolve(FOREIGN, metric=0), verb="prepend"),
            lambda node: (node.set_up("eth0", up=False), node.set_up("eth0", up=True)),
            lambda node: (node.delete_route(OWN_ROUTE), node.insert_route(OWN_ROUTE)),
        ],
        ids=["prepended", "flushed", "deleted and added"],
    )
    def test_no_contest(
        self, kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture, change: Change
    ) -> None:
        """An own route does not pause after a foreign route before it, a flush of its device, or a
        deletion that its program reverses.
        """
        clock = ManualClock()
        kept.act(clock)
        for _ in range(6):
            assert self.taken(kept, node, clock, change) == 0
            self.drop_foreign(node)
        assert [record for record in caplog.records if record.levelno == logging.ERROR] == []

    def test_another_config_ends_it(self, kept: Kept, node: MemoryBackend) -> None:
        """Another config ends a contest: its route is restored at once."""
        clock = self.pausing(kept, node)
        kept.wants(ROUTE)
        kept.act(clock)
        assert standing(node) == [str(OWN_ROUTE)]


def storm(kept: Kept, node: MemoryBackend, clock: ManualClock) -> None:
    """Let another program precede the route a hundred times."""
    for _ in range(100):
        kept.act(clock)
        node.insert_route(FOREIGN, verb="prepend")
        kept.catch_up()
        kept.act(clock)
        node.delete_route(FOREIGN)


def test_a_storm_leaves_room_for_other_lines_and_has_an_end(
    kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """In a storm of a hundred repairs sixty have a line, and the rest one line after a second, with
    their number.
    """
    clock = ManualClock()
    # The first repair is that of a route that was not there yet.
    storm(kept, node, clock)
    repaired = [message for message in caplog.messages if message.startswith("repaired: ")]
    assert len(repaired) == 61
    assert kept.act(clock) == 1
    clock.advance(1)
    assert kept.act(clock) == 59
    first = f"~ {OWN_ROUTE} (hides '{FOREIGN}' {UNTIL_REMOVED})"
    assert caplog.messages[-1] == f"40 repairs, the first is: {first}"


def test_an_error_is_logged_in_a_storm(
    kept: Kept, node: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is logged at once in a storm of repairs, whose lines are delayed."""
    clock = ManualClock()
    storm(kept, node, clock)
    for _ in range(4):
        node.delete_route(OWN_ROUTE)
        kept.catch_up()
        kept.act(clock)
    assert caplog.messages[-1] == TestContest.warning("deleted")


def test_many_routes_that_wait_have_a_hundred_lines(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the routes that wait a hundred have a line, the further ones are counted in one, and a
    later look adds none.
    """
    clock = ManualClock()
    kept.wants(*(attrs.evolve(ROUTE, metric=metric, dev="eth7") for metric in range(110)))
    for _ in range(3):
        kept.act(clock)
        clock.advance(60)
    assert len(caplog.messages) == 101
    assert caplog.messages[0] == (
        f"route '172.16.1.0/24 via 10.224.0.1 dev eth7 proto 142' waits: {NO_DEVICE}"
    )
    assert caplog.messages[-1] == "and 10 more"


class TestReadings:
    """The reconciler reads the kernel after the events that concern its routes, and only then."""

    @pytest.fixture
    def kept(self, kept: Kept, node: CountedNode) -> Kept:
        """A reconciler whose routes are in force, on a node that counts its readings."""
        kept.act()
        kept.catch_up()
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
    def test_a_change_of_one_route(
        self, kept: Kept, node: CountedNode, change: tuple[str, Change]
    ) -> None:
        """A route that is deleted, or changed in its place, is restored, and another look finds
        nothing to do.
        """
        _, make = change
        make(node)
        assert kept.catch_up() == 0
        kept.act()
        assert own_route_leads(node)
        if kept.catch_up() == 0:
            kept.act()
        assert kept.catch_up() == inf

    def test_a_change_without_an_event(self, kept: Kept, node: CountedNode) -> None:
        """A change without an event is repaired after the interval."""
        clock = ManualClock()
        kept.reconciler.lose()
        assert kept.act(clock) == 60
        node.insert_route(FOREIGN, verb="prepend")
        clock.advance(60)
        assert kept.act(clock) == 60
        assert own_route_leads(node)

    def test_a_deleted_route_needs_no_other_routes(self, kept: Kept, node: CountedNode) -> None:
        """A deleted route is restored without a reading of the routes of other programs."""
        node.delete_route(OWN_ROUTE)
        kept.catch_up()
        kept.act()
        assert own_route_leads(node)
        assert node.readings == 0

    def test_another_route_in_the_place_of_a_deleted_one(
        self, kept: Kept, node: CountedNode
    ) -> None:
        """A deleted route is restored in front of another program's route, even if the event of
        that route has not come yet.
        """
        node.delete_route(OWN_ROUTE)
        kept.catch_up()
        node.insert_route(FOREIGN)
        kept.act()
        assert own_route_leads(node)
        assert len(standing(node)) == 2

    def test_another_default_route(self, kept: Kept, node: CountedNode) -> None:
        """A route without device and gateway follows the default route."""
        arrange(node, "default via 10.224.0.1 dev eth0")
        kept.wants(StaticRoute(destination="172.16.1.0/24"))
        kept.act()
        kept.catch_up()
        node.insert_route(route("default via 10.225.0.1 dev eth1 proto dhcp"), verb="prepend")
        assert kept.catch_up() == 0
        kept.act()
        assert standing(node) == ["172.16.1.0/24 via 10.225.0.1 dev eth1 proto 142"]

    @pytest.mark.parametrize(("former", "seconds"), [("eth0", 0), ("eth7", inf)])
    def test_a_device_that_was_renamed(self, kept: Kept, former: str, seconds: float) -> None:
        """The event of a rename concerns the routes by the earlier name, which no device has now."""
        renamed = DeviceEvent("set", Device("fab0", 2, up=True), former)
        assert kept.reconciler.receive([renamed]) == seconds
