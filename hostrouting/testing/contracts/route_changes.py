"""The promises of `RouteBackend` for changes, as tests; with those for reading they are the whole contract."""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

import pytest

from hostrouting.exceptions import LinkNotFoundError, RouteRejectedError
from hostrouting.net.addresses import Address
from hostrouting.net.changes import RouteChange
from hostrouting.net.routes import SCOPE_LINK, NextHop, ObservedRoute, Route
from hostrouting.testing.contracts.routes import RouteReadingContract, deciding, find, ours, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.host import RouteBackend
    from hostrouting.testing.node import Node

__all__ = ["RouteBackendContract"]

_add, _prepend, _append = RouteChange.add, RouteChange.prepend, RouteChange.append
_remove, _replace = RouteChange.remove, RouteChange.replace


class RouteBackendContract(RouteReadingContract):
    """Each test has a fresh `node` with a loopback device that is up, and nothing else; `backend` sees that node."""

    # --- applying

    def test_an_added_route_is_there_and_ours(self, eth0: Node, backend: RouteBackend) -> None:
        """An added route is read back as wanted, with the protocol number 142."""
        wanted = Route.parse("172.16.8.0/22", gateway="10.224.0.1", dev="eth0", metric=5, source="10.224.0.4")
        backend.apply([_add(wanted)])
        text = "172.16.8.0/22 via 10.224.0.1 dev eth0 proto 142 src 10.224.0.4 metric 5"
        assert ours(backend) == [text]
        assert find(backend, text).fulfils(wanted)

    def test_every_kind_can_be_added(self, eth0: Node, backend: RouteBackend) -> None:
        """Blackholes, multipath routes, other tables and on-link gateways are read back as wanted."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0", weight=2), NextHop(None, "ib0"))
        wanted = [
            Route.parse("9.1.0.0/16", kind="blackhole"),
            Route.parse("9.2.0.0/16", dev="ib0", table=1000),
            Route.parse("0.0.0.0/0", gateway="10.224.0.1", dev="eth0", metric=9),
            Route(network=9 << 24 | 3 << 16, prefix_length=16, nexthops=hops),
            Route(
                network=9 << 24 | 4 << 16, prefix_length=16, gateway=Address.parse("1.0.0.0"), dev="ib0", onlink=True
            ),
            Route(network=9 << 24 | 5 << 16, prefix_length=16, dev="ib0", tos=8),
        ]
        backend.apply([_add(route) for route in wanted])
        seen = backend.routes()
        assert all(any(route.fulfils(want) for route in seen) for want in wanted)

    def test_changes_are_made_in_their_order(self, eth0: Node, backend: RouteBackend) -> None:
        """A gateway may be reached by a route that the same batch added before it."""
        on_link = Route.parse("9.9.9.9/32", dev="eth0")
        via = Route.parse("9.0.0.0/8", gateway="9.9.9.9", dev="eth0")
        backend.apply([_add(on_link), _add(via)])
        assert ours(backend) == [
            "9.0.0.0/8 via 9.9.9.9 dev eth0 proto 142",
            "9.9.9.9 dev eth0 proto 142 scope link",
        ]

    def test_another_metric_is_another_route(self, eth0: Node, backend: RouteBackend) -> None:
        """The metric is part of a route's place."""
        backend.apply([_add(Route.parse("9.0.0.0/8", dev="eth0", metric=metric)) for metric in (2, 1)])
        assert ours(backend) == [
            "9.0.0.0/8 dev eth0 proto 142 scope link metric 1",
            "9.0.0.0/8 dev eth0 proto 142 scope link metric 2",
        ]

    def test_exactly_the_named_route_is_removed(self, eth0: Node, backend: RouteBackend) -> None:
        """Another metric, protocol or table at the same destination stays."""
        for metric, protocol, table in (0, 3, 254), (5, 142, 254), (7, 142, 254), (5, 142, 88):
            eth0.add_route("9.0.0.0/8", dev="eth0", metric=metric, protocol=protocol, table=table)
        before = backend.routes()
        gone = find(backend, "9.0.0.0/8 dev eth0 proto 142 scope link metric 5")
        backend.apply([_remove(gone)])
        assert backend.routes() == [route for route in before if route != gone]

    def test_a_route_is_replaced_in_its_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Another gateway, device and protocol replace the old ones."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        before = find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")
        backend.apply([_replace(before, Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="ib0"))])
        assert place(backend) == ["9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142"]

    def test_a_replacement_takes_the_named_route_alone(self, eth0: Node, backend: RouteBackend) -> None:
        """Of several routes in one place the others stay, even if one of them is the first."""
        for gateway in "10.224.0.9", "10.224.0.1", "10.224.0.8":
            eth0.add_route("9.0.0.0/8", gateway=gateway, dev="eth0")
        backend.apply(
            [_replace(find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0"), Route.parse("9.0.0.0/8", dev="ib0"))]
        )
        assert place(backend) == [
            "9.0.0.0/8 dev ib0 proto 142 scope link",
            "9.0.0.0/8 via 10.224.0.9 dev eth0",
            "9.0.0.0/8 via 10.224.0.8 dev eth0",
        ]

    def test_a_prepended_route_decides(self, eth0: Node, backend: RouteBackend) -> None:
        """It stands before the other routes of its place, and alone in an empty one."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0")
        ours = [Route.parse(f"{number}.0.0.0/8", gateway="10.224.0.1", dev="eth0") for number in (9, 8)]
        backend.apply([_prepend(route) for route in ours])
        assert place(backend) == [str(ours[0]), "9.0.0.0/8 via 10.224.0.9 dev eth0"]
        assert deciding(backend, "9.1.1.1") == str(ours[0])
        assert deciding(backend, "8.1.1.1") == str(ours[1])

    def test_an_appended_route_stands_behind(self, eth0: Node, backend: RouteBackend) -> None:
        """It decides when the routes before it are gone."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0")
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_append(ours)])
        assert place(backend) == ["9.0.0.0/8 via 10.224.0.9 dev eth0", str(ours)]
        backend.apply([_remove(find(backend, "9.0.0.0/8 via 10.224.0.9 dev eth0"))])
        assert deciding(backend, "9.1.1.1") == str(ours)

    def test_identical_routes_of_two_protocols_coexist(self, eth0: Node, backend: RouteBackend) -> None:
        """Identical routes differ by their protocol, and a removal names it."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0", protocol=4)
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_prepend(ours)])
        assert place(backend) == [str(ours), "9.0.0.0/8 via 10.224.0.1 dev eth0 proto static"]
        backend.apply([_remove(find(backend, str(ours)))])
        assert place(backend) == ["9.0.0.0/8 via 10.224.0.1 dev eth0 proto static"]

    def test_there_and_back_without_a_hole(self, eth0: Node, backend: RouteBackend) -> None:
        """Prepend ours, remove the foreign route; append the foreign route, remove ours: the table is as before."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0", protocol=16)
        before = backend.routes()
        theirs = find(backend, "9.0.0.0/8 via 10.224.0.9 dev eth0 proto dhcp")
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        backend.apply([_prepend(ours)])
        backend.apply([_remove(theirs)])
        assert place(backend) == [str(ours)]
        backend.apply([_append(theirs.to_route()), _remove(find(backend, str(ours)))])
        assert backend.routes() == before

    def test_what_was_read_can_be_put_back(self, eth0: Node, backend: RouteBackend) -> None:
        """Foreign routes of every kind, removed and added again from a reading, are the same routes."""
        eth0.add_route("9.1.0.0/16", gateway="10.224.0.9", dev="eth0", metric=77, protocol=186)
        eth0.add_route("9.2.0.0/16", dev="eth0", source="10.224.0.4", protocol=16)
        eth0.add_route("9.3.0.0/16", kind="unreachable", table=99)
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0", weight=3), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops, protocol=4))
        before = backend.routes()
        foreign = [route for route in before if route.network >> 24 == 9]
        backend.apply([_remove(route) for route in foreign])
        assert [route for route in backend.routes() if route.network >> 24 == 9] == []
        backend.apply([_add(route.to_route()) for route in foreign])
        assert backend.routes() == before

    def test_a_dead_next_hop_is_seen(self, eth0: Node, backend: RouteBackend) -> None:
        """A next hop whose device is down is dead, and still the same next hop."""
        hops = (NextHop(Address.parse("10.224.0.9"), "eth0"), NextHop(None, "ib0"))
        eth0.insert_route(Route(network=9 << 24, prefix_length=8, nexthops=hops, protocol=4))
        eth0.set_up("ib0", up=False)
        [route] = [route for route in backend.routes() if route.network >> 24 == 9]
        assert [(hop.dev, hop.dead) for hop in route.nexthops] == [("eth0", False), ("ib0", True)]
        assert route.nexthops == hops

    def test_no_change_is_no_change(self, eth0: Node, backend: RouteBackend) -> None:
        """An empty batch changes nothing."""
        before = backend.routes()
        backend.apply([])
        assert backend.routes() == before

    def test_reading_back_can_be_left_out(self, eth0: Node, backend: RouteBackend) -> None:
        """Without verification the same routes are installed."""
        backend.apply([_add(Route.parse("9.0.0.0/8", dev="eth0"))], verify=False)
        assert ours(backend) == ["9.0.0.0/8 dev eth0 proto 142 scope link"]

    def test_unknown_attributes_are_kept(self, eth0: Node, backend: RouteBackend) -> None:
        """An attribute that a backend does not understand is installed, read and removed with its route."""
        # RTA_METRICS with an RTAX_MTU of 1400.
        metrics = (8, struct.pack("=HHI", 8, 2, 1400))
        wanted = Route(
            network=9 << 24, prefix_length=8, gateway=Address.parse("10.224.0.1"), dev="eth0", extra=(metrics,)
        )
        backend.apply([_add(wanted)])
        held = find(backend, str(wanted))
        assert held.extra == (metrics,)
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.9", dev="eth0")
        backend.apply([_remove(held)])
        assert place(backend) == ["9.0.0.0/8 via 10.224.0.9 dev eth0"]

    def test_verification_finds_a_route_that_did_not_last(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel lets a removal without a metric take the route of the same batch; only a reading shows it."""
        absent = ObservedRoute(9 << 24, 8, dev="eth0", protocol=142, scope=SCOPE_LINK)
        changes = [_add(Route.parse("9.0.0.0/8", dev="eth0", metric=7)), _remove(absent)]
        backend.apply(changes, verify=False)
        assert ours(backend) == []
        with pytest.raises(RouteRejectedError, match="not there on reading back"):
            backend.apply(changes)

    # --- refusals

    @pytest.mark.parametrize("verb", [_add, _prepend, _append])
    @pytest.mark.parametrize("metric", [2, 8, 10], ids=["mtu", "advmss", "hoplimit"])
    def test_what_the_kernel_made_of_a_route_is_rolled_back(
        self, eth0: Node, backend: RouteBackend, verb: Callable[[Route], RouteChange], metric: int
    ) -> None:
        """The kernel limits this metric, so the route is not there as wanted; what it made of the route goes."""
        extra = ((8, struct.pack("=HHI", 8, metric, 70_000)),)
        wanted = Route(network=9 << 24, prefix_length=8, dev="eth0", extra=extra)
        error = self._refused(backend, verb(wanted))
        assert [refusal.change for refusal in error.refusals] == [str(_add(wanted))]

    def test_a_rollback_spares_what_looks_like_the_changed_route(self, eth0: Node, backend: RouteBackend) -> None:
        """A foreign route that differs from the refused one by its metrics only was there before, and stays."""
        usual, large = (((8, struct.pack("=HHI", 8, 2, mtu)),) for mtu in (1400, 70_000))
        standing = Route(network=9 << 24, prefix_length=8, dev="eth0", extra=usual)
        backend.apply([_add(standing)])
        self._refused(backend, _append(Route(network=9 << 24, prefix_length=8, dev="eth0", extra=large)))

    def test_a_rollback_does_not_restore_what_did_not_exist(self, eth0: Node, backend: RouteBackend) -> None:
        """A removal without a metric took the route of the same batch: afterwards neither of them is there."""
        absent = ObservedRoute(9 << 24, 8, dev="eth0", protocol=142, scope=SCOPE_LINK)
        self._refused(backend, _add(Route.parse("9.0.0.0/8", dev="eth0", metric=7)), _remove(absent))

    def test_a_rollback_restores_what_a_removal_took_instead(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel takes a route of any metric instead of a missing one with metric 0; the rollback restores it."""
        eth0.add_route("9.0.0.0/8", dev="eth0", metric=5, protocol=142)
        absent = ObservedRoute(9 << 24, 8, dev="eth0", protocol=142, scope=SCOPE_LINK)
        off_link = Route.parse("8.0.0.0/8", gateway="192.0.2.1", dev="eth0")
        self._refused(backend, _remove(absent), _add(off_link))

    def test_a_rollback_restores_the_other_of_two_routes(self, eth0: Node, backend: RouteBackend) -> None:
        """The kernel takes the first route that fits: here one with a source, instead of the named one without."""
        eth0.add_route("9.0.0.0/8", dev="eth0")
        eth0.insert_route(Route.parse("9.0.0.0/8", dev="eth0", source="10.224.0.4", protocol=3), append=True)
        plain, sending = (route for route in backend.routes() if route.network == 9 << 24)
        backend.apply([_remove(plain)])
        backend.apply([_append(plain.to_route())])
        assert place(backend) == [str(sending), str(plain)]
        off_link = Route.parse("8.0.0.0/8", gateway="192.0.2.1", dev="eth0")
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply([_remove(plain), _add(off_link)])
        assert caught.value.rolled_back
        assert sorted(place(backend)) == sorted([str(sending), str(plain)])

    def _refused(self, backend: RouteBackend, *changes: RouteChange) -> RouteRejectedError:
        before = backend.routes()
        with pytest.raises(RouteRejectedError) as caught:
            backend.apply(changes)
        assert backend.routes() == before
        assert caught.value.rolled_back
        assert caught.value.left_behind == []
        return caught.value

    def test_an_occupied_place_is_eexist(self, eth0: Node, backend: RouteBackend) -> None:
        """An addition never displaces a route, whoever owns it."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        error = self._refused(backend, _add(Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="ib0")))
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("+ 9.0.0.0/8 via 172.16.0.9 dev ib0 proto 142", errno.EEXIST)
        ]

    def test_a_connected_route_is_not_overwritten(self, eth0: Node, backend: RouteBackend) -> None:
        """Metric 0 on a connected prefix is the place of the kernel's route."""
        error = self._refused(backend, _add(Route.parse("172.16.0.0/16", gateway="10.224.0.1", dev="eth0")))
        assert error.errno == errno.EEXIST

    def test_removing_what_is_not_there_is_esrch(self, eth0: Node, backend: RouteBackend) -> None:
        """A removal names a route that must be there."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        stale = find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")._replace(gateway=Address.parse("10.224.0.2"))
        assert self._refused(backend, _remove(stale)).errno == errno.ESRCH

    @pytest.mark.parametrize("verb", [_prepend, _append])
    def test_adding_what_stands_there_is_eexist(
        self, eth0: Node, backend: RouteBackend, verb: Callable[[Route], RouteChange]
    ) -> None:
        """A route cannot be in one place twice, and is not moved within it."""
        wanted = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        eth0.insert_route(wanted)
        assert self._refused(backend, verb(wanted)).errno == errno.EEXIST

    def test_what_another_program_changed_meanwhile_is_not_overwritten(self, eth0: Node, backend: RouteBackend) -> None:
        """If another program has replaced the route, its replacement is refused and the other program's route stays."""
        eth0.add_route("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        old = find(backend, "9.0.0.0/8 via 10.224.0.1 dev eth0")
        eth0.insert_route(Route.parse("9.0.0.0/8", gateway="10.224.0.2", dev="eth0", protocol=16), replace=True)
        change = _replace(old, Route.parse("9.0.0.0/8", dev="ib0"))
        assert self._refused(backend, change).errno == errno.ESRCH
        assert place(backend) == ["9.0.0.0/8 via 10.224.0.2 dev eth0 proto dhcp"]

    def test_a_rollback_leaves_what_took_the_place(self, eth0: Node, backend: RouteBackend) -> None:
        """A rollback removes its own addition after a route that is no longer ours; that route stays."""
        ours = Route.parse("9.0.0.0/8", gateway="10.224.0.1", dev="eth0")
        eth0.insert_route(ours)
        held = find(backend, str(ours))
        eth0.insert_route(Route.parse("9.0.0.0/8", gateway="10.224.0.2", dev="eth0", protocol=16), replace=True)
        recorded = Route.parse("9.0.0.0/8", gateway="10.224.0.9", dev="eth0", protocol=16)
        assert self._refused(backend, _append(recorded), _remove(held)).errno == errno.ESRCH
        assert place(backend) == ["9.0.0.0/8 via 10.224.0.2 dev eth0 proto dhcp"]

    def test_a_rollback_keeps_the_order_of_a_place(self, eth0: Node, backend: RouteBackend) -> None:
        """Removed routes, the last of a place first, come back in their order."""
        for gateway in "10.224.0.7", "10.224.0.9", "10.224.0.8":
            eth0.add_route("9.0.0.0/8", gateway=gateway, dev="eth0")
        standing = [route for route in backend.routes() if route.network == 9 << 24]
        absent = standing[0]._replace(gateway=Address.parse("10.224.0.6"))
        self._refused(backend, *map(_remove, reversed(standing)), _remove(absent))

    def test_a_gateway_off_the_link_is_enetunreach(self, eth0: Node, backend: RouteBackend) -> None:
        """A gateway must be on the link of its device."""
        error = self._refused(backend, _add(Route.parse("9.0.0.0/8", gateway="172.16.0.9", dev="eth0")))
        assert error.errno == errno.ENETUNREACH

    def test_a_device_that_is_down_is_enetdown(self, eth0: Node, backend: RouteBackend) -> None:
        """A route without a gateway needs a device that is up."""
        eth0.set_up("ib0", up=False)
        assert self._refused(backend, _add(Route.parse("9.0.0.0/8", dev="ib0"))).errno == errno.ENETDOWN

    def test_a_foreign_source_address_is_einval(self, eth0: Node, backend: RouteBackend) -> None:
        """A route cannot send from an address that the node does not have."""
        change = _add(Route.parse("9.0.0.0/8", dev="eth0", source="10.224.0.99"))
        assert self._refused(backend, change).errno == errno.EINVAL

    def test_missing_carrier_is_no_reason_to_refuse(self, node: Node, backend: RouteBackend) -> None:
        """A link that is up takes routes, even without carrier."""
        node.add_link("tun0", carrier=False)
        node.add_address("tun0", "10.5.0.1/16")
        backend.apply([_add(Route.parse("9.0.0.0/8", gateway="10.5.0.9", dev="tun0"))])
        assert ours(backend) == ["9.0.0.0/8 via 10.5.0.9 dev tun0 proto 142 linkdown"]

    def test_a_missing_device_is_named_before_anything_is_done(self, eth0: Node, backend: RouteBackend) -> None:
        """A typing error in a device's name changes nothing."""
        before = backend.routes()
        changes = [_add(Route.parse("9.0.0.0/8", dev="eth0")), _add(Route.parse("8.0.0.0/8", dev="eht0"))]
        with pytest.raises(LinkNotFoundError) as caught:
            backend.apply(changes)
        assert caught.value.dev == "eht0"
        assert str(caught.value) == "no such device: eht0; nothing was changed. The node has lo, eth0, ib0"
        assert backend.routes() == before

    def test_one_refusal_undoes_the_whole_batch(self, eth0: Node, backend: RouteBackend) -> None:
        """Additions, replacements and removals before and after the refused change are all rolled back."""
        for network in 8, 9:
            eth0.add_route(f"{network}.0.0.0/8", gateway="10.224.0.1", dev="eth0", metric=3, protocol=16)
        first, second = (route for route in backend.routes() if route.protocol == 16)
        self._refused(
            backend,
            _add(Route.parse("7.7.7.7/32", dev="eth0")),
            _add(Route.parse("7.0.0.0/8", gateway="7.7.7.7", dev="eth0")),
            _remove(first),
            _add(Route.parse("6.0.0.0/8", gateway="192.0.2.77", dev="ib0")),
            _replace(second, Route.parse("9.0.0.0/8", dev="ib0", metric=3)),
        )

    def test_every_refusal_is_named(self, eth0: Node, backend: RouteBackend) -> None:
        """With more refusals than a socket's queue holds, each is named, in order, and the rest is rolled back."""
        routes = [
            Route(
                network=20 << 24 | number << 8,
                prefix_length=24,
                gateway=Address.parse("10.224.0.1" if number % 2 else "192.0.2.1"),
                dev="eth0",
            )
            for number in range(1200)
        ]
        error = self._refused(backend, *map(_add, routes))
        assert [refusal.change for refusal in error.refusals] == [str(_add(route)) for route in routes[::2]]
        assert {refusal.errno for refusal in error.refusals} == {errno.ENETUNREACH}
