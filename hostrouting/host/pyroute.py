"""A backend that uses the pyroute2 `IPRoute` or `NetNS` of an agent.

It is the default backend, except that pyroute2 sends the messages, with one request for each
change, so it is simple rather than fast. Only this module imports pyroute2.
"""

from __future__ import annotations

import errno
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hostrouting.host.netlink.backend import NetlinkBackend
from hostrouting.host.netlink.conversation import Conversation, errors_of
from hostrouting.host.netlink.frames import (
    ACK,
    ERROR,
    HEADER_LENGTH,
    AnswersLostError,
    Failure,
    Failures,
    Request,
    message,
    message_start,
    messages,
)
from phases.mistakes import wrong_argument

try:
    from pyroute2 import NetlinkError
    from pyroute2.netlink import nlmsg
    from pyroute2.netlink.exceptions import NetlinkDumpInterrupted
except ImportError as error:
    raise ImportError(
        "Pyroute2Backend needs pyroute2, which is not installed for this Python; "
        "install pyroute2, or use NetlinkBackend, which needs no package"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ["Pyroute2Backend"]


class Pyroute2Backend(NetlinkBackend):
    """A `RouteBackend` over the caller's `ipr`, which is neither configured nor closed here.

    >>> from pyroute2 import IPRoute
    >>> with IPRoute() as ipr:
    ...     Pyroute2Backend(ipr).links()[0].name
    'lo'
    """

    def __init__(self, ipr: Any) -> None:
        super().__init__()
        if not hasattr(ipr, "nlm_request_batch"):
            raise wrong_argument("ipr", ipr, "an IPRoute", "IPRoute()")
        self._ipr = ipr
        # The socket belongs to the caller: one request at a time.
        self._lock = threading.RLock()

    def listen(self) -> None:
        """Return None, because the caller's socket may be in another network namespace."""

    @contextmanager
    def _open(self) -> Iterator[Conversation]:
        with self._lock, errors_of("pyroute2"):
            yield Pyroute2Conversation(self._ipr)


class _Packed(nlmsg):  # type: ignore[misc]  # pyroute2 is not annotated
    """A message whose payload is already packed."""

    payload = b""

    def encode(self) -> None:
        head = self["header"]
        self.data += message(
            head["type"], head["flags"], self.payload, sequence=head["sequence_number"]
        )


class Pyroute2Conversation(Conversation):
    """The same requests and changes, each as a request of pyroute2."""

    def __init__(self, ipr: Any) -> None:
        self._ipr = ipr
        self._command = ""

    def receive_dump(self, request: Request) -> Iterator[memoryview]:
        """Send the message and yield the answers."""
        self._command = request.command
        try:
            yield from self._request(memoryview(request.packed()))
        except NetlinkDumpInterrupted as error:
            raise InterruptedError(errno.EINTR, "the table changed during the dump") from error
        except NetlinkError as error:
            # The second argument is the kernel's message if the socket asked for it, else the text
            # of the errno.
            raise OSError(*error.args) from error

    def ask_many(self, packed: memoryview, count: int, command: str) -> bytes:  # noqa: ARG002
        """Send the requests and return their answers, concatenated in the same order."""
        self._command = command
        return b"".join(map(self._answer, messages(packed)))

    def deliver(self, batches: Iterable[bytes | memoryview], count: int) -> Failures:  # noqa: ARG002
        """Send the changes and return the refusals by the change's position.

        An error of the socket is not a refusal, because the kernel may have made the change.
        """
        failures: Failures = {}
        changes = (change for batch in batches for change in messages(memoryview(batch)))
        for number, change in enumerate(changes):
            try:
                self._request(change)
            except NetlinkError as error:
                failures[number] = Failure(*error.args)
            except OSError as error:
                for _ in changes:  # the caller reads back what it packs, so pack the rest
                    pass
                raise AnswersLostError from error
        return failures

    def discard_queued(self) -> None:
        """Do nothing, because pyroute2 has read each answer completely."""

    def _answer(self, request: memoryview) -> memoryview | bytes:
        try:
            (answer,) = self._request(request)
        except NetlinkError as error:
            return message(ERROR, 0, struct.pack("=iI", -error.code, 0))
        return answer

    def _request(self, request: memoryview) -> list[memoryview]:
        """Send one message and return the kernel's answers; raise NetlinkError if it refuses."""
        _, kind, flags = message_start(request)
        packed = _Packed()
        packed["header"].update(type=kind, flags=flags | ACK)
        packed.payload = bytes(request[HEADER_LENGTH:])
        # pyroute2 keeps the datagram that contained an answer.
        return [
            memoryview(answer.data)[answer.offset : answer.offset + answer["header"]["length"]]
            for answer in self._ipr.nlm_request_batch([packed])
        ]
