"""After the interval the keeper compares the routes with what events told."""

from collections.abc import Iterator

import attrs
import pytest
from support.kept_routes import CHANGES, OURS, ROUTE, Change, CountedNode, Kept, ours_first

from hostrouting.host import OUR_PROTOCOL, Route
from phases import Context
from phases.testing import ManualClock


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
    """All that a comparison finds without an event."""

    @pytest.fixture
    def kept(self, kept: Kept, node: CountedNode, clock: ManualClock) -> Kept:
        kept.keeper.act(Context(clock=clock))
        node.readings = 0
        clock.advance(61)
        return kept

    def test_all_is_as_events_told(self, kept: Kept, node: CountedNode, clock: ManualClock) -> None:
        """If nothing happened, only our routes are read, and one lookup asks about the place of each."""
        assert kept.keeper.act(Context(clock=clock)) == 60
        assert (node.readings, node.lookups) == (0, 1)

    @pytest.mark.parametrize("change", CHANGES, ids=[name for name, _ in CHANGES])
    def test_a_change_that_no_event_told(
        self, kept: Kept, node: CountedNode, clock: ManualClock, change: tuple[str, Change]
    ) -> None:
        """A route of ours that went or changed, and a foreign one ahead of it, are found without an event."""
        _, make = change
        make(node)
        kept.miss_events()
        kept.keeper.act(Context(clock=clock))
        assert ours_first(node)

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

    def test_a_longer_prefix_decides(self, kept: Kept, node: CountedNode, clock: ManualClock) -> None:
        """A foreign route of another place that decides an address of ours is no difference."""
        node.insert_route(Route.parse("172.16.1.0/25", gateway="10.224.0.9", dev="eth0", protocol=16))
        kept.keeper.act(Context(clock=clock))
        assert (node.readings, node.lookups) == (0, 1)
