"""The model of a node with a VRF; tests/route_overlap/test_vrf.py compares it with the kernel."""

import pytest
from support.overlap_checks import check_cidrs

from hostrouting.fib import Fib
from hostrouting.host import Address, Device, DeviceAddress, NextHop, ObservedRoute
from hostrouting.net.addresses import format_ipv4, parse_ipv4
from hostrouting.net.links import source_by
from hostrouting.route_overlap.fabric import Fabric, FabricAddress


def device(
    name: str, index: int, *addresses: str, kind: str = "", master: str | None = None, mac: str = ""
) -> Device:
    own = tuple(map(DeviceAddress.parse, addresses))
    return Device(name, index, up=True, mac=mac, kind=kind, master=master, addresses=own)


LOOPBACK = Device(
    "lo",
    1,
    up=True,
    addresses=(DeviceAddress.parse("127.0.0.1/8")._replace(scope=254),),
    loopback=True,
)
E1 = device("e1", 2, "172.16.1.4/16", master="blue", mac="02:00:00:00:00:01")
PLAIN = device("plain", 3, master="blue")
ETH0 = device("eth0", 4, "fd00::4/64", "10.224.0.4/16")
BLUE = device("blue", 5, "192.0.2.1/32", kind="vrf")
OUT = device("out", 6)
PORT = device("port", 7, master="br")
BRIDGE = device("br", 8, "10.9.0.1/24", kind="bridge", master="blue")
DEVICES = [LOOPBACK, E1, PLAIN, ETH0, BLUE, OUT, PORT, BRIDGE]
DEFAULT = ObservedRoute.parse("0.0.0.0/0", "eth0")


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        ("e1", "172.16.1.4"),
        ("plain", "192.0.2.1"),
        ("out", "10.224.0.4"),
        ("port", "10.224.0.4"),
        ("gone", "10.224.0.4"),
    ],
)
def test_a_device_borrows_an_address_of_its_own_vrf(dev: str, expected: str) -> None:
    """A device without an address borrows one of its VRF, that of the VRF's device first; a device
    outside of VRFs, such as the port of a bridge in one, borrows from devices outside of VRFs.
    """
    source = source_by(NextHop(None, dev), 0, DEVICES)
    assert source is not None
    assert format_ipv4(source) == expected


def test_the_source_is_the_address_by_which_the_gateway_is_on_the_link() -> None:
    """The source of a route is the address whose network contains the gateway, or whose peer is the
    gateway, or else the first address of the device.
    """
    peer = DeviceAddress.parse("10.3.0.1/32")._replace(peer=parse_ipv4("10.3.0.2"))
    e0 = device("e0", 2, "10.1.0.1/16", "10.2.0.1/16")
    links = [e0._replace(addresses=(*e0.addresses, peer))]
    gateways = "10.2.0.9", "10.3.0.2", "10.9.0.9"
    sources = [source_by(NextHop(Address.parse(each), "e0"), 0, links) for each in gateways]
    assert sources == [*map(parse_ipv4, ("10.2.0.1", "10.3.0.1", "10.1.0.1"))]


def test_a_packet_may_come_from_an_address_in_a_vrf() -> None:
    """A packet with an address of a VRF as its source is routed, although the table local does not have the
    address.
    """
    sources = [parse_ipv4("172.16.1.4"), parse_ipv4("172.16.1.5")]
    answers = Fib.of(DEVICES, [DEFAULT]).lookup([9 << 24] * 2, sources=sources)
    assert [answer.route for answer in answers] == [DEFAULT, None]


@pytest.mark.parametrize("master", ["blue", None])
@pytest.mark.parametrize(("address", "found"), [("", ["announced"]), ("172.16.1.4/16", [])])
def test_a_fabric_is_announced_until_it_has_its_address(
    master: str | None, address: str, found: list[str]
) -> None:
    """A fabric counts as announced until its device has the address, in a VRF as well, where the
    address adds no route to main, so that a node is not held for ever.
    """
    addresses = (DeviceAddress.parse(address),) if address else ()
    bare = E1._replace(addresses=addresses, master=master)
    node = Fib.of([LOOPBACK, bare, ETH0, BLUE], [DEFAULT])
    fabric = Fabric(
        addresses=(FabricAddress("020000000001", parse_ipv4("172.16.1.4")),), source="the test"
    )
    report = check_cidrs(node, ["172.16.8.0/22"], fabric=fabric)
    assert [finding.kind for finding in report.cidrs[0].findings] == found
