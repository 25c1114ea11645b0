"""The JSON form of routes and neighbours."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host.netlink.route_codec import pack_route
from hostrouting.host.netlink.route_writer import RouteWriter
from hostrouting.net.addresses import IPV4, Address
from hostrouting.net.mappings import route_from_mapping, route_to_mapping
from hostrouting.net.routes import KINDS, Encapsulation, NextHop, ObservedRoute

NUMBERS = st.integers(-2, 1 << 33) | st.sampled_from([0, 1, 255, 256])
BYTES = st.integers(-1, 256)
EXTRA = st.lists(st.tuples(NUMBERS, st.binary(max_size=9).map(bytes.hex)), max_size=2)
TEXTS = st.sampled_from([None, "10.0.0.1", "fd00::1", "10.0.0", 7])
TUNNELS = st.none() | st.tuples(NUMBERS, st.just("00"))
HOPS = st.fixed_dictionaries(
    {
        "gateway": TEXTS,
        "dev": st.just("eth0"),
        "weight": NUMBERS,
        "onlink": st.booleans(),
        "extra": EXTRA,
        "encapsulation": TUNNELS,
    }
)


@given(
    st.fixed_dictionaries(
        {
            "destination": st.sampled_from(["10.0.0.0/8", "0.0.0.0/0", "fd00::/64", "10.0.0.1/8", "fd00::/129", "x"]),
            "gateway": TEXTS,
            "dev": st.sampled_from([None, "eth0"]),
            "metric": NUMBERS,
            "table": NUMBERS,
            "protocol": BYTES,
            "kind": st.sampled_from([*KINDS, "?"]),
            "scope": BYTES,
            "source": TEXTS,
            "tos": BYTES,
            "flags": NUMBERS,
            "nexthops": st.lists(HOPS, max_size=2),
            "extra": EXTRA,
            "encapsulation": TUNNELS,
            "nexthop_id": NUMBERS,
            "expires": NUMBERS,
        }
    )
)
def test_a_route_that_is_read_can_be_packed(mapping: dict[str, Any]) -> None:
    """The reader refuses whatever the kernel cannot be asked for, with an error that the journal knows."""
    try:
        route = route_from_mapping(mapping)
    except (ValueError, TypeError):
        return
    indexes = {"eth0": 1, "lo": 2}
    if route.family == IPV4:
        assert sum(map(len, RouteWriter(indexes).batches([("add", route.to_route(), 0)], echoes={})))
    else:
        assert pack_route(route, indexes)
    assert route_from_mapping(route_to_mapping(route)) == route


def number(value: int, size: int) -> str:
    return value.to_bytes(size, sys.byteorder).hex()


PREVIOUS = {
    "kind": "unicast",
    "dev": "eth0",
    "metric": 0,
    "table": 254,
    "protocol": 16,
    "scope": 0,
    "tos": 0,
    "flags": 4,
    "extra": [],
}


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (
            {"destination": "10.1.0.0/16", "gateway": "10.0.0.1", "source": "10.0.0.4", "nexthops": []},
            "10.1.0.0/16 via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.4 onlink",
        ),
        (
            {"network": 0x0A010000, "prefix_length": 16, "gateway": 0x0A000001, "source": None, "nexthops": []},
            "10.1.0.0/16 via 10.0.0.1 dev eth0 proto dhcp onlink",
        ),
        (
            {"destination": "fd00:1::9/128", "gateway": None, "source": None, "from_prefix": "fd00::/64", "expires": 9},
            "fd00:1::9 from fd00::/64 dev eth0 proto dhcp onlink",
        ),
    ],
    ids=["displaced", "swept", "swept IPv6"],
)
def test_the_forms_of_earlier_releases_are_read(previous: dict[str, Any], expected: str) -> None:
    """A record outlives the release that wrote it."""
    route = route_from_mapping(PREVIOUS | previous)
    assert (str(route), route.expires) == (expected, previous.get("expires", 0))


def test_attributes_of_earlier_releases_become_fields() -> None:
    """Gateways of the other family, tunnels and nexthop objects were carried as the kernel packs them."""
    via = [18, number(10, 2) + Address.parse("fe80::1").packed.hex()]
    hop = {"gateway": None, "dev": "eth0", "weight": 1, "onlink": False, "extra": [via, [11, "07000000"]]}
    base = {**PREVIOUS, "destination": "10.1.0.0/16", "gateway": None, "source": None}
    several = route_from_mapping({**base, "dev": None, "nexthops": [hop, hop]})
    assert several.nexthops == (NextHop(Address.parse("fe80::1"), "eth0", extra=((11, b"\7\0\0\0"),)),) * 2
    single = route_from_mapping(
        {**base, "nexthops": [], "extra": [[30, number(7, 4)], [21, number(2, 2)], [22, "beef"], [8, "00"]]}
    )
    assert (single.nexthop_id, single.encapsulation) == (7, Encapsulation(2, b"\xbe\xef"))
    assert single.extra == ((8, b"\0"),)


def test_next_hops_by_number_are_refused() -> None:
    """Earlier releases recorded the next hops of IPv6 routes by the numbers of devices, which may be others now."""
    previous = {**PREVIOUS, "destination": "fd00::/64", "gateway": None, "source": None, "extra": [[9, "00"]]}
    with pytest.raises(ValueError, match="by the numbers of their devices"):
        route_from_mapping(previous)


def test_a_route_is_readable() -> None:
    """People find in a record the text that `ip` prints."""
    assert route_to_mapping(ObservedRoute(0, 0, dev="ppp0"))["route"] == "default dev ppp0 proto 0"
