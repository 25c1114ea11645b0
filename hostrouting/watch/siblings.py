"""The siblings kept right beside the routes, in a separate thread.

They run programs (nft, ebtables, ip) and probe pods, all of which may hang or fail. The routes wait
for none of it: they have their own thread, both threads share one hold of the run lock, and no
failure of a sibling leaves this module.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from hostrouting.watch.duty import Duty, Pace, act_if_due
from phases import Context

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.boot import Keeper
    from hostrouting.watch.installed import InstalledConfig
    from hostrouting.watch.trouble import Trouble


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
    pace = Pace(least=_SECONDS_BETWEEN_LOOKS)
    duties = [
        _SiblingDuty(keeper, logger, seconds, installed, pace=pace) for keeper, seconds in keepers
    ]

    def look_soon() -> None:
        for duty in duties:
            duty.lose(now=ctx.clock.monotonic())
        ctx.notify()

    def keep() -> None:
        while not ctx.cancelled:
            act_if_due(ctx, duties)
            surrounding.notify()
            _wait(ctx, duties)

    thread = threading.Thread(target=keep, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield look_soon, [duty.trouble for duty in duties]
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


def _wait(ctx: Context, duties: Sequence[Duty]) -> None:
    """Wait until a duty is due; it may be due earlier meanwhile."""
    due = min(duty.due for duty in duties)
    ctx.wait(lambda: ctx.cancelled or min(duty.due for duty in duties) < due, until=due)


@attrs.define(eq=False)
class _SiblingDuty(Duty):
    """The duty of a sibling, whose failures of any kind are logged; the routes go on."""

    #: The longest time of one `act`.
    _seconds: float
    _installed: InstalledConfig

    def act(self, ctx: Context) -> None:
        """See `Duty`."""
        super().act(ctx.child(timeout=self._seconds))

    def _after(self, error: Exception, ctx: Context) -> float:
        if not ctx.cancelled:
            self.trouble.log(str(error) or repr(error))
        return self._installed.config.watch.interval
