"""The frame of netlink messages: headers, attributes, the kernel's refusals. Bytes in, values out.

A message that cannot be read (a wrong length, an attribute of another size) raises one of the
errors in `UNREADABLE`, here and in every module that decodes messages. `conversation` translates
them for the callers of an adapter.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from hostrouting.net.addresses import address_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REQUEST = 0x1
ACK = 0x4
DUMP_INTERRUPTED = 0x10
DUMP = 0x300
REPLACE = 0x100
EXCLUSIVE = 0x200
_CREATE = 0x400
_APPEND = 0x800
NOOP = 1
ERROR = 2
DONE = 3

#: The errors that decoding raises for bytes that no kernel writes.
UNREADABLE: Final = (struct.error, LookupError, ValueError, OverflowError)

#: The flags of a change by its verb. A route is never sent with REPLACE: it takes the first of a
#: place, even if that is foreign by then.
CHANGE_FLAGS: Final = {
    "add": REQUEST | _CREATE | EXCLUSIVE,
    "prepend": REQUEST | _CREATE,
    "append": REQUEST | _CREATE | _APPEND,
    "remove": REQUEST,
}

#: The payloads of attributes by their numbers.
Attributes = dict[int, bytes]

HEADER_LENGTH: Final = 16
header: struct.Struct = struct.Struct("=IHHII")
word: struct.Struct = struct.Struct("=I")
#: length, type and flags of a message
message_start: Callable[..., tuple[Any, ...]] = struct.Struct("=IHH").unpack_from

_attribute = struct.Struct("=HH")
_NLMSGERR_ATTR_MSG = 1
_ACK_TLVS = 0x200


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


#: Refusals by the step's number, or by the change's position.
Failures = dict[int, Failure]


class AnswersLostError(Exception):
    """Some answers did not arrive: only reading back shows which steps succeeded.

    Its cause, if any, is the error of the socket.
    """

    def explain(self, failures: Failures) -> Failures:
        """Return the failures of a reading with the error of the socket as their reason."""
        cause = self.__cause__
        if not isinstance(cause, OSError):
            return failures
        return {
            position: Failure(cause.errno or failure.errno, f"{cause.strerror}; {failure.reason}")
            for position, failure in failures.items()
        }


class Request(NamedTuple):
    """The type and payload of a request, and the command with the same answer, for comparison."""

    kind: int
    payload: bytes
    command: str

    def packed(self) -> bytes:
        """Return the complete message that requests a dump."""
        return message(self.kind, REQUEST | DUMP, self.payload)


def attribute(number: int, payload: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    return _attribute.pack(4 + len(payload), number) + payload + b"\0" * (-len(payload) % 4)


def attributes(packed: bytes, offset: int = 0) -> Attributes:
    """Return the payload of each attribute by its number, without the flags."""
    return dict(each_attribute(packed, offset))


def each_attribute(packed: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, payload) of each attribute, without the bits for nesting and byte order."""
    end = len(packed)
    while offset < end:
        length, number = _attribute.unpack_from(packed, offset)
        if not 4 <= length <= end - offset:
            raise ValueError(
                f"attribute {number & 0x3FFF} is {length} bytes long, but {end - offset} are left"
            )
        yield number & 0x3FFF, packed[offset + 4 : offset + length]
        offset += length + 3 & ~3


def parsed(payload: bytes, layout: struct.Struct) -> tuple[tuple[Any, ...], Attributes]:
    """Return the fixed part of a message without its header, and the attributes."""
    return layout.unpack_from(payload), attributes(payload, layout.size)


def address_of(fields: Attributes, number: int, family: int) -> int | None:
    """Return the address in an attribute; None if the attribute is absent."""
    if number not in fields:
        return None
    return number_of(fields, number, size=address_bits(family) // 8, order="big")


def number_of(
    fields: Attributes,
    number: int,
    *,
    size: int = 4,
    order: Literal["big", "little"] = sys.byteorder,
) -> int:
    """Return the number in an attribute of this size; 0 if the attribute is absent."""
    if number not in fields:
        return 0
    payload = fields[number]
    if len(payload) != size:
        raise ValueError(f"an attribute of {size} bytes has {len(payload)}")
    return int.from_bytes(payload, order)


def checked_length(length: int, family: int) -> int:
    """Return the prefix length; raise ValueError if it is longer than an address of the family."""
    if length > address_bits(family):
        raise ValueError(
            f"a prefix is {length} bits long, but an address has {address_bits(family)}"
        )
    return length


def checked_message_length(length: int, *, left: int) -> int:
    """Return the length in a message's header; raise ValueError if fewer bytes are left."""
    if not HEADER_LENGTH <= length <= left:
        raise ValueError(f"a message is {length} bytes long, but {left} are left")
    return length


def messages(received: memoryview) -> Iterator[memoryview]:
    """Yield the messages that were received together."""
    offset = 0
    end = len(received)
    while offset < end:
        length = checked_message_length(message_start(received, offset)[0], left=end - offset)
        yield received[offset : offset + length]
        offset += length + 3 & ~3


def message(kind: int, flags: int, payload: bytes, *, sequence: int = 1) -> bytes:
    """Return a complete message."""
    return header.pack(HEADER_LENGTH + len(payload), kind, flags, sequence, 0) + payload


def error_of(answer: bytes) -> Failure:
    """Return the answer of an NLMSG_ERROR message, with the kernel's sentence; 0 is an ack."""
    _, kind, flags = message_start(answer)
    if kind != ERROR:
        raise ValueError(f"a message has the type {kind}, which answers no request")
    number: int = -struct.unpack_from("=i", answer, HEADER_LENGTH)[0]
    reason = os.strerror(number)
    if flags & _ACK_TLVS:
        # The header of the request precedes them: kernels with these sentences support
        # NETLINK_CAP_ACK.
        sentence = attributes(answer, HEADER_LENGTH + 4 + HEADER_LENGTH).get(_NLMSGERR_ATTR_MSG)
        if sentence:
            text = sentence.rstrip(bytes(1)).decode(errors="replace")
            reason = f"{text.removeprefix('Error: ')} ({reason})"
    return Failure(number, reason)


def is_end_of_dump(received: memoryview) -> bool:
    """Return True at the end of a dump; raise OSError if it failed or must be repeated."""
    _, kind, flags = message_start(received)
    if flags & DUMP_INTERRUPTED:
        raise InterruptedError(errno.EINTR, "the table changed during the dump")
    number = 0
    if kind == ERROR:
        number, _ = error_of(bytes(received))
    elif kind == DONE and len(received) >= HEADER_LENGTH + 4:
        # A dump that fails midway has its error in the message that ends it.
        number = -struct.unpack_from("=i", received, HEADER_LENGTH)[0]
    if number:
        raise OSError(number, os.strerror(number))
    return bool(kind == DONE)
