"""The record of what we took the place of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.addresses import netmask
from hostrouting.exceptions import HostFileError
from hostrouting.host import NextHop, ObservedRoute
from hostrouting.host.routes import KINDS
from hostrouting.static_routes.displaced import (
    RECORDS_PATH,
    read_records,
    routes_from_json,
    routes_to_json,
    write_records,
)
from hostrouting.testing import MemoryFiles, strategies

ADDRESSES = st.integers(0, 0xFFFFFFFF)
EXTRA = st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=20)), max_size=2).map(tuple)
NUMBERS = st.integers(0, 0xFF)


@st.composite
def observed_routes(draw: st.DrawFn) -> ObservedRoute:
    length = draw(st.integers(0, 32))
    hops = st.builds(
        NextHop,
        gateway=st.none() | ADDRESSES,
        dev=strategies.device_names(),
        weight=st.integers(1, 256),
        onlink=st.booleans(),
        extra=EXTRA,
    )
    return ObservedRoute(
        draw(ADDRESSES) & netmask(length),
        length,
        gateway=draw(st.none() | ADDRESSES),
        dev=draw(st.none() | strategies.device_names()),
        metric=draw(ADDRESSES),
        table=draw(ADDRESSES),
        protocol=draw(NUMBERS),
        kind=draw(st.sampled_from(KINDS)),
        scope=draw(NUMBERS),
        source=draw(st.none() | ADDRESSES),
        tos=draw(NUMBERS),
        flags=draw(NUMBERS),
        nexthops=draw(st.lists(hops, max_size=3).map(tuple)),
        extra=draw(EXTRA),
    )


@given(st.lists(observed_routes(), max_size=3))
def test_nothing_is_lost(routes: list[ObservedRoute]) -> None:
    """Whatever a route carries, understood or not, is read back as it was."""
    assert routes_from_json(routes_to_json(routes)) == routes


def test_it_is_readable() -> None:
    """Each route is there as `ip route` shows it, too."""
    route = ObservedRoute(0xAC100100, 24, gateway=0x0AE00009, dev="eth0", protocol=4)
    assert '"route": "172.16.1.0/24 via 10.224.0.9 dev eth0 proto static"' in routes_to_json([route]).decode()


def test_without_records_there_is_no_file() -> None:
    """The last record takes the file and its folder with it."""
    files = MemoryFiles()
    route = ObservedRoute(0xAC100100, 24, dev="eth0")
    write_records(files, [route])
    assert read_records(files) == [route]
    write_records(files, [])
    assert (read_records(files), files.exists(RECORDS_PATH)) == ([], False)
    assert not files.exists("/run/aks-flex-node")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"routes": 7}', b'{"routes": [{}]}', b'{"routes": ["x"]}', b"\xff"],
)
def test_what_we_did_not_write_is_refused(content: bytes) -> None:
    """A spoilt file is an error that says what to do, and is not overwritten."""
    files = MemoryFiles()
    files.write(RECORDS_PATH, content, mode=0o644)
    with pytest.raises(HostFileError, match="then delete it"):
        read_records(files)
    assert files.read(RECORDS_PATH) == content
