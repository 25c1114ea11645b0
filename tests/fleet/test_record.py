"""A record is a line of JSON, which is read exactly or refused by the place that is wrong, whoever
wrote it.
"""

import json
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from support.fleets import CONFIG, FULL, as_document, leaves, records
from support.kernel import connect
from support.printed import ANOTHER_FAMILY, ONE_LINE

from hostrouting.boot.layout import CONFIG_PATH
from hostrouting.fleet import NodeRecord, check_record, take_record
from hostrouting.fleet.record import LONGEST
from hostrouting.fleet.stream import verdict_on
from hostrouting.host import Device, DeviceAddress, NextHop, ObservedRoute, Rule
from hostrouting.net.addresses import parse_ipv4
from hostrouting.net.rules import Range
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context
from phases.testing import ManualClock

#: No number, address or switch is any of these; names may be the texts.
WRONG: list[Any] = [
    None,
    1.5,
    1e400,
    -1 << 40,
    -1,
    1 << 140,
    [],
    {},
    [[]],
    {"a": 1},
    ["x"],
    [None],
    [1, 2],
    [True],
    {"": {}},
    "",
    "x y",
    "1",
    "\ud800",
    "[]",
    "-1",
    "é" * 5000,
    "10.0.0.0/33",
    "::1::",
    "\0",
    "0x1",
    "1.2.3",
    "tr\x1b[31mue",
    ":",
]


@given(records)
def test_a_record_comes_back_as_it_was(record: NodeRecord) -> None:
    """A record reads back from its line as it was, and the line is ASCII without a break."""
    line = record.to_line()
    assert NodeRecord.parse(line) == record
    assert line.isascii()
    assert b"\n" not in line


def test_every_field_comes_back() -> None:
    """A record with a value in each field reads back as it was, and its line has every field."""
    assert NodeRecord.parse(FULL.to_line()) == FULL
    written = set(re.findall(r'"(\w+)":', FULL.to_line().decode()))
    for kind in Device, DeviceAddress, NextHop, ObservedRoute, Range, Rule:
        assert set(kind._fields) <= written, kind
    assert {field.name for field in attrs.fields(NodeRecord)} <= written


@pytest.mark.slow
def test_a_wrong_value_is_refused_by_its_place() -> None:
    """A wrong value in the place of any leaf of a record is refused by its place, unless the leaf
    is a name.
    """
    document = as_document(FULL)
    tried = 0
    for path, container, key in [*leaves(document)]:
        right = container[key]
        for wrong in WRONG:
            if wrong == right or (key == "expires" and wrong == -1):
                continue
            container[key] = wrong
            tried += 1
            verdict = verdict_on(("f:7", json.dumps(document).encode()))
            # Attributes that are carried, and the config, are named as a whole.
            place = "." + re.sub(r"^(config|.*(extra|unknown)\[0]).*", r"\1", path)
            if verdict.is_record and not path.startswith("config"):
                assert isinstance(right, str), (path, wrong)
                written = {
                    where: within[name]
                    for where, within, name in leaves(
                        as_document(NodeRecord.parse(json.dumps(document).encode()))
                    )
                }
                assert written.get(path, "") == wrong
                check_record(NodeRecord.parse(json.dumps(document).encode()), CONFIG, planned=True)
            elif not verdict.is_record:
                assert verdict.hostname == "f:7"
                assert verdict.undecided.startswith(place), (path, wrong, verdict.undecided)
        container[key] = right
    assert tried > 3000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "column 1: Expecting value"),
        (FULL.to_line()[:-9], "column "),
        (b"[]", "the record should be an object, not list"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"version": 1, "devices": ' + b"[" * 100_000, "it is nested too deeply"),
        (b"\xff{}", f"byte 1: is not UTF-8; {ONE_LINE}"),
        ("\ufeff{}".encode(), "column 1: Unexpected UTF-8 BOM"),
        (b'{"version": 1, "devices": %s}' % (b"9" * 5000), "Exceeds the limit"),
        (b'{"version": 1, "merged": NaN}', ".merged: it should be true or false, not float"),
        (b"{}", ".version: is "),
        (b'{"version": 2, "more": 1}', ".version: is "),
        (b'{"version": [[[]]]}', ".version: is "),
        # They equal 1.
        (b'{"version": true}', ".version: "),
        (b'{"version": 1.0}', ".version: "),
        # Readers differ on which one counts.
        (b'{"version": 1, "hostname": "a", "hostname": "b"}', "the key 'hostname' is given more"),
        (b'{"version": 1, "devices": [{"name": "a", "name": "b"}]}', "the key 'name' is given"),
        (b'{"version": 1, "more": 1}', ".more: 'more' is not known"),
        (b'{"version": 1, "routes": [{"network": "10.0.0.0"}]}', ".routes[0]: "),
        (
            b'{"version": 1, "routes": [{"network": "10.0.0.1", "prefix_length": 8}]}',
            ".routes[0].network: has host bits",
        ),
        (
            b'{"version": 1, "rules": [{"priority": 1, "source": "fd00::/8"}]}',
            f".rules[0].{ANOTHER_FAMILY}",
        ),
        (b" " * (LONGEST + 1), "it is longer than 16 MiB"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused_with_a_reason(line: bytes, reason: str) -> None:
    """A line that is truncated, empty, nested, too long or of another version is refused with one
    short reason.
    """
    verdict = verdict_on(("f:7", line))
    assert not verdict.is_record
    assert verdict.report is None
    assert verdict.undecided.startswith(reason), verdict.undecided
    assert len(verdict.undecided) <= 300


def test_a_node_is_taken_without_its_links() -> None:
    """A record leaves out IPv6 routes of link-local and multicast, and neighbours that are not
    gateways; the config of a damaged file is None.
    """
    backend = MemoryBackend()
    connect(backend, eth0="10.224.0.4/16")
    backend.add_route("172.16.8.0/22", gateway="10.224.0.1", dev="eth0")
    for number in (1, 9):
        backend.add_neighbour("eth0", f"10.224.0.{number}")
        backend.fail_neighbour("eth0", f"10.224.0.{number + 1}")
    backend.add_address("eth0", "fd00::4/64")
    backend.insert_route(
        ObservedRoute.parse("fe80::/64", "eth0", metric=256, protocol=2).to_route()
    )
    host = FakeHost(backend)
    host.files.write("/proc/sys/kernel/hostname", b"node-7\n", mode=0o444)
    host.files.write(CONFIG_PATH, b"{", mode=0o644)
    record = take_record(Context(), host)
    assert record.hostname == "node-7"
    [eth0] = [device for device in record.devices if device.name == "eth0"]
    assert (eth0.neighbours, eth0.failed) == ((parse_ipv4("10.224.0.1"),), ())
    assert record.config is None
    assert len(record.checksum) == 12
    assert {str(route) for route in record.routes if ":" in str(route)} >= {
        "fd00::/64 dev eth0 proto kernel metric 256"
    }
    assert not [route for route in record.routes if str(route).startswith(("fe80", "ff00"))]
    host.files.write(
        CONFIG_PATH, json.dumps({"hostRouting": CONFIG.to_mapping()}).encode(), mode=0o644
    )
    assert take_record(Context(), host).config == CONFIG


@pytest.mark.usefixtures("in_tokyo")
def test_the_time_of_a_record_is_utc() -> None:
    """A record has the time of UTC, and its node may be in any time zone."""
    assert take_record(Context(clock=ManualClock()), FakeHost()).time == "2026-01-01T00:00:00Z"


def test_the_verdict_on_a_node_without_a_name_says_so() -> None:
    """The verdict on a node without a name, such as a container, begins with 'a node without a
    name'.
    """
    verdict = check_record(attrs.evolve(FULL, hostname="", config=None))
    assert str(verdict).startswith("a node without a name: ")
