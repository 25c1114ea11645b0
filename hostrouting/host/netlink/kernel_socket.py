"""A conversation with the kernel about IPv4 routes, by the hundred thousand."""

from __future__ import annotations

import errno
import socket
from itertools import repeat
from typing import TYPE_CHECKING, Final

from hostrouting.host.netlink import link_messages
from hostrouting.host.netlink.commit import AnswersLostError
from hostrouting.host.netlink.conversation import Conversation
from hostrouting.host.netlink.frames import UNREADABLE
from hostrouting.host.netlink.route_reader import RouteReader, strike_seen
from hostrouting.host.netlink.route_writer import LookupWriter, dump_request
from hostrouting.net.routes import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostrouting.host.netlink.commit import AnyRoute, Failure, Steps
    from hostrouting.host.netlink.route_writer import RouteWriter, Signature
    from hostrouting.net.links import Device
    from hostrouting.net.routes import ObservedRoute
    from hostrouting.net.rules import Rule

#: From here on it pays to receive many answers in one call.
_MANY_LOOKUPS: Final = 500
#: No attribute is longer than this.
_LONGEST_ANSWER: Final = 1 << 16


class KernelSocket(Conversation):
    """Asks and tells the kernel. OSError is what the kernel refuses as a whole; the backend translates it."""

    def __init__(self, opened: socket.socket, *, batch: int) -> None:
        super().__init__(opened)
        self._batch = batch

    def links(self) -> list[Device]:
        """Every device with its addresses."""
        return self.consistently(
            lambda: link_messages.parse_devices(
                self.dump(link_messages.LINKS),
                self.dump(link_messages.ADDRESSES),
                self.dump(link_messages.NEIGHBOURS),
            )
        )

    def rules(self) -> list[Rule]:
        """The policy rules in the kernel's order."""
        return self.consistently(lambda: link_messages.parse_rules(self.dump(link_messages.RULES)))

    def routes(self) -> list[ObservedRoute]:
        """The routes of every table."""

        def read() -> list[ObservedRoute]:
            reader = RouteReader(self.names())
            routes: list[ObservedRoute] = []
            self._asks("ip -4 route show table all")
            self._socket.send(dump_request())
            while not reader.read_dump(self._buffer[: self._receive()], routes):
                pass
            return routes

        return self.consistently(read)

    def strike_seen(self, echoes: dict[Signature, set[int]], *, table: int | None, protocol: int | None) -> None:
        """Take from `echoes` every route message that the kernel shows when asked for that table and protocol.

        A dump that was disturbed, or cannot be read, leaves the rest there.
        """
        self._socket.send(dump_request(table=table, protocol=protocol))
        try:
            while not strike_seen(self._buffer[: self._receive()], echoes):
                pass
        except (InterruptedError, *UNREADABLE):
            self._discard_queued()

    def lookup(
        self, destinations: Sequence[int], sources: Sequence[int | None] | None, *, resolve: bool
    ) -> list[Lookup]:
        """One answer for each destination."""

        def read(receive: Callable[[int], bytes]) -> list[Lookup]:
            return self.consistently(lambda: self._lookup(destinations, sources, resolve, receive))

        if len(destinations) < _MANY_LOOKUPS:
            return read(self._receive_each)
        # ctypes takes 5 ms to import, which pays only for many.
        from hostrouting.host.netlink.bulk_receive import AnswerCutError, BulkReceiver

        try:
            return read(BulkReceiver(self._socket, self._batch).receive)
        except AnswerCutError:
            self._discard_queued()
            return read(self._receive_each)

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
        self._asks("ip -4 route get")
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

    def send(
        self, steps: Steps[AnyRoute], writer: RouteWriter, echoes: dict[Signature, set[int]] | None
    ) -> dict[int, Failure]:
        """Send route messages by the batch, going on past refusals, which are returned by the step's position."""
        return self.deliver(writer.batches(steps, size=self._batch, echoes=echoes), len(steps.things))


def _lookups(destinations: Sequence[int], answers: Sequence[ObservedRoute | int]) -> Iterable[Lookup]:
    if len(answers) != len(destinations):
        raise ValueError(f"{len(answers)} answers to {len(destinations)} questions")
    if int in set(map(type, answers)):
        return [
            Lookup(destination, None, answer) if isinstance(answer, int) else Lookup(destination, answer)
            for destination, answer in zip(destinations, answers, strict=True)
        ]
    # Lookup(destination, route, 0) for each, without a Python call for each.
    return map(tuple.__new__, repeat(Lookup), zip(destinations, answers, repeat(0)))
