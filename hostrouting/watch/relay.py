"""Events from one thread to another: a second socket would double the cost of each event."""

from __future__ import annotations

import errno
import threading
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.exceptions import EventsLostError
from hostrouting.host import DeviceEvent, NeighbourEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.host import NetworkEvent
    from phases import Context

__all__ = ["Relay"]

#: The kinds that concern a sibling. Routes can change by the hundred thousand, and would only wake it.
_KINDS: Final = (DeviceEvent, NeighbourEvent)
#: More are only remembered as lost: a node has some hundred pods.
_MOST: Final = 1000


@attrs.define(eq=False)
class Relay:
    """A `Keeper` in the thread that gets the events, and the `Listener` of another thread."""

    failure: ClassVar[str] = "events cannot be passed on now"
    #: Wakes the other thread.
    _notify: Callable[[], None]
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _stored: list[NetworkEvent] = attrs.field(factory=list, init=False)
    _has_lost: bool = attrs.field(default=False, init=False)

    # --- in the thread that gets the events

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        if passed := [event for event in events if isinstance(event, _KINDS)]:
            with self._guard:
                self._stored += passed
                if self._has_lost or len(self._stored) > _MOST:
                    self._forget()
            self._notify()
        return inf

    def lose(self) -> None:
        """See `Keeper`."""
        with self._guard:
            self._forget()
        self._notify()

    def act(self, _ctx: Context) -> float:
        """See `Keeper`; there is nothing to look at."""
        return inf

    def _forget(self) -> None:
        self._has_lost = True
        self._stored = []

    # --- in the other thread

    @property
    def has_news(self) -> bool:
        """See `Listener`."""
        return self._has_lost or bool(self._stored)

    def take(self) -> list[NetworkEvent]:
        """See `Listener`."""
        with self._guard:
            taken, self._stored = self._stored, []
            has_lost, self._has_lost = self._has_lost, False
        if has_lost:
            raise EventsLostError("too many events for the other thread; read everything anew", errno=errno.ENOBUFS)
        return taken
