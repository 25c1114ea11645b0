"""A conversation with the kernel over one rtnetlink socket."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeVar

from hostrouting.host import link_messages, rtnetlink
from hostrouting.host.route_reader import RouteReader, UnknownDeviceError, strike_seen
from hostrouting.host.route_writer import LookupWriter, dump_request
from hostrouting.host.routes import Lookup
from hostrouting.host.transaction import AnswersLostError, Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.host.route_writer import RouteWriter, Signature
    from hostrouting.host.routes import Link, ObservedRoute, Rule
    from hostrouting.host.transaction import Steps

_Result = TypeVar("_Result")

_SOL_NETLINK: Final = 270
#: Refusals come without the request that they refuse, but with the kernel's sentence; dumps filter by table.
_CAP_ACK, _EXT_ACK, _STRICT_CHECK = 10, 11, 12

#: From here on it pays to receive many answers in one call.
_MANY_LOOKUPS: Final = 500
#: No attribute is longer than this.
_LONGEST_ANSWER: Final = 1 << 16
_RECEIVE_BYTES: Final = 1 << 17
#: The barrier's sequence number; those of route messages start at 1.
_BARRIER: Final = 0
#: How often a table that changes while it is read is read again before we say that it never rests.
_READINGS: Final = 20


class KernelSocket:
    """Asks and tells the kernel. OSError is what the kernel refuses as a whole; the backend translates it."""

    def __init__(self, opened: socket.socket, *, batch: int) -> None:
        self._socket = opened
        self._batch = batch
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        for option in _CAP_ACK, _EXT_ACK, _STRICT_CHECK:
            # Kernels before 4.20 lack some; what they answer then is longer, not different.
            with suppress(OSError):
                opened.setsockopt(_SOL_NETLINK, option, 1)
        opened.bind((0, 0))

    def links(self) -> list[Link]:
        """Every device with its addresses."""
        return self._consistently(
            lambda: link_messages.parse_links(
                list(self._dump(link_messages.LINKS)),
                list(self._dump(link_messages.ADDRESSES)),
                self._dump(link_messages.NEIGHBOURS),
            )
        )

    def names(self) -> dict[int, str]:
        """Device names by interface index."""
        return self._consistently(lambda: link_messages.parse_names(self._dump(link_messages.LINKS)))

    def rules(self) -> list[Rule]:
        """The policy rules in the kernel's order."""
        return self._consistently(lambda: link_messages.parse_rules(self._dump(link_messages.RULES)))

    def routes(self) -> list[ObservedRoute]:
        """The routes of every table."""

        def read() -> list[ObservedRoute]:
            reader = RouteReader(self.names())
            routes: list[ObservedRoute] = []
            self._socket.send(dump_request())
            while not reader.read_dump(self._buffer[: self._receive()], routes):
                pass
            return routes

        return self._consistently(read)

    def strike_seen(self, echoes: dict[Signature, set[int]], *, table: int | None, protocol: int | None) -> None:
        """Take from `echoes` every route message that the kernel shows when asked for that table and protocol."""
        self._socket.send(dump_request(table=table, protocol=protocol))
        try:
            while not strike_seen(self._buffer[: self._receive()], echoes):
                pass
        except InterruptedError:
            self._discard_queued()

    def lookup(
        self, destinations: Sequence[int], sources: Sequence[int | None] | None, *, resolve: bool
    ) -> list[Lookup]:
        """One answer for each destination."""
        if len(destinations) < _MANY_LOOKUPS:
            return self._consistently(lambda: self._lookup(destinations, sources, resolve, self._receive_each))
        # ctypes takes 5 ms to import, which pays only for many.
        from hostrouting.host.bulk_receive import AnswerCutError, BulkReceiver

        try:
            receive = BulkReceiver(self._socket, self._batch).receive
            return self._consistently(lambda: self._lookup(destinations, sources, resolve, receive))
        except AnswerCutError:
            self._discard_queued()
            return self._consistently(lambda: self._lookup(destinations, sources, resolve, self._receive_each))

    def _lookup(
        self,
        destinations: Sequence[int],
        sources: Sequence[int | None] | None,
        resolve: bool,
        receive: Callable[[int], bytes],
    ) -> list[Lookup]:
        size = self._batch
        reader = RouteReader(self.names())
        writer = LookupWriter(size, with_sources=sources is not None, resolve=resolve)
        answers: list[Lookup] = []
        try:
            for start in range(0, len(destinations), size):
                batch = destinations[start : start + size]
                self._socket.send(writer.write(batch, sources[start : start + size] if sources is not None else None))
                # Exactly one answer to each, in order.
                answers += _lookups(batch, reader.read_answers(memoryview(receive(len(batch)))))
        except OSError as error:
            if error.errno in {errno.ENOBUFS, errno.EAGAIN}:
                raise AnswersLostError from error
            raise
        return answers

    def _receive_each(self, count: int) -> bytes:
        return b"".join([self._socket.recv(_LONGEST_ANSWER, socket.MSG_DONTWAIT) for _ in range(count)])

    def send(self, steps: Steps, writer: RouteWriter, echoes: dict[Signature, set[int]] | None) -> dict[int, Failure]:
        """Send route messages by the batch, going on past refusals, which are returned by the step's position.

        Replies are in the queue when `send` returns, so nothing here ever waits; a barrier that is not there
        at the end means that replies were lost.
        """
        failures: dict[int, Failure] = {}
        lost = False
        for batch in writer.batches(steps, size=self._batch, echoes=echoes):
            self._socket.send(batch)
            lost |= not self._drain(failures)
        self._socket.send(rtnetlink.barrier(_BARRIER))
        if not self._drain(failures) or lost or _BARRIER - 1 not in failures:
            raise AnswersLostError
        del failures[_BARRIER - 1]
        return failures

    def _drain(self, failures: dict[int, Failure]) -> bool:
        """Note every answer that is queued; False when the queue had overflown and some were lost."""
        complete = True
        while True:
            try:
                length = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return complete
            except OSError as error:
                # The overflow is told once; what fitted is still there behind it.
                if error.errno != errno.ENOBUFS:
                    raise
                complete = False
                continue
            answer = bytes(self._buffer[:length])
            failures[int.from_bytes(answer[8:12], "big") - 1] = Failure(*rtnetlink.error_of(answer))

    def _dump(self, request: tuple[int, bytes]) -> Iterator[bytes]:
        kind, payload = request
        self._socket.send(rtnetlink.message(kind, rtnetlink.REQUEST | rtnetlink.DUMP, payload))
        while True:
            received = self._buffer[: self._receive()]
            offset = 0
            while offset < len(received):
                length, _, _ = rtnetlink.message_start(received, offset)
                one = received[offset : offset + length]
                if rtnetlink.is_end_of_dump(one):
                    return
                yield bytes(one)
                offset += length + 3 & ~3

    def _receive(self) -> int:
        length = self._socket.recv_into(self._buffer, 0, socket.MSG_TRUNC)
        if length > len(self._buffer):
            raise OSError(errno.EMSGSIZE, f"the kernel sent {length} bytes at once, more than {len(self._buffer)}")
        return length

    def _consistently(self, read: Callable[[], _Result]) -> _Result:
        """Read again when what was read changed meanwhile."""
        for _ in range(_READINGS):
            with suppress(InterruptedError, UnknownDeviceError):
                return read()
            self._discard_queued()
        raise OSError(errno.EAGAIN, f"the routes changed during each of {_READINGS} readings")

    def _discard_queued(self) -> None:
        # The kernel goes on with a dump whenever some of it was received: only an empty queue is its end.
        with suppress(BlockingIOError):
            while True:
                self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)


def _lookups(destinations: Sequence[int], answers: Sequence[ObservedRoute | int]) -> Iterable[Lookup]:
    if int in set(map(type, answers)):
        return [
            Lookup(destination, None, answer) if isinstance(answer, int) else Lookup(destination, answer)
            for destination, answer in zip(destinations, answers, strict=True)
        ]
    # Lookup(destination, route, 0) for each, without a Python call for each.
    return map(tuple.__new__, repeat(Lookup), zip(destinations, answers, repeat(0)))
