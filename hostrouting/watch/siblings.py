"""The siblings kept right beside the routes, in a separate thread.

They run programs (nft, ebtables, ip) and ask pods, all of which may hang or fail. The routes wait for none of it: they
have their own thread, both threads share one hold of the run lock, and no failure of a sibling leaves this module.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.exceptions import EventsLostError
from hostrouting.host import DeviceEvent, NeighbourEvent
from hostrouting.probe_snat import NotWanted, repair, to_repair
from hostrouting.watch.duty import Duty, Rounds, keep
from hostrouting.watch.stale_objects import StaleObjectKeeper
from hostrouting.watch.trouble import TASK
from phases import Change, Context

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.host import Host, NetworkEvent
    from hostrouting.watch.installed import InstalledConfig

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


@attrs.define(eq=False)
class ProbeKeeper:
    """The rules for IPv6 probes."""

    failure: ClassVar[str] = "the rules for IPv6 probes cannot be kept now"
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: Why the table was left as it is, as the log has it.
    _left: str = ""

    def hear(self, _events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`; no event tells of nftables."""
        return inf

    def lose(self) -> None:
        """See `Keeper`."""

    def act(self, ctx: Context) -> float:
        """Compare the table with the installed rules, and load these again if they differ."""
        config = self._installed.config
        if not config.probe_snat.enabled:
            return config.watch.interval
        # Without the lock: nft may hang, and an apply beside it would wait.
        change = to_repair(ctx, config.probe_snat, self._host)
        if isinstance(change, Change):
            change = self._repair(ctx)
        if isinstance(change, Change):
            fields = {"task": TASK, "event": "repair", "subject": change.subject, "change": str(change)}
            self._logger.warning("repaired: %s", change, extra=fields)
        self._tell_left(change)
        return config.watch.interval

    def _repair(self, ctx: Context) -> Change | NotWanted | None:
        with self._host.lock.hold(ctx) as held:
            config = self._installed.read()
            if self._installed.is_reset or not config.probe_snat.enabled:
                return None
            # It looks once more: an apply or reset may have come between.
            return repair(held, config.probe_snat, self._host)

    def _tell_left(self, outcome: Change | NotWanted | None) -> None:
        reason = outcome.reason if isinstance(outcome, NotWanted) else ""
        if reason and reason != self._left:
            message = "the rules for IPv6 probes are not loaded again: %s"
            self._logger.warning(message, reason, extra={"task": TASK})
        self._left = reason


#: The longest wait for the thread when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END: Final = 0.5


@contextmanager
def siblings(
    surrounding: Context, host: Host, logger: logging.Logger, installed: InstalledConfig
) -> Iterator[tuple[Relay, Sequence[Duty]]]:
    """Keep the siblings of the installed config while the block runs; `surrounding` is notified of their troubles.

    It gets the relay that passes events on to them, and their duties. `host` has the lock that all threads of the watch
    share.

    The end of the block does not wait long for a program that hangs, or for a sweep that restores objects: the thread
    goes on without an owner, and ends with the process at the latest. A sweep that is cut off is in its record.
    """
    # No child of the caller's context: each event of a route would wake this thread, too.
    ctx = Context(clock=surrounding.clock)
    relay = Relay(ctx.notify)
    duties = [
        _SiblingDuty(keeper, logger, seconds, installed, surrounding.notify)
        for keeper, seconds in (
            (ProbeKeeper(host, logger, installed), 10.0),
            (StaleObjectKeeper(host, logger, installed), 60.0),
        )
    ]
    arguments = (ctx, duties, relay, Rounds())
    thread = threading.Thread(target=keep, args=arguments, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield relay, duties
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


@attrs.define(eq=False)
class _SiblingDuty(Duty):
    """A duty of which a failure, of whatever kind, is one line in the log; its keeper acts again after the interval."""

    #: The longest time of one `act`.
    _seconds: float
    _installed: InstalledConfig
    #: Called when the trouble has changed.
    _notify: Callable[[], None]

    def _attempt(self, ctx: Context) -> float:
        before = self.trouble
        try:
            seconds = self._keeper.act(ctx.child(timeout=self._seconds))
            self._trouble.end()
        except Exception as error:  # noqa: BLE001 (a mistake in a sibling must not end the watch of the routes)
            if ctx.over:
                return inf
            self._trouble.tell(str(error) or repr(error))
            seconds = self._installed.config.watch.interval
        if self.trouble != before:
            self._notify()
        return seconds
