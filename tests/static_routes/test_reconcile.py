"""The changes, and their order."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.static_route_worlds import World, configs, worlds

from hostrouting.exceptions import BackendError
from hostrouting.host import OUR_PROTOCOL, NextHop, ObservedRoute, Route, RouteChange
from hostrouting.net.routes import place
from hostrouting.static_routes import reconcile, resolve
from hostrouting.testing import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.config import HostRoutingConfig

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


def in_place(node: MemoryBackend) -> list[str]:
    return [str(route) for route in node.routes() if route.destination == "172.16.1.0/24"]


def brought_about(
    node: MemoryBackend, desired: Sequence[Route], displaced: Sequence[ObservedRoute] = ()
) -> list[ObservedRoute]:
    """Make the changes until there are none; return the records then."""
    outcome = reconcile(desired, node.routes(), displaced=displaced)
    for _ in range(3):
        node.apply(outcome.changes)
        for way in outcome.ways_back:
            node.apply(way.changes + way.removals)
        for route in outcome.clearings:
            node.apply([RouteChange.remove(route)])
        outcome = reconcile(desired, node.routes(), displaced=outcome.records, prepended=outcome.prepended)
    assert outcome.all_changes == []
    return outcome.records


class TestOnePlace:
    def test_a_missing_route_is_added(self, node: MemoryBackend) -> None:
        """An empty place is taken by an addition."""
        assert texts(reconcile([WANTED], node.routes()).changes) == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
        ]

    def test_a_right_route_is_left(self, node: MemoryBackend) -> None:
        """Nothing is changed when the route stands already."""
        node.insert_route(WANTED)
        assert reconcile([WANTED], node.routes()).changes == []

    def test_our_own_is_removed_first_if_its_removal_would_take_the_new_route(self, node: MemoryBackend) -> None:
        """A route that was on-link, and no more is: a replacement could not say which of the two it removes."""
        on_link = attrs.evolve(WANTED, onlink=True)
        node.insert_route(on_link)
        assert texts(reconcile([WANTED], node.routes()).changes) == [f"- {on_link}", f"+ {WANTED}"]
        assert brought_about(node, [WANTED]) == []
        assert in_place(node) == [str(WANTED)]

    def test_our_own_is_replaced_in_place(self, node: MemoryBackend) -> None:
        """A changed gateway is one replacement, and displaces nothing."""
        node.insert_route(Route.parse("172.16.1.0/24", gateway="10.224.0.9", dev="eth0"))
        outcome = reconcile([WANTED], node.routes())
        assert texts(outcome.changes) == [
            "~ 172.16.1.0/24 via 10.224.0.9 dev eth0 proto 142 -> 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142"
        ]
        assert (outcome.prepended, outcome.records) == ({}, [])

    @pytest.mark.parametrize(
        "change", [{}, {"protocol": 4}, {"gateway": "10.224.0.9"}, {"protocol": 16}, {"source": "10.224.0.4"}]
    )
    def test_any_other_is_displaced(self, node: MemoryBackend, change: dict[str, str | int]) -> None:
        """A route of another owner makes room, and is on record, also where its protocol alone tells it from ours."""
        usual: dict[str, str | int] = {"gateway": "10.224.0.1", "dev": "eth0", "protocol": 3}
        node.add_route("172.16.1.0/24", **{**usual, **change})  # type: ignore[arg-type]  # the values are of their keys
        before = node.routes()
        outcome = reconcile([WANTED], before)
        ((foreign,),) = outcome.prepended.values()
        assert foreign in before
        assert (outcome.safeguard, outcome.displaced_by(outcome.changes[0])) == ([foreign], [foreign])
        records = brought_about(node, [WANTED])
        assert records == [foreign]
        assert in_place(node) == [str(WANTED)]
        assert brought_about(node, [], records) == []
        assert node.routes() == before

    def test_all_of_a_place_are_displaced_and_come_back_in_their_order(self, node: MemoryBackend) -> None:
        """The first decides again, and the others follow it."""
        for gateway, protocol in (("10.224.0.9", 16), ("10.224.0.8", 4), ("10.224.0.1", 4)):
            node.add_route("172.16.1.0/24", gateway=gateway, dev="eth0", protocol=protocol)
        before = node.routes()
        records = brought_about(node, [WANTED])
        assert (len(records), in_place(node)) == (3, [str(WANTED)])
        brought_about(node, [], records)
        assert node.routes() == before

    def test_a_route_that_follows_ours_is_left(self, node: MemoryBackend) -> None:
        """As the boot script leaves it: ours decides, the other one after it has no record and is not in the way."""
        node.insert_route(WANTED)
        node.add_route("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
        outcome = reconcile([WANTED], node.routes())
        assert (outcome.changes, outcome.clearings, outcome.records) == ([], [], [])
        brought_about(node, [])
        assert in_place(node) == ["172.16.1.0/24 via 10.224.0.9 dev eth0 proto dhcp"]

    def test_another_metric_is_another_place(self, node: MemoryBackend) -> None:
        """A route with the same destination and another metric is not in the way."""
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

    def test_a_kernel_route_that_follows_ours_counts(self, node: MemoryBackend) -> None:
        """A kernel route counts even after our route, because the next boot may reverse their order."""
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
        """Add before remove; in any table, a route with our protocol that is not wanted is removed."""
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
        """Displace a foreign route; return its record."""
        node.add_route("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
        return brought_about(node, [WANTED])[0]

    def test_it_comes_back_in_place(self, node: MemoryBackend) -> None:
        """When ours leaves the config, the displaced route takes its place in one step."""
        before = node.routes()
        record = self.displaced(node)
        outcome = reconcile([], node.routes(), displaced=[record])
        assert texts(outcome.all_changes) == [f"+ {record}", f"- {WANTED}"]
        node.apply(outcome.all_changes)
        assert record in node.routes()
        node.delete_route(record)
        assert (node.routes(), outcome.records) == (before, [])

    def test_a_route_appended_meanwhile_stays_last(self, node: MemoryBackend) -> None:
        """A route that came while ours stood follows the routes that stood there before ours."""
        record = self.displaced(node)
        node.add_route("172.16.1.0/24", gateway="10.224.0.7", dev="eth0")
        outcome = reconcile([], node.routes(), displaced=[record])
        node.apply(outcome.all_changes)
        assert in_place(node) == [str(record), "172.16.1.0/24 via 10.224.0.7 dev eth0"]
        assert not any(map(outcome.only_moves, outcome.all_changes))

    def test_a_route_that_replaced_ours_replaces_the_first_displaced_one(self, node: MemoryBackend) -> None:
        """A daemon's `replace` took ours; without us it would have taken the first, and the second follows it."""
        for gateway in "10.224.0.9", "10.224.0.8":
            node.add_route("172.16.1.0/24", gateway=gateway, dev="eth0", protocol=16)
        records = brought_about(node, [WANTED])
        node.insert_route(Route.parse("172.16.1.0/24", gateway="10.224.0.7", dev="eth0", protocol=16), verb="replace")
        outcome = reconcile([], node.routes(), displaced=records)
        node.apply(outcome.all_changes)
        assert in_place(node) == [
            "172.16.1.0/24 via 10.224.0.7 dev eth0 proto dhcp",
            "172.16.1.0/24 via 10.224.0.8 dev eth0 proto dhcp",
        ]
        assert [str(given_up.route) for given_up in outcome.given_up] == [str(records[0])]

    def test_a_route_that_replaced_ours_earlier_leaves_a_stale_one(self, node: MemoryBackend) -> None:
        """The route that replaced ours is followed by the one that it would have replaced: that one is removed."""
        node.add_route("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)
        first = reconcile([WANTED], node.routes())
        node.apply(first.changes)
        node.insert_route(Route.parse("172.16.1.0/24", gateway="10.224.0.7", dev="eth0", protocol=16), verb="replace")
        second = reconcile([WANTED], node.routes(), displaced=first.records, prepended=first.prepended)
        assert list(map(str, second.clearings)) == ["172.16.1.0/24 via 10.224.0.9 dev eth0 proto dhcp"]
        assert texts(second.changes) == [f"+ {WANTED}"]
        assert [str(route) for route in second.safeguard] == ["172.16.1.0/24 via 10.224.0.7 dev eth0 proto dhcp"]

    def test_it_comes_back_when_ours_has_vanished(self, node: MemoryBackend) -> None:
        """An empty place is filled."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        outcome = reconcile([], node.routes(), displaced=[record])
        node.apply(outcome.all_changes)
        assert record in node.routes()

    def test_it_stays_on_record_as_long_as_ours_stands(self, node: MemoryBackend) -> None:
        """A run that changes nothing forgets nothing."""
        record = self.displaced(node)
        outcome = reconcile([WANTED], node.routes(), displaced=[record])
        assert (outcome.all_changes, outcome.records) == ([], [record])

    def test_it_leaves_a_place_that_was_taken_meanwhile(self, node: MemoryBackend) -> None:
        """A place that another program took is left to it; the record is removed, and its route is named."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.add_route("172.16.1.0/24", gateway="10.224.0.7", dev="eth0")
        outcome = reconcile([], node.routes(), displaced=[record])
        assert (outcome.all_changes, outcome.records) == ([], [])
        assert [str(given_up.route) for given_up in outcome.given_up] == [str(record)]

    def test_it_may_be_there_already(self, node: MemoryBackend) -> None:
        """If its owner has added it again, nothing is changed or logged."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.insert_route(record.to_route())
        outcome = reconcile([], node.routes(), displaced=[record])
        assert (outcome.changes, outcome.records, outcome.given_up) == ([], [], [])

    def test_the_latest_counts(self, node: MemoryBackend) -> None:
        """If our route displaces twice in one place, the record has the route that the place held last."""
        record = self.displaced(node)
        node.delete_route(WANTED)
        node.add_route("172.16.1.0/24", gateway="10.224.0.7", dev="eth0")
        assert list(map(str, brought_about(node, [WANTED], [record]))) == ["172.16.1.0/24 via 10.224.0.7 dev eth0"]

    def test_undecided_places_are_left(self, node: MemoryBackend) -> None:
        """A route of the config that cannot be completed now does not count as dropped."""
        record = self.displaced(node)
        spot = place(WANTED)
        outcome = reconcile([], node.routes(), displaced=[record], undecided={spot})
        assert (outcome.all_changes, outcome.records) == ([], [record])


class TestAnyWorld:
    @given(worlds(), st.lists(configs(), min_size=1, max_size=3))
    def test_the_plan_leads_there_and_back(self, world: World, several: list[HostRoutingConfig]) -> None:
        """From config to config: ours are exactly those, others untouched; and all the way back."""
        node = MemoryBackend()
        world.make(node)
        foreign = [route for route in node.routes() if route.protocol != OUR_PROTOCOL]
        records: list[ObservedRoute] = []
        for config in several:
            wanted = resolve(config.static_routes.routes, node.routes()).routes
            try:
                records = brought_about(node, wanted, records)
            except BackendError:
                return
            ours = [route for route in node.routes() if route.protocol == OUR_PROTOCOL]
            assert sorted(str(route.to_route()) for route in ours) == sorted(map(str, wanted))
            others = [route for route in node.routes() if route.protocol != OUR_PROTOCOL]
            assert others == [route for route in foreign if route not in records]
            again = reconcile(wanted, node.routes(), displaced=records)
            assert (again.changes, again.records) == ([], records)
        with suppress(BackendError):
            brought_about(node, [], records)
            assert node.routes() == foreign

    def test_next_hops_count(self) -> None:
        """A route with several next hops, ours or not, is compared by all of them."""
        first = NextHop(None, "eth0")
        held = ObservedRoute(WANTED.network, 24, protocol=16, nexthops=(first, NextHop(None, "ib0")))
        assert reconcile([WANTED], [held]).safeguard == [held]
