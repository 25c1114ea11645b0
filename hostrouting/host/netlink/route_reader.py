"""Route messages from the kernel: dumps and lookup answers by the hundred thousand.

The parts of a message before and after the destination repeat from route to route, so each is parsed once and then
found by its bytes (see `route_codec`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from hostrouting.host.netlink.frames import (
    DUMP_INTERRUPTED,
    HEADER_LENGTH,
    checked_message_length,
    error_of,
    is_end_of_dump,
    message_start,
)
from hostrouting.host.netlink.route_codec import (
    NEWROUTE,
    RTA_TABLE,
    parse_route,
)
from hostrouting.host.netlink.route_writer import AFTER_DST, DST_HEADER
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostrouting.host.netlink.route_codec import Signature

__all__ = [
    "RouteReader",
    "strike_seen",
]

_TABLE_HEADER: Final = struct.pack("=HH", 8, RTA_TABLE)
#: How many routes in a row must have one signature before a stretch is tried, and how long the first one is.
_ALIKE_ENOUGH: Final = 2
_SHORTEST_STRETCH: Final = 16
#: The limit of each cache: in some tables every route has another metric, say.
_MOST_SIGNATURES: Final = 4096
_cached: Final = lru_cache(_MOST_SIGNATURES)


class RouteReader:
    """Parses route messages in bulk; `names` maps interface indexes to names."""

    def __init__(self, names: Mapping[int, str]) -> None:
        #: By the bytes before and after the destination: all fields of an ObservedRoute but `network`.
        self._suffix = _cached(lambda alike: _parse_suffix(alike, names))
        # Messages without destination by all their bytes: the default route answers many lookups.
        self._whole = _cached(lambda payload: parse_route(payload, names))

    def read_dump(self, buffer: memoryview, sink: list[ObservedRoute]) -> bool:
        """Append the routes of one receive to `sink`; return True when the dump is complete.

        OSError is the kernel's refusal; InterruptedError says that the table changed meanwhile.
        """
        append, new, suffix_of = sink.append, tuple.__new__, self._suffix
        for alike, message, networks in _runs(buffer):
            if alike is None:
                if is_end_of_dump(message):
                    return True
                append(self._read_whole(message))
                continue
            suffix = suffix_of(alike)
            if len(networks) == 1:
                # Two thirds of the time that unpacking takes.
                append(new(ObservedRoute, (networks[0],) + suffix))  # noqa: RUF005
            else:
                sink += map(new, repeat(ObservedRoute), zip(networks, *map(repeat, suffix), strict=False))
        return False

    def read_answers(self, buffer: memoryview) -> list[ObservedRoute | int]:
        """Return the route or the errno of each lookup's answer; the answers follow each other in `buffer`."""
        answers: list[ObservedRoute | int] = []
        new = tuple.__new__
        for alike, message, networks in _runs(buffer):
            if alike is None:
                is_route = message_start(message)[1] == NEWROUTE
                answers.append(self._read_whole(message) if is_route else _refusal(message))
                continue
            suffix = self._suffix(alike)
            answers += map(new, repeat(ObservedRoute), zip(networks, *map(repeat, suffix), strict=False))
        return answers

    def read_announced(self, message: bytes) -> ObservedRoute:
        """Return the route that a single message announces as new or gone."""
        before, after = message[HEADER_LENGTH : AFTER_DST - 4], message[AFTER_DST:]
        if len(message) < AFTER_DST or not before.endswith(DST_HEADER):
            return self._whole(message[HEADER_LENGTH:])
        network = int.from_bytes(message[AFTER_DST - 4 : AFTER_DST], "big")
        return tuple.__new__(ObservedRoute, (network, *self._suffix((before, after))))

    def _read_whole(self, message: memoryview) -> ObservedRoute:
        _, message_kind, _ = message_start(message)
        if message_kind != NEWROUTE:
            raise ValueError(f"a message has the type {message_kind}, and is no route")
        return self._whole(bytes(message[HEADER_LENGTH:]))


def _parse_suffix(alike: Signature, names: Mapping[int, str]) -> tuple[Any, ...]:
    """Return all fields of the routes with this signature but `network`."""
    before, after = alike
    if before[12:16] != _TABLE_HEADER:
        raise ValueError("a route does not begin with its table")
    return parse_route(before + bytes(4) + after, names)[1:]


def _refusal(message: memoryview) -> int:
    number, _ = error_of(bytes(message))
    if not number:
        raise ValueError("a question was acknowledged, and not answered")
    return number


def strike_seen(buffer: memoryview, echoes: dict[Signature, set[int]]) -> bool:
    """Remove the networks of every route of one receive from `echoes`; return True when the dump is complete."""
    for alike, message, networks in _runs(buffer):
        if alike is None:
            if is_end_of_dump(message):
                return True
        elif alike in echoes:
            echoes[alike].difference_update(networks)
    return False


def _runs(buffer: memoryview) -> Iterator[tuple[Signature | None, memoryview, Sequence[int]]]:
    """Yield the messages in `buffer`: routes by signature, with their networks; all others one by one, without.

    If two routes in a row have the same signature, more probably do. Then a whole stretch of messages is compared at
    once, and a longer one each time it matches. In a uniform table of 10,000 routes that saves 57 % of a dump, 34 % of
    a verified `apply` and 63 % of the lookups.
    """
    unpackers: dict[int, Callable[[memoryview, int], tuple[bytes, int, bytes]]] = {}
    last: Signature | None = None
    count, stretch = 0, _SHORTEST_STRETCH
    offset, end = 0, len(buffer)
    while offset < end:
        length, kind, flags = message_start(buffer, offset)
        if kind != NEWROUTE or length < AFTER_DST or flags & DUMP_INTERRUPTED:
            yield None, buffer[offset : offset + checked_message_length(length, left=end - offset)], ()
            offset += length + 3 & ~3
            continue
        if length not in unpackers:
            if length % 4:
                raise ValueError(f"a route is {length} bytes long, to which padded attributes never add up")
            unpackers[length] = struct.Struct(f">16x24sI{length - AFTER_DST}s").unpack_from
        before, network, after = unpackers[length](buffer, offset)
        alike = before, after
        if alike != last:
            if not before.endswith(DST_HEADER):
                yield None, buffer[offset : offset + length], ()
                offset += length
                continue
            last, count = alike, 0
        count += 1
        if count > _ALIKE_ENOUGH:
            run = buffer[offset : offset + min(stretch, (end - offset) // length) * length]
            networks = _only_networks_differ(run, length)
            if networks is not None:
                yield alike, run, networks
                offset += len(run)
                stretch *= 2
                continue
            count, stretch = 0, _SHORTEST_STRETCH
        yield alike, buffer, (network,)
        offset += length


def _only_networks_differ(run: memoryview, length: int) -> Sequence[int] | None:
    """Return the networks of a stretch of messages that differ in nothing else; None if they differ in more.

    The stretch is compared with copies of its first message that have the networks of the stretch.
    """
    words = run.cast("I")[AFTER_DST // 4 - 1 :: length // 4]
    repeated = bytearray(bytes(run[:length]) * (len(run) // length))
    memoryview(repeated).cast("I")[AFTER_DST // 4 - 1 :: length // 4] = words
    if repeated != run:
        return None
    networks = array("I", words.tobytes())
    if sys.byteorder == "little":
        networks.byteswap()
    return networks
