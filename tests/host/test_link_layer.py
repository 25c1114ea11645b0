"""The contract of `LinkLayer` on the fake and on the kernel, and facts that only the kernel can show."""

import errno
import json
import struct
import sys
from collections.abc import Iterator

import pytest
from support.contracts.link_changes import LinkLayerContract
from support.contracts.link_layer import LinkNode
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks
from support.needs import needs

from hostrouting.exceptions import BackendError, RouteRejectedError
from hostrouting.host import LinkLayer
from hostrouting.host.netlink.commit import LinkThing
from hostrouting.host.netlink.conversation import Adapter
from hostrouting.host.netlink.device_codec import parse_stations
from hostrouting.host.netlink.frames import attribute
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer, _KernelTransport
from hostrouting.net.addresses import IPV6, Address
from hostrouting.net.links import Neighbour, Station
from hostrouting.net.routes import KINDS, ObservedRoute
from hostrouting.testing import KernelNode
from hostrouting.testing.memory_link_layer import MemoryLinkLayer

POD_MAC = "12:34:56:78:9a:bc"


class TestMemoryLinkLayer(LinkLayerContract):
    """The fake."""

    @pytest.fixture
    def node(self) -> MemoryLinkLayer:
        return MemoryLinkLayer()

    @pytest.fixture
    def layer(self, node: MemoryLinkLayer) -> LinkLayer:
        return node


@needs_kernel
class TestNetlinkLinkLayer(LinkLayerContract):
    """The kernel."""

    @pytest.fixture
    def node(self) -> Iterator[KernelLinks]:
        with KernelNode.made() as made, KernelLinks(made) as links:
            yield links

    @pytest.fixture
    def layer(self, node: KernelLinks) -> LinkLayer:
        return NetlinkLinkLayer(netns=node.name)

    @needs("bpf")
    def test_programs_of_both_directions_are_named(self, eth0: LinkNode, layer: LinkLayer) -> None:
        """See the contract."""
        super().test_programs_of_both_directions_are_named(eth0, layer)


# --- only the kernel


@pytest.fixture
def node() -> Iterator[KernelLinks]:
    with KernelNode.made() as made:
        links = KernelLinks(made)
        links.add_device("azure0", kind="bridge", mac="02:00:00:00:0a:00", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        links.add_device("azv1", kind="veth", master="azure0")
        links.add_device("azv2", kind="veth")
        yield links


@pytest.fixture
def layer(node: KernelLinks) -> NetlinkLinkLayer:
    return NetlinkLinkLayer(netns=node.name)


def variety(node: KernelLinks) -> None:
    """Neighbours and routes with every detail that `ip` can give them."""
    node.kernel.ip("neigh", "add", "10.240.0.9", "lladdr", POD_MAC, "dev", "azure0", "nud", "permanent")
    node.kernel.ip(
        *("neigh", "add", "10.240.0.10", "lladdr", POD_MAC, "dev", "azure0"),
        *("nud", "permanent", "extern_learn", "protocol", "44"),
    )
    node.kernel.ip("neigh", "add", "fd00:1::9", "lladdr", POD_MAC, "dev", "azure0", "nud", "permanent", "router")
    node.kernel.ip("neigh", "add", "10.240.0.11", "lladdr", POD_MAC, "dev", "azv2", "nud", "stale")
    node.kernel.ip("nexthop", "add", "id", "7", "via", "fd00:1::7", "dev", "azure0")
    for words in (
        "fd00:9::9/128 dev azv2",
        "fd00:2::/64 from fd00:1::/64 dev azure0",
        "fd00:4::/64 nexthop via fd00:1::1 dev azure0 nexthop via fe80::1 dev azv2 weight 3",
        "blackhole fd00:5::/64",
        "unreachable fd00:6::/64 metric 77",
        "prohibit default metric 4096",
        "fd00:7::/64 nhid 7",
        "fd00:8::/64 dev azv2 mtu 1300 hoplimit 3 pref high src fd00:1::4 proto 77 table 1000",
        "fd00:a::/64 via fd00:99::1 dev azure0 onlink pref low",
        "default via fe80::1 dev azure0 metric 100 proto ra",
        "fd00:b::/64 encap seg6 mode encap segs fd00:1::77 dev azure0",
    ):
        node.kernel.ip("-6", "route", "add", *words.split())


def everything(layer: LinkLayer) -> list[Neighbour | ObservedRoute]:
    """All that the layer shows, but for the route without which no gateway is reached."""
    things: list[Neighbour | ObservedRoute] = [route for route in layer.routes() if route.destination != "fd00:1::/64"]
    return [*layer.neighbours(), *things]


def _words(route: ObservedRoute) -> tuple[object, ...]:
    source = None if route.source is None else str(Address(IPV6, route.source))
    fields = route.metric, route.table, route.protocol, route.kind, source
    return route.destination, route.dev, None if route.gateway is None else str(route.gateway), *fields


def listing(node: KernelLinks) -> tuple[list[str], list[str]]:
    return node.listed("-d", "neigh"), node.listed("-6", "-d", "route", "show", "table", "all")


@needs_kernel
class TestAgainstIproute2:
    """The layer reads the same as `ip` and `bridge` print in one namespace."""

    def test_devices_are_those_of_ip(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Names, indexes, addresses, kinds, masters and carrier are those that `ip` prints."""
        shown = [
            (
                link["ifname"],
                link["ifindex"],
                "UP" in link["flags"],
                "" if link["ifname"] == "lo" else link["address"],
                link.get("linkinfo", {}).get("info_kind", ""),
                link.get("master"),
                tuple(f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"]),
                "LOWER_UP" in link["flags"],
            )
            for link in node.shown("-d", "address")
        ]
        assert [(*device[:6], tuple(map(str, device.addresses)), device.carrier) for device in layer.devices()] == shown

    def test_neighbours_are_those_of_ip(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Neighbours with a hardware address are read in any state; failed and incomplete ones are left out."""
        variety(node)
        node.kernel.ip("neigh", "add", "10.240.0.12", "dev", "azure0", "nud", "failed")
        node.kernel.ip("neigh", "add", "10.240.0.13", "dev", "azure0", "nud", "incomplete")
        shown = {
            (one["dst"], one["dev"], one["lladdr"], one["state"] == ["PERMANENT"])
            for one in node.shown("-d", "neigh")
            if "lladdr" in one
        }
        assert {tuple(neighbour)[:4] for neighbour in layer.neighbours()} == shown
        assert len(shown) == 4
        by_address = {neighbour.address: neighbour for neighbour in layer.neighbours()}
        assert (by_address["10.240.0.10"].flags, by_address["10.240.0.10"].protocol) == (0x10, 44)
        assert by_address["fd00:1::9"].flags == 0x80

    def test_routes_are_those_of_ip(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Routes of every kind are read from all tables except the local one."""
        variety(node)
        shown = []
        for one in node.shown("-6", "-d", "-N", "route", "show", "table", "all"):
            table = int(one.get("table", 254))
            destination = "::/0" if one["dst"] == "default" else one["dst"]
            kind = KINDS[int(one["type"])]
            blocks = kind in {"blackhole", "unreachable", "prohibit"}
            if table != 255:
                shown.append(
                    (
                        destination if "/" in destination else f"{destination}/128",
                        None if blocks else one.get("dev"),
                        one.get("gateway"),
                        one["metric"],
                        table,
                        int(one["protocol"]),
                        kind,
                        one.get("prefsrc"),
                    )
                )
        assert sorted(shown, key=repr) == sorted(map(_words, layer.routes()), key=repr)
        assert len(shown) >= 11

    def test_stations_are_those_of_bridge(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """Stations with the bridge as master are read, in every VLAN in which `bridge` shows them."""
        node.learn(POD_MAC, "azv1")
        node.learn("02:00:00:00:00:07", "azv1", permanent=True)
        shown = [
            Station(one["mac"], one["ifname"], one["state"] in {"permanent", "static"}, one.get("vlan", 0))
            for one in json.loads(node.kernel.run("bridge", "-j", "fdb", "show"))
            if one.get("master") == "azure0"
        ]
        assert layer.stations("azure0") == sorted(shown)
        assert Station(POD_MAC, "azv1") in layer.stations("azure0")


def test_a_station_has_its_vlan() -> None:
    """The VLAN of a station is read from a message that is packed here, as not every kernel has VLANs."""
    entry = struct.pack("=BxxxiHBB", 7, 5, 0x2, 0, 0) + attribute(2, bytes.fromhex(POD_MAC.replace(":", "")))
    packed = entry + attribute(9, struct.pack("=I", 3)) + attribute(5, struct.pack("=H", 33))
    names = {3: "azure0", 5: "azv1"}
    assert parse_stations([packed], names, "azure0") == [Station(POD_MAC, "azv1", vlan=33)]
    assert parse_stations([packed], names, "azv1") == []


@needs_kernel
class TestPuttingBack:
    """Objects that are removed and added again."""

    def test_all_details_come_back(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """`ip -d neigh` and `ip -6 -d route` print the same lines: several next hops, tunnels, metrics, sources, ..."""
        variety(node)
        before = listing(node)
        things = everything(layer)
        layer.apply(remove=things)
        gone = listing(node)
        assert len(gone[0]) == 0
        assert [line for line in gone[1] if "table main" in line and "fd00:1::/64" not in line] == []
        layer.apply(add=things)
        assert listing(node) == before

    def test_a_batch_that_is_refused_leaves_all_details(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """The rollback of a refused batch restores every detail."""
        variety(node)
        before = listing(node)
        things = everything(layer)
        beyond = ObservedRoute.parse("fd00:f::/64", "azv2", "fd00:99::1", metric=1024, protocol=3)
        with pytest.raises(RouteRejectedError) as caught:
            layer.apply(remove=things, add=[beyond])
        assert caught.value.rolled_back, caught.value
        assert [refusal.errno for refusal in caught.value.refusals] == [errno.EHOSTUNREACH]
        assert listing(node) == before

    def test_a_route_that_ends_is_not_made_immortal(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A route is restored with its remaining lifetime, and can be removed at any remaining lifetime."""
        node.kernel.ip("-6", "route", "add", "fd00:c::/64", "dev", "azv2", "expires", "500")
        (route,) = [route for route in layer.routes() if route.destination == "fd00:c::/64"]
        assert 490 < route.expires <= 500
        layer.apply(remove=[route._replace(expires=77)])
        layer.apply(add=[route])
        (again,) = [route for route in layer.routes() if route.destination == "fd00:c::/64"]
        assert again.fulfils(route)
        assert 490 < again.expires <= route.expires

    def test_a_place_that_traffic_has_asked_for_is_free(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A packet to a removed neighbour leaves an entry without hardware address, which does not block a restore."""
        node.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        before = layer.neighbours()
        layer.apply(remove=before)
        node.kernel.ip("neigh", "replace", "10.240.0.9", "dev", "azure0", "nud", "failed")
        assert layer.neighbours() == []
        layer.apply(add=before)
        assert layer.neighbours() == before

    def test_a_neighbour_in_use_is_removed_and_put_back(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """The kernel keeps a referenced entry as failed; it counts as removed, and is replaced at a restore."""
        node.add_neighbour("10.240.0.9", "azure0", POD_MAC)
        node.kernel.run(
            *(sys.executable, "-c"),
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('10.240.0.9', 9))",
        )
        there = layer.neighbours()
        layer.apply(remove=there)
        assert layer.neighbours() == []
        layer.apply(add=there)
        assert layer.neighbours() == there
        layer.apply(remove=there, add=[there[0]._replace(mac="02:00:00:00:00:09")])
        assert [neighbour.mac for neighbour in layer.neighbours()] == ["02:00:00:00:00:09"]


@needs_kernel
def test_nothing_can_be_put_back_on_a_device_that_is_gone(node: KernelLinks) -> None:
    """The kernel refuses the steps on an absent device; the others are done."""
    wanted: list[LinkThing] = [
        Neighbour("10.240.0.9", dev, POD_MAC, permanent=True) for dev in ("azv2", "azure0", "azv2")
    ]
    steps = [("append", thing, position) for position, thing in enumerate(wanted)]
    with Adapter(netns=node.name)._open() as conversation:
        transport = _KernelTransport(conversation, {name: index for index, name in conversation.names().items()})
        transport.standing()
        node.remove_device("azv2")
        for _ in range(2):
            refused = transport.send(steps)
            assert {number: failure.errno for number, failure in refused.items()} == {0: errno.ENODEV, 2: errno.ENODEV}
            assert wanted[1] in transport.standing()


@needs_kernel
def test_a_rollback_leaves_the_neighbour_of_another_program(node: KernelLinks) -> None:
    """The kernel removes a neighbour by address and device alone, so the rollback reads it first."""
    ours: LinkThing = Neighbour("10.240.0.9", "azure0", POD_MAC, permanent=True)
    with Adapter(netns=node.name)._open() as conversation:
        transport = _KernelTransport(conversation, {name: index for index, name in conversation.names().items()})
        transport.standing()
        assert transport.send([("add", ours, 0)]) == {}
        node.kernel.ip("neigh", "replace", "10.240.0.9", "dev", "azure0", "lladdr", "02:00:00:00:00:09")
        refused = transport.send([("remove", ours, 0)])
        assert [failure.errno for failure in refused.values()] == [errno.ENOENT]
        assert [thing.mac for thing in transport.standing() if isinstance(thing, Neighbour)] == ["02:00:00:00:00:09"]


@needs_kernel
@pytest.mark.parametrize("first", ["without a gateway", "with a gateway"])
def test_a_removal_that_would_hit_another_route_is_refused(
    node: KernelLinks, layer: NetlinkLinkLayer, first: str
) -> None:
    """The kernel removes the first route that fits, and a route without gateway fits all: only the first is removed."""
    ways = {"without a gateway": (), "with a gateway": ("via", "fd00:1::1")}
    for verb, way in zip(("add", "append"), (first, *(ways.keys() - {first})), strict=True):
        node.kernel.ip("-6", "route", verb, "fd00:9::/64", *ways[way], "dev", "azure0", "metric", "1024")
    before = layer.routes()
    plain, via = sorted(
        (one for one in before if one.destination == "fd00:9::/64"), key=lambda one: str(one.gateway or "")
    )
    if first == "with a gateway":
        with pytest.raises(RouteRejectedError, match=f"the kernel would remove '{via}' instead"):
            layer.apply(remove=[plain])
        assert layer.routes() == before
        layer.apply(remove=[via, plain])
    else:
        layer.apply(remove=[plain])
        layer.apply(remove=[via])
    assert layer.routes() == [one for one in before if one not in {plain, via}]


@needs_kernel
def test_without_privilege_nothing_is_changed(node: KernelLinks) -> None:
    """Reading needs no privilege; changing without it is a `PermissionDeniedError`."""
    node.add_neighbour("10.240.0.9", "azure0", POD_MAC)
    program = """
from hostrouting.exceptions import PermissionDeniedError
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
layer = NetlinkLinkLayer()
assert layer.devices() and layer.routes() and layer.stations("azure0")
try:
    layer.apply(remove=layer.neighbours())
except PermissionDeniedError as error:
    print(error, error.errno, len(layer.neighbours()))
"""
    assert node.kernel.run(*powerless(), sys.executable, "-c", program) == (
        f"changing neighbours needs root or CAP_NET_ADMIN; nothing was changed {errno.EPERM} 1\n"
    )


def test_a_missing_namespace_is_a_clear_error() -> None:
    """The error names the namespace."""
    with pytest.raises(BackendError, match="rtnetlink in network namespace no-such-namespace: No such file"):
        NetlinkLinkLayer(netns="no-such-namespace").devices()
