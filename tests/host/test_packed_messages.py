"""Packed messages: what is read is what was packed; `ip` is the second opinion on them, in
test_netlink.py.
"""

import errno
import os
import struct
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from support import small_world
from support.played_kernel import PlayedKernel
from support.printed import NO_INDEX

from hostrouting.host import IPV4, IPV6, Address, NextHop, ObservedRoute, Route
from hostrouting.host.netlink import frames
from hostrouting.host.netlink.bulk import RouteReader, RouteWriter, dump_request, strike_seen
from hostrouting.host.netlink.commit import RouteStep
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.route_codec import NEWROUTE, UnknownDeviceError, parse_route
from hostrouting.net.addresses import address_bits
from hostrouting.net.routes import DEVICELESS_KINDS, resting

INDEXES = {"lo": 1, "e0": 3, "e1": 4, "e2": 70000}
NAMES = {index: name for name, index in INDEXES.items()}


def packed(routes: Sequence[Route]) -> bytes:
    return b"".join(map(bytes, RouteWriter(INDEXES).batches(steps(routes), echoes={})))


def steps(routes: Sequence[Route]) -> list[RouteStep]:
    return [("add", route, number) for number, route in enumerate(routes)]


def read(message: bytes, family: int = IPV4) -> list[ObservedRoute | int]:
    return RouteReader(NAMES, family).read_answers(memoryview(message))


@given(st.data(), st.sampled_from([IPV4, IPV6]), st.integers(1, 30))
def test_reading_is_the_reverse_of_packing(data: st.DataObject, family: int, times: int) -> None:
    """Runs of equal and of different routes are read as they were packed, by either way of
    unpacking; each message by itself gives the same.
    """
    routes = data.draw(st.lists(small_world.routes(family=family), max_size=8))
    wanted = [route for route in routes for _ in range(times)]
    message = packed(wanted)
    observed = read(message, family)
    assert observed == [
        parse_route(bytes(one[frames.HEADER_LENGTH :]), NAMES)
        for one in frames.messages(memoryview(message))
    ]
    assert [resting(route) for route in observed if isinstance(route, ObservedRoute)] == [
        as_shown(route) for route in wanted
    ]


def as_shown(route: Route) -> ObservedRoute:
    """Return a route as it is read: of IPv6, without device if it blocks, next hops in order."""
    shown = resting(route)
    if route.family == IPV4:
        return shown
    dev = None if route.kind in DEVICELESS_KINDS else route.dev
    return shown._replace(dev=dev, nexthops=tuple(sorted(shown.nexthops, key=str)))


@given(st.data(), st.sampled_from([IPV4, IPV6]))
def test_a_run_that_differs_in_its_networks_only_is_read_whole(
    data: st.DataObject, family: int
) -> None:
    """Routes that differ in their networks only are read by the fast path as by the slow one."""
    bits = address_bits(family)
    numbers = st.integers(0, (1 << bits) - 1)
    networks = data.draw(st.lists(numbers, min_size=16, max_size=40))
    route = data.draw(small_world.routes(family=family))
    wanted = [
        attrs.evolve(route, network=network, prefix_length=bits, tos=0, extra=())
        for network in networks
    ]
    observed = read(packed(wanted), family)
    assert [o[0] if isinstance(o, ObservedRoute) else o for o in observed] == networks


@pytest.mark.parametrize("alone", [True, False])
def test_a_dump_leaves_out_what_ipv6_only_caches(alone: bool) -> None:
    """A dump leaves out cached IPv6 routes, alone or among routes of the same form."""
    route = Route.parse("fd00:1::/64", dev="e0", metric=1024)
    kept = packed([route] * 20)
    flags = frames.HEADER_LENGTH + 8
    cached = bytearray(packed([route]))
    cached[flags : flags + 4] = struct.pack("=I", 0x200)
    routes: list[ObservedRoute] = []
    dump = bytes(cached) if alone else kept + bytes(cached) * 20 + kept
    RouteReader(NAMES, IPV6).read_dump(memoryview(dump), routes)
    assert routes == ([] if alone else [resting(route)] * 40)


def test_the_echo_of_a_route_equals_its_message() -> None:
    """A dump removes the echo of each route that it contains, and leaves all other echoes."""
    routes = [
        Route(network=number << 8, prefix_length=24, gateway=Address(IPV4, 1), dev="e0")
        for number in range(1, 5)
    ]
    echoes: dict[tuple[bytes, bytes], set[int]] = {}
    (batch,) = (
        bytes(batch) for batch in RouteWriter(INDEXES).batches(steps(routes), echoes=echoes)
    )
    assert list(echoes.values()) == [{route.network for route in routes}]
    dump = batch[: len(batch) // 4 * 3] + frames.message(frames.DONE, 2, bytes(4))
    assert strike_seen(memoryview(dump), echoes) is True
    assert list(echoes.values()) == [{routes[3].network}]


def test_batches_end_at_their_size_and_number_their_messages() -> None:
    """A batch has at most as many messages as the queue has room for answers, and each message has
    its number.
    """
    routes = [Route(network=number << 8, prefix_length=24, dev="e0") for number in range(450)]
    sizes = []
    numbers = []
    for batch in RouteWriter(INDEXES).batches(steps(routes), echoes={}):
        length = struct.unpack_from("=I", batch)[0]
        sizes.append(len(batch) // length)
        numbers += [
            struct.unpack_from(">I", batch, offset + 8)[0]
            for offset in range(0, len(batch), length)
        ]
    assert sizes == [200, 200, 50]
    assert numbers == list(range(1, 451))


@pytest.mark.parametrize("others", [(), (Route(network=1 << 24, prefix_length=8, dev="e1"),)])
def test_batches_of_long_routes_end_at_their_bytes(others: tuple[Route, ...]) -> None:
    """A batch of long routes exceeds its limit in bytes by one message at most, whether or not its
    routes have one signature.
    """
    long = Route(network=0, prefix_length=24, dev="e0", extra=((8, bytes(1 << 10)),))
    routes = [*others, *(attrs.evolve(long, network=number << 8) for number in range(60))]
    batches = [*RouteWriter(INDEXES).batches(steps(routes), echoes={})]
    assert len(batches) == 2
    assert all(len(bytes(batch)) < (1 << 15) + 1200 for batch in batches)


def test_a_removal_has_what_the_kernel_compares() -> None:
    """The removal of an IPv4 route by a nexthop object has the type 0, as a dump does not show the
    route's own type; that of an IPv6 route with several next hops does not name them.
    """
    hops = tuple(NextHop(None, dev) for dev in ("e0", "e1"))
    by_object = ObservedRoute.parse("10.0.0.0/24", nexthop_id=7, nexthops=hops)
    several = ObservedRoute.parse("fd00::/64", nexthops=hops)
    removed = []
    for route in by_object, several:
        [batch] = RouteWriter(INDEXES).batches([("remove", route, 0)], echoes={})
        message = rtmsg(bytes(batch))
        message.decode()
        removed.append(message)
    assert removed[0]["type"] == 0
    assert removed[1].get_attr("RTA_MULTIPATH") is None


def test_a_dump_can_be_of_one_table_and_protocol() -> None:
    """The kernel filters a dump by table and protocol, so that a verification does not read all
    foreign routes.
    """
    request = rtmsg(dump_request(table=1000, protocol=142).packed())
    request.decode()
    assert request["header"]["flags"] == 0x301
    assert request["proto"] == 142
    assert request.get_attr("RTA_TABLE") == 1000


def test_an_interrupted_dump_is_read_again() -> None:
    """A dump that the kernel marks as interrupted by a change raises InterruptedError, and so is
    read again.
    """
    whole = packed([Route(network=9 << 24, prefix_length=8, dev="e0")])
    for body in bytes(12), whole[frames.HEADER_LENGTH :]:
        message = frames.message(NEWROUTE, 2 | frames.DUMP_INTERRUPTED, body)
        with pytest.raises(InterruptedError):
            RouteReader(NAMES).read_dump(memoryview(message), [])


def test_a_route_of_an_impossible_form_is_not_read() -> None:
    """A route with a length that four does not divide, as padded attributes never have, or whose
    attributes do not begin with the table, is refused.
    """
    whole = packed([Route(network=9 << 24, prefix_length=8, dev="e0")])
    longer = struct.pack("=I", len(whole) + 2) + whole[4:] + bytes(2)
    other = whole[:30] + struct.pack("=H", 1) + whole[32:]
    for message, reason in (longer, "padded attributes"), (other, "begin with its table"):
        with pytest.raises(ValueError, match=reason):
            read(message)


def test_a_dump_that_fails_midway_is_an_error() -> None:
    """A dump that fails midway raises an error with the errno of its last message."""
    message = frames.message(frames.DONE, 2, struct.pack("=i", -errno.ENOMEM))
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        RouteReader({}).read_dump(memoryview(message), [])


def test_an_unknown_device_is_read_again() -> None:
    """A route by a device that is newer than the link dump raises an error, and the links are read
    again.
    """
    message = packed([Route(network=9 << 24, prefix_length=8, dev="e0")])
    with pytest.raises(UnknownDeviceError, match=f"{NO_INDEX}{INDEXES['e0']}"):
        RouteReader({}).read_answers(memoryview(message))
    readers = iter([RouteReader({}), RouteReader(NAMES)])
    kernel = Conversation(PlayedKernel({}))  # type: ignore[arg-type]
    answers = kernel.consistently(lambda: next(readers).read_answers(memoryview(message)))
    assert answers == read(message)


#: Numbers far above those that any kernel has given away, with and without the bits for nesting and
#: byte order.
unknown = st.lists(
    st.tuples(st.integers(200, 0x3FFF) | st.integers(0x8000 + 200, 0x8FFF), st.binary(max_size=23)),
    max_size=4,
)


@given(
    st.integers(1, 133),
    st.none() | st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text),
    unknown,
)
def test_a_refusal_has_the_kernels_words(
    number: int, text: str | None, more: list[tuple[int, bytes]]
) -> None:
    """A refusal has the kernel's sentence, even if the acknowledgement has an offset or a
    policy.
    """
    sentence = [] if text is None else [frames.attribute(1, text.encode() + b"\0")]
    request = struct.pack("=IHHII", 16, 24, 5, 1, 0)
    words = b"".join(
        [
            frames.attribute(2, struct.pack("=I", 40)),
            *(frames.attribute(*one) for one in more),
            *sentence,
        ]
    )
    payload = struct.pack("=i", -number) + request + words
    assert frames.error_of(frames.message(frames.ERROR, 0x300, payload)) == (
        number,
        os.strerror(number)
        if text is None
        else f"{text.removeprefix('Error: ')} ({os.strerror(number)})",
    )
