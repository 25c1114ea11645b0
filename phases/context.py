"""Context: how long a task may take, and whether it is still wanted.

Nothing here holds a lock while it looks or wakes, so `cancel` may be called from any thread and
from a signal handler. Whoever waits first registers a doorbell, then looks, then sleeps: a ring in
between is not lost. Children look up to their parents and parents know no children, so that a
long-lived context collects nothing.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from phases.exceptions import CancelledError, DeadlineExceededError

if TYPE_CHECKING:
    import logging  # for type checkers only, see logger_of
    from collections.abc import Callable

    from phases.task import Task

__all__ = ["Clock", "Context", "Observer", "Scope", "SystemClock", "logger_of", "ring"]


#: Seconds after which the main thread looks for signals, however long it waits.
_TICK: Final = 0.5


class Clock(Protocol):
    """Time, as a context sees it; tests drive theirs (`phases.testing.ManualClock`)."""

    def monotonic(self) -> float:
        """Seconds that only grow, from an arbitrary start."""

    def time(self) -> float:
        """Seconds since 1970, as the machine believes."""

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """Block until somebody releases `doorbell`, or until `monotonic()` reaches `until`; earlier does no harm."""


class SystemClock:
    """The machine's own time."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See `Clock`."""
        return time.time()

    def wait(self, doorbell: threading.Lock, until: float | None) -> None:
        """See `Clock`."""
        left = threading.TIMEOUT_MAX if until is None else until - time.monotonic()
        # Python handles signals in the main thread, as soon as it is awake. One that another thread caught, or
        # that came in the very moment before the waiting, does not wake it: SIGTERM would be lost.
        longest = _TICK if threading.current_thread() is threading.main_thread() else threading.TIMEOUT_MAX
        seconds = min(max(left, 0), longest)
        doorbell.acquire(timeout=seconds)


class Observer:
    """What the runner tells of each task; this one does not listen, that of `run` makes the report."""

    def enter(self, task: Task) -> Observer:  # noqa: ARG002 - the interface
        """A task is about to begin; the answer observes it and those inside it."""
        return self

    def skips(self, task: Task) -> bool:  # noqa: ARG002 - the interface
        """Whether a task is to be left out."""
        return False

    def begin(self, ctx: Context) -> None:
        """The task begins."""

    def end(self, status: str, error: BaseException | None, duration: float) -> None:
        """The task ended."""


class Scope:
    """Where in a run a context is: the path so far, the logger, the observer. The runner's business."""

    __slots__ = ("logger", "names", "observer")

    def __init__(
        self, names: tuple[str, ...] = (), logger: logging.Logger | None = None, observer: Observer | None = None
    ) -> None:
        self.names = names
        self.logger = logger
        self.observer = observer or Observer()


def logger_of(ctx: Context) -> logging.Logger:
    """The logger of the run that a context is in."""
    # Here, as it takes 8 ms that those who only import us need not pay.
    import logging

    return ctx.scope.logger or logging.getLogger("phases")


class _Cancellation:
    """Whether somebody cancelled, here or further up."""

    __slots__ = ("parent", "reason")

    def __init__(self, parent: _Cancellation | None = None) -> None:
        self.parent = parent
        self.reason: str | None = None

    def find(self) -> str | None:
        """The reason nearest to us, or None."""
        node: _Cancellation | None = self
        while node is not None and node.reason is None:
            node = node.parent
        return node.reason if node else None


class Context:
    """Tells a task whether it may go on, and for how long.

    >>> ctx = Context(timeout=30)
    >>> child = ctx.child(timeout=60)   # inherits the earlier deadline
    >>> child.remaining() <= 30
    True
    >>> ctx.cancel("maintenance")
    >>> child.sleep(10)
    Traceback (most recent call last):
    phases.exceptions.CancelledError: cancelled: maintenance
    """

    __slots__ = ("_cancellation", "_doorbells", "_limit", "clock", "scope")

    def __init__(self, *, timeout: float | None = None, clock: Clock | None = None) -> None:
        #: The clock that measures all waiting.
        self.clock: Clock = clock or SystemClock()
        #: The runner's business, see `Scope`.
        self.scope = Scope()
        self._cancellation = _Cancellation()
        self._doorbells: set[threading.Lock] = set()
        self._limit = self._earlier_limit(None, timeout)

    def child(self, timeout: float | None = None) -> Context:
        """A context that ends with this one, or earlier; cancelling it does not touch this one."""
        return self._derive(_Cancellation(self._cancellation), self._earlier_limit(self._limit, timeout), self.scope)

    def within(self, scope: Scope) -> Context:
        """The very same context (cancelling either cancels both) at another place of the run."""
        return self._derive(self._cancellation, self._limit, scope)

    def cancel(self, reason: str) -> None:
        """End this context and its children, waking whoever waits on them; the first reason stays.

        Safe in any thread and in a signal handler.
        """
        if self._cancellation.reason is None:
            self._cancellation.reason = reason
        self.notify()

    @property
    def reason(self) -> str | None:
        """Why it was cancelled; None if nobody did."""
        return self._cancellation.find()

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled it or a parent; a deadline that passed does not show here."""
        return self.reason is not None

    @property
    def deadline(self) -> float | None:
        """When time is up, on the clock's `monotonic()`; None if there is no limit."""
        return self._limit[0] if self._limit else None

    def remaining(self) -> float | None:
        """Seconds left, never less than 0; None if there is no limit."""
        return None if self._limit is None else max(0.0, self._limit[0] - self.clock.monotonic())

    @property
    def over(self) -> bool:
        """Whether `check` would raise."""
        return self.cancelled or self.remaining() == 0

    def check(self) -> None:
        """Raise CancelledError or DeadlineExceededError if the task should end; cheap, call it between steps."""
        reason = self.reason
        if reason is not None:
            raise CancelledError(reason)
        if self._limit is not None and self.remaining() == 0:
            raise DeadlineExceededError(self._limit[1])

    def skips(self, task: Task) -> bool:
        """Whether `execute(task, ctx)` would leave the task out, as `run(skip=...)` asked; False outside of a run.

        For a group that prepares something for its subtasks.

        >>> from phases import Serial, run, task
        >>> class Bootstrap(Serial):
        ...     def do(self, ctx):
        ...         print("will do", [each.name for each in self.subtasks if not ctx.skips(each)])
        ...         super().do(ctx)
        >>> routes, probes = (task(name)(lambda ctx: None) for name in ("routes", "probes"))
        >>> run(Bootstrap(routes, probes, name="bootstrap"), skip=["probes"]).ok
        will do ['routes']
        True
        """
        return self.scope.observer.skips(task)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise as `check` does as soon as the context is over."""
        until = self.clock.monotonic() + _not_negative(seconds)
        self.wait(lambda: self.cancelled, until=until if self.deadline is None else min(until, self.deadline))
        self.check()

    def wait(self, done: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until `done()`, looked at after every `notify` and `cancel`; False if the clock came to `until` first.

        Raises nothing when the context ends: who wants to end with it lets `done` look at
        `cancelled` and passes its `deadline` as `until`.
        """
        doorbell = threading.Lock()
        doorbell.acquire()
        self._doorbells.add(doorbell)
        try:
            while not done():
                if until is not None and self.clock.monotonic() >= until:
                    return False
                self.clock.wait(doorbell, until)
            return True
        finally:
            self._doorbells.discard(doorbell)

    def notify(self) -> None:
        """Make all who wait in this context, its parents or its children look again."""
        for doorbell in tuple(self._doorbells):
            ring(doorbell)

    def _earlier_limit(self, limit: tuple[float, float] | None, timeout: float | None) -> tuple[float, float] | None:
        """The earlier of two limits: each a deadline, with the timeout it came from for the message."""
        if timeout is None:
            return limit
        own = (self.clock.monotonic() + _not_negative(timeout), timeout)
        return own if limit is None else min(limit, own)

    def _derive(self, cancellation: _Cancellation, limit: tuple[float, float] | None, scope: Scope) -> Context:
        derived = object.__new__(Context)
        derived.clock = self.clock
        derived.scope = scope
        derived._cancellation = cancellation
        derived._doorbells = self._doorbells
        derived._limit = limit
        return derived


def ring(doorbell: threading.Lock) -> None:
    """Release a lock that somebody waits for; a second ring before it is heard is the same ring."""
    with suppress(RuntimeError):
        doorbell.release()


def _not_negative(seconds: float) -> float:
    # Written so that nan is refused too.
    if not seconds >= 0:
        raise ValueError(f"a time to wait is 0 or more seconds, not {seconds}")
    return seconds
