"""What is to be changed, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.static_route_worlds import World, configs, worlds

from hostrouting.exceptions import BackendError
from hostrouting.host import OUR_PROTOCOL, NextHop, ObservedRoute, Route
from hostrouting.static_routes import reconcile, resolve
from hostrouting.testing import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import RouteChange

WANTED = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    node.add_link("ib0")
    node.add_address("ib0", "172.16.1.4/16")
    return node


def texts(changes: Sequence[RouteChange]) -> list[str]:
    return list(map(str, changes))


class TestOnePlace:
    def test_what_is_missing_is_added(self, node: MemoryBackend) -> None:
        """An empty place is taken by an addition."""
        assert texts(reconcile([WANTED], node.routes()).changes) == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
        ]

    def test_what_is_right_is_left(self, node: MemoryBackend) -> None:
        """Nothing is changed when the route stands already."""
        node.insert_route(WANTED)
        assert reconcile([WANTED], node.routes()).changes == ()

    def test_our_own_is_replaced_in_place(self, node: MemoryBackend) -> None:
        """A changed gateway is one replacement, of which nobody is told."""
        node.insert_route(Route.parse("172.16.1.0/24", gateway="10.224.0.9", dev="eth0"))
        outcome = reconcile([WANTED], node.routes())
        assert texts(outcome.changes) == [
            "~ 172.16.1.0/24 via 10.224.0.9 dev eth0 proto 142 -> 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
        ]
        assert (outcome.displaced, outcome.adopted, outcome.records) == ({}, {}, ())

    @pytest.mark.parametrize("protocol", [3, 4])
    def test_upstreams_is_adopted(self, node: MemoryBackend, protocol: int) -> None:
        """A route that differs by its protocol only is given our mark, and no record is kept of it."""
        node.add_route("172.16.1.0/24", gateway="10.224.0.1", dev="eth0", protocol=protocol)
        outcome = reconcile([WANTED], node.routes())
        assert [str(route) for route in outcome.adopted.values()] == [str(outcome.changes[0].before)]
        assert (outcome.displaced, outcome.records) == ({}, ())

    @pytest.mark.parametrize("change", [{"gateway": "10.224.0.9"}, {"protocol": 16}, {"source": "10.224.0.4"}])
    def test_any_other_is_displaced(self, node: MemoryBackend, change: dict[str, str | int]) -> None:
        """A route of somebody else makes room, and is on record."""
        usual: dict[str, str | int] = {"gateway": "10.224.0.1", "dev": "eth0", "protocol": 3}
        node.add_route("172.16.1.0/24", **{**usual, **change})  # type: ignore[arg-type]  # the values are of their keys
        outcome = reconcile([WANTED], node.routes())
        (foreign,) = outcome.displaced.values()
        assert foreign in node.routes()
        assert outcome.records == (foreign,)

    def test_another_metric_is_another_place(self, node: MemoryBackend) -> None:
        """Whoever has the same destination with another metric is not in the way."""
        node.add_route("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", metric=5)
        assert texts(reconcile([WANTED], node.routes()).changes) == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
        ]

    def test_the_kernels_own_is_never_replaced(self, node: MemoryBackend) -> None:
        """A connected route's place is asked for by an addition, which cannot overwrite."""
        wanted = Route.parse("172.16.0.0/16", gateway="10.224.0.1", dev="eth0")
        outcome = reconcile([wanted], node.routes())
        (change,) = outcome.changes
        assert change.before is None
        assert str(outcome.in_the_way[change]) == "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.1.4"

    def test_the_kernels_own_behind_ours_counts(self, node: MemoryBackend) -> None:
        """So it does where our route came first, lest the next boot decide otherwise."""
        wanted = Route.parse("192.168.7.0/24", gateway="10.224.0.1", dev="eth0")
        node.insert_route(wanted)
        node.add_address("ib0", "192.168.7.1/24")
        assert len(reconcile([wanted], node.routes()).in_the_way) == 1


class TestOrder:
    def test_on_link_routes_come_first(self, node: MemoryBackend) -> None:
        """A gateway is on the link before the route through it is added, whatever the config's order."""
        via = Route.parse("172.16.1.0/24", gateway="192.168.9.1", dev="eth0")
        link = Route.parse("192.168.9.0/24", dev="eth0")
        outcome = reconcile([via, link], node.routes())
        assert [change.after for change in outcome.changes] == [link, via]
        node.apply(outcome.changes)

    def test_removals_come_last(self, node: MemoryBackend) -> None:
        """Add before remove; in any table, what carries our mark and is not wanted goes."""
        for table in 254, 100, 1000:
            node.add_route("172.20.0.0/16", gateway="10.224.0.1", dev="eth0", protocol=OUR_PROTOCOL, table=table)
        node.add_route("172.21.0.0/16", gateway="10.224.0.1", dev="eth0", table=100)
        assert texts(reconcile([WANTED], node.routes()).changes) == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 1000 proto 142",
        ]


class TestWayBack:
    def displaced(self, node: MemoryBackend) -> ObservedRoute:
        """Take the place of somebody's route; the record of it."""
        node.add_route("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
        outcome = reconcile([WANTED], node.routes())
        node.apply(outcome.changes)
        return outcome.records[0]

    def test_it_comes_back_in_place(self, node: MemoryBackend) -> None:
        """When ours leaves the config, what it had displaced takes its place in one step."""
        before = node.routes()
        record = self.displaced(node)
        outcome = reconcile([], node.routes(), displaced=[record])
        assert [change.before is not None for change in outcome.changes] == [True]
        node.apply(outcome.changes)
        node.delete_route(record)
        assert (node.routes(), outcome.records) == (before, ())

    def test_it_comes_back_when_ours_has_vanished(self, node: MemoryBackend) -> None:
        """An empty place is filled."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        outcome = reconcile([], node.routes(), displaced=[record])
        node.apply(outcome.changes)
        assert record in node.routes()

    def test_it_stays_on_record_as_long_as_ours_stands(self, node: MemoryBackend) -> None:
        """A run that changes nothing forgets nothing."""
        record = self.displaced(node)
        outcome = reconcile([WANTED], node.routes(), displaced=[record])
        assert (outcome.changes, outcome.records) == ((), (record,))

    def test_it_gives_way_to_whoever_came_meanwhile(self, node: MemoryBackend) -> None:
        """A place that somebody else took is theirs; the record goes, and its loser is named."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.add_route("172.16.1.0/24", gateway="10.224.0.7", dev="eth0")
        outcome = reconcile([], node.routes(), displaced=[record])
        assert (outcome.changes, outcome.records) == ((), ())
        assert [str(given_up.route) for given_up in outcome.given_up] == [str(record)]

    def test_it_may_be_there_already(self, node: MemoryBackend) -> None:
        """Whoever made it has made it again: nothing to do, nothing to tell."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.insert_route(record.to_route())
        outcome = reconcile([], node.routes(), displaced=[record])
        assert (outcome.changes, outcome.records, outcome.given_up) == ((), (), ())

    def test_the_latest_counts(self, node: MemoryBackend) -> None:
        """Displaced again by the same route of ours, a place has the record of what it held last."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.add_route("172.16.1.0/24", gateway="10.224.0.7", dev="eth0")
        outcome = reconcile([WANTED], node.routes(), displaced=[record])
        assert [str(route) for route in outcome.records] == ["172.16.1.0/24 via 10.224.0.7 dev eth0"]

    def test_undecided_places_are_left(self, node: MemoryBackend) -> None:
        """What the config still has but cannot be looked up now is not seen as dropped."""
        record = self.displaced(node)
        spot = (254, WANTED.network, 24, 0, 0)
        outcome = reconcile([], node.routes(), displaced=[record], undecided={spot})
        assert (outcome.changes, outcome.records) == ((), (record,))


def is_applied(node: MemoryBackend, changes: Sequence[RouteChange]) -> bool:
    try:
        node.apply(changes)
    except BackendError:
        return False
    return True


class TestAnyWorld:
    @given(worlds(), st.lists(configs(), min_size=1, max_size=3))
    def test_the_plan_leads_there_and_back(self, world: World, several: list[HostRoutingConfig]) -> None:
        """From config to config: ours are exactly those, again nothing to do, others untouched; and all the way back.

        What was adopted does not come back: it was upstream's, in whose place we are.
        """
        node = MemoryBackend()
        world.make(node)
        foreign = [route for route in node.routes() if route.protocol != OUR_PROTOCOL]
        records: tuple[ObservedRoute, ...] = ()
        gone: list[ObservedRoute] = []
        for config in several:
            wanted = resolve(config.static_routes.routes, node.routes()).routes
            outcome = reconcile(wanted, node.routes(), displaced=records)
            if not is_applied(node, outcome.changes):
                return
            records = outcome.records
            gone += [*outcome.adopted.values(), *(given_up.route for given_up in outcome.given_up)]
            ours = [route for route in node.routes() if route.protocol == OUR_PROTOCOL]
            assert sorted(str(route.to_route()) for route in ours) == sorted(map(str, wanted))
            others = [route for route in node.routes() if route.protocol != OUR_PROTOCOL]
            assert others == [route for route in foreign if route not in records and route not in gone]
            again = reconcile(wanted, node.routes(), displaced=records)
            assert (again.changes, again.records) == ((), records)
        outcome = reconcile([], node.routes(), displaced=records)
        if not is_applied(node, outcome.changes):
            return
        assert node.routes() == [route for route in foreign if route not in gone]

    def test_next_hops_count(self) -> None:
        """A route with several next hops, ours or not, is compared by all of them."""
        first = NextHop(None, "eth0")
        held = ObservedRoute(WANTED.network, 24, protocol=16, nexthops=(first, NextHop(None, "ib0")))
        assert reconcile([WANTED], [held]).records == (held,)
