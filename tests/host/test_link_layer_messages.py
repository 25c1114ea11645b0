"""Packed neighbours and routes of IPv6, against our parsers and against pyroute2's."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host.netlink.frames import attribute, message
from hostrouting.host.netlink.neighbour_codec import pack_neighbour, parse_neighbours
from hostrouting.host.netlink.route_codec import pack_route, parse_route
from hostrouting.net.addresses import IPV6
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute

POD_MAC = "12:34:56:78:9a:bc"

macs = st.binary(min_size=6, max_size=6).map(lambda packed: packed.hex(":"))
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
networks = st.integers(0, 128).flatmap(
    lambda length: st.integers(0, 2**length - 1).map(lambda bits: _network(bits << (128 - length), length))
)


def _network(number: int, length: int) -> str:
    return f"{socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, 'big'))}/{length}"


def _canonical(address: str) -> str:
    return _network(int.from_bytes(_packed(address), "big"), 128).removesuffix("/128") if ":" in address else address


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, address)


@given(
    st.builds(
        Neighbour,
        address=addresses.map(_canonical),
        dev=st.just("azure0"),
        mac=macs,
        permanent=st.booleans(),
        flags=st.integers(0, 0xFFFF),
        protocol=st.integers(0, 255),
    )
)
def test_a_packed_neighbour_parses_to_itself(neighbour: Neighbour) -> None:
    """A packed neighbour has every detail."""
    assert parse_neighbours([pack_neighbour(neighbour, 3)], {3: "azure0"}).known == [neighbour]


@given(
    st.builds(
        ObservedRoute.parse,
        networks,
        dev=st.just("azv1"),
        gateway=st.none() | st.ip_addresses(v=6).map(str).map(_canonical),
        metric=st.integers(0, 2**32 - 1),
        table=st.integers(1, 2**32 - 1),
        protocol=st.integers(0, 255),
        kind=st.sampled_from(["unicast", "local", "anycast"]),
        source=st.none() | st.ip_addresses(v=6).map(str).map(_canonical),
        flags=st.sampled_from([0, 4]),
        extra=st.sampled_from([(), ((20, b"\1"),), ((8, attribute(2, b"\x14\x05\0\0")), (20, b"\3"))]),
        from_prefix=st.none() | networks.filter(lambda network: not network.endswith("/0")),
        expires=st.just(0),
    )
)
def test_a_packed_route_parses_to_itself(route: ObservedRoute) -> None:
    """A packed route has every detail, except the expiry, which the kernel shows in another form."""
    assert parse_route(pack_route(route, {"azv1": 5}), {5: "azv1"}, family=IPV6) == route


def test_pyroute2_reads_the_same_messages() -> None:
    """pyroute2 reads the same addresses, states, flags and attributes from our messages."""
    from pyroute2.netlink.rtnl.ndmsg import ndmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    neighbour = Neighbour("fd00:1::9", "azure0", POD_MAC, permanent=True, flags=0x180, protocol=44)
    said = ndmsg(message(28, 0, pack_neighbour(neighbour, 3)))
    said.decode()
    assert (said["family"], said["ifindex"], said["state"], said["flags"]) == (socket.AF_INET6, 3, 0x80, 0x80)
    assert (said.get_attr("NDA_DST"), said.get_attr("NDA_LLADDR")) == ("fd00:1::9", POD_MAC)
    assert said.get_attr("NDA_PROTOCOL") == 44

    route = ObservedRoute.parse(
        "fd00:9::/64",
        "azv1",
        "fd00:1::1",
        metric=7,
        table=1000,
        protocol=77,
        source="fd00:1::4",
        flags=4,
        extra=((20, b"\1"),),
        from_prefix="fd00:2::/48",
        expires=90,
    )
    said = rtmsg(message(24, 0, pack_route(route, {"azv1": 5})))
    said.decode()
    fields = ("family", "dst_len", "src_len", "table", "proto", "type", "flags")
    assert tuple(said[field] for field in fields) == (socket.AF_INET6, 64, 48, 252, 77, 1, 4)
    names = ("TABLE", "DST", "SRC", "PRIORITY", "PREFSRC", "PREF", "GATEWAY", "OIF")
    values = [said.get_attr(f"RTA_{name}") for name in names]
    assert values == [1000, "fd00:9::", "fd00:2::", 7, "fd00:1::4", 1, "fd00:1::1", 5]
