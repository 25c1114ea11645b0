"""The promises of `LinkLayer` for changes, as tests; with those for reading they are the whole contract."""

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pytest
from support.contracts.link_layer import NTF_ROUTER, POD_MAC, LinkNode, LinkReadingContract, pods_of, state

from hostrouting.exceptions import RouteRejectedError
from hostrouting.host import LinkLayer
from hostrouting.net.addresses import Address
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute

POD: Final = Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)
NEW_MAC: Final = "02:00:00:00:00:09"
route: Final = partial(ObservedRoute.parse, metric=1024, protocol=3)
POD_ROUTE: Final = route("fd00:9::9/128", "azv2")


class LinkLayerContract(LinkReadingContract):
    """Each test has a fresh `node` with a loopback device only; `layer` sees that node."""

    @pytest.fixture
    def populated(self, azure0: LinkNode) -> LinkNode:
        """The same node with neighbours and routes, each of which is told from the others by a detail."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azv2", POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        azure0.add_neighbour("10.240.0.8", "azure0", POD_MAC, permanent=False)
        for destination in "fd00:9::9/128", "fd00:9::/64":
            azure0.add_route(destination, "azv2")
        azure0.add_route("fd00:9::/64", "azure0", metric=7)
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000)
        return azure0

    # --- apply

    def test_nothing_to_do_is_fine(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """An empty batch changes nothing."""
        before = state(layer)
        layer.apply()
        assert state(layer) == before

    def test_removed_and_added_again_is_as_before(self, populated: LinkNode, layer: LinkLayer) -> None:
        """Neighbours and routes come back in every detail."""
        neighbours, routes = before = state(layer)
        routes = [one for one in routes if one.destination.startswith("fd00:9:")]
        layer.apply(remove=[*neighbours, *routes])
        assert state(layer) == ([], [one for one in before[1] if one not in routes])
        layer.apply(add=[*neighbours, *routes])
        assert state(layer) == before

    def test_only_what_is_named_is_removed(self, populated: LinkNode, layer: LinkLayer) -> None:
        """The same object with another device, metric or table stays."""
        neighbours, routes = state(layer)
        gone = route("fd00:9::/64", "azv2")
        layer.apply(remove=[gone, POD])
        assert state(layer) == ([one for one in neighbours if one != POD], [one for one in routes if one != gone])

    def test_routes_of_two_devices_stand_beside_each_other(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Like the `fe80::/64` of each device: with the same metric, in the same table. Each is removed alone."""
        one, two = (route("fd00:9::/64", dev) for dev in ("azure0", "azv2"))
        layer.apply(add=[one, two])
        layer.apply(remove=[one])
        layer.apply(add=[one])
        layer.apply(remove=[two])
        assert [each for each in layer.routes() if each.destination == "fd00:9::/64"] == [one]

    def test_removals_come_first(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """So a neighbour can be given another hardware address in one batch."""
        layer.apply(add=[POD])
        layer.apply(remove=[POD], add=[POD._replace(mac=NEW_MAC)])
        assert layer.neighbours() == [POD._replace(mac=NEW_MAC)]

    # --- refusals

    def refused(self, layer: LinkLayer, **batch: Sequence[Neighbour | ObservedRoute]) -> RouteRejectedError:
        """Apply a batch that must be refused; assert that nothing changed."""
        before = state(layer)
        with pytest.raises(RouteRejectedError) as caught:
            layer.apply(**batch)
        assert caught.value.rolled_back, caught.value
        assert state(layer) == before
        return caught.value

    def test_removing_what_is_not_there_is_refused(self, populated: LinkNode, layer: LinkLayer) -> None:
        """A neighbour is ENOENT, a route ESRCH; every refusal is named, and the other objects stay."""
        absent = route("fd00:9::8/128", "azv2")
        error = self.refused(layer, remove=[POD, POD._replace(address="10.240.0.10"), absent])
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("- 10.240.0.10 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT", errno.ENOENT),
            ("- fd00:9::8 dev azv2 metric 1024", errno.ESRCH),
        ]
        assert str(error).startswith("2 neighbour and route changes were refused:")

    @pytest.mark.parametrize("detail", [{"mac": NEW_MAC}, {"permanent": False}, {"flags": NTF_ROUTER}, {"protocol": 9}])
    def test_a_neighbour_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, Any]
    ) -> None:
        """Another program changed the entry, or the kernel learned it: ENOENT, and the reason shows the entry."""
        layer.apply(add=[POD])
        [refusal] = self.refused(layer, remove=[POD._replace(**detail)]).refusals
        assert refusal.errno == errno.ENOENT
        assert str(POD) in refusal.reason

    @pytest.mark.parametrize(
        "detail",
        [{"protocol": 4}, {"gateway": Address.parse("fd00:1::2")}, {"metric": 8}, {"table": 1001}, {"dev": "azv2"}],
    )
    def test_a_route_that_differs_is_not_removed(
        self, populated: LinkNode, layer: LinkLayer, detail: dict[str, Any]
    ) -> None:
        """Every detail counts."""
        (there,) = [one for one in layer.routes() if one.table == 1000]
        [refusal] = self.refused(layer, remove=[there._replace(**detail)]).refusals
        assert refusal.errno == errno.ESRCH

    def test_an_occupied_place_is_refused(self, populated: LinkNode, layer: LinkLayer) -> None:
        """EEXIST for neighbours, added or learned, and for routes; the rest of the batch is rolled back."""
        occupied: list[Neighbour | ObservedRoute] = [
            POD._replace(address="10.240.0.8", mac=NEW_MAC),
            POD._replace(mac=NEW_MAC),
            POD_ROUTE._replace(protocol=77),
        ]
        error = self.refused(layer, add=[POD._replace(address="10.240.0.7"), *occupied])
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (f"+ {thing}", errno.EEXIST) for thing in occupied
        ]

    def test_a_second_gateway_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Two routes with gateways in one place would become one with two next hops."""
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1")
        [refusal] = self.refused(layer, add=[route("fd00:9::/64", "azv2", "fe80::1")]).refusals
        assert refusal.errno == errno.EEXIST

    def test_a_missing_device_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """ENODEV, and the error names it."""
        error = self.refused(layer, add=[POD._replace(dev="azv9")])
        [refusal] = error.refusals
        assert (refusal.errno, "azv9" in refusal.reason) == (errno.ENODEV, True)
        assert str(error).startswith("1 neighbour change was refused:")

    def test_a_refusal_by_the_kernel_takes_the_batch_back(self, populated: LinkNode, layer: LinkLayer) -> None:
        """The kernel refuses the last change of a batch, an unreachable gateway: all changes before it are undone."""
        beyond = route("fd00:8::/64", "azv2", "fd00:99::1")
        new = POD._replace(address="10.240.0.10")
        error = self.refused(layer, remove=[*layer.neighbours(), *pods_of(layer)], add=[new, beyond])
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            ("+ fd00:8::/64 via fd00:99::1 dev azv2 metric 1024", errno.EHOSTUNREACH)
        ]
        assert "are as before" in str(error)

    def test_a_device_that_is_down_takes_no_route(self, node: LinkNode, layer: LinkLayer) -> None:
        """ENETDOWN."""
        node.add_device("azv2", kind="veth", up=False)
        [refusal] = self.refused(layer, add=[POD_ROUTE]).refusals
        assert refusal.errno == errno.ENETDOWN

    @pytest.mark.parametrize(
        "odd",
        [
            *(POD._replace(mac=mac) for mac in ("12:34:56:78:9A:BC", "")),
            *(POD._replace(address=address) for address in ("10.240.0.009", "FD00:1::9")),
            POD_ROUTE._replace(metric=0),
            POD_ROUTE._replace(protocol=0),
            POD_ROUTE._replace(prefix_length=64),
            POD_ROUTE._replace(table=255),
            *(route("fd00:9::/64", "azv2", kind=kind) for kind in ("blackhole", "no-such-kind")),
        ],
    )
    def test_what_could_not_be_found_again_is_refused(
        self, azure0: LinkNode, layer: LinkLayer, odd: Neighbour | ObservedRoute
    ) -> None:
        """EINVAL for objects that the kernel would show in another form, or not at all: they could not be verified."""
        for error in self.refused(layer, add=[odd]), self.refused(layer, remove=[odd]):
            assert [refusal.errno for refusal in error.refusals] == [errno.EINVAL]

    def test_the_same_thing_twice_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """An object cannot be removed twice in a batch, or added twice."""
        layer.apply(add=[POD])
        new = POD._replace(address="10.240.0.10")
        errors = self.refused(layer, remove=[POD, POD]), self.refused(layer, add=[new, new])
        assert [[one.errno for one in error.refusals] for error in errors] == [[errno.ENOENT], [errno.EEXIST]]

    # --- bulk

    def test_thousands_are_read_and_deleted(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """More than any buffer holds, in one batch; and restored in another."""
        many = [POD._replace(address=f"10.240.{number // 250 + 1}.{number % 250 + 1}") for number in range(3000)]
        for _ in range(2):
            layer.apply(add=many)
            assert layer.neighbours() == many
            layer.apply(remove=many)
            assert layer.neighbours() == []

    def test_it_may_be_used_from_any_thread(self, populated: LinkNode, layer: LinkLayer) -> None:
        """Another thread than the one that made it gets the same answers."""
        with ThreadPoolExecutor() as pool:
            assert pool.submit(state, layer).result() == state(layer)
