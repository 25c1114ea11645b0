"""The promises of `LinkLayer` for changes, as tests; with those for reading they are the whole
contract.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.contracts.link_layer import NTF_ROUTER, POD_MAC, LinkNode, LinkReadingContract

from hostrouting.exceptions import NeighbourRejectedError
from hostrouting.host import LinkLayer, Neighbour, NeighbourChange

POD = Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)
NEW_MAC = "02:00:00:00:00:09"


class LinkLayerContract(LinkReadingContract):
    """Each test has a fresh `node` with a loopback device only; `layer` sees that node."""

    @pytest.fixture
    def populated(self, azure0: LinkNode) -> LinkNode:
        """The same node with neighbours, each of which is told from the others by a detail."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azv2", POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        azure0.add_neighbour("10.240.0.8", "azure0", POD_MAC, permanent=False)
        return azure0

    # --- changes

    def test_only_what_is_named_is_removed(self, populated: LinkNode, layer: LinkLayer) -> None:
        """The same address on another device stays."""
        before = layer.neighbours()
        layer.remove_neighbours([POD])
        assert layer.neighbours() == [one for one in before if one != POD]

    # --- refusals

    def refused(
        self, layer: LinkLayer, act: Callable[[Sequence[Neighbour]], None], *neighbours: Neighbour
    ) -> NeighbourRejectedError:
        """Make changes that must be refused; assert that nothing changed."""
        before = layer.neighbours()
        with pytest.raises(NeighbourRejectedError, match=r"\nnothing was changed$") as caught:
            act(neighbours)
        assert caught.value.made == ()
        assert layer.neighbours() == before
        return caught.value

    def test_removing_what_is_not_there_is_refused(
        self, populated: LinkNode, layer: LinkLayer
    ) -> None:
        """ENOENT; every refusal is named, and the other neighbours stay."""
        absent = [POD._replace(address=f"10.240.0.{last}") for last in (10, 11)]
        error = self.refused(layer, layer.remove_neighbours, POD, *absent)
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (NeighbourChange("remove", neighbour), errno.ENOENT) for neighbour in absent
        ]
        assert str(error).startswith(
            "changes of neighbours were refused:\n"
            "  - 10.240.0.10 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT: "
        )

    @pytest.mark.parametrize(
        "detail", [{"mac": NEW_MAC}, {"permanent": False}, {"flags": NTF_ROUTER}, {"protocol": 9}]
    )
    def test_a_neighbour_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, Any]
    ) -> None:
        """Another program changed the entry, or the kernel learned it: ENOENT, and the reason shows
        the entry.
        """
        layer.add_neighbours([POD])
        [refusal] = self.refused(layer, layer.remove_neighbours, POD._replace(**detail)).refusals
        assert refusal.errno == errno.ENOENT
        assert str(POD) in refusal.reason

    def test_an_occupied_place_is_refused(self, populated: LinkNode, layer: LinkLayer) -> None:
        """EEXIST for neighbours, added or learned; the rest is not added."""
        occupied = [POD._replace(address="10.240.0.8", mac=NEW_MAC), POD._replace(mac=NEW_MAC)]
        error = self.refused(
            layer, layer.add_neighbours, POD._replace(address="10.240.0.7"), *occupied
        )
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (NeighbourChange("add", thing), errno.EEXIST) for thing in occupied
        ]

    def test_a_missing_device_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """ENODEV, and the error names it."""
        [refusal] = self.refused(layer, layer.add_neighbours, POD._replace(dev="azv9")).refusals
        assert (refusal.errno, "azv9" in refusal.reason) == (errno.ENODEV, True)

    @pytest.mark.parametrize(
        "odd",
        [
            *(POD._replace(mac=mac) for mac in ("12:34:56:78:9A:BC", "")),
            *(POD._replace(address=address) for address in ("10.240.0.009", "FD00:1::9")),
        ],
    )
    def test_what_could_not_be_found_again_is_refused(
        self, azure0: LinkNode, layer: LinkLayer, odd: Neighbour
    ) -> None:
        """EINVAL for those that the kernel would show in another form, or not at all: they could
        not be verified.
        """
        for act in layer.add_neighbours, layer.remove_neighbours:
            error = self.refused(layer, act, odd)
            assert [refusal.errno for refusal in error.refusals] == [errno.EINVAL]

    def test_the_same_thing_twice_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A neighbour cannot be removed twice in a batch, or added twice."""
        layer.add_neighbours([POD])
        new = POD._replace(address="10.240.0.10")
        removing = self.refused(layer, layer.remove_neighbours, POD, POD)
        errors = removing, self.refused(layer, layer.add_neighbours, new, new)
        assert [[one.errno for one in error.refusals] for error in errors] == [
            [errno.ENOENT],
            [errno.EEXIST],
        ]

    # --- bulk

    def test_thousands_are_read_and_deleted(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """More than any buffer holds, in one batch; and restored in another."""
        many = [
            POD._replace(address=f"10.240.{number // 250 + 1}.{number % 250 + 1}")
            for number in range(3000)
        ]
        for _ in range(2):
            layer.add_neighbours(many)
            assert layer.neighbours() == many
            layer.remove_neighbours(many)
            assert layer.neighbours() == []
