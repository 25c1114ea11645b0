"""The record of what we took the place of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host import NextHop, ObservedRoute
from hostrouting.net.addresses import IPV4, IPV6, Address, netmask
from hostrouting.net.routes import KINDS, Encapsulation
from hostrouting.static_routes.displaced import (
    RECORDS_PATH,
    read_records,
    routes_from_json,
    routes_to_json,
    set_damaged_aside,
    write_records,
)
from hostrouting.testing import MemoryFiles, strategies

ADDRESSES = st.integers(0, 0xFFFFFFFF)
EXTRA = st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=20)), max_size=2).map(tuple)
NUMBERS = st.integers(0, 0xFF)
GATEWAYS = st.builds(Address, st.just(IPV4), ADDRESSES) | st.builds(Address, st.just(IPV6), st.integers(0, 2**128 - 1))
TUNNELS = st.none() | st.builds(Encapsulation, st.integers(0, 0xFFFF), st.binary(max_size=20))


@st.composite
def observed_routes(draw: st.DrawFn) -> ObservedRoute:
    length = draw(st.integers(0, 32))
    hops = st.builds(
        NextHop,
        gateway=st.none() | GATEWAYS,
        dev=strategies.device_names(),
        weight=st.integers(1, 256),
        onlink=st.booleans(),
        extra=EXTRA,
        encapsulation=TUNNELS,
        dead=st.just(value=False),
    )
    legs = draw(st.lists(hops, max_size=3).map(tuple))
    return ObservedRoute(
        draw(ADDRESSES) & netmask(length),
        length,
        gateway=None if legs else draw(st.none() | GATEWAYS),
        dev=None if legs else draw(strategies.device_names()),
        metric=draw(ADDRESSES),
        table=draw(st.integers(1, 0xFFFFFFFF)),
        protocol=draw(NUMBERS),
        kind=draw(st.sampled_from(KINDS[1:])),
        scope=draw(NUMBERS),
        source=draw(st.none() | ADDRESSES),
        tos=draw(NUMBERS),
        flags=draw(NUMBERS),
        nexthops=legs,
        extra=draw(EXTRA),
        nexthop_id=draw(ADDRESSES),
        encapsulation=draw(TUNNELS),
    )


@given(st.lists(observed_routes(), max_size=3))
def test_nothing_is_lost(routes: list[ObservedRoute]) -> None:
    """Whatever a route carries, understood or not, is read back as it was."""
    assert routes_from_json(routes_to_json(routes)) == (routes, None)


def test_it_is_readable() -> None:
    """Each route is there as `ip route` shows it, too."""
    route = ObservedRoute(0xAC100100, 24, gateway=Address(IPV4, 0x0AE00009), dev="eth0", protocol=4)
    assert '"route": "172.16.1.0/24 via 10.224.0.9 dev eth0 proto static"' in routes_to_json([route]).decode()


def test_without_records_there_is_no_file() -> None:
    """The last record takes the file and its folder with it."""
    files = MemoryFiles()
    route = ObservedRoute(0xAC100100, 24, dev="eth0")
    write_records(files, [route])
    assert read_records(files) == ([route], None)
    write_records(files, [])
    assert (read_records(files).routes, files.exists(RECORDS_PATH)) == ([], False)
    assert not files.exists("/run/aks-flex-node")


GOOD = ObservedRoute(0xAC100100, 24, gateway=Address(IPV4, 0x0AE00009), dev="eth0", protocol=4)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"routes": 7}', b"\xff", b"[" * 100_000, b'{"routes": ' + b"[" * 100_000],
)
def test_what_is_not_json_of_ours_is_set_aside(content: bytes) -> None:
    """It is named, kept under another name, and hinders nobody."""
    files = MemoryFiles()
    files.write(RECORDS_PATH, content, mode=0o644)
    records = read_records(files)
    assert records.routes == []
    assert f"{RECORDS_PATH}.damaged-1" in set_damaged_aside(files, records)
    assert (files.read(f"{RECORDS_PATH}.damaged-1"), files.exists(RECORDS_PATH)) == (content, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("destination", "172.16.1.5/24"),
        ("tos", 999),
        ("metric", -1),
        ("kind", "teleport"),
        ("kind", []),
        ("gateway", "300.1.1.1"),
        ("extra", [[8, "zz"]]),
        ("nexthops", 7),
        ("scope", 1e999),
    ],
)
def test_the_good_entries_of_a_damaged_file_are_used(field: str, value: object) -> None:
    """One that is not as the kernel shows any is named by its number; the others come back."""
    files = MemoryFiles()
    entries = json.loads(routes_to_json([GOOD, GOOD]))
    entries["routes"][0][field] = value
    files.write(RECORDS_PATH, json.dumps(entries).encode(), mode=0o644)
    records = read_records(files)
    assert records.routes == [GOOD]
    told = set_damaged_aside(files, records)
    assert "its entry 0 cannot be put back" in told
    assert f"set aside as {RECORDS_PATH}.damaged-1" in told
    assert read_records(files) == ([GOOD], None)


def test_a_folder_in_its_place_is_set_aside() -> None:
    """With all that is in it."""
    files = MemoryFiles()
    files.write(f"{RECORDS_PATH}/x", b"", mode=0o644)
    set_damaged_aside(files, read_records(files))
    assert files.exists(f"{RECORDS_PATH}.damaged-1/x")
    assert not files.exists(RECORDS_PATH)


def test_what_others_may_write_to_is_not_believed() -> None:
    """A record is what root installs: one that others may have written is no record."""
    files = MemoryFiles()
    files.write(RECORDS_PATH, routes_to_json([GOOD]), mode=0o666)
    records = read_records(files)
    assert records.routes == []
    assert "others than root may write to it" in str(records.damage)
