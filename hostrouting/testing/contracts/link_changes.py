"""The promises of `LinkLayer` for changes, as tests; with those for reading they are the whole contract."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from hostrouting.exceptions import RouteRejectedError
from hostrouting.net.addresses import Address
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute
from hostrouting.testing.contracts.link_layer import NTF_ROUTER, POD_MAC, LinkReadingContract, pods_of, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import LinkLayer
    from hostrouting.testing.contracts.link_layer import LinkNode

__all__ = ["LinkLayerContract"]


def things(*groups: Sequence[Neighbour | ObservedRoute]) -> list[Neighbour | ObservedRoute]:
    return [thing for group in groups for thing in group]


class LinkLayerContract(LinkReadingContract):
    """Each test has a fresh `node` with a loopback device only; `layer` sees that node."""

    # --- apply

    def test_nothing_to_do_is_fine(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """An empty batch changes nothing."""
        layer.apply()

    def test_removed_and_added_again_is_as_before(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Neighbours and routes come back in every detail."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        azure0.add_neighbour("10.240.0.8", "azure0", POD_MAC, permanent=False)
        azure0.add_route("fd00:9::9/128", "azv2")
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000)
        before = state(layer)
        routes = [route for route in layer.routes() if route.destination.startswith("fd00:9:")]
        both = things(layer.neighbours(), routes)
        layer.apply(remove=both)
        assert layer.neighbours() == []
        assert not [route for route in layer.routes() if route.destination.startswith("fd00:9:")]
        layer.apply(add=both)
        assert state(layer) == before

    def test_only_what_is_named_is_removed(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """The same object with another device, metric or table stays."""
        azure0.add_route("fd00:9::/64", "azv2")
        azure0.add_route("fd00:9::/64", "azure0", metric=7)
        azure0.add_route("fd00:9::/64", "azv2", table=1000)
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azv2", POD_MAC)
        before = state(layer)
        route, neighbour = ObservedRoute.parse("fd00:9::/64", "azv2", metric=1024, protocol=3), layer.neighbours()[0]
        layer.apply(remove=[route, neighbour])
        neighbours, routes = state(layer)
        assert neighbours == [one for one in before[0] if one != neighbour]
        assert routes == [one for one in before[1] if one != route]

    def test_routes_of_two_devices_stand_beside_each_other(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Like the `fe80::/64` of each device: with the same metric, in the same table. Each is removed alone."""
        one, two = (ObservedRoute.parse("fd00:9::/64", dev, metric=1024, protocol=3) for dev in ("azure0", "azv2"))
        layer.apply(add=[one, two])
        layer.apply(remove=[one])
        layer.apply(add=[one])
        layer.apply(remove=[two])
        assert [route for route in layer.routes() if route.destination == "fd00:9::/64"] == [one]

    def test_removals_come_first(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """So a neighbour can be given another hardware address in one batch."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        new = Neighbour("10.240.0.9", "azure0", "02:00:00:00:00:09", permanent=True)
        layer.apply(remove=layer.neighbours(), add=[new])
        assert layer.neighbours() == [new]

    # --- refusals

    def refused(
        self,
        layer: LinkLayer,
        *,
        remove: Sequence[Neighbour | ObservedRoute] = (),
        add: Sequence[Neighbour | ObservedRoute] = (),
    ) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = state(layer)
        with pytest.raises(RouteRejectedError) as caught:
            layer.apply(remove=remove, add=add)
        assert caught.value.rolled_back, caught.value
        assert state(layer) == before
        return caught.value

    def test_removing_what_is_not_there_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A neighbour is ENOENT, a route ESRCH; every refusal is named, and the other objects stay."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        there = layer.neighbours()[0]
        error = self.refused(
            layer,
            remove=[
                there,
                there._replace(address="10.240.0.10"),
                ObservedRoute.parse("fd00:9::9/128", "azv2", metric=1024, protocol=3),
            ],
        )
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("- 10.240.0.10 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT", errno.ENOENT),
            ("- fd00:9::9 dev azv2 metric 1024", errno.ESRCH),
        ]
        assert str(error).startswith("2 neighbour and route changes were refused:")

    @pytest.mark.parametrize(
        "detail", [{"mac": "02:00:00:00:00:09"}, {"permanent": False}, {"flags": NTF_ROUTER}, {"protocol": 9}]
    )
    def test_a_neighbour_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, object]
    ) -> None:
        """Another program changed the entry, or the kernel learned it: ENOENT, and the reason shows the entry."""
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC)
        wanted = layer.neighbours()[0]._replace(**detail)  # type: ignore[arg-type] # of the fields' own types
        error = self.refused(layer, remove=[wanted])
        assert [refusal.errno for refusal in error.refusals] == [errno.ENOENT]
        assert "fd00:1::9 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT" in error.refusals[0].reason

    @pytest.mark.parametrize(
        "detail",
        [{"protocol": 4}, {"gateway": Address.parse("fd00:1::2")}, {"metric": 8}, {"table": 1001}, {"dev": "azv2"}],
    )
    def test_a_route_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, object]
    ) -> None:
        """Every detail counts."""
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000)
        (there,) = [route for route in layer.routes() if route.table == 1000]
        wanted = there._replace(**detail)  # type: ignore[arg-type] # of the fields' own types
        assert [refusal.errno for refusal in self.refused(layer, remove=[wanted]).refusals] == [errno.ESRCH]

    def test_an_occupied_place_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """EEXIST for neighbours, added or learned, and for routes; the rest of the batch is rolled back."""
        azure0.add_neighbour("10.240.0.8", "azure0", POD_MAC, permanent=False)
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_route("fd00:9::9/128", "azv2")
        occupied: list[Neighbour | ObservedRoute] = [
            Neighbour("10.240.0.8", "azure0", "02:00:00:00:00:09", permanent=True),
            Neighbour("10.240.0.9", "azure0", "02:00:00:00:00:09", permanent=True),
            ObservedRoute.parse("fd00:9::9/128", "azv2", metric=1024, protocol=77),
        ]
        free = Neighbour("10.240.0.7", "azure0", "02:00:00:00:00:09", permanent=True)
        error = self.refused(layer, add=[free, *occupied])
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (f"+ {thing}", errno.EEXIST) for thing in occupied
        ]

    def test_a_second_gateway_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Two routes with gateways in one place would become one with two next hops."""
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1")
        error = self.refused(
            layer, add=[ObservedRoute.parse("fd00:9::/64", "azv2", "fe80::1", metric=1024, protocol=3)]
        )
        assert [refusal.errno for refusal in error.refusals] == [errno.EEXIST]

    def test_a_missing_device_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """ENODEV, and the error names it."""
        error = self.refused(layer, add=[Neighbour("10.240.0.9", "azv9", POD_MAC, permanent=True)])
        assert [refusal.errno for refusal in error.refusals] == [errno.ENODEV]
        assert "azv9" in error.refusals[0].reason
        assert str(error).startswith("1 neighbour change was refused:")

    def test_a_refusal_by_the_kernel_takes_the_batch_back(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """The kernel refuses the last change of a batch, an unreachable gateway: all changes before it are undone."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        azure0.add_route("fd00:9::9/128", "azv2")
        new = Neighbour("10.240.0.10", "azure0", "02:00:00:00:00:09", permanent=True)
        error = self.refused(
            layer,
            remove=things(layer.neighbours(), pods_of(layer)),
            add=[new, ObservedRoute.parse("fd00:8::/64", "azv2", "fd00:99::1", metric=1024, protocol=3)],
        )
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("+ fd00:8::/64 via fd00:99::1 dev azv2 metric 1024", errno.EHOSTUNREACH)
        ]
        assert "nothing was changed" in str(error)

    def test_a_device_that_is_down_takes_no_route(self, node: LinkNode, layer: LinkLayer) -> None:
        """ENETDOWN."""
        node.add_device("azv9", kind="veth", up=False)
        error = self.refused(layer, add=[ObservedRoute.parse("fd00:9::9/128", "azv9", metric=1024, protocol=3)])
        assert [refusal.errno for refusal in error.refusals] == [errno.ENETDOWN]

    @pytest.mark.parametrize(
        "odd",
        [
            Neighbour("10.240.0.9", "azure0", "12:34:56:78:9A:BC", permanent=True),
            Neighbour("10.240.0.9", "azure0", "", permanent=True),
            Neighbour("10.240.0.009", "azure0", POD_MAC, permanent=True),
            Neighbour("FD00:1::9", "azure0", POD_MAC, permanent=True),
            ObservedRoute.parse("fd00:9::9/128", "azv2", metric=0, protocol=3),
            ObservedRoute.parse("fd00:9::9/128", "azv2", metric=1024, protocol=0),
            ObservedRoute.parse("fd00:9::9/64", "azv2", metric=1024, protocol=3),
            ObservedRoute.parse("fd00:9::9/128", "azv2", metric=1024, protocol=3, table=255),
            ObservedRoute.parse("fd00:9::/64", "azv2", metric=1024, protocol=3, kind="blackhole"),
            ObservedRoute.parse("fd00:9::/64", "azv2", metric=1024, protocol=3, kind="no-such-kind"),
        ],
    )
    def test_what_could_not_be_found_again_is_refused(
        self, azure0: LinkNode, layer: LinkLayer, odd: Neighbour | ObservedRoute
    ) -> None:
        """EINVAL for objects that the kernel would show in another form, or not at all: they could not be verified."""
        assert [refusal.errno for refusal in self.refused(layer, add=[odd]).refusals] == [errno.EINVAL]
        assert [refusal.errno for refusal in self.refused(layer, remove=[odd]).refusals] == [errno.EINVAL]

    def test_the_same_thing_twice_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """An object cannot be removed twice in a batch, or added twice."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        there = layer.neighbours()[0]
        assert [refusal.errno for refusal in self.refused(layer, remove=[there, there]).refusals] == [errno.ENOENT]
        new = there._replace(address="10.240.0.10")
        assert [refusal.errno for refusal in self.refused(layer, add=[new, new]).refusals] == [errno.EEXIST]

    # --- bulk

    def test_thousands_are_read_and_deleted(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """More than any buffer holds, in one batch; and restored in another."""
        many = [
            Neighbour(f"10.240.{number // 250 + 1}.{number % 250 + 1}", "azure0", POD_MAC, permanent=True)
            for number in range(3000)
        ]
        layer.apply(add=many)
        assert layer.neighbours() == many
        layer.apply(remove=many)
        assert layer.neighbours() == []
        layer.apply(add=many)
        assert len(layer.neighbours()) == 3000

    def test_it_may_be_used_from_any_thread(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Another thread than the one that made it gets the same answers."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(layer.neighbours()))
        thread.start()
        thread.join()
        assert answers == [layer.neighbours()]
