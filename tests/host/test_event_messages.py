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
from hostrouting.host import IPV4, NetworkEvent, Route
from hostrouting.host.netlink.device_codec import parse_devices
from hostrouting.host.netlink.events import EventReader
from hostrouting.host.netlink.frames import HEADER_LENGTH, header, message, messages
from hostrouting.host.netlink.route_codec import DELROUTE, NEWROUTE, parse_route
from hostrouting.net.events import DeviceEvent, RouteEvent

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
        assert reader.read(announced(route, flags=PLACED[verb])) == (verb, expected, 0)
        assert reader.read(announced(route, DELROUTE)) == RouteEvent("remove", expected)


def gone(one: bytes) -> bytes:
    """Return the message that announces the removal of the same thing: its type is higher by one."""
    length, kind, *rest = header.unpack_from(one)
    return header.pack(length, kind + 1, *rest) + one[HEADER_LENGTH:]


def test_devices_are_read_as_in_a_dump() -> None:
    """Devices that a kernel showed are the same in events, new and gone."""
    dumped = recorded("netlink-links/kernel")
    devices = parse_devices([one[HEADER_LENGTH:] for one in dumped], ())
    names = {device.ifindex: device.name for device in devices}
    added = {EventReader(names).read(one) for one in dumped}
    assert added == {DeviceEvent("set", device) for device in devices} != set()
    removed = {EventReader(names).read(gone(one)) for one in dumped}
    assert removed == {DeviceEvent("remove", device) for device in devices}
    # A device that is gone, and comes back by another name, was not renamed.
    reader = EventReader(names | {devices[0].ifindex: "before"})
    again = [reader.read(one) for one in (gone(dumped[0]), dumped[0])]
    assert again[1] == DeviceEvent("set", devices[0])


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
            match=f"^an event cannot be read, .*: .*{reason}.*; read everything again",
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


def test_what_was_taken_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were taken do not count for the limit of what a listener stores."""
    monkeypatch.setattr("hostrouting.host.netlink.events._MOST_BYTES", 100)
    with played({}):
        listener = listener_of(kernel := PlayedKernel({}))
        for _ in range(3):
            kernel.announce(announced(ROUTE))
            assert len(listener.take()) == 1


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
