"""Records that root puts back: whose word is taken, on real files; the rest is shown with the records themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needs import needs

from hostrouting.exceptions import HostFileError
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.netlink.commit import Steps
from hostrouting.host.netlink.route_writer import RouteWriter
from hostrouting.journal import read_record, refuse_impossible_route, refuse_unsafe_folder, set_aside
from hostrouting.net.routes import KINDS, NextHop, ObservedRoute

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534


@needs("root")
def test_a_planted_record_is_not_read(tmp_path: Path) -> None:
    """A file of nobody's in a folder of root's, as one that was there before root closed it."""
    files = RootedFiles(str(tmp_path))
    files.write("/run/ours/record.json", b"precious", mode=0o644)
    assert read_record(files, "/run/ours/record.json", bytes.decode) == "precious"
    os.chown(tmp_path / "run/ours/record.json", NOBODY, -1)
    with pytest.raises(HostFileError, match=r"it belongs to the user 65534, and only root's word is taken"):
        read_record(files, "/run/ours/record.json", bytes.decode)


def test_what_is_absent_is_no_record(tmp_path: Path) -> None:
    """Nothing to be read, and nothing to be told."""
    assert read_record(RootedFiles(str(tmp_path)), "/run/ours/record.json", bytes.decode) is None


def test_a_sticky_folder_is_not_safe(tmp_path: Path) -> None:
    """In one like /tmp anybody may be the first to have a folder's name."""
    files = RootedFiles(str(tmp_path))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(HostFileError, match=r"/open/records is no place .* others may write to .*/open \(mode 1777\)"):
        refuse_unsafe_folder(files, "/open/records")


def test_what_cannot_be_set_aside_is_told(tmp_path: Path) -> None:
    """It stops nobody: a name that is too long for its folder, say."""
    files = RootedFiles(str(tmp_path))
    name = "r" * 250
    (tmp_path / name).touch()
    assert set_aside(files, f"/{name}").startswith("it could not be set aside: cannot look for ")


NUMBERS = st.integers(-2, 1 << 33) | st.sampled_from([0, 1, 255, 256])
OPTIONAL = st.none() | NUMBERS
EXTRA = st.lists(st.tuples(NUMBERS, st.binary(max_size=9)), max_size=2).map(tuple)
HOPS = st.lists(st.builds(NextHop, OPTIONAL, st.just("eth0"), NUMBERS, st.booleans(), EXTRA), max_size=2).map(tuple)


@given(
    st.builds(
        ObservedRoute,
        NUMBERS,
        st.integers(-1, 33),
        gateway=OPTIONAL,
        dev=st.sampled_from([None, "eth0"]),
        metric=NUMBERS,
        table=NUMBERS,
        protocol=NUMBERS,
        kind=st.sampled_from([*KINDS, "?"]),
        scope=NUMBERS,
        source=OPTIONAL,
        tos=NUMBERS,
        flags=NUMBERS,
        nexthops=HOPS,
        extra=EXTRA,
    )
)
def test_a_possible_route_can_be_asked_for(route: ObservedRoute) -> None:
    """Whatever is not refused can be told to the kernel; and what is refused is a ValueError."""
    try:
        refuse_impossible_route(route)
    except ValueError:
        return
    writer = RouteWriter({"eth0": 1, "lo": 2})
    assert sum(map(len, writer.batches(Steps(["add"], [route.to_route()], [0]), size=10, echoes=None)))
