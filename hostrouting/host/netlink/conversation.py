"""A netlink socket for dumps, lookups, and batches of changes that end with a barrier."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.base.errors import BackendError, PermissionDeniedError
from hostrouting.host.netlink import frames
from hostrouting.host.netlink.frames import AnswersLostError, Failures
from hostrouting.host.netlink.route_codec import LINKS, UnknownDeviceError, parse_names
from hostrouting.net.addresses import IPV4, IPV6

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_Result = TypeVar("_Result")

#: The multicast groups by family: links, nexthop objects; addresses, routes, rules and settings of
#: each.
GROUPS: Final = {
    0: 0x8000_0001,
    IPV4: 0x10 | 0x40 | 0x80 | 0x80_0000,
    IPV6: 0x100 | 0x400 | 0x4_0000 | 0x100_0000,
}
#: The size of the socket's buffer. The kernel doubles it and counts 768 bytes for each route, so it
#: holds 20,000. Without privilege it is at most net.core.rmem_max, by default enough for 250
#: routes.
SOCKET_BYTES: Final = 8 << 20
#: No announcement is longer; that of a link takes 2 KB.
LONGEST: Final = 1 << 16
_CLONE_NEWNET = 0x40000000
_SO_RCVBUFFORCE = 33


def in_namespace(netns: str | None, function: Callable[[], _Result]) -> _Result:
    """Return the result of a call in the namespace `netns`: a name of `ip netns`, a path, or None.

    A new thread enters the namespace and ends there, so no failure can leave one of the caller's
    threads in it. A socket belongs to the namespace that its thread was in when it was made.
    """
    if not netns:
        return function()
    # Imported here because few callers name another namespace, and ctypes takes 5 ms.
    from hostrouting.host.netlink.libc import call_libc

    path = netns if "/" in netns else f"/run/netns/{netns}"
    outcome: list[_Result | OSError] = []

    def enter() -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # os.setns came with Python 3.12.
                call_libc("setns", descriptor, _CLONE_NEWNET)
                outcome.append(function())
            finally:
                os.close(descriptor)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=enter, name=f"enter-{netns}", daemon=True)
    thread.start()
    thread.join()
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    return outcome[0]


def open_here() -> socket.socket:
    """Return a raw rtnetlink socket in the namespace of this thread."""
    return socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    )


def enlarge(opened: socket.socket, size: int) -> None:
    """Set the size of a socket's buffer; CAP_NET_ADMIN exceeds the usual limit."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


#: How many messages are sent at once. All answers are queued before `send` returns. Of the kernels
#: that were tried, 6.12 can queue the fewest in the default receive buffer: 221. Further answers
#: are lost, although the changes are made.
BATCH: Final = 200

_SOL_NETLINK = 270
#: Makes error messages not repeat the request.
_CAP_ACK = 10
#: Makes error messages contain the kernel's text.
_EXT_ACK = 11
#: Makes dumps filter by table.
_STRICT_CHECK = 12

#: The kernel sends at most 32 KiB of a dump at once.
_RECEIVE_BYTES = 1 << 17
#: The barrier's sequence number; those of a batch's messages start at 1.
_BARRIER = 0
#: No attribute is longer than this.
_LONGEST_ANSWER = 1 << 16
#: How often to read a table that keeps changing.
_ATTEMPTS = 20


@contextmanager
def errors_of(what: str, *, forbidden: str = "", denied: str = "") -> Iterator[None]:
    """Raise a `BackendError` that names `what`, for an OSError in the block.

    `forbidden` is appended if theaddress family of a socket is not supported. `denied` is the whole
    text of the `PermissionDeniedError` for a PermissionError.
    """
    try:
        yield
    except OSError as error:
        if denied and isinstance(error, PermissionError):
            raise PermissionDeniedError(denied, errno=error.errno) from error
        step = forbidden if error.errno == errno.EAFNOSUPPORT else ""
        raise BackendError(f"{what}: {error.strerror or error}{step}", errno=error.errno) from error


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan hundreds of thousands of values in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Adapter:
    """The kernel of this process's network namespace, or of `netns` (a name, or a path)."""

    def __init__(self, *, netns: str | None = None) -> None:
        self._netns = netns

    def __repr__(self) -> str:
        return f"{type(self).__name__}(netns={self._netns!r})"

    @contextmanager
    def _open(self) -> Iterator[Conversation]:
        """Open a socket in the namespace; OSError while it is used becomes a `BackendError`."""
        with self._translated(), in_namespace(self._netns, open_here) as opened, collector_paused():
            yield Conversation(opened)

    def _translated(self) -> AbstractContextManager[None]:
        """Raise a `BackendError` that names the namespace, for an OSError in the block."""
        return errors_of(
            f"rtnetlink in network namespace {self._netns}" if self._netns else "rtnetlink",
            forbidden="; a sandbox forbids it: "
            "allow AF_NETLINK (RestrictAddressFamilies= of the unit)",
        )


class Conversation:
    """Sends requests and changes to the kernel.

    OSError is the kernel's refusal of the whole; the adapter translates it.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._command = ""
        for option in _CAP_ACK, _EXT_ACK, _STRICT_CHECK:
            opened.setsockopt(_SOL_NETLINK, option, 1)
        opened.bind((0, 0))

    def names(self) -> dict[int, str]:
        """Return the device names by interface index."""
        return self.consistently(lambda: parse_names(self.dump(LINKS)))

    def indexes(self) -> dict[str, int]:
        """Return the interface indexes by device name."""
        return {name: index for index, name in self.names().items()}

    def dump(self, request: frames.Request) -> Iterator[bytes]:
        """Yield every message of the answer to a dump request, without the headers.

        The request is sent with the first `next`, so read one dump to its end before the next one.
        """
        for received in self.receive_dump(request):
            for answer in frames.messages(received):
                if frames.is_end_of_dump(answer):
                    return
                _, kind, _ = frames.message_start(answer)
                # RTM_GETLINK, for example, is RTM_NEWLINK + 2.
                wanted = request.kind - 2
                if kind != wanted:
                    raise ValueError(f"a message has the type {kind} where {wanted} was requested")
                yield bytes(answer[frames.HEADER_LENGTH :])

    def receive_dump(self, request: frames.Request) -> Iterator[memoryview]:
        """Send the request and yield each receive, until the caller stops at the dump's end."""
        self._command = request.command
        self._socket.send(request.packed())
        while True:
            yield self._buffer[: self._socket.recv_into(self._buffer)]

    def ask_many(self, packed: memoryview, count: int, command: str) -> bytes:
        """Send `count` requests at once; return their answers, concatenated in the same order."""
        self._command = command
        self._socket.send(packed)
        try:
            return b"".join(
                map(self._socket.recv, repeat(_LONGEST_ANSWER, count), repeat(socket.MSG_DONTWAIT))
            )
        except OSError as error:
            if error.errno in {errno.ENOBUFS, errno.EAGAIN}:
                raise AnswersLostError from error
            raise

    def deliver(self, batches: Iterable[bytes | memoryview], count: int) -> Failures:
        """Send `count` changes in batches; return the refusals by the change's position.

        The sequence number of a message is its position, counted from 1, in network byte order.
        Replies are queued when `send` returns, so this never waits; if the barrier's reply is
        missing, replies were lost. A reply that cannot be parsed counts as lost. After an error of
        the socket, all replies count as lost, because the kernel may have made changes before it.
        """
        try:
            return self._deliver(batches, count)
        except OSError as error:
            for _ in batches:  # the caller reads back what it packs, so pack the rest
                pass
            raise AnswersLostError from error

    def _deliver(self, batches: Iterable[bytes | memoryview], count: int) -> Failures:
        failures: Failures = {}
        complete = True
        # It does nothing, and its acknowledgement follows the answers to all messages before it.
        barrier = frames.message(frames.NOOP, frames.REQUEST | frames.ACK, b"", sequence=_BARRIER)
        for batch in chain(batches, [barrier]):
            self._socket.send(batch)
            # Every answer is queued by now.
            while True:
                try:
                    length = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError as error:
                    # The overflow is reported once; earlier answers are still queued.
                    if error.errno != errno.ENOBUFS:
                        raise
                    complete = False
                    continue
                received = bytes(self._buffer[:length])
                position = int.from_bytes(received[8:12], "big") - 1
                try:
                    failures[position] = frames.error_of(received)
                except frames.UNREADABLE:
                    complete = False
        answer = failures.pop(_BARRIER - 1, None)
        if not complete or answer is None or max(failures, default=-1) >= count:
            raise AnswersLostError
        return failures

    def consistently(self, read: Callable[[], _Result]) -> _Result:
        """Call `read`, and repeat it if the kernel's tables changed in between.

        OSError (EBADMSG) means that an answer cannot be parsed, which `read` does while receiving.
        """
        try:
            for _ in range(_ATTEMPTS):
                with suppress(InterruptedError, UnknownDeviceError):
                    return read()
                self.discard_queued()
        except frames.UNREADABLE as error:
            raise OSError(
                errno.EBADMSG,
                f"the kernel's answer to the request that `{self._command}` sends cannot be "
                f"read: {error}; "
                f"run that command, and report its output and this error together with `uname -a`",
            ) from error
        raise OSError(
            errno.EAGAIN,
            f"the kernel's tables changed during each of {_ATTEMPTS} attempts to read them; "
            "try again",
        )

    def discard_queued(self) -> None:
        """Discard the rest of a dump."""
        # The kernel continues a dump whenever some of it was received: only an empty queue is its
        # end.
        with suppress(BlockingIOError):
            while True:
                self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
