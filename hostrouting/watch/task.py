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
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.base.errors import EventsLostError
from hostrouting.boot.keeper import WATCH_TASK, InstalledConfig
from hostrouting.boot.task import NodeTask
from hostrouting.host import Host, Listener, RunLock
from hostrouting.watch.proof import ProofKeeper
from hostrouting.watch.routes import RouteKeeper
from hostrouting.watch.signs import WatchRounds
from phases import CancelledError, Context, DeadlineExceededError
from phases.context import notify, wait
from phases.hosting import held, holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting.boot.keeper import Keeper, SiblingKeeper


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
        if held(ctx, self) is not None:
            yield ctx
            return
        self._enter(ctx)
        try:
            yield holding(ctx, self)
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
                wait(ctx, lambda: ctx.cancelled or not self._is_awaited, until=ctx.deadline)
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
                notify(waiting)


# --- the thread of the siblings

#: The longest wait for the siblings when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END = 0.5


@contextmanager
def _siblings(
    surrounding: Context, keepers: Sequence[SiblingKeeper]
) -> Iterator[Callable[[], None]]:
    """Keep the siblings of the installed config while the block runs.

    The block gets a function that lets them look soon. `surrounding` is notified of their troubles.

    The end of the block does not wait long for a program that hangs, or for a sweep that restores
    objects: the thread goes on without an owner, and ends with the process at the latest. A sweep
    that is cut off is in its record.
    """
    # No child of the caller's context: each event of a route would wake this thread, too.
    ctx = Context(clock=surrounding.clock)

    def look_soon() -> None:
        for keeper in keepers:
            keeper.read_soon(now=ctx.clock.monotonic())
        notify(ctx)

    def keep() -> None:
        while not ctx.cancelled:
            _run_if_due(ctx, keepers)
            notify(surrounding)
            due = min(keeper.due for keeper in keepers)
            # It may be due earlier meanwhile.
            wait(ctx, lambda: ctx.cancelled or min(each.due for each in keepers) < due, until=due)  # noqa: B023

    thread = threading.Thread(target=keep, name="hostrouting-siblings", daemon=True)
    thread.start()
    try:
        yield look_soon
    finally:
        # It ends the programs that the thread runs.
        ctx.cancel("the watch ends")
        thread.join(_SECONDS_TO_END)


# --- the task


class KeepNode(NodeTask):
    """Keep routes, proof and siblings right until the context ends; see `Watch`."""

    name = WATCH_TASK

    @property
    def _siblings(self) -> Sequence[type[SiblingKeeper]]:
        """The keepers of optional capabilities."""
        return ()

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
            self._host.supervisor.notify(STOPPING="1")

    def _keep(self, ctx: Context) -> None:
        installed = InstalledConfig(self._config, self._host.files, self._logger)
        ports = {field.name: getattr(self._host, field.name) for field in attrs.fields(Host)}
        host = Host(**{**ports, "lock": SharedLock(self._host.lock)})
        siblings = [keeper(host, self._logger, installed) for keeper in self._siblings]
        with _siblings(ctx, siblings) as look_soon:
            routes = RouteKeeper(host, self._logger, installed, look_soon)
            proof = ProofKeeper(host, self._logger, installed)
            # The routes first: a restored route needs no finding.
            keepers = [routes, proof]

            def state() -> str:
                pair = str(routes.trouble) or routes.state, str(proof.trouble) or proof.state
                troubles = (str(sibling.trouble) for sibling in siblings)
                return "; ".join(filter(None, (*pair, *troubles)))

            rounds = WatchRounds(host.supervisor, installed, state)
            while not (ctx.over or installed.is_reset):
                rounds.families = installed.config.families
                # It listens before it reads: no later change is missed.
                with host.events.listen(ctx, families=rounds.families) as listener:
                    _keep(ctx, keepers, listener, rounds)
                for keeper in keepers:
                    keeper.read_soon(now=ctx.clock.monotonic())
        if installed.is_reset:
            message = "hostrouting was reset, so there is nothing to keep any more"
            self._logger.info(message, extra={"task": WATCH_TASK})


#: Events within this time are delivered together: a flush deletes a thousand routes in it.
_SECONDS_TOGETHER = 0.003


def _keep(ctx: Context, keepers: Sequence[Keeper], listener: Listener, rounds: WatchRounds) -> None:
    """Run the keepers, each when it is due, until the context ends or the rounds are done."""
    now = ctx.clock.monotonic
    end = inf if ctx.deadline is None else ctx.deadline

    def is_woken() -> bool:
        return ctx.cancelled or rounds.has_news or listener.has_news

    while True:
        _run_if_due(ctx, keepers)
        rounds.end()
        if ctx.over or rounds.is_done:
            return
        has_come = wait(ctx, is_woken, until=min(end, *(keeper.due for keeper in keepers)))
        if has_come and not rounds.has_news:
            wait(ctx, lambda: ctx.cancelled, until=min(end, now() + _SECONDS_TOGETHER))
        if ctx.cancelled:
            return
        try:
            events = listener.take()
        except EventsLostError:
            for keeper in keepers:
                keeper.read_soon(now=now())
            continue
        for keeper in keepers:
            # If only none: a keeper may act later than it had to.
            keeper.deliver(events, now=now())


def _run_if_due(ctx: Context, keepers: Iterable[Keeper]) -> None:
    for keeper in keepers:
        if keeper.due <= ctx.clock.monotonic() and not ctx.over:
            keeper.run(ctx)
