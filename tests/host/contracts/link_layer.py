"""The promises of `LinkLayer`, as tests: readings, and removals of neighbours."""

import errno
from typing import Any, TypeAlias

import pytest
from support.kernel_links import KernelLinks
from support.memory_links import MemoryLinks

from hostrouting.exceptions import BackendError
from hostrouting.host import LinkLayer, Neighbour, RouteBackend, Station
from phases import CancelledError, Context

POD_MAC = "12:34:56:78:9a:bc"
NTF_ROUTER = 0x80


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
        """A fresh node has the device `lo` alone, which is up, and does not have a hardware address and a
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

    # --- silence

    @pytest.fixture
    def pods(self, node: LinkNode) -> LinkNode:
        """A node with a bridge and a pod on it, a pod next to it, and a pod whose device is down."""
        node.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        node.add_pod("azv1", "10.240.0.9", "fd00:1::9", master="azure0")
        node.add_pod("azv2", "10.240.0.10", "fd00:1::10")
        node.add_pod("azv3", "10.240.0.11", "fd00:1::11", up=False)
        return node

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
        with pytest.raises(CancelledError):
            layer.silent(ctx, [("azv2", "10.240.0.10")])


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

    # --- removals

    def test_only_what_is_named_is_removed(self, populated: LinkNode, layer: LinkLayer) -> None:
        """A removal removes the named neighbour alone, and not the same address on another
        device.
        """
        before = layer.neighbours()
        layer.remove_neighbours([POD])
        assert layer.neighbours() == [one for one in before if one != POD]

    @pytest.mark.parametrize(
        "detail",
        [
            {"mac": NEW_MAC},
            {"permanent": False},
            {"flags": NTF_ROUTER},
            {"protocol": 9},
            {"address": "10.240.0.7"},
            {"dev": "azv9"},
        ],
    )
    def test_an_entry_that_differs_stays(
        self, populated: LinkNode, layer: LinkLayer, detail: dict[str, Any]
    ) -> None:
        """The removal of a neighbour that is absent, or whose entry differs in a detail, is refused
        with ENOENT; the error names it, and all neighbours stay.
        """
        before = layer.neighbours()
        wanted = POD._replace(**detail)
        with pytest.raises(BackendError) as caught:
            layer.remove_neighbours([POD, wanted])
        assert caught.value.errno == errno.ENOENT
        assert f"'{wanted}' is absent or has changed" in str(caught.value)
        assert layer.neighbours() == before

    def test_thousands_are_read_and_removed(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A thousand neighbours, more than a buffer holds, are read, and removed in one batch."""
        many = [
            POD._replace(address=f"10.240.{number // 250 + 1}.{number % 250 + 1}")
            for number in range(1000)
        ]
        azure0.add_neighbours(many)
        assert layer.neighbours() == many
        layer.remove_neighbours(many)
        assert layer.neighbours() == []
