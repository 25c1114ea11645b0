"""The siblings kept right beside the routes, in a separate thread.

They run programs (nft, ebtables, ip) and probe pods, all of which may hang or fail. The routes wait
for none of it: they have their own thread, both threads share one hold of the run lock, and no
failure of a sibling leaves this module.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot import Keeper
from hostrouting.watch.duty import Duty, Pace, act_if_due
from hostrouting.watch.trouble import Trouble
from phases import Context

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.watch.installed import InstalledConfig


#: The longest wait for the thread when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END = 0.5
#: Between two looks, also those that agree on an object before it is reported: a pod that goes
#: leaves its objects to azure-vnet for a moment. A sweep holds the run lock for seconds, and
#: another run, which tries it every tenth of a second, gets it in between.
_SECONDS_BETWEEN_LOOKS = 1.0


@contextmanager
def siblings(
    surrounding: Context,
    logger: logging.Logger,
    installed: InstalledConfig,
    keepers: Iterable[tuple[Keeper, float]],
) -> Iterator[tuple[Callable[[], None], Sequence[Trouble]]]:
    """Keep the siblings of the installed config while the block runs.

    Each keeper has the longest time of one `act`, in seconds. The block gets a function that lets
    them look soon, and their troubles, of which `surrounding` is notified.

    The end of the block does not wait long for a program that hangs, or for a sweep that restores
    objects: the thread goes on without an owner, and ends with the process at the latest. A sweep
    that is cut off is in its record.
    """
    # No child of the caller's context: each event of a route would wake this thread, too.
    ctx = Context(clock=surrounding.clock)
    kept = [
        _Sibling(keeper, seconds, installed, Trouble(logger, keeper.failure), surrounding.notify)
        for keeper, seconds in keepers
    ]
    duties = [Duty(sibling, logger, pace=Pace(least=_SECONDS_BETWEEN_LOOKS)) for sibling in kept]

    def look_soon() -> None:
        for duty in duties:
            duty.lose(now=ctx.clock.monotonic())
        ctx.notify()

    thread = threading.Thread(
        target=_keep, args=(ctx, duties), name="hostrouting-siblings", daemon=True
    )
    thread.start()
    try:
        yield look_soon, [sibling.trouble for sibling in kept]
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


def _keep(ctx: Context, duties: Sequence[Duty]) -> None:
    while not ctx.cancelled:
        act_if_due(ctx, duties)
        _wait(ctx, duties)


def _wait(ctx: Context, duties: Sequence[Duty]) -> None:
    """Wait until a duty is due; it may be due earlier meanwhile."""
    due = min(duty.due for duty in duties)
    ctx.wait(lambda: ctx.cancelled or min(duty.due for duty in duties) < due, until=due)


@attrs.define(eq=False)
class _Sibling(Keeper):
    """A keeper whose failures of any kind are logged; after one it acts at the next interval."""

    failure: ClassVar[str] = "a sibling cannot be kept now"
    _keeper: Keeper
    #: The longest time of one `act`.
    _seconds: float
    _installed: InstalledConfig
    trouble: Trouble
    #: Called when the trouble has changed.
    _notify: Callable[[], None]

    def act(self, ctx: Context) -> float:
        """See `Keeper`."""
        before = str(self.trouble)
        try:
            seconds = self._keeper.act(ctx.child(timeout=self._seconds))
            self.trouble.end()
        except Exception as error:  # noqa: BLE001 - the watch of the routes goes on
            if ctx.over:
                return inf
            self.trouble.log(str(error) or repr(error))
            seconds = self._installed.config.watch.interval
        if str(self.trouble) != before:
            self._notify()
        return seconds
