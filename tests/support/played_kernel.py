"""A kernel that answers over rtnetlink with the bytes of a test: the readers must cope with all of
them.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from hostrouting.host.netlink import conversation, frames
from hostrouting.host.netlink.events import NetlinkListener
from hostrouting.host.netlink.frames import attribute, header, message, word
from hostrouting.host.netlink.route_codec import pack_signature
from hostrouting.net.addresses import Address
from hostrouting.net.routes import ObservedRoute, Route

LINKS, ADDRESSES, ROUTES, NEIGHBOURS, RULES, FILTERS = 18, 22, 26, 30, 34, 46
NEW_ROUTE, NEW_NEIGHBOUR = 24, 28

#: Interface indexes of the devices that are there by default.
DEVICES = {"lo": 1, "e0": 2, "e1": 3, "br0": 4, "v1": 5, "v0": 6}


def pack_route(route: Route | ObservedRoute, indexes: Mapping[str, int]) -> bytes:
    """The payload of a message about a route."""
    return Address(route.family, route.network).packed.join(pack_signature(route, indexes))


def link(name: str, index: int) -> bytes:
    """The message of a device that is up."""
    payload = struct.pack("=BxHiII", 0, 1, index, 0x10041, 0) + attribute(3, name.encode() + b"\0")
    return message(16, 2, payload)


class PlayedKernel:
    """Stands for a raw rtnetlink socket: `answers` are datagrams by the type of the request that
    they answer.

    `announced` are datagrams without a request. Of a dump the end follows by itself; a barrier
    is acknowledged. Where a reader would wait for ever, BlockingIOError.
    """

    def __init__(self, answers: Mapping[int, bytes], *, announced: Sequence[bytes] = ()) -> None:
        links = b"".join(link(name, index) for name, index in DEVICES.items())
        self._answers = {LINKS: links, **answers}
        self._queue = [*announced]

    def send(self, data: bytes | memoryview) -> int:
        """Queue the answers to these requests."""
        for request in frames.messages(memoryview(bytes(data))):
            _, kind, flags, sequence, _ = header.unpack_from(request)
            answer = self._answers.get(kind, b"")
            if kind == frames.NOOP:
                acknowledged = word.pack(0) + header.pack(16, kind, flags, sequence, 0)
                self._queue.append(message(frames.ERROR, 0x100, acknowledged, sequence=sequence))
            elif answer:
                self._queue.append(answer)
            if flags & frames.DUMP == frames.DUMP:
                self._queue.append(message(frames.DONE, 2, bytes(4)))
        return len(data)

    def announce(self, datagram: bytes) -> None:
        """Queue a datagram without a request."""
        self._queue.append(datagram)

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0) -> int:
        """Receive one datagram."""
        datagram = self.recv(len(buffer), flags)
        buffer[: len(datagram)] = datagram
        return len(datagram)

    def recv(self, size: int, flags: int) -> bytes:
        """Receive one datagram."""
        if not self._queue:
            raise BlockingIOError(errno.EAGAIN, "nothing more will come")
        return self._queue.pop(0)[:size]

    def setsockopt(self, *option: object) -> None:
        """Take every option."""

    def bind(self, address: object) -> None:
        """Take every address."""

    def __enter__(self) -> PlayedKernel:
        return self

    def __exit__(self, *failure: object) -> None:
        self._queue.clear()


def listener_of(kernel: PlayedKernel) -> NetlinkListener:
    """Return a listener whose socket is such a kernel; inside `played`, since it reads the names
    of the devices.
    """
    return NetlinkListener(kernel)  # type: ignore[arg-type]  # the methods of a socket that it calls are there


@contextmanager
def played(answers: Mapping[int, bytes]) -> Iterator[None]:
    """Let every conversation of this process, in whichever namespace, be one with such a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "in_namespace", lambda *_: PlayedKernel(answers))
        yield
