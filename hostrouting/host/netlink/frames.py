"""The frame of netlink messages: headers, attributes, the kernel's refusals. Bytes in, values out.

What cannot be read (a length that lies, an attribute of another size) is one of the errors in `UNREADABLE`, here and in
every module that decodes messages. `conversation` turns them into what the callers of a backend know.

The packed route messages stand on it (`route_writer`, `route_reader`); sockets are `netlink`'s business.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.net.addresses import address_bits

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ACK",
    "AF_INET",
    "DONE",
    "DUMP",
    "DUMP_INTERRUPTED",
    "ERROR",
    "HEADER_LENGTH",
    "NOOP",
    "REQUEST",
    "UNREADABLE",
    "Request",
    "address_of",
    "attribute",
    "attributes",
    "barrier",
    "checked_length",
    "checked_message_length",
    "error_of",
    "header",
    "is_end_of_dump",
    "message",
    "message_start",
    "messages",
    "next_hops",
    "number_of",
    "word",
]

AF_INET: Final = 2

REQUEST: Final = 0x1
ACK: Final = 0x4
DUMP: Final = 0x300
DUMP_INTERRUPTED: Final = 0x10

NOOP: Final = 1
ERROR: Final = 2
DONE: Final = 3

#: What decoding raises where the bytes are not what a kernel writes.
UNREADABLE: Final = (struct.error, LookupError, ValueError, OverflowError)

HEADER_LENGTH: Final = 16
header = struct.Struct("=IHHII")
word = struct.Struct("=I")
#: length, type and flags of a message
message_start = struct.Struct("=IHH").unpack_from

_attribute = struct.Struct("=HH")
_next_hop = struct.Struct("=HBBI")
_NLMSGERR_ATTR_MSG: Final = 1
_ACK_CAPPED: Final = 0x100
_ACK_TLVS: Final = 0x200


class Request(NamedTuple):
    """The type and payload of a question, and the command that asks the kernel for the same, for people to compare."""

    kind: int
    payload: bytes
    command: str


def attribute(number: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _attribute.pack(4 + len(payload), number) + payload + b"\0" * (-len(payload) % 4)


def attributes(packed: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(number, payload) of each attribute; the nesting and byte-order bits are taken off the number."""
    end = len(packed)
    while offset < end:
        length, number = _attribute.unpack_from(packed, offset)
        if not 4 <= length <= end - offset:
            raise ValueError(f"attribute {number & 0x3FFF} is {length} bytes long, but {end - offset} are left")
        yield number & 0x3FFF, packed[offset + 4 : offset + length]
        offset += length + 3 & ~3


def next_hops(packed: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(flags, weight - 1, interface index, packed attributes) of each next hop of a multipath route."""
    offset, end = 0, len(packed)
    while offset < end:
        length, flags, hops, index = _next_hop.unpack_from(packed, offset)
        if not _next_hop.size <= length <= end - offset:
            raise ValueError(f"a next hop is {length} bytes long, but {end - offset} are left")
        yield flags, hops, index, packed[offset + _next_hop.size : offset + length]
        offset += length + 3 & ~3


def address_of(payload: bytes | None, family: int = AF_INET) -> int | None:
    """Return the address in an attribute; None if the attribute is absent."""
    return None if payload is None else int.from_bytes(_whole(payload, address_bits(family) // 8), "big")


def number_of(payload: bytes | None, *, size: int = 4) -> int:
    """The number in an attribute of so many bytes, 0 where the attribute is absent."""
    return 0 if payload is None else int.from_bytes(_whole(payload, size), sys.byteorder)


def _whole(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise ValueError(f"an attribute of {size} bytes has {len(payload)}")
    return payload


def checked_length(length: int, *, most: int) -> int:
    """The prefix length, which is a byte of its own and may say more than addresses have bits."""
    if length > most:
        raise ValueError(f"a prefix is {length} bits long, but an address has {most}")
    return length


def checked_message_length(length: int, *, left: int) -> int:
    """The length that a message gives itself where so many bytes are left of what was received."""
    if not HEADER_LENGTH <= length <= left:
        raise ValueError(f"a message is {length} bytes long, but {left} are left")
    return length


def messages(received: memoryview) -> Iterator[memoryview]:
    """The messages that were received together."""
    offset, end = 0, len(received)
    while offset < end:
        length = checked_message_length(message_start(received, offset)[0], left=end - offset)
        yield received[offset : offset + length]
        offset += length + 3 & ~3


def message(kind: int, flags: int, payload: bytes, *, sequence: int = 1) -> bytes:
    """A whole message."""
    return header.pack(HEADER_LENGTH + len(payload), kind, flags, sequence, 0) + payload


def barrier(sequence: int) -> bytes:
    """A message that does nothing and is acknowledged: when its answer comes, all before it have been worked."""
    return message(NOOP, REQUEST | ACK, b"", sequence=sequence)


def error_of(answer: bytes) -> tuple[int, str]:
    """(errno, reason) of an NLMSG_ERROR message: the kernel's own sentence where it gives one; 0 is an ack."""
    _, kind, flags = message_start(answer)
    if kind != ERROR:
        raise ValueError(f"a message has the type {kind}, which answers nothing that was asked")
    number: int = -struct.unpack_from("=i", answer, HEADER_LENGTH)[0]
    offset = HEADER_LENGTH + 4 + HEADER_LENGTH
    if not flags & _ACK_CAPPED:
        # Without NETLINK_CAP_ACK the whole request stands before the sentence.
        (request_length,) = word.unpack_from(answer, HEADER_LENGTH + 4)
        offset += request_length - HEADER_LENGTH if number else 0
    reason = os.strerror(number) if number else ""
    if flags & _ACK_TLVS:
        said = dict(attributes(answer, offset)).get(_NLMSGERR_ATTR_MSG)
        if said:
            reason = f"{said.rstrip(bytes(1)).decode(errors='replace').removeprefix('Error: ')} ({reason})"
    return number, reason


def is_end_of_dump(received: memoryview) -> bool:
    """Whether this message ends a dump; OSError is what went wrong, InterruptedError means to read again."""
    _, kind, flags = message_start(received)
    if flags & DUMP_INTERRUPTED:
        raise InterruptedError(errno.EINTR, "what was dumped changed meanwhile")
    number = 0
    if kind == ERROR:
        number, _ = error_of(bytes(received))
    elif kind == DONE and len(received) >= HEADER_LENGTH + 4:
        # A dump that fails midway says so in the message that ends it.
        number = -struct.unpack_from("=i", received, HEADER_LENGTH)[0]
    if number:
        raise OSError(number, os.strerror(number))
    return bool(kind == DONE)
