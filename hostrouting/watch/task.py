"""The loop of a watch: wait for events or the next time, repair the routes, check the routing."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.errors import EventsLostError
from hostrouting.boot.reconciler import WATCH_TASK, InstalledConfig
from hostrouting.boot.task import NodeTask
from hostrouting.host import Host, Listener
from hostrouting.watch.check import RoutingCheck
from hostrouting.watch.duty import PACE, REPAIR_PACE, Duty
from hostrouting.watch.routes import RouteReconciler
from hostrouting.watch.worker import SharedLock, Worker
from phases import CancelledError, Context, DeadlineExceededError
from phases.context import wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot.reconciler import Reconciler
    from hostrouting.host import NetworkEvent

#: Events are collected until none comes during a pause; each pause is twice as long as the last.
#: So a flush of a thousand routes is one round, and a storm wakes the loop twenty times a second.
_PAUSES: Final = (0.003, 0.006, 0.012, 0.024)


class WatchTask(NodeTask):
    """Keep routes, check and optional features right until the context ends; see `Watch`."""

    name = WATCH_TASK

    @property
    def _optional(self) -> Sequence[type[Reconciler]]:
        """The reconcilers of optional features."""
        return ()

    def do(self, ctx: Context) -> None:
        """Keep the node right until the context ends, or until a reset."""
        try:
            # The end of the context is that of its work.
            self._keep(ctx.expiring())
        except (CancelledError, DeadlineExceededError):
            # It may end before it listens.
            if not ctx.over:
                raise
        finally:
            self._host.supervisor.notify(STOPPING="1")

    def _keep(self, ctx: Context) -> None:
        installed = InstalledConfig(self._config, self._host.files, self._logger)
        ports = {field.name: getattr(self._host, field.name) for field in attrs.fields(Host)}
        host = Host(**{**ports, "lock": SharedLock(self._host.lock)})
        given = host, self._logger, installed
        worker = Worker(ctx, [reconciler(*given) for reconciler in self._optional])
        routes, check = RouteReconciler(*given), RoutingCheck(*given)
        with worker.run():
            Loop(ctx, host, installed, routes, check, worker).run()
        if installed.is_reset:
            message = "hostrouting was reset, so there is nothing to keep any more"
            self._logger.info(message, extra={"task": WATCH_TASK})


@attrs.define(eq=False, repr=False)
class Loop:
    """The rounds of a watch: wait, repair, check, and report the state."""

    _ctx: Context
    _host: Host
    _installed: InstalledConfig
    _routes: RouteReconciler
    _check: RoutingCheck
    _worker: Worker
    _repair: Duty = attrs.field(init=False)
    _verify: Duty = attrs.field(init=False)
    #: The state that the service manager has; None before the first round.
    _sent: str | None = None

    @_repair.default
    def _when_to_repair(self) -> Duty:
        return Duty(self._routes, REPAIR_PACE)

    @_verify.default
    def _when_to_check(self) -> Duty:
        return Duty(self._check, PACE)

    def run(self) -> None:
        """Run rounds until the context ends, or until a reset."""
        while not self._is_over():
            families = self._installed.config.families
            # Listening before reading misses no change.
            with self._host.events.listen(self._ctx, families=families) as listener:
                while True:
                    # Routes first, because a restored route should not become a finding.
                    self._repair.run_if_due(self._ctx)
                    self._verify.run_if_due(self._ctx)
                    self._report()
                    if self._is_over() or self._installed.config.families != families:
                        break
                    self._wait(listener)
            # Changes between two listeners have no event.
            self._lose()

    def _is_over(self) -> bool:
        return self._ctx.over or self._installed.is_reset

    def _wait(self, listener: Listener) -> None:
        """Wait until something is due or events arrive, and take the events."""
        ctx = self._ctx
        end = inf if ctx.deadline is None else ctx.deadline
        due = min(end, self._repair.due, self._verify.due)
        wait(ctx, lambda: ctx.cancelled or self._has_news or listener.has_news, until=due)
        try:
            events = self._gathered(listener)
        except EventsLostError:
            self._lose()
        else:
            self._receive(events)

    def _gathered(self, listener: Listener) -> Sequence[NetworkEvent]:
        """Return the events until a pause without one, or until the longest wait for it."""
        events = listener.take()
        for seconds in _PAUSES if events else ():
            until = self._ctx.clock.monotonic() + seconds
            wait(self._ctx, lambda: self._ctx.cancelled, until=until)
            more = listener.take()
            if not more or self._ctx.cancelled:
                break
            events += more
        return events

    def _receive(self, events: Sequence[NetworkEvent]) -> None:
        now = self._ctx.clock.monotonic()
        seconds = self._routes.receive(events)
        self._repair.after_events(seconds, now=now)
        self._verify.after_events(self._check.receive(events), now=now)
        if seconds == 0:
            # The program that changed the routes may have changed more.
            self._worker.soon()

    def _lose(self) -> None:
        """Read everything again."""
        now = self._ctx.clock.monotonic()
        self._routes.lose()
        self._check.lose()
        for duty in self._repair, self._verify:
            duty.soon(now=now)
        self._worker.soon()

    # --- the state

    @property
    def _state(self) -> str:
        """The state in a few words, for the service manager."""
        essential = (
            str(self._repair.trouble) or self._routes.state,
            str(self._verify.trouble) or self._check.state,
        )
        return "; ".join(filter(None, (*essential, *self._worker.troubles)))

    @property
    def _has_news(self) -> bool:
        """True if the worker has changed the state."""
        return self._sent != self._state

    def _report(self) -> None:
        """Send a changed state; the first one makes the service ready."""
        state = self._state
        if self._sent is None:
            self._host.supervisor.notify(READY="1", STATUS=state)
        elif state != self._sent:
            self._host.supervisor.notify(STATUS=state)
        self._sent = state
