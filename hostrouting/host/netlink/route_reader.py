"""Route messages from the kernel: dumps and lookup answers by the hundred thousand.

The parts of a message before and after the destination repeat from route to route, so each is
parsed once and then found by its bytes (see `route_codec`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Any

from hostrouting.host.netlink.frames import (
    DUMP_INTERRUPTED,
    HEADER_LENGTH,
    checked_length,
    checked_message_length,
    error_of,
    is_end_of_dump,
    message_start,
)
from hostrouting.host.netlink.route_codec import (
    NEWROUTE,
    RTA_TABLE,
    Echoes,
    Names,
    Signature,
    parse_route,
)
from hostrouting.host.netlink.route_writer import AFTER_DST, DST_HEADER, network_order
from hostrouting.net.addresses import IPV4
from hostrouting.net.routes import ObservedRoute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_TABLE_HEADER = struct.pack("=HH", 8, RTA_TABLE)
#: The part of a message before the destination, without its header, and the destination.
_to_destination = struct.Struct(">16x24sI").unpack_from
#: How many routes in a row must have one signature before a stretch is tried, and how long the
#: first one is.
_ALIKE_ENOUGH = 2
_SHORTEST_STRETCH = 16
#: The limit of each cache: in some tables every route has another metric, for example.
_MOST_SIGNATURES = 4096
_cached = lru_cache(_MOST_SIGNATURES)


class RouteReader:
    """Parses route messages in bulk; `names` maps interface indexes to names."""

    def __init__(self, names: Names) -> None:
        #: By the bytes before and after the destination: all fields of an ObservedRoute but
        #: `network`.
        self._suffix = _cached(self._parse_suffix)
        # By all bytes but the header: the default route, whose message lacks a destination, answers
        # many lookups.
        self._whole = _cached(lambda payload: parse_route(payload, names))

    def read_dump(self, buffer: memoryview, sink: list[ObservedRoute]) -> bool:
        """Append the routes of one receive to `sink`; return True when the dump is complete.

        OSError is the kernel's refusal; InterruptedError means that the table changed meanwhile.
        """
        for signatures, networks, message in _runs(buffer):
            sink += self._routes(signatures, networks)
            if message is not None:
                if is_end_of_dump(message):
                    return True
                sink.append(self._read_whole(message))
        return False

    def read_answers(self, buffer: memoryview) -> list[ObservedRoute | int]:
        """Return the route or the errno of each lookup, in their order in `buffer`."""
        answers: list[ObservedRoute | int] = []
        for signatures, networks, message in _runs(buffer):
            answers += self._routes(signatures, networks)
            if message is not None:
                is_route = message_start(message)[1] == NEWROUTE
                answers.append(self._read_whole(message) if is_route else _refusal(message))
        return answers

    def _parse_suffix(self, alike: Signature) -> tuple[Any, ...]:
        before, after = alike
        if before[12:16] != _TABLE_HEADER:
            raise ValueError("a route does not begin with its table")
        # In a mixed table many signatures differ in the prefix length only, which is the first of
        # these fields.
        without_length = b"%c\0%b" % (before[0], before[2:])
        return checked_length(before[1], IPV4), *self._whole(without_length + bytes(4) + after)[2:]

    def _routes(
        self, signatures: Sequence[Signature], networks: Sequence[int]
    ) -> Iterator[ObservedRoute]:
        """Return the routes with these networks and, unless there is only one, signatures."""
        suffixes = map(self._suffix, signatures)
        alike = len(signatures) == 1
        # In C, from the first to the last: in a mixed table this is most of the time that a dump
        # takes.
        fields = map(add, zip(networks), repeat(next(suffixes)) if alike else suffixes)
        return map(tuple.__new__, repeat(ObservedRoute), fields)

    def read_announced(self, message: bytes) -> ObservedRoute:
        """Return the route that a single message announces as new or gone."""
        if len(message) < AFTER_DST:
            return self._whole(message[HEADER_LENGTH:])
        before, network = _to_destination(message)
        if not before.endswith(DST_HEADER):
            return self._whole(message[HEADER_LENGTH:])
        suffix = self._suffix((before, message[AFTER_DST:]))
        return tuple.__new__(ObservedRoute, (network,) + suffix)  # noqa: RUF005

    def _read_whole(self, message: memoryview) -> ObservedRoute:
        _, message_kind, _ = message_start(message)
        if message_kind != NEWROUTE:
            raise ValueError(f"a message has the type {message_kind}, and is not a route")
        return self._whole(bytes(message[HEADER_LENGTH:]))


def _refusal(message: memoryview) -> int:
    number, _ = error_of(bytes(message))
    if not number:
        raise ValueError("a question was acknowledged, and not answered")
    return number


def strike_seen(buffer: memoryview, echoes: Echoes) -> bool:
    """Remove the networks of each received route from `echoes`; return True at the dump's end."""
    for signatures, networks, message in _runs(buffer):
        if len(signatures) == 1:
            echoes.get(signatures[0], set()).difference_update(networks)
        else:
            for signature, network in zip(signatures, networks, strict=True):
                if signature in echoes:
                    echoes[signature].discard(network)
        if message is not None and is_end_of_dump(message):
            return True
    return False


def _runs(
    buffer: memoryview,
) -> Iterator[tuple[Sequence[Signature], Sequence[int], memoryview | None]]:
    """Yield the messages in `buffer`: signatures and networks of routes, then any other message.

    A signature that comes alone belongs to all the networks. If two routes in a row have the same
    signature, more probably do. Then a whole stretch of messages is compared at once, and a longer
    one each time it matches. In a uniform table of 10,000 routes that saves 57 % of a dump, 34 % of
    a verified `apply` and 63 % of the lookups.
    """
    unpackers: dict[int, Callable[[memoryview, int], tuple[bytes, int, bytes]]] = {}
    signatures: list[Signature] = []
    networks: list[int] = []
    last: Signature | None = None
    count, stretch = 0, _SHORTEST_STRETCH
    offset, end = 0, len(buffer)
    while offset < end:
        length, kind, flags = message_start(buffer, offset)
        if kind != NEWROUTE or length < AFTER_DST or flags & DUMP_INTERRUPTED:
            yield (
                signatures,
                networks,
                buffer[offset : offset + checked_message_length(length, left=end - offset)],
            )
            signatures, networks = [], []
            offset += length + 3 & ~3
            continue
        unpack = unpackers.get(length)
        if unpack is None:
            if length % 4:
                raise ValueError(
                    f"a route is {length} bytes long, to which padded attributes never add up"
                )
            unpack = unpackers[length] = struct.Struct(f">16x24sI{length - AFTER_DST}s").unpack_from
        before, network, after = unpack(buffer, offset)
        alike = before, after
        if alike != last:
            if not before.endswith(DST_HEADER):
                yield signatures, networks, buffer[offset : offset + length]
                signatures, networks = [], []
                offset += length
                continue
            last, count = alike, 0
        count += 1
        if count > _ALIKE_ENOUGH:
            run = buffer[offset : offset + min(stretch, (end - offset) // length) * length]
            stretch_networks = _only_networks_differ(run, length)
            if stretch_networks is not None:
                yield signatures, networks, None
                yield [alike], stretch_networks, None
                signatures, networks = [], []
                offset += len(run)
                stretch *= 2
                continue
            count, stretch = 0, _SHORTEST_STRETCH
        signatures.append(alike)
        networks.append(network)
        offset += length
    yield signatures, networks, None


def _only_networks_differ(run: memoryview, length: int) -> Sequence[int] | None:
    """Return the networks of messages that differ in nothing else; None if they do.

    The stretch is compared with copies of its first message that have the networks of the stretch.
    """
    words = run.cast("I")[AFTER_DST // 4 - 1 :: length // 4]
    repeated = bytearray(bytes(run[:length]) * (len(run) // length))
    memoryview(repeated).cast("I")[AFTER_DST // 4 - 1 :: length // 4] = words
    if repeated != run:
        return None
    return network_order(words.tobytes())
