"""Other programs change routes between two of our steps: none of theirs is overwritten, lost or left stale."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import OUR_PROTOCOL, Route
from hostrouting.static_routes.converge import RECORDS_PATH, Convergence, read_records
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.faults import Operations
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.host import ObservedRoute

pytestmark = pytest.mark.thorough

PREFIX = "172.16.1.0/24"
OURS = Route.parse(PREFIX, gateway="10.224.0.1", dev="eth0")


class BusyNode(MemoryBackend):
    """A backend on which other programs act while we read; `steps` lets them act before one of our steps."""

    def __init__(self) -> None:
        super().__init__()
        self.before_reading: dict[int, list[Callable[[], None]]] = {}
        self._read = 0
        self.add_link("eth0")
        self.add_address("eth0", "10.224.0.4/16")

    def routes(self) -> list[ObservedRoute]:
        self._read += 1
        for act in self.before_reading.pop(self._read, ()):
            act()
        return super().routes()

    def in_place(self) -> list[str]:
        return [str(route) for route in self.fib.routes() if route.destination == PREFIX]

    def gateways(self) -> list[int]:
        """The last numbers of the others' gateways."""
        routes = [route for route in self.fib.routes() if route.destination == PREFIX and route.protocol == 16]
        return [route.gateway.number & 0xFF for route in routes if route.gateway is not None]


def theirs(last: int, *, protocol: int = 16) -> Route:
    return Route.parse(PREFIX, gateway=f"10.224.0.{last}", dev="eth0", protocol=protocol)


@pytest.fixture
def node() -> BusyNode:
    return BusyNode()


@pytest.fixture
def host(node: BusyNode) -> FakeHost:
    return FakeHost(node)


def converge(host: FakeHost, routes: Sequence[Route]) -> int:
    return Convergence(host, logging.getLogger("races")).run(Context(), routes)


@pytest.mark.parametrize("step", [1, 2])
def test_a_daemon_updates_its_route_while_we_apply(
    node: BusyNode, host: FakeHost, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    """73 becomes 247 just before ours comes, or just after: ours decides, 247 comes back and 73 never."""
    node.insert_route(theirs(73))
    node.steps.plan(step, lambda: node.insert_route(theirs(247), verb="replace"))
    converge(host, [OURS])
    assert node.in_place() == [str(OURS)]
    assert [str(route) for route in read_records(host.files).routes] == [str(theirs(247))]
    assert "10.224.0.73" not in " ".join(caplog.messages)
    converge(host, ())
    assert node.in_place() == [str(theirs(247))]
    assert not host.files.exists(RECORDS_PATH)


@pytest.mark.parametrize("step", [1, 2])
def test_a_daemon_updates_its_route_while_we_reset(
    node: BusyNode, host: FakeHost, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    """73 becomes 247 before or between the two steps of the restoration: 247 stays, and the fate of 73 is logged."""
    node.insert_route(theirs(73))
    converge(host, [OURS])
    caplog.clear()
    node.steps.plan(step, lambda: node.insert_route(theirs(247), verb="replace"))
    converge(host, ())
    assert node.in_place() == [str(theirs(247))]
    assert not host.files.exists(RECORDS_PATH)
    assert [m for m in caplog.messages if "its place was taken meanwhile by" in m and "247" in m]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_failed_apply_puts_no_stale_route_over_a_newer_one(node: BusyNode, host: FakeHost, step: int) -> None:
    """Another route of the config is refused, and 73 becomes 247 meanwhile: 247 stays alone, whenever it came."""
    node.insert_route(theirs(73))
    refused = Route.parse("172.17.0.0/24", gateway="10.9.9.9", dev="eth0")
    node.steps.plan(step, lambda: node.insert_route(theirs(247), verb="replace"))
    with pytest.raises(RouteRejectedError, match="nothing was changed"):
        converge(host, [OURS, refused])
    assert node.in_place() == [str(theirs(247))]
    assert not host.files.exists(RECORDS_PATH)


def test_a_flush_while_we_apply_keeps_the_record(node: BusyNode, host: FakeHost) -> None:
    """Ours is flushed after it displaced a route: the record stays, and the route comes back."""
    node.insert_route(theirs(73))
    node.steps.plan(2, lambda: node.delete_route(OURS))
    converge(host, [OURS])
    assert [str(route) for route in read_records(host.files).routes] == [str(theirs(73))]
    converge(host, ())
    assert node.in_place() == [str(theirs(73))]


def test_a_flush_before_we_reset_keeps_the_way_back(node: BusyNode, host: FakeHost) -> None:
    """Nothing is left in a place, as after a device went down and up: the displaced route is restored."""
    node.insert_route(theirs(73))
    converge(host, [OURS])
    node.delete_route(OURS)
    converge(host, ())
    assert node.in_place() == [str(theirs(73))]
    assert not host.files.exists(RECORDS_PATH)


@pytest.mark.parametrize("step", [1, 2])
def test_a_flush_while_we_reset_keeps_the_way_back(node: BusyNode, host: FakeHost, step: int) -> None:
    """Ours is flushed before we remove it: the displaced route is restored nevertheless."""
    node.insert_route(theirs(73))
    converge(host, [OURS])
    node.steps.plan(step, lambda: node.delete_route(OURS))
    converge(host, ())
    assert node.in_place() == [str(theirs(73))]
    assert not host.files.exists(RECORDS_PATH)


@pytest.mark.parametrize("protocol", [3, 4])
def test_an_identical_route_comes_back_under_its_own_protocol(node: BusyNode, host: FakeHost, protocol: int) -> None:
    """A route of networkd or of the administrator with the same gateway and device is the same afterwards."""
    node.insert_route(theirs(1, protocol=protocol))
    before = node.routes()
    converge(host, [OURS])
    assert node.in_place() == [str(OURS)]
    converge(host, ())
    assert node.routes() == before


def test_a_route_of_the_kernels_that_comes_meanwhile_is_left_first(node: BusyNode, host: FakeHost) -> None:
    """A new address adds a connected route in our route's place: ours is rolled back, and the refusal names it."""
    node.add_link("ib0")
    node.insert_route(theirs(73))
    node.steps.plan(1, lambda: node.add_address("ib0", "172.16.1.4/24"))
    with pytest.raises(RouteRejectedError, match=r"the kernel's own route .* is never overwritten"):
        converge(host, [OURS])
    assert node.in_place() == [str(theirs(73)), f"{PREFIX} dev ib0 proto kernel scope link src 172.16.1.4"]
    assert not host.files.exists(RECORDS_PATH)


def test_a_way_back_that_fails_is_told(node: BusyNode, host: FakeHost) -> None:
    """The remaining routes are named, and the error does not claim that nothing was changed."""
    node.add_link("ib0")
    node.insert_route(theirs(73))
    node.steps.plan(1, lambda: node.add_address("ib0", "172.16.1.4/24"))
    node.fail_at(3)
    with pytest.raises(RouteRejectedError, match="THE ROLLBACK IS INCOMPLETE") as raised:
        converge(host, [OURS])
    assert f"- {OURS}: injected fault" in str(raised.value)
    assert "nothing was changed" not in str(raised.value)
    assert str(OURS) in node.in_place()
    assert [str(route) for route in read_records(host.files).routes] == []


def test_the_message_says_that_the_rollback_of_earlier_changes_failed(node: BusyNode, host: FakeHost) -> None:
    """The kernel refuses the removal of a hidden route, then that of our route; the text tells what is left behind."""
    node.insert_route(theirs(73))
    node.fail_at(2)
    node.fail_at(3)
    with pytest.raises(RouteRejectedError, match="THE ROLLBACK IS INCOMPLETE") as raised:
        converge(host, [OURS])
    assert f"could not be rolled back: - {OURS}: injected fault" in str(raised.value)
    assert "nothing was changed" not in str(raised.value)


def test_a_program_that_always_takes_the_place_keeps_it(node: BusyNode, host: FakeHost) -> None:
    """A program that always replaces our route wins: a warning says so, and its route is the only one."""
    node.insert_route(theirs(73))
    for number in range(1, 150):
        route = theirs(100 + number)
        node.before_reading[number] = [lambda route=route: node.insert_route(route, verb="replace")]  # type: ignore[misc]
    with pytest.raises(RouteRejectedError, match="another program changes this place all the time") as raised:
        converge(host, [OURS])
    assert raised.value.rolled_back
    assert len(node.in_place()) == 1
    assert "proto dhcp" in node.in_place()[0]


class Owner:
    """Another program with its own list of its routes in the place, first to last."""

    def __init__(self, node: BusyNode) -> None:
        self._node = node
        self.account: list[int] = []
        self._next = 10
        self._replaced: list[int] = []
        self._deleted: set[int] = set()

    @property
    def may_return(self) -> set[int]:
        """After a deletion that ours hid from view it is unknown which route a later one has replaced."""
        return {*self._deleted, *self._replaced} if self._deleted else set()

    def act_before(self, ways: Sequence[tuple[int, str]]) -> None:
        """Change the place just before our steps; several times before one of them, if `ways` says so."""

        def act(step: int) -> None:
            for number, way in ways:
                if number == step:
                    self.act(way, during=True)

        for step, _ in ways:
            self._node.steps.plan(step, partial(act, step))

    def act(self, way: str, *, during: bool = False) -> None:
        """Change the place; `during` our batch its order may be wrong for a moment."""
        self._next += 1
        new = self._next
        try:
            if way == "delete":
                if self.account:
                    gone = self.account.pop(0)
                    self._deleted.add(gone)
                    self._node.delete_route(theirs(gone))
                return
            standing, first = self._node.gateways(), self._node.in_place()[:1]
            self._node.insert_route(theirs(new), verb=way)
        except BackendError:
            return
        if way == "replace":
            if self.account[:1] and (during or self.account[0] not in standing):
                # Ours displaced the one that it means, and is gone, too, or is about to restore it: the kernel replaces
                # the first of its others.
                self.account[1:] = [each for each in self.account[1:] if [str(theirs(each))] != first]
            self._replaced += self.account[:1]
            self.account[:1] = [new]
        else:
            self.account.append(new)


WAYS = st.sampled_from(["replace", "append", "add", "delete"])


@given(
    st.lists(WAYS, max_size=3),
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["replace", "replace", "delete"])), max_size=2),
    st.lists(WAYS, max_size=3),
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["replace", "replace", "delete"])), max_size=2),
)
@example(before=["replace", "append"], in_apply=[], between=["append"], in_reset=[(2, "replace")])
@example(before=["replace"], in_apply=[], between=["append"], in_reset=[(1, "replace"), (2, "replace")])
def test_any_order_of_foreign_changes(
    before: list[str], in_apply: list[tuple[int, str]], between: list[str], in_reset: list[tuple[int, str]]
) -> None:
    """After apply and reset the routes are those of the owner's list, in its order; deleted ones may be restored."""
    node = BusyNode()
    host = FakeHost(node)
    owner = Owner(node)
    for way in before:
        owner.act(way)
    owner.act_before(in_apply)
    converge(host, [OURS])
    node.steps = Operations()
    assert node.in_place()[:1] == [str(OURS)] or in_apply
    for way in between:
        owner.act(way)
    # A route that was appended after ours, and then replaced by its owner, which took ours: that is invisible to us.
    unseen = set(node.gateways()).difference(owner.account)
    owner.act_before(in_reset)
    converge(host, ())
    node.steps = Operations()
    assert not [route for route in node.fib.routes() if route.protocol == OUR_PROTOCOL]
    kept = [last for last in node.gateways() if last not in owner.may_return | unseen]
    assert sorted(kept) == sorted(owner.account)
    # If the first one replaced our route and its owner deleted it, it does not show which route it preceded.
    assert kept == owner.account or owner.may_return
    assert not host.files.exists(RECORDS_PATH)


def test_only_changes_that_were_made_are_counted(node: BusyNode, host: FakeHost) -> None:
    """Restoring a route and removing our route are two changes; a restoration that the kernel refuses is none."""
    node.insert_route(theirs(73))
    assert converge(host, [OURS]) == 2
    assert converge(host, ()) == 2
    converge(host, [OURS])
    # With the address all routes go whose gateway is reached by it.
    node.remove_address("eth0", "10.224.0.4/16")
    assert converge(host, ()) == 0
    assert [str(route) for route in read_records(host.files).routes] == [str(theirs(73))]


def test_a_failed_apply_keeps_ours_ahead_of_a_later_route(node: BusyNode, host: FakeHost) -> None:
    """Ours is removed before its successor is added, and another route is refused: ours comes first again."""
    node.insert_route(attrs.evolve(OURS, onlink=True))
    node.insert_route(theirs(73), verb="append")
    before = node.in_place()
    refused = Route.parse("172.17.0.0/24", gateway="10.9.9.9", dev="eth0")
    with pytest.raises(RouteRejectedError, match="nothing was changed"):
        converge(host, [OURS, refused])
    assert node.in_place() == before
