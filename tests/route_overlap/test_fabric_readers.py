"""The parsers of the fabric's files: any input has an answer."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fabric_files import record

from hostrouting.net.addresses import format_ipv4
from hostrouting.route_overlap import fabric

MACS = st.text("0123456789ABCDEF", min_size=12, max_size=12)
PAIRS = st.lists(st.tuples(MACS, st.integers(1, 2**32 - 1)), min_size=1, max_size=60)
TEXTS = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b""))


def rendered(pairs: list[tuple[str, int]]) -> bytes:
    """Return a value of IPoIB_Data."""
    return b"|".join(
        [
            b"NUMPAIRS:%d" % len(pairs),
            *(f"{mac}:{format_ipv4(address)}".encode() for mac, address in pairs),
        ]
    )


@given(PAIRS)
def test_every_pair_is_read(pairs: list[tuple[str, int]]) -> None:
    """Every pair of a value is read in its order, with its address."""
    assert fabric.parse_pairs(rendered(pairs)) == pairs


@given(
    PAIRS,
    st.integers(0),
    st.sampled_from([b"", b"x", b"00155D33FF1D", b"a:1.2.3", b":1.2.3.4", b"a:b:1.2.3.4"]),
)
def test_one_bad_pair_spoils_all(pairs: list[tuple[str, int]], at: int, bad: bytes) -> None:
    """A value with one malformed pair is refused with the number of the pair."""
    words = rendered(pairs).split(b"|")
    number = at % len(pairs) + 1
    words[number] = bad
    with pytest.raises(ValueError, match=rf" in its pair {number}$"):
        fabric.parse_pairs(b"|".join(words))


@given(st.binary(max_size=400))
def test_any_value_is_pairs_or_refused(data: bytes) -> None:
    """Any value is read as its pairs, or raises a ValueError."""
    with suppress(ValueError):
        assert len(fabric.parse_pairs(data)) == data.count(b"|")


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), st.binary(max_size=2559))
def test_of_equal_keys_the_first_counts(pairs: list[tuple[bytes, bytes]], torn: bytes) -> None:
    """Every whole record of a pool is found, the first of equal keys, and a torn one at the end is
    not.
    """
    pool = b"".join(record(key, value) for key, value in pairs)
    assert fabric.parse_records(pool + torn) == dict(reversed(pairs))


@given(st.binary(max_size=300))
def test_any_configuration_is_settings(content: bytes) -> None:
    """Any configuration has only settings of RDMA, and a setting is found whatever precedes it."""
    assert set(fabric.parse_configuration(content)) <= {
        "OS.EnableRDMA", "OS.UpdateRdmaDriver", "OS.CheckRdmaDriver"
    }  # fmt: skip
    assert fabric.parse_configuration(content + b"\nOS.EnableRDMA=y\n")["OS.EnableRDMA"] == "y"


# --- devices

IPOIB = "80:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:1d"
DEVICES = [
    ("ib0", IPOIB, "00155D33FF1D"),
    ("ibp12s0", IPOIB, "00155D33FF1D"),
    ("ib_fabric", IPOIB, "00155D33FF1D"),
    ("ib0.8001", "20:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:2e", "00155D33FF2E"),
    ("ib0", "00:15:5d:33:ff:1d", ""),
    ("ib0", "fe:80:00:15:5d:33:ff:1d", ""),
    ("ib0", "01:fe:80:00:15:5d:33:ff:1d", "FE8000" + "33FF1D"),
    ("ib", IPOIB, ""),
    ("ib", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("ib-x", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("fab0", "00:15:5d:33:ff:1d", "00155D33FF1D"),
    ("fab0", IPOIB, ""),
    ("eth1", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("xib0", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("IB0", "00:0d:3a:ab:cd:ef", "000D3AABCDEF"),
    ("tun0", "", ""),
    ("gre0", "10.0.0.1", ""),
]


def test_devices_have_the_form_of_the_pool() -> None:
    """A hardware address has the form of the pool: six octets, and for IPoIB both halves of the
    last eight of twenty.
    """
    assert [fabric.agent_mac(name, mac) or "" for name, mac, _ in DEVICES] == [
        form for *_, form in DEVICES
    ]
