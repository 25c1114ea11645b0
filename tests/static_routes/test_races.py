"""Changes of routes by other programs between two of our steps: no foreign route is overwritten,
moved or lost.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel import connect
from support.printed import UNTIL_REMOVED
from support.static_route_nodes import Account, converge

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import IPV4, OUR_PROTOCOL, ObservedRoute, Route
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.faults import Operations
from phases import Context
from phases.hosting import within

PREFIX = "172.16.1.0/24"
OWN_ROUTE = Route.parse(PREFIX, gateway="10.224.0.1", dev="eth0")


class BusyNode(MemoryBackend):
    """A backend on which other programs act while we read; `steps` lets them act before one of our
    steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_reading: dict[int, Callable[[], None]] = {}
        self._read = 0
        connect(self, eth0="10.224.0.4/16")

    def routes(self, family: int = IPV4) -> list[ObservedRoute]:
        self._read += 1
        self.before_reading.pop(self._read, lambda: None)()
        return super().routes(family)

    def in_place(self) -> list[str]:
        return [str(route) for route in self.fib.routes() if route.destination == PREFIX]


def foreign(last: int, *, protocol: int = 16) -> Route:
    return Route.parse(PREFIX, gateway=f"10.224.0.{last}", dev="eth0", protocol=protocol)


def shown(*routes: Route) -> list[str]:
    return list(map(str, routes))


@pytest.fixture
def node() -> BusyNode:
    return BusyNode()


@pytest.fixture
def host(node: BusyNode) -> FakeHost:
    return FakeHost(node)


def run(host: FakeHost, *routes: Route) -> Account:
    account = Account()
    converge(within(Context(), account), routes, host)
    return account


def test_a_daemon_updates_its_route_before_the_own_one_comes(
    node: BusyNode, host: FakeHost
) -> None:
    """A daemon's route that changes between a reading and a change is hidden as it is then, and
    decides again after a reset.
    """
    node.insert_route(foreign(73))
    node.steps.plan(1, lambda: node.insert_route(foreign(247), verb="replace"))
    run(host, OWN_ROUTE)
    assert node.in_place() == shown(OWN_ROUTE, foreign(247))
    run(host)
    assert node.in_place() == shown(foreign(247))


def test_a_foreign_route_comes_into_an_empty_place(node: BusyNode, host: FakeHost) -> None:
    """An addition does not hide a route that came after the reading: the kernel refuses it, and the
    place is read again.
    """
    node.steps.plan(1, lambda: node.insert_route(foreign(73)))
    account = run(host, OWN_ROUTE)
    assert node.in_place() == shown(OWN_ROUTE, foreign(73))
    assert account.changes == [f"+ {OWN_ROUTE} (hides '{foreign(73)}' {UNTIL_REMOVED})"]


def test_another_program_removes_our_route_before_we_do(node: BusyNode, host: FakeHost) -> None:
    """A removal of a route that another program has just removed is not a failure."""
    node.insert_route(OWN_ROUTE)
    node.steps.plan(1, lambda: node.delete_route(OWN_ROUTE))
    account = run(host)
    assert node.in_place() == []
    assert account.changes == []


def test_a_move_that_is_refused_is_rolled_back(node: BusyNode, host: FakeHost) -> None:
    """A refused move of the second of two routes leaves both at their earlier places."""
    other = attrs.evolve(OWN_ROUTE, network=OWN_ROUTE.network + 256)
    for route in OWN_ROUTE, other:
        node.insert_route(route)
        node.insert_route(attrs.evolve(foreign(73), network=route.network), verb="prepend")
    before = node.routes()
    # Each is removed and added.
    node.refuse_at(4)
    with pytest.raises(RouteRejectedError, match="are as before"):
        run(host, OWN_ROUTE, other)
    assert node.routes() == before


def test_a_rollback_names_a_route_that_stood_in_the_middle(node: BusyNode, host: FakeHost) -> None:
    """A rollback restores a route from the middle of its place as the last one, since the kernel
    puts a route first or last, and the error names the route.
    """
    for route in foreign(73), OWN_ROUTE, foreign(74):
        node.insert_route(route, verb="append")
    node.refuse_at(2)
    with pytest.raises(RouteRejectedError) as raised:
        run(host, OWN_ROUTE)
    assert node.in_place() == shown(foreign(73), foreign(74), OWN_ROUTE)
    assert raised.value.left_behind == [f"now after all others with its key: {OWN_ROUTE}"]


def test_a_move_that_is_lost_is_reported(node: BusyNode, host: FakeHost) -> None:
    """A move whose new and old place the kernel refuses is an error that names the missing route,
    and the run has recorded its removal.
    """
    account = Account()
    node.insert_route(OWN_ROUTE)
    node.insert_route(foreign(73), verb="prepend")
    node.refuse_at(2)
    node.refuse_at(3)
    with pytest.raises(RouteRejectedError, match="THE ROLLBACK IS INCOMPLETE") as raised:
        converge(within(Context(), account), [OWN_ROUTE], host)
    assert raised.value.left_behind == [f"missing: {OWN_ROUTE}"]
    assert account.changes == [f"- {OWN_ROUTE}"]


def test_a_program_that_always_takes_the_place_wins(node: BusyNode, host: FakeHost) -> None:
    """An apply gives up after some attempts against a program that always takes the place, and
    names the place.
    """
    another = foreign(73)
    for number in range(1, 200):
        # It is not there when the place is read, and comes before each change.
        node.before_reading[number] = lambda: (
            node.delete_route(another) if node.in_place() else None
        )
        node.steps.plan(number, lambda: None if node.in_place() else node.insert_route(another))
    with pytest.raises(
        RouteRejectedError, match="another program keeps changing this route"
    ) as raised:
        run(host, OWN_ROUTE)
    assert raised.value.rolled_back
    assert OUR_PROTOCOL not in [route.protocol for route in node.fib.routes()]


class TestUndo:
    """The inverse of a run, which restores own routes at the first or the last position of their
    place and changes no other route.
    """

    @pytest.mark.parametrize(
        "before",
        [
            [],
            [foreign(73)],
            [OWN_ROUTE],
            [foreign(73), OWN_ROUTE],
            [foreign(74, protocol=OUR_PROTOCOL), foreign(73)],
            [foreign(73), foreign(74, protocol=OUR_PROTOCOL)],
        ],
        ids=str,
    )
    @pytest.mark.parametrize("wanted", [(OWN_ROUTE,), ()])
    def test_it_restores_the_place(
        self, node: BusyNode, host: FakeHost, before: list[Route], wanted: Sequence[Route]
    ) -> None:
        """An undo restores a place as before the run, also a second time."""
        for route in before:
            node.insert_route(route, verb="append")
        account = run(host, *wanted)
        for _ in range(2):
            assert account.undo() == [True] * len(account.changes)
            assert node.in_place() == shown(*before)

    def test_from_the_middle_it_goes_last(
        self, node: BusyNode, host: FakeHost, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An undo restores a route that was between two foreign ones as the last of its place, so
        that the first of them decides again, and names it.
        """
        for route in foreign(73), OWN_ROUTE, foreign(74):
            node.insert_route(route, verb="append")
        run(host, OWN_ROUTE).undo()
        assert node.in_place() == shown(foreign(73), foreign(74), OWN_ROUTE)
        assert (
            caplog.messages[-1]
            == f"route '{OWN_ROUTE}' now comes after all others with its destination and metric"
        )

    def test_a_changed_place_is_left(
        self, node: BusyNode, host: FakeHost, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An undo leaves a place as it is in which another program has replaced the own route, and
        both its result and a warning report that.
        """
        account = run(host, OWN_ROUTE)
        node.insert_route(foreign(73), verb="replace")
        node.insert_route(foreign(9, protocol=OUR_PROTOCOL), verb="append")
        assert account.undo() == [False]
        assert node.in_place() == shown(foreign(73), foreign(9, protocol=OUR_PROTOCOL))
        assert caplog.messages == [
            f"route '{OWN_ROUTE}' has changed since this run and is left as it is"
        ]

    def test_an_interrupted_run_is_recorded(self, node: BusyNode, host: FakeHost) -> None:
        """A run that a signal ends within a batch has recorded its changes, and can be undone."""
        second = attrs.evolve(OWN_ROUTE, network=OWN_ROUTE.network + 256)
        old = attrs.evolve(OWN_ROUTE, network=OWN_ROUTE.network + 512)
        node.insert_route(old)
        before = node.routes()
        account = Account()
        node.steps.fail(2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            converge(within(Context(), account), [OWN_ROUTE, second], host)
        node.steps = Operations()
        assert account.changes == [f"+ {OWN_ROUTE}"]
        account.undo()
        assert node.routes() == before


STEPS = st.tuples(st.sampled_from(["append", "prepend", "add", "remove"]), st.integers(70, 74))


@given(
    st.lists(STEPS, max_size=3),
    st.lists(st.tuples(st.integers(1, 6), STEPS), max_size=3),
    st.lists(STEPS),
)
def test_foreign_routes_are_as_without_us(
    before: list[tuple[str, int]],
    during: list[tuple[int, tuple[str, int]]],
    after: list[tuple[str, int]],
) -> None:
    """Changes that other programs make by full description, at any moment, lead to the same foreign
    routes with hostrouting and without.

    An exclusive addition is refused while the own route is there, so it counts only if both nodes
    accept it.
    """
    node = BusyNode()
    shadow = BusyNode()
    host = FakeHost(node)

    def both(step: tuple[str, int]) -> None:
        verb, last = step
        route = foreign(last)
        if verb == "add" and node.in_place()[:1] == shown(OWN_ROUTE):
            return
        for each in node, shadow:
            with suppress(BackendError):
                each.delete_route(route) if verb == "remove" else each.insert_route(
                    route, verb=verb
                )

    for step in before:
        both(step)
    for number, step in during:
        node.steps.plan(number, lambda step=step: both(step))  # type: ignore[misc]
    run(host, OWN_ROUTE)
    for step in after:
        both(step)
    run(host, OWN_ROUTE)
    assert node.in_place() == [str(OWN_ROUTE), *shadow.in_place()]
    run(host)
    assert node.in_place() == shadow.in_place()
