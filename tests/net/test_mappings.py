"""The JSON form of values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.played_kernel import pack_route
from support.printed import ANOTHER_FAMILY

from hostrouting.host import IPV4, IPV6, Address, ObservedRoute
from hostrouting.host.netlink.bulk import RouteWriter
from hostrouting.net.mappings import FORMS
from hostrouting.net.routes import KINDS

NUMBERS = st.integers(-2, 1 << 33) | st.sampled_from([0, 1, 255, 256])
BYTES = st.integers(-1, 256)
EXTRA = st.lists(st.tuples(NUMBERS, st.binary(max_size=9).map(bytes.hex)).map(list), max_size=2)
TEXTS = st.sampled_from([None, "10.0.0.1", "fd00::1", "10.0.0", 7])
TUNNELS = st.none() | st.fixed_dictionaries({"kind": NUMBERS, "payload": st.just("00")})
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
            "network": st.sampled_from(["10.0.0.0", "240.0.0.0", "fd00::", "10.0.0.1", "x"]),
            "prefix_length": st.sampled_from([0, 8, 64, 129]),
            "family": st.sampled_from([IPV4, IPV6, 7]),
            "gateway": TEXTS,
            "dev": st.sampled_from([None, "eth0"]),
            "metric": NUMBERS,
            "table": NUMBERS,
            "protocol": BYTES,
            "kind": st.sampled_from([*KINDS, "?"]),
            "scope": BYTES,
            "source": TEXTS,
            "from_prefix": st.sampled_from([None, "fd00::/64"]),
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
    """A route that the reader accepts can be packed for the kernel and survives JSON; any other
    mapping raises a ValueError or TypeError.
    """
    form = FORMS[ObservedRoute]
    try:
        route = form.read(mapping)
        route.to_route()
    except (ValueError, TypeError):
        return
    indexes = {"eth0": 1, "lo": 2}
    if route.family == IPV4:
        assert sum(
            map(len, RouteWriter(indexes).batches([("add", route.to_route(), 0)], echoes={}))
        )
    else:
        assert pack_route(route, indexes)
    assert form.read(json.loads(json.dumps(form.brief(route)))) == route


def test_a_route_whose_time_has_ended_is_read() -> None:
    """A route with a remaining time below zero, which the kernel shows until its removal, is
    read.
    """
    mapping = {"family": IPV6, "network": "fd00::", "prefix_length": 8, "expires": -1}
    assert FORMS[ObservedRoute].read(mapping).expires == -1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metric": True}, "metric: it should be a whole number, not bool"),
        ({"source": "fd00::1"}, ANOTHER_FAMILY),
        ({"nexthops": [{"weight": True}]}, r"^\.nexthops\[0\]\.weight: it should"),
    ],
)
def test_a_value_of_another_type_or_family_is_refused(
    changes: dict[str, object], reason: str
) -> None:
    """The reader refuses `true` for a number, and an address of another family than that of its
    object.
    """
    form = FORMS[ObservedRoute]
    mapping = form.brief(ObservedRoute(9 << 24, 8, dev="eth0", gateway=Address.parse("10.1.0.9")))
    assert form.read(mapping).gateway == Address.parse("10.1.0.9")
    with pytest.raises(ValueError, match=reason):
        form.read({**mapping, **changes})
