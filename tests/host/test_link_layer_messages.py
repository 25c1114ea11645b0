"""Neighbours as the kernel sends them, read by our parsers."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host import Address, Neighbour
from hostrouting.host.netlink.device_codec import parse_devices, parse_neighbours
from hostrouting.host.netlink.frames import attribute
from hostrouting.net.addresses import parse_address, parse_ipv4

macs = st.binary(min_size=6, max_size=6).map(lambda packed: packed.hex(":"))
INCOMPLETE = 0x1
REACHABLE = 0x2
FAILED = 0x20


def without_mac(address: str, index: int, state: int) -> bytes:
    """Return the payload of a neighbour without a hardware address."""
    family, number = Address.parse(address)
    fixed = struct.pack("=BxxxiHBB", family, index, state, 0, 0)
    return fixed + attribute(1, Address(family, number).packed)


def packed(neighbour: Neighbour, index: int = 3) -> bytes:
    """Return the payload of a neighbour, as the kernel sends it."""
    family, _ = Address.parse(neighbour.address)
    state = 0x80 if neighbour.permanent else REACHABLE
    fixed = struct.pack("=BxxxiHBB", family, index, state, neighbour.flags & 0xFF, 0)
    return b"".join(
        [
            fixed,
            attribute(1, Address.parse(neighbour.address).packed),
            attribute(2, bytes.fromhex(neighbour.mac.replace(":", ""))),
            attribute(12, bytes([neighbour.protocol])),
            attribute(15, struct.pack("=I", neighbour.flags >> 8)),
        ]
    )


@given(
    st.builds(
        Neighbour,
        address=st.ip_addresses().map(lambda address: str(parse_address(str(address)))),
        dev=st.just("azure0"),
        mac=macs,
        permanent=st.booleans(),
        flags=st.integers(0, 0xFFFF),
        protocol=st.integers(0, 255),
    )
)
def test_a_neighbour_is_read_in_every_detail(neighbour: Neighbour) -> None:
    """A neighbour is read with its flags and protocol, which tell whose it is."""
    assert parse_neighbours([packed(neighbour)], {3: "azure0"}).known == [neighbour]


def test_a_device_has_its_neighbours_by_index() -> None:
    """A device has its IPv4 neighbours with a hardware address, and the failed ones of both
    families, sorted; its name may be any bytes.
    """
    links = [
        struct.pack("=BxHiII", 0, 1, index, 0x1, 0) + attribute(3, name)
        for index, name in ((3, b"eth0\0"), (4, b"ib\xff\0"))
    ]
    known = [
        Neighbour(address, "eth0", "02:00:00:00:00:09", permanent=False)
        for address in ("10.0.0.10", "10.0.0.9", "fd00::9")
    ]
    neighbours = [
        *(packed(neighbour) for neighbour in known),
        without_mac("10.0.0.7", 3, REACHABLE),
        without_mac("10.0.0.8", 3, INCOMPLETE),
        without_mac("fd00::2", 4, FAILED),
        without_mac("10.0.0.2", 4, FAILED),
        without_mac("10.0.0.3", 99, FAILED),
    ]
    eth0, ib0 = parse_devices(links, [], neighbours)
    assert [eth0.name, ib0.name] == ["eth0", "ib\udcff"]
    assert eth0.neighbours == (parse_ipv4("10.0.0.9"), parse_ipv4("10.0.0.10"))
    assert eth0.failed == ()
    assert ib0.neighbours == ()
    assert ib0.failed == (Address.parse("10.0.0.2"), Address.parse("fd00::2"))


def test_a_neighbour_without_address_is_unreadable() -> None:
    """A neighbour without an address, which a kernel never sends, cannot be read."""
    nameless = struct.pack("=BxxxiHBB", 2, 3, REACHABLE, 0, 0)
    with pytest.raises(ValueError, match=r"^a neighbour has no address$"):
        parse_neighbours([nameless], {3: "azure0"})


def test_a_neighbour_of_a_removed_device_is_left_out() -> None:
    """A neighbour of a removed device, which the kernel moves to index 0, is left out, and a
    reading does not wait for it.

    The message is from a node: `ff02::16`, NOARP.
    """
    moved = bytes.fromhex(
        "0a000000000000004000000514000100ff0200000000000000000000000000160a0002000000000000000000"
    )
    assert parse_neighbours([moved], {3: "azure0"}) == ([], set())
