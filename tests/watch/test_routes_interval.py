"""After the interval the keeper compares the routes with what events told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from support.kept_routes import CHANGES, FOREIGN, OURS, ROUTE, Change, CountedNode, Kept, standing

from hostrouting.fib.model import resting
from hostrouting.host import OUR_PROTOCOL, Route, RouteEvent
from phases import Context
from phases.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node() -> CountedNode:
    node = CountedNode()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


@pytest.fixture
def kept(node: CountedNode) -> Iterator[Kept]:
    with node.events.listen(Context()) as listener:
        yield Kept(node, listener, ROUTE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestInterval:
    """Both ways to compare find the same."""

    @pytest.fixture(params=["few", "many"])
    def others(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        """Whether the node has few foreign routes, or so many that only ours are read."""
        others: str = request.param
        if others == "many":
            monkeypatch.setattr("hostrouting.watch.routes._OTHERS_READ", 0)
            monkeypatch.setattr("hostrouting.watch.routes._OTHERS_READ_FOR_EACH", 0)
        return others

    @pytest.fixture
    def kept(self, kept: Kept, node: CountedNode, clock: ManualClock, others: str) -> Kept:
        kept.keeper.act(Context(clock=clock))
        node.readings = 0
        clock.advance(61)
        return kept

    @pytest.fixture
    def cost(self, others: str) -> tuple[int, int]:
        """The readings of all routes and the lookups of one comparison, if nothing is to be repaired."""
        return (1, 0) if others == "few" else (0, 1)

    def test_all_is_as_events_told(
        self, kept: Kept, node: CountedNode, clock: ManualClock, cost: tuple[int, int]
    ) -> None:
        """If nothing happened, all routes are read once, or only ours and a question about each, whichever is less."""
        assert kept.keeper.act(Context(clock=clock)) == 60
        assert (node.readings, node.lookups) == cost

    @pytest.mark.parametrize("change", CHANGES, ids=[name for name, _ in CHANGES])
    def test_a_change_that_no_event_told(
        self, kept: Kept, node: CountedNode, clock: ManualClock, change: tuple[str, Change]
    ) -> None:
        """A route of ours that went or changed, and a foreign one ahead of it, are found without an event."""
        _, make = change
        make(node)
        kept.miss_events()
        kept.keeper.act(Context(clock=clock))
        assert standing(node) == [str(OURS)]

    def test_the_answers_for_another_config(self, kept: Kept, node: CountedNode, clock: ManualClock) -> None:
        """Answers that were right for the config before are not right for one with another route."""
        kept.keeper.act(Context(clock=clock))
        kept.wants(ROUTE, attrs.evolve(ROUTE, destination="172.16.2.0/24"))
        kept.keeper.act(Context(clock=clock))
        new = attrs.evolve(OURS, network=OURS.network + 256)
        node.delete_route(new)
        kept.miss_events()
        clock.advance(61)
        kept.keeper.act(Context(clock=clock))
        assert [str(route) for route in node.routes() if route.protocol == OUR_PROTOCOL] == [str(OURS), str(new)]

    def test_a_longer_prefix_decides(
        self, kept: Kept, node: CountedNode, clock: ManualClock, cost: tuple[int, int]
    ) -> None:
        """A foreign route of another place that decides an address of ours is no difference."""
        node.insert_route(Route.parse("172.16.1.0/25", gateway="10.224.0.9", dev="eth0", protocol=16))
        kept.keeper.act(Context(clock=clock))
        assert (node.readings, node.lookups) == cost


class TestReadingOfFewRoutes:
    """On a node with few foreign routes, the interval reads all of them."""

    def test_a_foreign_route_that_a_longer_prefix_hides(
        self, kept: Kept, node: CountedNode, clock: ManualClock
    ) -> None:
        """A foreign route ahead of ours is found without an event, though no answer about an address shows it."""
        node.insert_route(Route.parse("172.16.1.0/25", gateway="10.224.0.9", dev="eth0", protocol=16))
        kept.keeper.act(Context(clock=clock))
        kept.catch_up()
        node.insert_route(FOREIGN, verb="prepend")
        kept.miss_events()
        clock.advance(61)
        kept.keeper.act(Context(clock=clock))
        assert str(FOREIGN) not in standing(node)

    def test_routes_of_others_come_and_go(self, kept: Kept) -> None:
        """Routes of other programs count as events tell, so the interval never reads many."""
        kept.keeper.act(Context())
        before = kept.keeper._known.count
        others = [resting(FOREIGN)._replace(network=number) for number in range(5)]
        kept.keeper.hear([RouteEvent("add", route) for route in others])
        assert kept.keeper._known.count == before + 5
        kept.keeper.hear([RouteEvent("replace", others[0]), *(RouteEvent("remove", route) for route in others)])
        assert kept.keeper._known.count == before
