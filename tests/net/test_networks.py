"""Addresses of both families as text, and networks."""

import ipaddress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.net.addresses import IPV4, IPV6, Address, Prefix, parse_address


@given(
    st.ip_addresses(v=4) | st.ip_addresses(v=6),
    st.integers(0, 128),
    st.ip_addresses(v=4),
    st.integers(0, 128),
    st.data(),
)
def test_coverage_is_that_of_the_standard_library(
    base: ipaddress.IPv4Address | ipaddress.IPv6Address,
    length: int,
    other: ipaddress.IPv4Address,
    other_length: int,
    data: st.DataObject,
) -> None:
    """A network is covered exactly when `ipaddress` calls it a subnet, and an address when it is
    in the network; families never mix.
    """
    network = ipaddress.ip_network((base, min(length, base.max_prefixlen)), strict=False)
    # Of networks at random hardly any would lie in one another.
    inner = data.draw(
        st.sampled_from([base, network.network_address, network.broadcast_address, other])
    )
    subnet = ipaddress.ip_network((inner, min(other_length, inner.max_prefixlen)), strict=False)
    expected = subnet.version == network.version and subnet.subnet_of(network)  # type: ignore[arg-type]
    prefix = Prefix.parse(str(network))
    assert prefix.covers(Prefix.parse(str(subnet))) == expected
    assert prefix.covers(Address.parse(str(inner))) == (inner in network)


def test_a_network_covers_none_that_is_wider_or_of_another_family() -> None:
    """A network does not cover a wider one or one of another family, even if the shorter prefix
    agrees.
    """
    zero, half = Prefix.parse("0.0.0.0/0"), Prefix.parse("0.0.0.0/1")
    assert [half.covers(zero), zero.covers(half)] == [False, True]
    assert not Prefix.parse("::/0").covers(half)


@given(st.ip_addresses())
def test_spelling_is_that_of_the_standard_library(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """An address in any spelling is printed compressed, as the kernel's tools print it."""
    expected = Address(IPV4 if address.version == 4 else IPV6, int(address))
    assert parse_address(address.exploded) == expected
    assert parse_address(str(parse_address(address.exploded))) == expected


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.1/32", "fd00::1%eth0", "\0", "\ud800", "1::2::3", "pod"]
)
def test_a_text_that_is_not_an_address_is_none(text: str) -> None:
    """A text that is not an address is read as None, without an error."""
    assert parse_address(text) is None


def _runs_of(networks: list[ipaddress.IPv4Network]) -> list[tuple[ipaddress.IPv4Address, ...]]:
    """Return the first and the last address of each run of addresses without a gap."""
    collapsed = [*ipaddress.collapse_addresses(networks)]
    starts = [
        place
        for place, network in enumerate(collapsed)
        if not place or collapsed[place - 1][-1] + 1 != network[0]
    ]
    return [
        (collapsed[begin][0], collapsed[end - 1][-1])
        for begin, end in pairwise([*starts, len(collapsed)])
    ]


def _around(first: ipaddress.IPv4Address, last: ipaddress.IPv4Address) -> ipaddress.IPv4Network:
    """Return the smallest network with both addresses."""
    network = ipaddress.IPv4Network(first)
    while last not in network:
        network = network.supernet()
    return network
