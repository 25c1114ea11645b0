"""Events, which are read as a dump of the same things is read, whatever the kernel announces."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small_world
from support.played_kernel import PlayedKernel, listener_of, pack_route, played
from support.printed import NO_INDEX

from hostrouting.exceptions import BackendError, EventsLostError
from hostrouting.host import IPV4, Device, NetworkEvent, Route, RouteEvent
from hostrouting.host.netlink.device_codec import parse_devices
from hostrouting.host.netlink.events import EventReader
from hostrouting.host.netlink.frames import HEADER_LENGTH, header, message, messages
from hostrouting.host.netlink.route_codec import DELROUTE, NEWROUTE, parse_route
from hostrouting.host.netlink.rule_codec import parse_rule

CASES = Path(__file__).parents[1] / "fuzz" / "cases"
INDEXES = {"lo": 1, "e0": 2, "e1": 3, "e2": 70000}
NAMES = {index: name for name, index in INDEXES.items()}
PLACED = {"add": 0x600, "prepend": 0x400, "append": 0xC00, "replace": 0x100}
ROUTE = Route.parse("172.30.0.0/16", gateway="10.0.0.2", dev="e0")


def recorded(name: str) -> list[bytes]:
    return [bytes(one) for one in messages(memoryview((CASES / name).read_bytes()))]


def taken(*datagrams: bytes) -> list[NetworkEvent]:
    """Return the events of datagrams, on a node with the devices of `played_kernel`."""
    with played({}):
        return listener_of(PlayedKernel({}, announced=datagrams)).take()


def announced(route: Route, kind: int = NEWROUTE, flags: int = 0x600) -> bytes:
    return message(kind, flags, pack_route(route, INDEXES), sequence=0)


@given(st.lists(small_world.routes(), max_size=8), st.sampled_from(sorted(PLACED)))
def test_a_route_is_read_as_in_a_dump(routes: Sequence[Route], verb: str) -> None:
    """A new or removed route in an event is the route that the decoder of dumps reads, with its
    place among others.
    """
    reader = EventReader(NAMES)
    for route in routes:
        expected = parse_route(pack_route(route, INDEXES), NAMES)
        assert expected.fulfils(route)
        assert reader.read(announced(route, flags=PLACED[verb])) == (verb, expected)
        assert reader.read(announced(route, DELROUTE)) == RouteEvent("remove", expected)


def dumped(kind: str) -> list[bytes]:
    """Return messages with which a kernel answered a dump, and only those of IPv4."""
    found = recorded(kind)
    if "links" in kind:
        return found
    return [one for one in found if one[HEADER_LENGTH] == IPV4]


def gone(one: bytes) -> bytes:
    """Return the message that announces the removal of the same thing: its type is higher by one."""
    length, kind, *rest = header.unpack_from(one)
    return header.pack(length, kind + 1, *rest) + one[HEADER_LENGTH:]


def payloads(kind: str) -> list[bytes]:
    return [one[HEADER_LENGTH:] for one in dumped(kind)]


def devices_in_the_dump() -> list[Device]:
    """Return the devices of the recorded dumps, with their addresses."""
    return parse_devices(
        payloads("netlink-links/kernel"), payloads("netlink-addresses/kernel-ipv4")
    )


def events_of(announcements: Sequence[bytes]) -> list[NetworkEvent]:
    """Return the events that a reader who knows the devices of the dumps finds."""
    names = {device.ifindex: device.name for device in devices_in_the_dump()}
    read = [EventReader(names).read(announcement) for announcement in announcements]
    return [event for event in read if event]


def is_read_as(kind: str, things: Sequence[tuple[object, ...]]) -> None:
    """Assert that the messages of a dump are events of these things, new and gone."""
    assert things != []
    added = events_of(dumped(kind))
    assert sorted(tuple(event[1:]) for event in added) == sorted(things)
    assert {event[0] for event in added} <= {"set", "add"}
    removed = events_of([gone(one) for one in dumped(kind)])
    assert {event[0] for event in removed} == {"remove"}
    assert len(removed) >= len(things)


def test_devices_are_read_as_in_a_dump() -> None:
    """Devices that a kernel showed are the same in events, without their addresses."""
    devices = devices_in_the_dump()
    is_read_as("netlink-links/kernel", [(device._replace(addresses=()), "") for device in devices])


def test_addresses_are_read_as_in_a_dump() -> None:
    """Addresses that a kernel showed are the same in events, with the name of their device."""
    addresses = [
        (device.name, address) for device in devices_in_the_dump() for address in device.addresses
    ]
    is_read_as("netlink-addresses/kernel-ipv4", addresses)


def test_rules_are_read_as_in_a_dump() -> None:
    """Rules that a kernel showed are the same in events."""
    rules = [(parse_rule(payload),) for payload in payloads("netlink-rules/kernel")]
    is_read_as("netlink-rules/kernel", rules)


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        pytest.param(
            announced(ROUTE)[:-4], "an announcement is 60 bytes long, but 56 came", id="cut"
        ),
        pytest.param(
            announced(ROUTE) + bytes(4), "an announcement is 60 bytes long, but 64 came", id="more"
        ),
        pytest.param(
            message(NEWROUTE, 0x600, pack_route(ROUTE, {"e0": 99})),
            f"{NO_INDEX}99",
            id="device",
        ),
        pytest.param(
            announced(ROUTE, flags=0), "the flags 0x0 name no place of a new route", id="no place"
        ),
        pytest.param(message(16, 0, bytes(16)), "a link has no name", id="no name"),
        pytest.param(message(20, 0, b"\2\41" + bytes(6)), "33 bits long", id="prefix"),
    ],
)
def test_an_event_that_cannot_be_read_is_a_loss(datagram: bytes, reason: str) -> None:
    """An event that cannot be read raises EventsLostError with the reason; the events after it are
    delivered again.
    """
    with played({}):
        kernel = PlayedKernel({}, announced=[announced(ROUTE), datagram])
        listener = listener_of(kernel)
        with pytest.raises(
            EventsLostError,
            match=f"^an event cannot be read, .*: .*{reason}.*; read everything anew",
        ) as raised:
            listener.take()
        assert raised.value.errno == errno.EBADMSG
        assert raised.value.__cause__ is not None
        kernel.announce(announced(ROUTE))
        assert len(listener.take()) == 1


def test_other_families_and_noise_are_passed_over() -> None:
    """Neighbours, stations, acknowledgements and ends of dumps are not events."""
    others = [
        one for one in recorded("netlink-neighbours/kernel-both") if one[HEADER_LENGTH] != IPV4
    ]
    others += recorded("netlink-neighbours/kernel-bridge")
    assert len(others) > 4
    assert taken(*others, b"", bytes(16), message(3, 2, bytes(4)), message(2, 0, bytes(20))) == []


def test_names_that_cannot_be_read_after_a_loss_are_read_again() -> None:
    """A loss is reported only once the names of devices were read again, since a rename may be
    among the lost events.
    """
    kernel = PlayedKernel({}, announced=[announced(ROUTE, flags=0)])
    with played({}):
        listener = listener_of(kernel)
    for _ in range(2):
        with (
            played({18: message(16, 2, b"")}),
            pytest.raises(BackendError, match="cannot be read") as raised,
        ):
            listener.take()
        assert not isinstance(raised.value, EventsLostError)
    kernel.announce(announced(ROUTE))
    with played({}), pytest.raises(EventsLostError):
        listener.take()
    assert listener.take() == []
