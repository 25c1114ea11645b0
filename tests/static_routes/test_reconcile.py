"""The changes that lead from a node's routes to the wanted ones, and their order."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from support.kernel import connect
from support.node_worlds import World, contested_worlds, static_route_configs

from hostrouting import HostRoutingConfig
from hostrouting.exceptions import BackendError
from hostrouting.fib import UnknownDecisionError
from hostrouting.host import OUR_PROTOCOL, NextHop, ObservedRoute, Route, RouteChange
from hostrouting.net.routes import route_key
from hostrouting.static_routes.reconcile import reconcile, resolve
from hostrouting.testing import MemoryBackend
from hostrouting.testing.contracts.routes import arrange

WANTED = Route.parse("172.16.1.0/24", gateway="10.224.0.1", dev="eth0")


@pytest.fixture
def node() -> MemoryBackend:
    node = MemoryBackend()
    connect(node, eth0="10.224.0.4/16", ib0="172.16.1.4/16")
    return node


def texts(changes: Sequence[RouteChange]) -> list[str]:
    return list(map(str, changes))


def in_place(node: MemoryBackend) -> list[str]:
    return [str(route) for route in node.routes() if route.destination == "172.16.1.0/24"]


def brought_about(node: MemoryBackend, desired: Sequence[Route]) -> list[str]:
    """Make the changes; assert that there are none afterwards, and return the place."""
    node.apply(reconcile(desired, node.routes()).changes)
    assert reconcile(desired, node.routes()).changes == []
    return in_place(node)


ONLINK = attrs.evolve(WANTED, onlink=True)
FOREIGN = Route.parse("172.16.1.0/24", gateway="10.224.0.9", dev="eth0", protocol=16)


class TestOnePlace:
    def test_our_own_is_replaced_in_place(self, node: MemoryBackend) -> None:
        """An own route whose gateway changed is replaced in one change, and hides nothing."""
        old = attrs.evolve(FOREIGN, protocol=OUR_PROTOCOL)
        node.insert_route(old)
        outcome = reconcile([WANTED], node.routes())
        assert texts(outcome.changes) == [f"~ {old} -> {WANTED}"]
        assert outcome.hidden == {}

    @pytest.mark.parametrize(
        "standing",
        [
            [ONLINK],
            [WANTED, ONLINK],
            [ONLINK, WANTED],
            [FOREIGN, WANTED, ONLINK],
            [FOREIGN, ONLINK],
            [attrs.evolve(FOREIGN, protocol=OUR_PROTOCOL), ONLINK],
            [attrs.evolve(FOREIGN, protocol=OUR_PROTOCOL), FOREIGN, WANTED],
        ],
        ids=str,
    )
    def test_routes_that_a_deletion_does_not_distinguish(
        self, node: MemoryBackend, standing: list[Route]
    ) -> None:
        """One own route is left, as the first of its place, among routes that a deletion does not
        distinguish by `onlink`.
        """
        for route in standing:
            node.insert_route(route, verb="append")
        assert brought_about(node, [WANTED]) == list(
            map(str, [WANTED, *([FOREIGN] if FOREIGN in standing else [])])
        )

    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"protocol": 4},
            {"gateway": "10.224.0.9"},
            {"protocol": 16},
            {"source": "10.224.0.4"},
        ],
    )
    def test_any_other_is_hidden(self, node: MemoryBackend, change: dict[str, str | int]) -> None:
        """A foreign route is hidden by an own one before it, even if its protocol alone differs,
        and stays as it is.
        """
        usual: dict[str, str | int] = {"gateway": "10.224.0.1", "dev": "eth0", "protocol": 3}
        node.add_route("172.16.1.0/24", **{**usual, **change})
        before = node.routes()
        foreign = in_place(node)
        assert list(map(str, reconcile([WANTED], before).hidden[WANTED])) == foreign
        assert brought_about(node, [WANTED]) == [str(WANTED), *foreign]
        assert brought_about(node, []) == foreign
        assert node.routes() == before

    def test_an_own_route_is_moved_before_a_foreign_one(self, node: MemoryBackend) -> None:
        """An own route behind a foreign one is removed and added again before it."""
        node.insert_route(WANTED)
        node.insert_route(FOREIGN, verb="prepend")
        outcome = reconcile([WANTED], node.routes())
        assert texts(outcome.changes) == [f"~ {WANTED} -> {WANTED}"]
        assert list(map(str, outcome.hidden[WANTED])) == [str(FOREIGN)]
        assert brought_about(node, [WANTED]) == [str(WANTED), str(FOREIGN)]

    @pytest.mark.parametrize(
        "also", [[], [FOREIGN], [attrs.evolve(FOREIGN, protocol=OUR_PROTOCOL)]], ids=str
    )
    def test_the_kernels_own_is_never_hidden(self, node: MemoryBackend, also: list[Route]) -> None:
        """A wanted route in the place of a connected route is an addition, which the connected
        route prevents.
        """
        node.add_address("ib0", "172.16.1.4/24")
        for route in also:
            node.insert_route(route, verb="append")
        outcome = reconcile([WANTED], node.routes())
        (change,) = outcome.changes
        assert change == RouteChange.add(WANTED)
        assert (
            str(outcome.in_the_way[change])
            == "172.16.1.0/24 dev ib0 proto kernel scope link src 172.16.1.4"
        )

    @pytest.mark.parametrize("verb", ["append", "prepend"])
    def test_the_kernels_own_that_came_later_stays_hidden(
        self, node: MemoryBackend, verb: str
    ) -> None:
        """An own route that a connected route followed, as after a flap, stays and is the first of
        its place again.
        """
        node.insert_route(WANTED)
        node.add_address("ib0", "172.16.1.4/24")
        node.insert_route(FOREIGN, verb=verb)
        own = "172.16.1.0/24 dev ib0 proto kernel scope link src 172.16.1.4"
        assert str(reconcile([WANTED], node.routes()).connected[WANTED]) == own
        # The first route is the own one.
        assert set(brought_about(node, [WANTED])[1:]) == {own, str(FOREIGN)}

    def test_undecided_places_are_left(self, node: MemoryBackend) -> None:
        """A route whose configured place cannot be completed now is not removed."""
        node.insert_route(WANTED)
        assert reconcile([], node.routes(), undecided={route_key(WANTED)}).changes == []

    def test_next_hops_count(self) -> None:
        """A route with several next hops is compared by all of them."""
        first = NextHop(None, "eth0")
        held = ObservedRoute(
            WANTED.network, 24, protocol=16, nexthops=(first, NextHop(None, "ib0"))
        )
        assert reconcile([WANTED], [held]).hidden == {WANTED: [held]}


class TestOrder:
    def test_on_link_routes_come_first(self, node: MemoryBackend) -> None:
        """The route to a gateway is added before the route through it, whatever the config's
        order.
        """
        via = Route.parse("172.16.1.0/24", gateway="192.168.9.1", dev="eth0")
        link = Route.parse("192.168.9.0/24", dev="eth0")
        outcome = reconcile([via, link], node.routes())
        assert [change.after for change in outcome.changes] == [link, via]
        node.apply(outcome.changes)

    def test_removals_come_last(self, node: MemoryBackend) -> None:
        """Additions come before removals, and an unwanted route of our protocol is removed from any
        table.
        """
        for table in 254, 100, 1000:
            arrange(
                node, f"172.20.0.0/16 via 10.224.0.1 dev eth0 table {table} proto {OUR_PROTOCOL}"
            )
        arrange(node, "172.21.0.0/16 via 10.224.0.1 dev eth0 table 100")
        assert texts(reconcile([WANTED], node.routes()).changes) == [
            "+ 172.16.1.0/24 via 10.224.0.1 dev eth0 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 100 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 proto 142",
            "- 172.20.0.0/16 via 10.224.0.1 dev eth0 table 1000 proto 142",
        ]


class TestAnyWorld:
    @given(contested_worlds(), st.lists(static_route_configs(), min_size=1, max_size=3))
    def test_the_plan_leads_there_and_back(
        self, world: World, several: list[HostRoutingConfig]
    ) -> None:
        """The own routes after each of several configs are exactly the wanted ones, and the first
        of their places; foreign routes keep their order.
        """
        node = MemoryBackend()
        try:
            world.arrange(node)
        except UnknownDecisionError:
            # A next hop that dies is left to the kernel.
            reject()
        foreign = [route for route in node.routes() if route.protocol != OUR_PROTOCOL]
        for config in several:
            wanted = resolve(config.static_routes.routes, node.routes()).routes
            try:
                node.apply(reconcile(wanted, node.routes()).changes)
            except BackendError:
                return
            first = {route_key(route): route for route in reversed(node.routes())}
            own_routes = [route for route in node.routes() if route.protocol == OUR_PROTOCOL]
            assert sorted(str(route.to_route()) for route in own_routes) == sorted(map(str, wanted))
            assert all(first[route_key(route)] == route for route in own_routes)
            assert [route for route in node.routes() if route.protocol != OUR_PROTOCOL] == foreign
            assert reconcile(wanted, node.routes()).changes == []
        node.apply(reconcile([], node.routes()).changes)
        assert node.routes() == foreign
