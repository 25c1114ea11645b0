"""The JSON form of routes and neighbours."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host.netlink.route_codec import pack_route
from hostrouting.host.netlink.route_writer import RouteWriter
from hostrouting.net.addresses import IPV4
from hostrouting.net.mappings import route_from_mapping, route_to_mapping
from hostrouting.net.routes import KINDS, ObservedRoute

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
            "from": st.sampled_from([None, "fd00::/64"]),
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


def test_a_route_is_readable() -> None:
    """People find in a record the text that `ip` prints."""
    assert route_to_mapping(ObservedRoute(0, 0, dev="ppp0"))["route"] == "default dev ppp0 proto 0"
