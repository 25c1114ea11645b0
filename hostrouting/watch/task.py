"""Watch: keep the routing of the installed config right after events, until the context ends.

One of its threads takes the run lock, and the rest join. A sibling holds the lock while it runs
programs (nft, ebtables), and any of them may hang. Another run must wait for that, since it would
change the same objects. The repair of routes must not wait: the two change different objects. So
the threads exclude other runs together, and never each other.

Siblings run programs (nft, ebtables, ip) and probe pods, all of which may hang or fail. The routes
wait for none of it: siblings have a separate thread, and no failure of one leaves it.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import WATCH_TASK, Keeper, NodeTask, SiblingKeeper
from hostrouting.exceptions import EventsLostError
from hostrouting.host import Host, Listener, RunLock
from hostrouting.watch.duty import Duty, Pace, act_if_due
from hostrouting.watch.installed import InstalledConfig
from hostrouting.watch.proof import ProofKeeper
from hostrouting.watch.routes import RouteKeeper
from hostrouting.watch.signs import WatchRounds
from phases import CancelledError, Context, DeadlineExceededError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostrouting.config import HostRoutingConfig
    from hostrouting.watch.trouble import Trouble


class SharedLock:
    """A `RunLock` whose users share the lock of a host until the last of them releases it."""

    def __init__(self, lock: RunLock) -> None:
        self._lock = lock
        #: Held for a moment, never while a thread waits for the lock of the host.
        self._guard = threading.Lock()
        self._users = 0
        #: A thread is waiting for the lock of the host, for all.
        self._is_awaited = False
        #: Releases the lock of the host.
        self._release = ExitStack()
        #: The contexts of the threads that wait for that one.
        self._waiting: set[Context] = set()

    @contextmanager
    def hold(self, ctx: Context) -> Iterator[Context]:
        """See `RunLock.hold`; other users of this object may hold it at the same time."""
        if ctx.held(self) is not None:
            yield ctx
            return
        self._enter(ctx)
        try:
            yield ctx.holding(self)
        finally:
            with self._guard:
                self._users -= 1
                if not self._users:
                    self._release.close()

    def hold_file(self, ctx: Context, path: str) -> AbstractContextManager[object]:
        """See `RunLock.hold_file`."""
        return self._lock.hold_file(ctx, path)

    def _enter(self, ctx: Context) -> None:
        while True:
            ctx.check()
            with self._guard:
                if self._users:
                    self._users += 1
                    return
                is_first = not self._is_awaited
                self._is_awaited = True
            if is_first:
                break
            self._waiting.add(ctx)
            try:
                ctx.wait(lambda: ctx.cancelled or not self._is_awaited, until=ctx.deadline)
            finally:
                self._waiting.discard(ctx)
        try:
            with ExitStack() as opened:
                opened.enter_context(self._lock.hold(ctx))
                with self._guard:
                    self._release = opened.pop_all()
                    self._users = 1
        finally:
            self._is_awaited = False
            for waiting in tuple(self._waiting):
                waiting.notify()


# --- the thread of the siblings

#: The longest wait for the siblings when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END = 0.5
#: Between two looks, also those that agree on an object before it is reported: a pod that goes
#: leaves its objects to azure-vnet for a moment. A sweep holds the run lock for seconds, and
#: another run, which tries it every tenth of a second, gets it in between.
_SECONDS_BETWEEN_LOOKS = 1.0


@contextmanager
def _siblings(
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
            due = min(duty.due for duty in duties)
            # It may be due earlier meanwhile.
            ctx.wait(lambda: ctx.cancelled or min(each.due for each in duties) < due, until=due)  # noqa: B023

    thread = threading.Thread(target=keep, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield look_soon, [duty.trouble for duty in duties]
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


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


# --- the task


class KeepNode(NodeTask):
    """Keep routes, proof and siblings right until the context ends; see `Watch`."""

    name = WATCH_TASK

    @property
    def _siblings(self) -> tuple[tuple[SiblingKeeper, float], ...]:
        """The keepers of optional capabilities, each with the longest time of one `act`."""
        return ()

    def __init__(
        self,
        config: HostRoutingConfig,
        *,
        host: Host | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__(config, host=host, logger=logger)
        self._calls: list[Callable[[], HostRoutingConfig]] = []
        self._wake: Callable[[], object] = bool

    def reload(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Let the task read everything anew, with the config of `read` if none is installed.

        The task calls `read`; if that fails, the config before it stays in force. Safe in any
        thread and in a signal handler.
        """
        self._calls.append(read)
        self._wake()

    def do(self, ctx: Context) -> None:
        """Keep routes and siblings until the context ends, or until a reset."""
        try:
            # The end of the context is that of its work.
            self._keep(ctx.expiring())
        except (CancelledError, DeadlineExceededError):
            # It may end before there is anything to listen to.
            if not ctx.over:
                raise
        finally:
            self._host.supervisor.stopping()

    def _keep(self, ctx: Context) -> None:
        installed = InstalledConfig(self._config, self._host.files, self._logger)
        ports = {field.name: getattr(self._host, field.name) for field in attrs.fields(Host)}
        host = Host(**{**ports, "lock": SharedLock(self._host.lock)})
        keepers = [
            (make(host, self._logger, installed), seconds) for make, seconds in self._siblings
        ]
        with _siblings(ctx, self._logger, installed, keepers) as (look_soon, troubles):
            keeper = RouteKeeper(host, self._logger, installed, look_soon)
            routes = Duty(keeper, self._logger)
            # The routes first: a restored route needs no finding.
            prover = ProofKeeper(host, self._logger, installed)
            proof = Duty(prover, self._logger)
            duties = [routes, proof]

            def state() -> str:
                pair = str(routes.trouble) or keeper.state, str(proof.trouble) or prover.state
                return "; ".join(filter(None, (*pair, *map(str, troubles))))

            rounds = WatchRounds(host.supervisor, installed, self._calls, duties, state)
            self._wake = ctx.notify
            while not (ctx.over or installed.is_reset):
                rounds.families = installed.config.families
                # It listens before it reads: no later change is missed.
                with host.events.listen(ctx, families=rounds.families) as listener:
                    _keep(ctx, duties, listener, rounds)
                for duty in duties:
                    duty.act_soon()
        if installed.is_reset:
            message = "hostrouting was reset, so there is nothing to keep any more"
            self._logger.info(message, extra={"task": WATCH_TASK})


#: Events within this time are delivered together: a flush deletes a thousand routes in it.
_SECONDS_TOGETHER = 0.003


def _keep(ctx: Context, duties: Sequence[Duty], listener: Listener, rounds: WatchRounds) -> None:
    """Let the duties act, each when it is due, until the context ends or the rounds are done."""
    now = ctx.clock.monotonic
    end = inf if ctx.deadline is None else ctx.deadline

    def is_woken() -> bool:
        return ctx.cancelled or rounds.is_called or listener.has_news

    while True:
        rounds.begin()
        act_if_due(ctx, duties)
        rounds.end()
        if ctx.over or rounds.is_done:
            return
        has_come = ctx.wait(is_woken, until=min(end, *(duty.due for duty in duties)))
        if has_come and not rounds.is_called:
            ctx.wait(lambda: ctx.cancelled, until=min(end, now() + _SECONDS_TOGETHER))
        if ctx.cancelled:
            return
        try:
            events = listener.take()
        except EventsLostError:
            for duty in duties:
                duty.lose(now=now())
            continue
        for duty in duties:
            # If only none: a keeper may act later than it had to.
            duty.deliver(events, now=now())
