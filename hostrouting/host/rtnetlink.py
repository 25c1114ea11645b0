"""The frame of netlink messages: headers, attributes, the kernel's refusals. Bytes in, values out.

The packed route messages stand on it (`route_writer`, `route_reader`); sockets are `netlink`'s business.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

AF_INET: Final = 2

REQUEST: Final = 0x1
ACK: Final = 0x4
DUMP: Final = 0x300
DUMP_INTERRUPTED: Final = 0x10

NOOP: Final = 1
ERROR: Final = 2
DONE: Final = 3

HEADER_LENGTH: Final = 16
header = struct.Struct("=IHHII")
word = struct.Struct("=I")
#: length, type and flags of a message
message_start = struct.Struct("=IHH").unpack_from

_attribute = struct.Struct("=HH")
_NLMSGERR_ATTR_MSG: Final = 1
_ACK_CAPPED: Final = 0x100
_ACK_TLVS: Final = 0x200


def attribute(number: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _attribute.pack(4 + len(payload), number) + payload + b"\0" * (-len(payload) % 4)


def attributes(packed: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(number, payload) of each attribute; the nesting and byte-order bits are taken off the number."""
    end = len(packed)
    while offset + 4 <= end:
        length, number = _attribute.unpack_from(packed, offset)
        if length < 4:
            return
        yield number & 0x3FFF, packed[offset + 4 : offset + length]
        offset += length + 3 & ~3


def address_of(payload: bytes | None) -> int | None:
    """The IPv4 address in an attribute, None where the attribute is absent."""
    return int.from_bytes(payload[:4], "big") if payload else None


def number_of(payload: bytes | None) -> int:
    """The 32-bit number in an attribute, 0 where the attribute is absent."""
    return int.from_bytes(payload[:4], sys.byteorder) if payload else 0


def message(kind: int, flags: int, payload: bytes, *, sequence: int = 1) -> bytes:
    """A whole message."""
    return header.pack(HEADER_LENGTH + len(payload), kind, flags, sequence, 0) + payload


def barrier(sequence: int) -> bytes:
    """A message that does nothing and is acknowledged: when its answer comes, all before it have been worked."""
    return message(NOOP, REQUEST | ACK, b"", sequence=sequence)


def error_of(answer: bytes) -> tuple[int, str]:
    """(errno, reason) of an NLMSG_ERROR message: the kernel's own sentence where it gives one; 0 is an ack."""
    _, _, flags = message_start(answer)
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
