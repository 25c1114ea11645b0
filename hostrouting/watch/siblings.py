"""The siblings kept right beside the routes, in a separate thread.

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
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.host import Host, NetworkEvent
    from hostrouting.watch.duty import Keeper
    from hostrouting.watch.installed import InstalledConfig

__all__ = ["Siblings", "siblings"]

#: The longest wait for the thread when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END: Final = 0.5


@attrs.frozen
class Siblings:
    """The siblings, as the thread of the routes sees them."""

    #: Passes events on to them.
    relay: Relay
    _keepers: Sequence[_Tolerated]

    @property
    def trouble(self) -> str:
        """Their failures; empty if there are none."""
        return "; ".join(filter(None, [str(keeper.trouble) for keeper in self._keepers]))


@contextmanager
def siblings(
    surrounding: Context, host: Host, logger: logging.Logger, installed: InstalledConfig
) -> Iterator[Siblings]:
    """Keep the siblings of the installed config while the block runs; `surrounding` is notified of their troubles.

    `host` has the lock that all threads of the watch share.

    The end of the block does not wait long for a program that hangs, or for a sweep that restores objects: the thread
    goes on without an owner, and ends with the process at the latest. A sweep that is cut off is in its record.
    """
    # No child of the caller's context: each event of a route would wake this thread, too.
    ctx = Context(clock=surrounding.clock)
    relay = Relay(ctx.notify)
    keepers = tuple(
        _Tolerated(keeper, seconds, installed, surrounding.notify, Trouble(logger, keeper.failure))
        for keeper, seconds in (
            (ProbeKeeper(host, logger, installed), 10.0),
            (StaleObjectKeeper(host, logger, installed), 60.0),
        )
    )
    duties = [Duty(keeper, logger) for keeper in keepers]
    arguments = (ctx, duties, relay, Rounds())
    thread = threading.Thread(target=keep, args=arguments, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield Siblings(relay, keepers)
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


@attrs.define(eq=False)
class _Tolerated:
    """A keeper whose failure, of whatever kind, is one line in the log; it acts again after the interval."""

    _keeper: Keeper
    #: The longest time of one `act`.
    _seconds: float
    _installed: InstalledConfig
    #: Called when the trouble may have changed.
    _notify: Callable[[], None]
    trouble: Trouble

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
            self.trouble.tell(str(error) or repr(error))
            self._notify()
            return self._installed.config.watch.interval
        if str(self.trouble):
            self.trouble.end()
            self._notify()
        return seconds
