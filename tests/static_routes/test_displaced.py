"""The record of displaced routes."""

from __future__ import annotations

import json

import pytest

from hostrouting.host import ObservedRoute
from hostrouting.static_routes.converge import RECORDS_PATH, read_records, set_damaged_aside, write_records
from hostrouting.testing import MemoryFiles

GOOD = ObservedRoute.parse("172.16.1.0/24", "eth0", "10.224.0.9", protocol=4)


def test_without_displaced_routes_there_is_no_file() -> None:
    """The last route takes the record and its folder with it."""
    files = MemoryFiles()
    write_records(files, [GOOD])
    assert (read_records(files).routes, read_records(files).damage) == ([GOOD], "")
    write_records(files, [])
    assert (read_records(files).routes, files.exists(RECORDS_PATH)) == ([], False)
    assert not files.exists("/run/aks-flex-node")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"routes": 7}', b'{"objects": 7}', b"\xff", b"[" * 100_000])
def test_a_file_of_another_form_is_set_aside(content: bytes) -> None:
    """The file is reported and renamed, and does not stop the run."""
    files = MemoryFiles()
    files.write(RECORDS_PATH, content, mode=0o644)
    displaced = read_records(files)
    assert displaced.routes == []
    assert f"{RECORDS_PATH}.damaged-1" in set_damaged_aside(files, displaced)
    assert (files.read(f"{RECORDS_PATH}.damaged-1"), files.exists(RECORDS_PATH)) == (content, False)


@pytest.mark.parametrize(("field", "value"), [("destination", "172.16.1.5/24"), ("tos", 999), ("nexthops", 7)])
def test_the_good_entries_of_a_damaged_file_are_used(field: str, value: object) -> None:
    """A damaged entry is named by its number; the others are kept."""
    files = MemoryFiles()
    write_records(files, [GOOD, GOOD])
    entries = json.loads(files.read(RECORDS_PATH) or b"")
    entries["objects"][0][field] = value
    files.write(RECORDS_PATH, json.dumps(entries).encode(), mode=0o644)
    displaced = read_records(files)
    assert displaced.routes == [GOOD]
    told = set_damaged_aside(files, displaced)
    assert "its entry 0 cannot be restored" in told
    assert f"set aside as {RECORDS_PATH}.damaged-1" in told
    assert (read_records(files).routes, read_records(files).damage) == ([GOOD], "")


def test_a_folder_in_its_place_is_set_aside() -> None:
    """The folder is kept under another name, with all its content."""
    files = MemoryFiles()
    files.write(f"{RECORDS_PATH}/x", b"", mode=0o644)
    set_damaged_aside(files, read_records(files))
    assert files.exists(f"{RECORDS_PATH}.damaged-1/x")
    assert not files.exists(RECORDS_PATH)


def test_a_record_that_others_may_write_to_is_not_trusted() -> None:
    """Root installs the routes in it."""
    files = MemoryFiles()
    write_records(files, [GOOD])
    files.write(RECORDS_PATH, files.read(RECORDS_PATH) or b"", mode=0o666)
    displaced = read_records(files)
    assert displaced.routes == []
    assert f"others may write to {RECORDS_PATH} (mode 0666)" in displaced.damage
