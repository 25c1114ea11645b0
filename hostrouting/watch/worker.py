"""The thread of a watch that runs the reconcilers of optional features.

They run programs (nft, ebtables, ip), which may hang or fail. The loop never waits for them, and
their failures stay in this thread.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.watch.duty import PACE, Duty
from phases import Context
from phases.context import notify, wait
from phases.hosting import held, holding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting.boot.reconciler import Reconciler
    from hostrouting.host import RunLock

#: The time between two runs of a reconciler, also between runs that must agree before it reports
#: something: another program may need a moment to remove its objects. And another run of
#: hostrouting, which tries to take the lock ten times a second, gets it in between.
SECONDS_BETWEEN_RUNS = 1.0
#: The longest wait for the thread when the watch ends. Programs that obey SIGTERM take less.
_SECONDS_TO_END = 0.5


class Worker:
    """The thread, while the `with` block of `run` lasts."""

    def __init__(self, surrounding: Context, reconcilers: Sequence[Reconciler]) -> None:
        self._surrounding = surrounding
        # No child of the caller's context: each event of a route would wake this thread.
        self._ctx = Context(clock=surrounding.clock)
        pace = attrs.evolve(PACE, least=SECONDS_BETWEEN_RUNS)
        self._duties = [Duty(reconciler, pace) for reconciler in reconcilers]

    @property
    def troubles(self) -> Sequence[str]:
        """The failures of the last runs."""
        return [str(duty.trouble) for duty in self._duties]

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run the reconcilers when they are due, until the end of the block.

        The end does not wait long for a program that hangs, or for a sweep that restores objects:
        the thread goes on without an owner, and ends with the process at the latest. A sweep that
        is cut off is in its record.
        """
        thread = threading.Thread(target=self._work, name="hostrouting-worker", daemon=True)
        thread.start()
        try:
            yield
        finally:
            # It ends the programs that the thread runs.
            self._ctx.cancel("the watch ends")
            thread.join(_SECONDS_TO_END)

    def soon(self) -> None:
        """Let all of them run soon."""
        for duty in self._duties:
            duty.soon(now=self._ctx.clock.monotonic())
        notify(self._ctx)

    def _work(self) -> None:
        ctx = self._ctx
        while not ctx.cancelled:
            for duty in self._duties:
                duty.run_if_due(ctx)
            # A new trouble is a part of the state.
            notify(self._surrounding)
            due = self._due
            # It may be due earlier meanwhile.
            wait(ctx, lambda: ctx.cancelled or self._due < due, until=due)  # noqa: B023

    @property
    def _due(self) -> float:
        return min((duty.due for duty in self._duties), default=inf)


class SharedLock:
    """A `RunLock` that the loop and the worker of a watch hold together, until both release it.

    The worker holds the lock while it runs programs. Another run must wait for that, because it
    would change the same objects. The repair of routes must not wait: it changes other objects.
    """

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
