"""Many netlink answers in one system call: `recvmmsg`, which Python's socket module does not have.

A lookup is answered by a datagram of its own. To receive them one by one costs more than the kernel's
own work for all of them together.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

#: Fits an answer with some twenty next hops.
_USUAL_ANSWER: Final = 448
_WORD: Final = struct.calcsize("L")
_MSG_TRUNC: Final = 0x20
_MSG_DONTWAIT: Final = 0x40


class AnswerCutError(Exception):
    """An answer was longer than its place: ask again, and receive one by one."""


#: struct iovec, and struct mmsghdr: a struct msghdr, which ends on a pointer's boundary, and the length received.
_iovec = struct.Struct("@PN")
_mmsghdr = struct.Struct("@PIPNPNi0PI0P")
_iov_offset: Final = struct.calcsize("@PI0P")
_received_offset: Final = struct.calcsize("@PIPNPNi0P")


class BulkReceiver:
    """Receives up to `most` datagrams at once from `opened`."""

    def __init__(self, opened: socket.socket, most: int) -> None:
        self._descriptor = opened.fileno()
        buffer = bytearray(most * _USUAL_ANSWER)
        vectors = bytearray(_iovec.pack(0, _USUAL_ANSWER) * most)
        messages = bytearray(_mmsghdr.pack(0, 0, 0, 1, 0, 0, 0, 0) * most)
        # ctypes keeps what it points into alive and in its place.
        self._kept = [(ctypes.c_char * len(each)).from_buffer(each) for each in (buffer, vectors, messages)]
        self._view = memoryview(buffer)
        _set_pointers(vectors, 0, _iovec.size, ctypes.addressof(self._kept[0]), _USUAL_ANSWER)
        _set_pointers(messages, _iov_offset, _mmsghdr.size, ctypes.addressof(self._kept[1]), _iovec.size)
        # The lengths of what came, as a column through all messages.
        self._lengths = memoryview(messages).cast("I")[_received_offset // 4 :: _mmsghdr.size // 4]
        self._recvmmsg = ctypes.CDLL(None, use_errno=True).recvmmsg

    def receive(self, count: int) -> bytes:
        """`count` datagrams that are queued already, one behind the other; OSError where they are not all there."""
        got = self._recvmmsg(self._descriptor, self._kept[2], count, _MSG_TRUNC | _MSG_DONTWAIT, None)
        if got < count:
            number = ctypes.get_errno() if got < 0 else errno.ENOBUFS
            raise OSError(number, os.strerror(number))
        lengths = self._lengths[:got].tolist()
        if max(lengths) > _USUAL_ANSWER:
            raise AnswerCutError
        view = self._view
        starts = range(0, count * _USUAL_ANSWER, _USUAL_ANSWER)
        return b"".join([view[start : start + length] for start, length in zip(starts, lengths, strict=True)])


def _set_pointers(structures: bytearray, offset: int, size: int, first: int, step: int) -> None:
    """Set the pointer at `offset` of each of the structures to `first` and every `step` bytes on."""
    # A long is as wide as a pointer on every Linux.
    words = memoryview(structures).cast("L")[offset // _WORD :: size // _WORD]
    words[:] = memoryview(array("L", range(first, first + step * len(words), step)))
