"""The promises of `LinkLayer`, as tests: readings, probes on the link, and changes."""

import errno
from typing import Any, Literal, TypeAlias

import pytest
from support.kernel_links import KernelLinks
from support.memory_links import MemoryLinks

from hostrouting.exceptions import BackendError, NeighbourRejectedError
from hostrouting.host import LinkLayer, Neighbour, NeighbourChange, RouteBackend, Station
from phases import CancelledError, Context

POD_MAC = "12:34:56:78:9a:bc"
NTF_ROUTER = 0x80
#: Pods' devices and addresses.
PRESENT = [
    ("azv1", "10.240.0.9"),
    ("azv2", "10.240.0.10"),
    ("azv1", "fd00:1::9"),
    ("azv2", "fd00:1::10"),
]


#: The handles of a node: the methods that the port does not have.
LinkNode: TypeAlias = MemoryLinks | KernelLinks


class LinkReadingContract:
    """A subclass has the fixtures `node`, a fresh one with a loopback device only, `layer`, which
    reads that node, and `backend`, which reads its devices.
    """

    @pytest.fixture
    def azure0(self, node: LinkNode) -> LinkNode:
        """A node with a bridge that has an address, a pod's device on it, and another one next to
        it.
        """
        node.add_device(
            "azure0",
            kind="bridge",
            mac="02:00:00:00:0a:00",
            addresses=["10.240.0.4/16", "fd00:1::4/64"],
        )
        node.add_device("azv1", kind="veth", mac="02:00:00:00:0a:01", master="azure0")
        node.add_device("azv2", kind="veth", mac="02:00:00:00:0a:02")
        return node

    @pytest.fixture
    def eth0(self, node: LinkNode) -> LinkNode:
        """A node with eth0, ib0 and ib1."""
        for dev, address in (
            ("eth0", "fd00:1::4/64"),
            ("ib0", "fd00:a::4/64"),
            ("ib1", "fd00:b::4/64"),
        ):
            node.add_device(dev, addresses=[address])
        return node

    # --- devices

    def test_a_fresh_node_has_a_loopback(self, node: LinkNode, backend: RouteBackend) -> None:
        """A fresh node has the device `lo` alone, which is up, and lacks a hardware address and a
        kind.
        """
        (lo,) = backend.links()
        assert (lo.name, lo.up, lo.mac, lo.kind, lo.master) == ("lo", True, "", "", None)
        assert tuple(map(str, lo.addresses)) == ("127.0.0.1/8", "::1/128")

    def test_devices_are_shown_in_every_detail(
        self, azure0: LinkNode, backend: RouteBackend
    ) -> None:
        """Devices are listed by index, with kind, master and addresses.

        `up` is the administrator's setting; a device has no carrier if it or its other end is down.
        """
        azure0.add_device("azv3", kind="veth", carrier=False)
        azure0.add_device("azv4", kind="veth", up=False)
        shown = [
            device
            for device in backend.links()
            if device.name.startswith("az") and device.name[-1].isdigit()
        ]
        assert [(each.name, each.kind, each.master, each.up, each.carrier) for each in shown] == [
            ("azure0", "bridge", None, True, True),
            ("azv1", "veth", "azure0", True, True),
            ("azv2", "veth", None, True, True),
            ("azv3", "veth", None, True, False),
            ("azv4", "veth", None, False, False),
        ]
        assert [each.mac for each in shown[:3]] == [
            f"02:00:00:00:0a:0{number}" for number in range(3)
        ]
        usable = {str(own) for own in shown[0].addresses if own.usable}
        assert {"10.240.0.4/16", "fd00:1::4/64"} <= usable
        indexes = [device.ifindex for device in backend.links()]
        assert indexes == sorted(set(indexes))

    def test_a_removed_device_is_gone_with_all_on_it(
        self, azure0: LinkNode, layer: LinkLayer, backend: RouteBackend
    ) -> None:
        """A removed device is no longer listed, nor are its neighbours."""
        azure0.add_neighbour("10.240.0.9", "azv2", POD_MAC)
        azure0.remove_device("azv2")
        assert "azv2" not in {device.name for device in backend.links()}
        assert layer.neighbours() == []

    def test_the_age_of_the_newest_address(self, node: LinkNode, layer: LinkLayer) -> None:
        """The newest address of a device is seconds old when it was just added; an absent device
        has no age.
        """
        node.add_device("eth0", addresses=["2001:db8::4/64"])
        age = layer.newest_address("eth0")
        assert age is not None
        assert 0 <= age < 10
        assert layer.newest_address("no-such-device") is None

    def test_programs_of_both_directions_are_named(self, eth0: LinkNode, layer: LinkLayer) -> None:
        """The programs of a device are named in order and once each, for both directions; a device
        without programs, or an absent one, has an empty list.
        """
        eth0.attach("eth0", "in", "ipv6_hp_ingress")
        eth0.attach("eth0", "out", "ipv6_hp_egress")
        eth0.attach("eth0", "out", "ipv6_hp_ingress")
        eth0.attach("ib0", "in", "other")
        names = [layer.classifiers(dev) for dev in ("eth0", "ib0", "ib1", "no-such-device")]
        assert names == [("ipv6_hp_egress", "ipv6_hp_ingress"), ("other",), (), ()]

    # --- neighbours

    def test_neighbours_of_both_families_are_shown_in_order(
        self, azure0: LinkNode, layer: LinkLayer
    ) -> None:
        """Neighbours are sorted by device, family and numerical address.

        Each has its flags, and the protocol of the program that added it; the kernel may forget one
        that it learned.
        """
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        for address, dev in (("10.240.0.1", "azv2"), ("10.240.0.10", "azure0")):
            azure0.add_neighbour(address, dev, POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC, permanent=False)
        assert layer.neighbours() == [
            Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=False),
            Neighbour("10.240.0.10", "azure0", POD_MAC, permanent=True),
            Neighbour(
                "fd00:1::9", "azure0", POD_MAC, permanent=True, flags=NTF_ROUTER, protocol=77
            ),
            Neighbour("10.240.0.1", "azv2", POD_MAC, permanent=True),
        ]

    # --- stations

    def test_a_bridge_shows_what_it_learned(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A bridge lists its stations in order and once each, without those of another bridge;
        added ones are permanent.
        """
        azure0.add_device("cni0", kind="bridge")
        azure0.add_device("veth1", kind="veth", master="cni0")
        azure0.learn("02:00:00:00:00:02", "azv1")
        azure0.learn("02:00:00:00:00:01", "azv1", permanent=True)

        def learned(bridge: str) -> list[Station]:
            return [one for one in layer.stations(bridge) if one.mac.startswith("02:00:00:00:00:")]

        assert learned("azure0") == [
            Station("02:00:00:00:00:01", "azv1", permanent=True),
            Station("02:00:00:00:00:02", "azv1"),
        ]
        assert learned("cni0") == []

    @pytest.mark.parametrize("name", ["azv2", "no-such-bridge"])
    def test_what_is_no_bridge_has_no_stations(
        self, azure0: LinkNode, layer: LinkLayer, name: str
    ) -> None:
        """A device other than a bridge has no stations, nor has an absent bridge."""
        assert layer.stations(name) == []

    # --- answering

    @pytest.fixture
    def pods(self, node: LinkNode) -> LinkNode:
        """A node with a bridge and a pod on it, a pod next to it, and a pod whose device is down."""
        node.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        node.add_pod("azv1", "10.240.0.9", "fd00:1::9", master="azure0")
        node.add_pod("azv2", "10.240.0.10", "fd00:1::10")
        node.add_pod("azv3", "10.240.0.11", "fd00:1::11", up=False)
        return node

    def test_pods_answer_for_their_addresses(self, pods: LinkNode, layer: LinkLayer) -> None:
        """A pod answers for its addresses of both families, through the port of a bridge or through
        a veth.

        No neighbour of this node changes, even if an entry names another hardware address.
        """
        for dev, address in (("azure0", "10.240.0.9"), ("azure0", "fd00:1::9"), *PRESENT):
            pods.add_neighbour(address, dev, POD_MAC)
        before = layer.neighbours()
        assert layer.answering(Context(), PRESENT) == set(PRESENT)
        assert layer.neighbours() == before

    def test_nobody_answers_for_what_is_not_there(self, pods: LinkNode, layer: LinkLayer) -> None:
        """A query returns no answer for an address of another pod or of nobody, nor by a bridge, a
        loopback, or a device that is down or absent.
        """
        pods.add_pod("azv4", "10.240.0.12")
        pods.remove_device("azv4")
        absent = [
            *(("azv1", "10.240.0.8"), ("azv1", "fd00:1::8")),
            *(("azv1", "10.240.0.10"), ("azv2", "fd00:1::9")),
            *(("azure0", "10.240.0.4"), ("lo", "127.0.0.1")),
            *(("azv3", "10.240.0.11"), ("azv3", "fd00:1::11")),
            *(("azv4", "10.240.0.12"), ("azv9", "10.240.0.9"), ("azv9", "fd00:1::9")),
        ]
        assert layer.answering(Context(), [*absent, *PRESENT]) == set(PRESENT)

    def test_answers_come_in_the_words_of_the_question(
        self, pods: LinkNode, layer: LinkLayer
    ) -> None:
        """A query may contain an address in any spelling and more than once, and returns each as it
        was spelled.
        """
        spellings = [("azv1", "FD00:1::9"), ("azv1", "fd00:1:0::9"), ("azv1", "FD00:1::9")]
        assert layer.answering(Context(), spellings) == set(spellings)

    def test_thousands_are_queried_at_once(self, pods: LinkNode, layer: LinkLayer) -> None:
        """Present addresses are found among thousands of absent ones."""
        missing = [
            ("azv1", f"10.240.{number // 250 + 1}.{number % 250 + 1}") for number in range(2000)
        ]
        missing += [("azv2", f"fd00:2::{number:x}") for number in range(2000)]
        assert layer.answering(Context(), [PRESENT[0], *missing, *PRESENT[1:]]) == set(PRESENT)

    @pytest.mark.parametrize(
        "odd", ["", "10.240.0", "10.240.0.9/32", "fd00::g", "fe80::1%azv1", "azv1", "1\0"]
    )
    def test_what_is_no_address_is_refused(
        self, pods: LinkNode, layer: LinkLayer, odd: str
    ) -> None:
        """A query with a text that is not an address is refused with EINVAL, and the error quotes
        the text.
        """
        with pytest.raises(BackendError) as caught:
            layer.answering(Context(), [("azv1", odd)])
        assert caught.value.errno == errno.EINVAL
        assert str(caught.value) == f"{odd!r} is not an address; give one without a prefix length"

    # --- silence

    def test_the_kernel_probes_each_address(self, pods: LinkNode, layer: LinkLayer) -> None:
        """The kernel probes an address without an entry: a pod's address is answered, and one
        without a pod is returned as silent.
        """
        pods.silence("azv2", "10.240.0.8")
        pods_there = [("azure0", "10.240.0.9"), ("azv2", "10.240.0.10")]
        assert layer.silent(Context(), pods_there) == set()
        assert layer.silent(Context(), [*pods_there, ("azv2", "10.240.0.8")]) == {
            ("azv2", "10.240.0.8")
        }

    def test_a_neighbour_with_an_entry_is_not_probed(
        self, pods: LinkNode, layer: LinkLayer
    ) -> None:
        """A neighbour with an entry is not probed, nor is one of a device that is down or
        absent.
        """
        pods.silence("azv2", "10.240.0.8")
        pods.silence("azv3", "10.240.0.11")
        pods.add_neighbour("10.240.0.8", "azv2", POD_MAC)
        assert (
            layer.silent(
                Context(), [("azv2", "10.240.0.8"), ("azv3", "10.240.0.11"), ("azv9", "10.240.0.9")]
            )
            == set()
        )

    def test_a_query_ends_with_its_context(self, pods: LinkNode, layer: LinkLayer) -> None:
        """A cancelled context ends a query before it sends anything."""
        ctx = Context()
        ctx.cancel("enough")
        for query in layer.answering, layer.silent:
            with pytest.raises(CancelledError):
                query(ctx, PRESENT)


POD = Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)
NEW_MAC = "02:00:00:00:00:09"


class LinkLayerContract(LinkReadingContract):
    """Each test has a fresh `node` with a loopback device only; `layer` sees that node."""

    @pytest.fixture
    def populated(self, azure0: LinkNode) -> LinkNode:
        """The same node with neighbours, each of which differs by a detail."""
        azure0.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azv2", POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", POD_MAC, flags=NTF_ROUTER, protocol=77)
        azure0.add_neighbour("10.240.0.8", "azure0", POD_MAC, permanent=False)
        return azure0

    # --- changes

    def test_only_what_is_named_is_removed(self, populated: LinkNode, layer: LinkLayer) -> None:
        """A removal removes the named neighbour alone, and not the same address on another
        device.
        """
        before = layer.neighbours()
        layer.change_neighbours("remove", [POD])
        assert layer.neighbours() == [one for one in before if one != POD]

    # --- refusals

    def refused(
        self, layer: LinkLayer, verb: Literal["add", "remove"], *neighbours: Neighbour
    ) -> NeighbourRejectedError:
        """Make changes that must be refused; assert that nothing changed."""
        before = layer.neighbours()
        with pytest.raises(NeighbourRejectedError, match=r"\nnothing was changed$") as caught:
            layer.change_neighbours(verb, neighbours)
        assert caught.value.made == ()
        assert layer.neighbours() == before
        return caught.value

    def test_removing_what_is_not_there_is_refused(
        self, populated: LinkNode, layer: LinkLayer
    ) -> None:
        """The removal of an absent neighbour is refused with ENOENT; the error names every refusal,
        and all neighbours stay.
        """
        absent = [POD._replace(address=f"10.240.0.{last}") for last in (10, 11)]
        error = self.refused(layer, "remove", POD, *absent)
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (NeighbourChange("remove", neighbour), errno.ENOENT) for neighbour in absent
        ]
        assert str(error).startswith(
            "changes of neighbours were refused:\n"
            "  - 10.240.0.10 dev azure0 lladdr 12:34:56:78:9a:bc PERMANENT: No such file"
        )

    @pytest.mark.parametrize(
        "detail", [{"mac": NEW_MAC}, {"permanent": False}, {"flags": NTF_ROUTER}, {"protocol": 9}]
    )
    def test_a_neighbour_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, Any]
    ) -> None:
        """The removal of a neighbour whose entry differs in a detail is refused with ENOENT, and
        the reason shows the present entry.
        """
        layer.change_neighbours("add", [POD])
        [refusal] = self.refused(layer, "remove", POD._replace(**detail)).refusals
        assert refusal.errno == errno.ENOENT
        assert str(POD) in refusal.reason

    def test_an_occupied_place_is_refused(self, populated: LinkNode, layer: LinkLayer) -> None:
        """The addition of a neighbour whose address already has an entry, added or learned, is
        refused with EEXIST, and the rest of the batch is not added.
        """
        occupied = [POD._replace(address="10.240.0.8", mac=NEW_MAC), POD._replace(mac=NEW_MAC)]
        error = self.refused(layer, "add", POD._replace(address="10.240.0.7"), *occupied)
        assert [(refusal.change, refusal.errno) for refusal in error.refusals] == [
            (NeighbourChange("add", thing), errno.EEXIST) for thing in occupied
        ]

    def test_a_missing_device_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """The addition of a neighbour by an absent device is refused with ENODEV, and the error
        names the device.
        """
        [refusal] = self.refused(layer, "add", POD._replace(dev="azv9")).refusals
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
        """A neighbour that the kernel would show in another form, or not at all, is refused with
        EINVAL, as the change could not be verified.
        """
        for error in self.refused(layer, "add", odd), self.refused(layer, "remove", odd):
            assert [refusal.errno for refusal in error.refusals] == [errno.EINVAL]

    def test_the_same_thing_twice_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A batch that adds or removes the same neighbour twice is refused."""
        layer.change_neighbours("add", [POD])
        new = POD._replace(address="10.240.0.10")
        removing = self.refused(layer, "remove", POD, POD)
        errors = removing, self.refused(layer, "add", new, new)
        assert [[one.errno for one in error.refusals] for error in errors] == [
            [errno.ENOENT],
            [errno.EEXIST],
        ]

    # --- bulk

    def test_thousands_are_read_and_deleted(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Three thousand neighbours, more than a buffer holds, are added in one batch, read, and
        removed in another.
        """
        many = [
            POD._replace(address=f"10.240.{number // 250 + 1}.{number % 250 + 1}")
            for number in range(3000)
        ]
        for _ in range(2):
            layer.change_neighbours("add", many)
            assert layer.neighbours() == many
            layer.change_neighbours("remove", many)
            assert layer.neighbours() == []
