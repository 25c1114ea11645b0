"""The siblings kept right beside the routes, in a thread of their own.

They run programs (nft, ebtables, ip) and ask pods, all of which may hang or fail. The routes wait for none of it: they
have their own thread, both threads share one hold of the run lock, and no failure of a sibling leaves this module.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.watch.duty import Duty
from hostrouting.watch.loop import Rounds, keep
from hostrouting.watch.probes import ProbeKeeper
from hostrouting.watch.relay import Relay
from hostrouting.watch.stale_objects import StaleObjectKeeper
from hostrouting.watch.trouble import Trouble
from phases import Context

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Sequence

    from hostrouting.host import Host, NetworkEvent
    from hostrouting.watch.duty import Keeper
    from hostrouting.watch.installed import InstalledConfig
    from phases import Clock

__all__ = ["siblings"]

#: The longest wait for the thread when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END: Final = 0.5


@contextmanager
def siblings(host: Host, logger: logging.Logger, installed: InstalledConfig, *, clock: Clock) -> Iterator[Relay]:
    """Keep the siblings of the installed config while the block runs; they hear the events that the relay gets.

    `host` has the lock that all threads of the watch share.

    The end of the block does not wait long for a program that hangs, or for a sweep that restores what it removed: the
    thread goes on without an owner, and ends with the process at the latest. A sweep that is cut off is in its record.
    """
    # No child of the caller's context: each event of a route would wake this thread, too.
    ctx = Context(clock=clock)
    relay = Relay(ctx.notify)
    keepers = (
        _Tolerated(ProbeKeeper(host, logger, installed), 10.0, logger, installed),
        _Tolerated(StaleObjectKeeper(host, logger, installed), 60.0, logger, installed),
    )
    duties = [Duty(keeper, logger) for keeper in keepers]
    arguments = (ctx, duties, relay, Rounds())
    thread = threading.Thread(target=keep, args=arguments, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


@attrs.define(eq=False)
class _Tolerated:
    """A keeper whose failure, of whatever kind, and its end are a line in the log; it acts again after the interval."""

    _keeper: Keeper
    #: The longest time of one `act`.
    _seconds: float
    _logger: logging.Logger
    _installed: InstalledConfig
    _trouble: Trouble = attrs.field(
        init=False, default=attrs.Factory(lambda self: Trouble(self._logger), takes_self=True)
    )

    @property
    def failure(self) -> str:
        """See `Keeper`."""
        return self._keeper.failure

    def hear(self, events: Sequence[NetworkEvent]) -> float:
        """See `Keeper`."""
        return self._keeper.hear(events)

    def lose(self) -> None:
        """See `Keeper`."""
        self._keeper.lose()

    def act(self, ctx: Context) -> float:
        """See `Keeper`."""
        try:
            seconds = self._keeper.act(ctx.child(timeout=self._seconds))
        except Exception as error:  # noqa: BLE001 (a mistake in a sibling must not end the watch of the routes)
            if ctx.over:
                return inf
            self._trouble.tell(f"{self.failure}: {str(error) or repr(error)}")
            return self._installed.config.watch.interval
        self._trouble.end()
        return seconds
