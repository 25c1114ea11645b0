"""Route messages from the kernel, parsed by hand: dumps and lookup answers by the hundred thousand.

The reverse of `route_writer`, by the same observation: what stands before and behind the destination
repeats, so it is parsed once and then looked up by its bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from hostrouting.host.route_writer import (
    BEHIND_DST,
    DST_HEADER,
    NEWROUTE,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_TABLE,
    rtmsg,
)
from hostrouting.host.routes import FLAG_ONLINK, KINDS, NextHop, ObservedRoute
from hostrouting.host.rtnetlink import (
    DONE,
    HEADER_LENGTH,
    address_of,
    attributes,
    check_dump_message,
    error_of,
    message_start,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostrouting.host.routes import Extra

#: What `_parse` understands, and what only answers carry (source asked for, incoming device, cache info, mark,
#: expiry, user). All else travels along as `extra`.
_UNDERSTOOD: Final = frozenset({RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH, RTA_TABLE})
_ANSWER_ONLY: Final = frozenset({2, 3, 12, 16, 23, 25})


_WORTHWHILE_RUN: Final = 16

_two_words = struct.Struct(">Q")


class UnknownDeviceError(Exception):
    """A route names an interface index that the link dump before it did not have: read both again."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"no device has the index {index}")


class RouteReader:
    """Makes `ObservedRoute` values of route messages; `names` maps interface indexes to names."""

    #: Kept of each kind; a table with more different ones (every route its own metric, say) starts over.
    _MOST_SIGNATURES: Final = 4096

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        #: By the bytes before and behind the destination: all fields of an ObservedRoute but `network`; None where
        #: the message is of another shape.
        self._signatures: dict[tuple[bytes, bytes], tuple[object, ...] | None] = {}
        #: Routes of messages without destination by all their bytes: the default route answers many lookups.
        self._whole: dict[bytes, ObservedRoute] = {}
        self._unpackers: dict[int, Callable[[memoryview], Iterator[tuple[int, bytes, int, bytes]]]] = {}

    def read_dump(self, buffer: memoryview, sink: list[ObservedRoute]) -> bool:
        """Append the routes of one receive to `sink`; True when the dump is complete.

        OSError is the kernel's refusal; InterruptedError says that the table changed meanwhile.
        """
        offset, end = 0, len(buffer)
        while offset < end:
            length, kind, flags = message_start(buffer, offset)
            check_dump_message(buffer[offset : offset + length], kind, flags)
            if kind == DONE:
                return True
            offset = self._read_run(buffer, offset, length, sink) if kind == NEWROUTE else offset + length
        return False

    def read_answers(self, buffer: memoryview) -> list[ObservedRoute | int]:
        """The route, or the errno, of each lookup's answer; the answers stand one behind the other in `buffer`."""
        answers: list[ObservedRoute | int] = []
        offset, end = 0, len(buffer)
        while offset < end:
            length, kind, _ = message_start(buffer, offset)
            if kind == NEWROUTE:
                offset = self._read_run(buffer, offset, length, answers)
            else:
                answers.append(error_of(bytes(buffer[offset : offset + length]))[0])
                offset += length
        return answers

    def _read_run(self, buffer: memoryview, offset: int, length: int, sink: list[Any]) -> int:
        """Append the routes of all messages of one length and type from `offset` on; the offset behind them."""
        append, new, signatures = sink.append, tuple.__new__, self._signatures
        if length < BEHIND_DST:
            # Too short to have a destination: the default route of a point-to-point device.
            append(self._read_whole(buffer[offset : offset + length]))
            return offset + length
        (first,) = _two_words.unpack_from(buffer, offset)
        run = buffer[offset : offset + (len(buffer) - offset) // length * length]
        networks = _only_networks_differ(run, length)
        if networks is not None:
            _, before, _, behind = next((self._unpackers.get(length) or self._unpacker(length))(run))
            suffix = signatures[before, behind] if (before, behind) in signatures else self._learn(before, behind)
            if suffix is not None:
                sink += map(new, repeat(ObservedRoute), zip(networks, *map(repeat, suffix), strict=False))
                return offset + len(run)
        last, suffix = None, None
        for head, before, network, behind in (self._unpackers.get(length) or self._unpacker(length))(run):
            if head != first:
                break
            if (before, behind) != last:
                last = (before, behind)
                suffix = signatures[last] if last in signatures else self._learn(before, behind)
            if suffix is not None:
                append(new(ObservedRoute, (network, *suffix)))
            else:
                append(self._read_whole(buffer[offset : offset + length]))
            offset += length
        return offset

    def _learn(self, before: bytes, behind: bytes) -> tuple[object, ...] | None:
        """Parse what a signature says; None where the message is not of the shape that has signatures."""
        suffix = None
        if before.endswith(DST_HEADER):
            suffix = self._parse(bytes(HEADER_LENGTH) + before + bytes(4) + behind)[1:]
        if len(self._signatures) >= self._MOST_SIGNATURES:
            self._signatures.clear()
        self._signatures[before, behind] = suffix
        return suffix

    def _read_whole(self, message: memoryview) -> ObservedRoute:
        payload = bytes(message[HEADER_LENGTH:])
        if payload not in self._whole:
            if len(self._whole) >= self._MOST_SIGNATURES:
                self._whole.clear()
            self._whole[payload] = self._parse(bytes(message))
        return self._whole[payload]

    def _parse(self, message: bytes) -> ObservedRoute:
        """Read a route message of any shape."""
        _, length, _, tos, table, protocol, scope, kind, flags = rtmsg.unpack_from(message, HEADER_LENGTH)
        fields = dict(attributes(message, HEADER_LENGTH + 12))
        return ObservedRoute(
            network=int.from_bytes(fields.get(RTA_DST, b""), "big"),
            prefix_length=length,
            gateway=address_of(fields.get(RTA_GATEWAY)),
            dev=self._device(number_of(fields.get(RTA_OIF))),
            metric=number_of(fields.get(RTA_PRIORITY)),
            table=number_of(fields.get(RTA_TABLE)) or table,
            protocol=protocol,
            kind=KINDS[kind],
            scope=scope,
            source=address_of(fields.get(RTA_PREFSRC)),
            tos=tos,
            flags=flags,
            nexthops=tuple(self._next_hops(fields.get(RTA_MULTIPATH, b""))),
            extra=_extra(fields),
        )

    def _next_hops(self, payload: bytes) -> Iterator[NextHop]:
        offset = 0
        while offset + 8 <= len(payload):
            length, flags, hops, index = struct.unpack_from("=HBBI", payload, offset)
            fields = dict(attributes(payload[offset + 8 : offset + length]))
            yield NextHop(
                gateway=address_of(fields.get(RTA_GATEWAY)),
                dev=self._device(index) or "",
                weight=hops + 1,
                onlink=bool(flags & FLAG_ONLINK),
                extra=_extra(fields),
            )
            offset += max(length + 3 & ~3, 8)

    def _device(self, index: int) -> str | None:
        if index == 0:
            return None
        try:
            return self._names[index]
        except KeyError:
            raise UnknownDeviceError(index) from None

    def _unpacker(self, length: int) -> Callable[[memoryview], Iterator[tuple[int, bytes, int, bytes]]]:
        self._unpackers[length] = struct.Struct(f">Q8x24sI{length - BEHIND_DST}s").iter_unpack
        return self._unpackers[length]


def _only_networks_differ(run: memoryview, length: int) -> array[int] | None:
    """The networks of a run of messages that are the same but for these, which most runs are; else None.

    A run that repeats the first message, with the networks of this one, is this one.
    """
    count = len(run) // length
    if count < _WORTHWHILE_RUN:
        return None
    words = run.cast("I")[BEHIND_DST // 4 - 1 :: length // 4]
    repeated = bytearray(bytes(run[:length]) * count)
    memoryview(repeated).cast("I")[BEHIND_DST // 4 - 1 :: length // 4] = words
    if repeated != run:
        return None
    networks = array("I", words.tobytes())
    if sys.byteorder == "little":
        networks.byteswap()
    return networks


def strike_seen(buffer: memoryview, echoes: set[bytes]) -> bool:
    """Take every route message of one receive (header off) from `echoes`; True when the dump is complete."""
    offset, end = 0, len(buffer)
    while offset < end:
        length, kind, flags = message_start(buffer, offset)
        check_dump_message(buffer[offset : offset + length], kind, flags)
        if kind == DONE:
            return True
        (first,) = _two_words.unpack_from(buffer, offset)
        run = buffer[offset : offset + (end - offset) // length * length]
        for head, payload in struct.iter_unpack(f">Q8x{length - HEADER_LENGTH}s", run):
            if head != first:
                break
            echoes.discard(payload)
            offset += length
    return False


def _extra(fields: Mapping[int, bytes]) -> Extra:
    return tuple((number, payload) for number, payload in fields.items() if number not in _UNDERSTOOD | _ANSWER_ONLY)
