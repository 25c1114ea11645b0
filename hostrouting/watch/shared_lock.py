"""The run lock of all threads of a watch: one of them takes it, and the others join.

A sibling holds the lock while it runs programs (nft, ebtables), and any of them may hang. Another run must wait for
that, since it would change the same objects. The repair of routes must not wait: the two change different objects. So
the threads of a watch exclude other runs together, and never each other.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import RunLock
    from phases import Context

__all__ = ["SharedLock"]


@attrs.define(eq=False)
class SharedLock:
    """A `RunLock` whose users hold the lock of a host together, until the last of them releases it."""

    _lock: RunLock
    #: Held for a moment, never while a thread waits for the lock of the host.
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _users: int = attrs.field(default=0, init=False)
    #: A thread is waiting for the lock of the host, for all.
    _is_awaited: bool = attrs.field(default=False, init=False)
    #: Releases the lock of the host.
    _release: ExitStack = attrs.field(factory=ExitStack, init=False)
    #: The contexts of the threads that wait for that one.
    _waiting: set[Context] = attrs.field(factory=set, init=False)

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
            self._leave()

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
                self._take(ctx)
                return
            self._wait(ctx)

    def _take(self, ctx: Context) -> None:
        try:
            with ExitStack() as opened:
                opened.enter_context(self._lock.hold(ctx))
                with self._guard:
                    self._release, self._users = opened.pop_all(), 1
        finally:
            self._is_awaited = False
            for waiting in tuple(self._waiting):
                waiting.notify()

    def _wait(self, ctx: Context) -> None:
        self._waiting.add(ctx)
        try:
            ctx.wait(lambda: ctx.cancelled or not self._is_awaited, until=ctx.deadline)
        finally:
            self._waiting.discard(ctx)

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users:
                self._release.close()
