"""What `LinkLayer` promises, as tests: derive a class and override the fixtures.

class TestMyLinkLayer(LinkLayerContract):
    @pytest.fixture
    def node(self):                 # what the tests do to the node: see `LinkNode`
        ...

    @pytest.fixture
    def layer(self, node):          # what is tested
        ...
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Protocol

import pytest

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.net.addresses import Address
from hostrouting.net.links import Neighbour, Station
from hostrouting.net.routes import ObservedRoute
from phases import CancelledError, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.host import LinkLayer

__all__ = ["LinkLayerContract", "LinkNode"]

_POD_MAC = "12:34:56:78:9a:bc"
_NTF_ROUTER = 0x80


class LinkNode(Protocol):
    """A node in a test's hands: what `MemoryLinkLayer` has beside the port's methods."""

    def add_device(
        self,
        name: str,
        *,
        mac: str = "",
        kind: str = "",
        master: str | None = None,
        addresses: Sequence[str] = (),
        up: bool = True,
        carrier: bool = True,
    ) -> None:
        """A new device; without a kind, any with Ethernet addresses. `carrier`: whether its wire leads anywhere."""

    def add_pod(self, dev: str, *addresses: str, master: str | None = None, up: bool = True) -> None:
        """A veth (up, or not) that leads to a pod with these addresses, which are good at once."""

    def remove_device(self, name: str) -> None:
        """The device goes, and what lies on it."""

    def add_neighbour(
        self, address: str, dev: str, mac: str, *, permanent: bool = True, flags: int = 0, protocol: int = 0
    ) -> None:
        """An entry of the neighbour table; with `permanent=False` one that the kernel learned."""

    def learn(self, mac: str, dev: str, *, permanent: bool = False, vlan: int = 0) -> None:
        """A bridge learns who is behind its port."""

    def add_route(
        self,
        destination: str,
        dev: str,
        *,
        gateway: str | None = None,
        metric: int = 1024,
        protocol: int = 3,
        table: int = 254,
    ) -> None:
        """An IPv6 route."""


def _things(*groups: Sequence[Neighbour | ObservedRoute]) -> list[Neighbour | ObservedRoute]:
    return [thing for group in groups for thing in group]


def _state(layer: LinkLayer) -> tuple[list[Neighbour], list[ObservedRoute]]:
    # A device's own link-local network comes and goes by itself, some time after its link.
    return layer.neighbours(), [route for route in layer.routes() if route.destination != "fe80::/64"]


def _pods(layer: LinkLayer) -> list[ObservedRoute]:
    return [route for route in layer.routes() if route.destination.endswith("/128")]


class LinkLayerContract:
    """`node` is fresh for every test, a loopback device and nothing else; `layer` sees that node."""

    @pytest.fixture
    def node(self) -> LinkNode:
        """The node that the tests arrange."""
        raise NotImplementedError

    @pytest.fixture
    def layer(self, node: LinkNode) -> LinkLayer:
        """The link layer to be asked, which sees `node`."""
        raise NotImplementedError

    @pytest.fixture
    def azure0(self, node: LinkNode) -> LinkNode:
        """A node with a bridge that has its address, one pod's device on it, and one beside it."""
        node.add_device("azure0", kind="bridge", mac="02:00:00:00:0a:00", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        node.add_device("azv1", kind="veth", mac="02:00:00:00:0a:01", master="azure0")
        node.add_device("azv2", kind="veth", mac="02:00:00:00:0a:02")
        return node

    # --- devices

    def test_a_fresh_node_has_a_loopback(self, node: LinkNode, layer: LinkLayer) -> None:
        """Its device is `lo`, has no hardware address, and is of no kind."""
        (lo,) = layer.devices()
        assert (lo.name, lo.up, lo.mac, lo.kind, lo.master) == ("lo", True, "", "", None)
        assert tuple(map(str, lo.addresses)) == ("127.0.0.1/8", "::1/128")

    def test_devices_are_shown_with_kind_and_master(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A bridge is a bridge, and its port says whose it is."""
        by_name = {device.name: device for device in layer.devices()}
        assert by_name["azure0"].kind == "bridge"
        assert by_name["azure0"].mac == "02:00:00:00:0a:00"
        assert {"10.240.0.4/16", "fd00:1::4/64"} <= set(map(str, by_name["azure0"].addresses))
        assert (by_name["azv1"].kind, by_name["azv1"].master) == ("veth", "azure0")
        assert by_name["azv2"].master is None

    def test_devices_come_by_index(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """The order is that of the interface indexes, each of which is another."""
        indexes = [device.ifindex for device in layer.devices()]
        assert indexes == sorted(set(indexes))

    def test_a_device_that_is_down_says_so(self, node: LinkNode, layer: LinkLayer) -> None:
        """`up` is what the administrator set."""
        node.add_device("eth9", up=False)
        (eth9,) = [device for device in layer.devices() if device.name == "eth9"]
        assert eth9.up is False

    def test_a_device_without_carrier_says_so(self, node: LinkNode, layer: LinkLayer) -> None:
        """`carrier` is what the wire says: gone with the other end, and with the device itself being down."""
        node.add_device("azv1", kind="veth")
        node.add_device("azv2", kind="veth", carrier=False)
        node.add_device("azv3", kind="veth", up=False)
        carriers = {device.name: (device.up, device.carrier) for device in layer.devices()}
        assert (carriers["azv1"], carriers["azv2"], carriers["azv3"]) == ((True, True), (True, False), (False, False))

    def test_a_removed_device_is_gone_with_all_on_it(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Neither its neighbours nor its routes stay."""
        azure0.add_neighbour("10.240.0.9", "azv2", _POD_MAC)
        azure0.add_route("fd00:9::9/128", "azv2")
        azure0.remove_device("azv2")
        assert "azv2" not in {device.name for device in layer.devices()}
        assert layer.neighbours() == []
        assert _pods(layer) == []

    # --- neighbours

    def test_neighbours_of_both_families_are_shown_in_order(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """They are sorted by device and by number, not by text, IPv4 first."""
        azure0.add_neighbour("fd00:1::9", "azure0", _POD_MAC)
        azure0.add_neighbour("10.240.0.1", "azv2", _POD_MAC)
        azure0.add_neighbour("10.240.0.10", "azure0", _POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        assert [(neighbour.address, neighbour.dev) for neighbour in layer.neighbours()] == [
            ("10.240.0.9", "azure0"),
            ("10.240.0.10", "azure0"),
            ("fd00:1::9", "azure0"),
            ("10.240.0.1", "azv2"),
        ]

    def test_a_neighbour_has_all_its_details(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Flags, and who put it there."""
        azure0.add_neighbour("fd00:1::9", "azure0", _POD_MAC, flags=_NTF_ROUTER, protocol=77)
        assert layer.neighbours() == [
            Neighbour("fd00:1::9", "azure0", _POD_MAC, permanent=True, flags=_NTF_ROUTER, protocol=77)
        ]

    def test_a_learned_neighbour_is_not_permanent(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """What the kernel learned it may forget."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC, permanent=False)
        assert layer.neighbours() == [Neighbour("10.240.0.9", "azure0", _POD_MAC, permanent=False)]

    # --- stations

    def test_a_bridge_shows_what_it_learned(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Stations are sorted; what somebody put there is permanent.

        A kernel whose bridges can filter VLANs has it once more for each VLAN of the port.
        """
        azure0.learn("02:00:00:00:00:02", "azv1")
        azure0.learn("02:00:00:00:00:01", "azv1", permanent=True)
        shown = [one for one in layer.stations("azure0") if one.mac.startswith("02:00:00:00:00:") and not one.vlan]
        assert shown == [Station("02:00:00:00:00:01", "azv1", permanent=True), Station("02:00:00:00:00:02", "azv1")]

    def test_another_bridge_has_its_own_stations(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """What one bridge learned is not shown of another."""
        azure0.add_device("cni0", kind="bridge")
        azure0.add_device("veth1", kind="veth", master="cni0")
        azure0.learn("02:00:00:00:00:02", "azv1")
        assert not [station for station in layer.stations("cni0") if station.mac == "02:00:00:00:00:02"]

    def test_what_is_no_bridge_has_no_stations(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Nor has one that does not exist."""
        assert layer.stations("azv2") == []
        assert layer.stations("no-such-bridge") == []

    # --- routes

    def test_routes_of_every_table_are_shown(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """With gateway, metric, protocol and table; the local table's are left out."""
        azure0.add_route("fd00:9::9/128", "azv2")
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000)
        shown = [route for route in layer.routes() if route.destination.startswith("fd00:9:")]
        assert shown == [
            ObservedRoute.parse("fd00:9::9/128", "azv2", metric=1024, protocol=3),
            ObservedRoute.parse("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000),
        ]
        assert 255 not in {route.table for route in layer.routes()}

    def test_routes_come_in_order(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """By number, not by text."""
        for last in ("10", "9", "a"):
            azure0.add_route(f"fd00:9::{last}/128", "azv2")
        assert [route.destination for route in _pods(layer)] == ["fd00:9::9/128", "fd00:9::a/128", "fd00:9::10/128"]

    # --- answering

    @pytest.fixture
    def pods(self, node: LinkNode) -> LinkNode:
        """A node with a bridge and a pod on it, a pod beside it, and a pod whose device is down."""
        node.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        node.add_pod("azv1", "10.240.0.9", "fd00:1::9", master="azure0")
        node.add_pod("azv2", "10.240.0.10", "fd00:1::10")
        node.add_pod("azv3", "10.240.0.11", "fd00:1::11", up=False)
        return node

    def test_pods_answer_for_their_addresses(self, pods: LinkNode, layer: LinkLayer) -> None:
        """Of both families, behind the port of a bridge or behind a veth."""
        asked = [("azv1", "10.240.0.9"), ("azv2", "10.240.0.10"), ("azv1", "fd00:1::9"), ("azv2", "fd00:1::10")]
        assert layer.answering(Context(), asked) == set(asked)

    def test_nobody_answers_for_what_is_not_there(self, pods: LinkNode, layer: LinkLayer) -> None:
        """Another address, another pod's device, the bridge, a device that is down, is gone, or is a loopback."""
        asked = [
            *(("azv1", "10.240.0.8"), ("azv1", "fd00:1::8")),
            *(("azv1", "10.240.0.10"), ("azv2", "fd00:1::9")),
            *(("azure0", "10.240.0.4"), ("lo", "127.0.0.1")),
            *(("azv3", "10.240.0.11"), ("azv3", "fd00:1::11")),
            *(("azv9", "10.240.0.9"), ("azv9", "fd00:1::9")),
        ]
        there = [("azv1", "10.240.0.9"), ("azv2", "fd00:1::10")]
        assert layer.answering(Context(), [*asked, *there]) == set(there)

    def test_a_pod_that_is_gone_answers_no_more(self, pods: LinkNode, layer: LinkLayer) -> None:
        """With its device goes who was behind it."""
        pods.remove_device("azv2")
        assert layer.answering(Context(), [("azv2", "10.240.0.10")]) == set()

    def test_answers_come_in_the_words_of_the_question(self, pods: LinkNode, layer: LinkLayer) -> None:
        """An address may be spelled in any way, and be asked for more than once."""
        asked = [("azv1", "FD00:1::9"), ("azv1", "fd00:1:0::9"), ("azv1", "FD00:1::9")]
        assert layer.answering(Context(), asked) == {("azv1", "FD00:1::9"), ("azv1", "fd00:1:0::9")}

    def test_asking_changes_nothing(self, pods: LinkNode, layer: LinkLayer) -> None:
        """No neighbour, no route: also where somebody has said that the address is elsewhere."""
        for address in ("10.240.0.9", "fd00:1::9"):
            pods.add_neighbour(address, "azure0", _POD_MAC)
            pods.add_neighbour(address, "azv1", _POD_MAC)
        for address in ("10.240.0.10", "fd00:1::10"):
            pods.add_neighbour(address, "azv2", _POD_MAC)
        before = _state(layer)
        asked = [("azv1", "10.240.0.9"), ("azv2", "10.240.0.10"), ("azv1", "fd00:1::9"), ("azv2", "fd00:1::10")]
        assert layer.answering(Context(), asked) == set(asked)
        assert _state(layer) == before

    def test_many_are_asked_for_at_once(self, pods: LinkNode, layer: LinkLayer) -> None:
        """Two that are there are found among thousands that are not."""
        there = [("azv1", "10.240.0.9"), ("azv2", "fd00:1::10")]
        missing = [("azv1", f"10.240.{number // 250 + 1}.{number % 250 + 1}") for number in range(2000)]
        missing += [("azv2", f"fd00:2::{number:x}") for number in range(2000)]
        assert layer.answering(Context(), [there[0], *missing, there[1]]) == set(there)

    def test_nobody_is_asked_for_nothing(self, layer: LinkLayer) -> None:
        """No question, no answer."""
        assert layer.answering(Context(), []) == set()

    @pytest.mark.parametrize("odd", ["", "10.240.0", "10.240.0.9/32", "fd00::g", "fe80::1%azv1", "azv1", "1\0"])
    def test_what_is_no_address_is_refused(self, pods: LinkNode, layer: LinkLayer, odd: str) -> None:
        """EINVAL, and it is named."""
        with pytest.raises(BackendError) as caught:
            layer.answering(Context(), [("azv1", odd)])
        assert caught.value.errno == errno.EINVAL
        assert str(caught.value) == f"{odd!r} is no address that one could ask for on a link"

    def test_asking_ends_with_its_context(self, pods: LinkNode, layer: LinkLayer) -> None:
        """Whoever is not wanted any more does not ask."""
        ctx = Context()
        ctx.cancel("enough")
        with pytest.raises(CancelledError):
            layer.answering(ctx, [("azv1", "10.240.0.8")])

    # --- apply

    def test_nothing_to_do_is_fine(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """An empty batch changes nothing."""
        layer.apply()

    def test_removed_and_added_again_is_as_before(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Neighbours and routes come back in every detail."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", _POD_MAC, flags=_NTF_ROUTER, protocol=77)
        azure0.add_neighbour("10.240.0.8", "azure0", _POD_MAC, permanent=False)
        azure0.add_route("fd00:9::9/128", "azv2")
        azure0.add_route("fd00:9::/64", "azure0", gateway="fd00:1::1", metric=7, protocol=77, table=1000)
        before = _state(layer)
        routes = [route for route in layer.routes() if route.destination.startswith("fd00:9:")]
        things = _things(layer.neighbours(), routes)
        layer.apply(remove=things)
        assert layer.neighbours() == []
        assert not [route for route in layer.routes() if route.destination.startswith("fd00:9:")]
        layer.apply(add=things)
        assert _state(layer) == before

    def test_only_what_is_named_is_removed(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """Its twins of another device, metric or table stay."""
        azure0.add_route("fd00:9::/64", "azv2")
        azure0.add_route("fd00:9::/64", "azure0", metric=7)
        azure0.add_route("fd00:9::/64", "azv2", table=1000)
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        azure0.add_neighbour("10.240.0.9", "azv2", _POD_MAC)
        before = _state(layer)
        route, neighbour = ObservedRoute.parse("fd00:9::/64", "azv2", metric=1024, protocol=3), layer.neighbours()[0]
        layer.apply(remove=[route, neighbour])
        neighbours, routes = _state(layer)
        assert neighbours == [one for one in before[0] if one != neighbour]
        assert routes == [one for one in before[1] if one != route]

    def test_routes_of_two_devices_stand_beside_each_other(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """As every device's own `fe80::/64` does: with the same metric, in the same table; and each goes by itself."""
        one, two = (ObservedRoute.parse("fd00:9::/64", dev, metric=1024, protocol=3) for dev in ("azure0", "azv2"))
        layer.apply(add=[one, two])
        layer.apply(remove=[one])
        layer.apply(add=[one])
        layer.apply(remove=[two])
        assert [route for route in layer.routes() if route.destination == "fd00:9::/64"] == [one]

    def test_removals_come_first(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """So a neighbour can be given another hardware address in one batch."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
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
        """Apply what must be refused, and see that nothing changed."""
        before = _state(layer)
        with pytest.raises(RouteRejectedError) as caught:
            layer.apply(remove=remove, add=add)
        assert caught.value.rolled_back, caught.value
        assert _state(layer) == before
        return caught.value

    def test_removing_what_is_not_there_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A neighbour is ENOENT, a route ESRCH; every refusal is named, and what was there stays."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
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
        "detail", [{"mac": "02:00:00:00:00:09"}, {"permanent": False}, {"flags": _NTF_ROUTER}, {"protocol": 9}]
    )
    def test_a_neighbour_that_differs_is_not_removed(
        self, azure0: LinkNode, layer: LinkLayer, detail: dict[str, object]
    ) -> None:
        """Somebody else has got the address since, or the kernel learned it: that is ENOENT, and says what is there."""
        azure0.add_neighbour("fd00:1::9", "azure0", _POD_MAC)
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
        """EEXIST, for neighbours that somebody put there or that were learned, and for routes; the rest is not done."""
        azure0.add_neighbour("10.240.0.8", "azure0", _POD_MAC, permanent=False)
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
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
        """ENODEV, and its name is given."""
        error = self.refused(layer, add=[Neighbour("10.240.0.9", "azv9", _POD_MAC, permanent=True)])
        assert [refusal.errno for refusal in error.refusals] == [errno.ENODEV]
        assert "azv9" in error.refusals[0].reason
        assert str(error).startswith("1 neighbour change was refused:")

    def test_a_refusal_by_the_kernel_takes_the_batch_back(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """What no reading foresees (a gateway that nobody reaches) is the last of a batch: all before it is undone."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        azure0.add_neighbour("fd00:1::9", "azure0", _POD_MAC, flags=_NTF_ROUTER, protocol=77)
        azure0.add_route("fd00:9::9/128", "azv2")
        new = Neighbour("10.240.0.10", "azure0", "02:00:00:00:00:09", permanent=True)
        error = self.refused(
            layer,
            remove=_things(layer.neighbours(), _pods(layer)),
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
            Neighbour("10.240.0.009", "azure0", _POD_MAC, permanent=True),
            Neighbour("FD00:1::9", "azure0", _POD_MAC, permanent=True),
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
        """EINVAL for what the kernel would show in another form, or not at all: it could not be verified."""
        assert [refusal.errno for refusal in self.refused(layer, add=[odd]).refusals] == [errno.EINVAL]
        assert [refusal.errno for refusal in self.refused(layer, remove=[odd]).refusals] == [errno.EINVAL]

    def test_the_same_thing_twice_is_refused(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """What a batch has removed cannot be removed again, nor what it has added be added."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        there = layer.neighbours()[0]
        assert [refusal.errno for refusal in self.refused(layer, remove=[there, there]).refusals] == [errno.ENOENT]
        new = there._replace(address="10.240.0.10")
        assert [refusal.errno for refusal in self.refused(layer, add=[new, new]).refusals] == [errno.EEXIST]

    # --- bulk

    def test_thousands_are_read_and_deleted(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """More than any buffer holds, in one batch; and put back in another."""
        many = [
            Neighbour(f"10.240.{number // 250 + 1}.{number % 250 + 1}", "azure0", _POD_MAC, permanent=True)
            for number in range(3000)
        ]
        layer.apply(add=many)
        assert layer.neighbours() == many
        layer.apply(remove=many)
        assert layer.neighbours() == []
        layer.apply(add=many)
        assert len(layer.neighbours()) == 3000

    def test_it_may_be_used_from_any_thread(self, azure0: LinkNode, layer: LinkLayer) -> None:
        """A thread other than the one that made it gets the same answers."""
        azure0.add_neighbour("10.240.0.9", "azure0", _POD_MAC)
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(layer.neighbours()))
        thread.start()
        thread.join()
        assert answers == [layer.neighbours()]
