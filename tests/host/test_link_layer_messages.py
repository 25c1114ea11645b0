"""Packed neighbours and routes of IPv6, against our parsers."""

import socket

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host.netlink.device_codec import pack_neighbour, parse_neighbours
from hostrouting.host.netlink.frames import attribute
from hostrouting.host.netlink.route_codec import pack_route, parse_route
from hostrouting.net.links import Neighbour
from hostrouting.net.routes import ObservedRoute

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
    assert parse_route(pack_route(route, {"azv1": 5}), {5: "azv1"}) == route
