"""When a watch runs a reconciler: after events, at its own times, at a pace, after a failure."""

from __future__ import annotations

import os
import time
from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.errors import HostRoutingError, PermissionDeniedError
from hostrouting.base.pace import Pace
from hostrouting.boot.reconciler import Trouble
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    from hostrouting.boot.reconciler import Reconciler
    from phases import Context

#: The seconds of the processor that a reconciler may take: 0.3 at once, and for long a share of a
#: core. The longest pause is short, because a check of a node with many routes takes seconds.
PACE: Final = Pace(savings=0.3, share=0.03, longest=5.0)
#: A lost route is worth more than a quiet processor.
REPAIR_PACE: Final = attrs.evolve(PACE, longest=2.0)
_SECONDS_AFTER_A_FAILURE = 5.0


@attrs.define(eq=False, repr=False)
class Duty:
    """A reconciler, when it is due, and the failure that its last runs had."""

    reconciler: Reconciler
    #: The pace of its processor time.
    _pace: Pace
    #: When it is to run next, on the monotonic clock of the context.
    due: float = -inf
    trouble: Trouble = attrs.field(init=False)

    @trouble.default
    def _no_trouble(self) -> Trouble:
        return self.reconciler.trouble()

    def after_events(self, seconds: float, *, now: float) -> None:
        """Be due in some seconds because of events."""
        soonest = max(now + seconds, self._pace.free)
        # In a storm the pause after one more run is as long as the one before it, and must not
        # delay the time that the reconciler has named: the second bad result before an alarm.
        if max(soonest, self._pace.free + self._pace.pause) <= self.due:
            self.due = soonest

    def soon(self, *, now: float) -> None:
        """Be due as soon as the pace allows."""
        self.due = min(self.due, max(now, self._pace.free))

    def run_if_due(self, ctx: Context) -> None:
        """Run it if its time has come and the context has not ended."""
        if self.due <= ctx.clock.monotonic() and not ctx.over:
            self.run(ctx)

    def run(self, ctx: Context) -> None:
        """Run it, and be due again after the seconds that it returns."""
        # Time on the processor: a wait for the run lock or the kernel slows nothing down.
        started = time.thread_time()
        # Another thread may set an earlier time meanwhile.
        self.due = inf
        try:
            seconds = self.reconciler.act(ctx.child(timeout=self.reconciler.seconds))
            if seconds:
                # One that goes on at once may fail next: each failure would be logged again.
                self.trouble.end()
        except Exception as error:  # noqa: BLE001 - raised again, but for those to be tried again
            seconds = self._after(error, ctx)
        now = ctx.clock.monotonic()
        self._pace = self._pace.after(time.thread_time() - started, now=now)
        self.due = max(min(self.due, now + seconds), self._pace.free)

    def _after(self, error: Exception, ctx: Context) -> float:
        """Log a failure, or raise it; return the seconds before the next try."""
        if ctx.over and isinstance(error, CONTEXT_OVER):
            return inf
        if self.reconciler.is_optional:
            self.trouble.log(str(error) or repr(error))
            return self.reconciler.interval
        # The process lacks a privilege; root may be refused a file for a while.
        lacks_root = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
        lacks_root = lacks_root or isinstance(error, PermissionDeniedError)
        if lacks_root or not isinstance(error, HostRoutingError):
            raise error
        self.trouble.log(str(error))
        return _SECONDS_AFTER_A_FAILURE
