"""The announcements of a kernel in memory: the changes of other fakes and of a test."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs

from hostrouting.base.errors import BackendError, EventsLostError
from hostrouting.host.ports import Listener, NetworkEvents
from hostrouting.net.addresses import IPV4, IPV6
from hostrouting.net.events import NetworkEvent
from hostrouting.testing.faults import Faulty
from phases import Context
from phases.context import notify


class MemoryEvents(Faulty, ports=[NetworkEvents, Listener]):
    """A `NetworkEvents` without a kernel: the fakes announce the changes of a test or task.

    `announce` makes further events. By default, `fail_at` reports that memory is short;
    `listen` and `take` are operations.

    >>> from hostrouting.testing import FakeHost
    >>> from phases import Context
    >>> host = FakeHost()
    >>> with host.events.listen(Context()) as listener:
    ...     host.routes.add_route("10.0.0.0/8", dev="lo")
    ...     [(event.verb, str(event.route)) for event in listener.take()]
    [('add', '10.0.0.0/8 dev lo scope link')]
    """

    def __init__(self) -> None:
        super().__init__(BackendError("rtnetlink: Cannot allocate memory", errno=errno.ENOMEM))
        #: A listener that gets more events than this before it takes them loses them all.
        self.most: int = 100_000
        #: The listeners whose `with` block has not ended.
        self.listeners: list[MemoryListener] = []

    @contextmanager
    def listen(
        self, ctx: Context, *, families: Sequence[int] = (IPV4, IPV6)
    ) -> Iterator[MemoryListener]:
        """See `NetworkEvents.listen`."""
        listener = MemoryListener(self, partial(notify, ctx), families)
        self.listeners.append(listener)
        try:
            yield listener
        finally:
            self.listeners.remove(listener)

    def announce(self, *events: NetworkEvent) -> None:
        """Deliver events to every listener."""
        for listener in tuple(self.listeners):
            listener.receive(events)


@attrs.define(eq=False)
class MemoryListener:
    """See `Listener`."""

    _source: MemoryEvents
    _notify: Callable[[], None]
    _families: Sequence[int]
    _stored: deque[NetworkEvent] = attrs.field(factory=deque)
    _has_lost: bool = False

    @property
    def has_news(self) -> bool:
        """See `Listener.has_news`."""
        return self._has_lost or bool(self._stored)

    def take(self) -> list[NetworkEvent]:
        """See `Listener.take`."""
        self._source.operations.record("take")
        if self not in self._source.listeners:
            raise BackendError("listening to network events has ended", errno=errno.EBADF)
        # One by one: another thread may announce more.
        taken = [self._stored.popleft() for _ in range(len(self._stored))]
        if self._has_lost:
            self._has_lost = False
            raise EventsLostError(
                "too many network events came at once; read everything again", errno=errno.ENOBUFS
            )
        return taken

    def receive(self, events: tuple[NetworkEvent, ...]) -> None:
        """Store events, or lose them."""
        # Events without a family are for every listener.
        for event in events:
            if all(getattr(part, "family", IPV4) in self._families for part in event):
                self._stored.append(event)
        if self._has_lost or len(self._stored) > self._source.most:
            self._has_lost = True
            self._stored.clear()
        self._notify()
