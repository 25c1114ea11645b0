"""Context: how long a task may take, whether it should stop, and where it records each Change.

Nothing here holds a lock while it tests a condition or wakes threads, so any thread and any signal
handler may call `cancel`. A waiting thread registers a doorbell, tests its condition, then sleeps,
so it never misses a ring. Children refer to their parents, never parents to children, so a
long-lived context does not grow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from math import inf
from threading import TIMEOUT_MAX, Lock, current_thread, main_thread
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from phases.exceptions import CancelledError, DeadlineExceededError
from phases.mistakes import wrong_argument

_ENDLESS = (inf, inf)
_ACTIONS = ("+", "-", "~")


class Change(NamedTuple):
    """One line of a plan or a report: `+` is added, `-` is removed, `~` is changed.

    The detail is for people. A program reads the kind: a word of the task, such as "refused", or
    "".

    >>> print(Change("~", "/etc/hosts", "2 lines"))
    ~ /etc/hosts (2 lines)
    """

    action: Literal["+", "-", "~"]
    subject: str
    detail: str | None = None
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.subject}" + (f" ({self.detail})" if self.detail else "")

    def to_mapping(self) -> dict[str, str | None]:
        """Return the change for JSON.

        >>> Change("+", "/etc/hosts").to_mapping()
        {'action': '+', 'subject': '/etc/hosts', 'detail': None, 'kind': ''}
        """
        return {name: None if part is None else str(part) for name, part in self._asdict().items()}


def require_change(value: object) -> None:
    """Raise TypeError for anything but a Change that reports can show.

    >>> require_change(Change("add", "/etc/hosts"))
    Traceback (most recent call last):
    TypeError: action must be '+', '-' or '~' (got 'add'); write action='+'
    """
    if not isinstance(value, Change):
        raise TypeError(f"{value!r} is not a Change: write ctx.record(Change('+', subject))")
    if value.action not in _ACTIONS:
        raise wrong_argument("action", value.action, "'+', '-' or '~'", "'+'")


class Progress(NamedTuple):
    """What a task is doing, and how far it is."""

    doing: str
    done: float | None
    total: float | None

    def __str__(self) -> str:
        if self.done is None:
            return self.doing
        return f"{self.doing} {self.done:g}" + (f" of {self.total:g}" if self.total else "")


class Wait(NamedTuple):
    """A wait of a task: the reason, and how many seconds it lasts at most; None is without end."""

    reason: str
    seconds: float | None


class Clock(Protocol):
    """The time source of a context; tests use `phases.testing.ManualClock`.

    If each wait moves it, it has an attribute `auto` that is true: then a wait for a thread or a
    program has no end, which would come at once.
    """

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; they never decrease."""

    def time(self) -> float:
        """Return seconds since 1970."""

    def wait(self, doorbell: Lock, until: float | None) -> None:
        """Block until `doorbell` is released or `monotonic()` reaches `until`, or less long."""


class SystemClock:
    """The time of this machine."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    time: Callable[[], float] = staticmethod(time.time)
    #: The longest wait of the main thread in seconds. After it Python handles signals, which takes
    #: a tenth of a millisecond: a program that waits for days must end within a second of SIGTERM.
    longest: float = 0.75

    def wait(self, doorbell: Lock, until: float | None) -> None:
        """See `Clock`."""
        left = TIMEOUT_MAX if until is None else until - time.monotonic()
        # Python handles signals in the main thread once it is awake. A signal that another thread
        # received, or that arrived just before the wait, does not wake it: SIGTERM would be lost.
        longest = self.longest if current_thread() is main_thread() else TIMEOUT_MAX
        doorbell.acquire(timeout=min(max(left, 0), longest))


class Context:
    """Limits the time of a task, cancels it, and receives the changes that it makes.

    >>> ctx = Context(timeout=30)
    >>> child = ctx.child(timeout=60)   # inherits the earlier deadline
    >>> child.remaining() <= 30
    True
    >>> ctx.cancel("maintenance")
    >>> child.sleep(10)
    Traceback (most recent call last):
    phases.exceptions.CancelledError: cancelled: maintenance
    """

    def __init__(self, *, timeout: float | None = None, clock: Clock | None = None) -> None:
        #: The clock that measures all waiting.
        self.clock: Clock = clock or SystemClock()
        #: The logger of the run.
        self.log: logging.Logger = logging.getLogger("phases")
        #: What follows is also read and changed by `phases.hosting`.
        #: The `phases.step.Step` of the current task; None outside a run.
        self._step: Any = None
        # A list for this context and for each parent; cancelling puts the reason into the first
        # one.
        self._reasons: tuple[list[str], ...] = ([],)
        self._doorbells: set[Lock] = set()
        self._held: Mapping[Hashable, Lock] = {}
        self._firsts: dict[Hashable, object] = {}
        #: The context of each `interruptible` block that the main thread is in; parents and
        #: children share the list.
        self._interruptible: list[Context] = []
        #: The ids of the ends that `check` has raised to the current task.
        self._raised: set[int] = set()
        #: The deadline, with its timeout for the message.
        self._limit = _ENDLESS
        self._limit = self._earlier_limit(timeout)

    def child(self, timeout: float | None = None) -> Context:
        """Return a context that ends with this one or earlier; its cancellation ends it alone."""
        return self._derive(_reasons=([], *self._reasons), _limit=self._earlier_limit(timeout))

    def shielded(self) -> Context:
        """Return a context without an end, for work that must finish after this one has ended."""
        return self._derive(_reasons=([],), _limit=_ENDLESS, _interruptible=[])

    def expiring(self) -> Context:
        """Return the same context, for work whose normal end is that of the context.

        A task that catches the end of its context and returns has failed, see `execute`; not if
        this context has raised it.

        >>> from phases import CancelledError, DeadlineExceededError, run, task
        >>> @task("serve")
        ... def serve(ctx):
        ...     try:
        ...         ctx.expiring().sleep(3600)
        ...     except (CancelledError, DeadlineExceededError):
        ...         pass
        >>> run(serve, timeout=0.5).ok
        True
        """
        return self._derive(_raised=set())

    def record(self, change: Change, *, undo: Work | None = None) -> None:
        """Record a change of the current task; call this after the change is in effect.

        Reports show recorded changes, and `run(undo_on_failure=True)` reverses them, newest first.
        Outside a run this does nothing.

        Args:
            change: The change, as reports show it.
            undo: The inverse. It must be safe to call twice. If something else has altered the
                place since, it must change nothing, log a warning, and return False: the change
                stays in the report. One inverse given for consecutive changes reverses them all and
                is called once.

        >>> from phases import Change, run, task
        >>> hosts = task("hosts")(lambda ctx: ctx.record(Change("+", "/etc/hosts")))
        >>> run(hosts).changes
        (Change(action='+', subject='/etc/hosts', detail=None, kind=''),)
        """
        require_change(change)
        if undo is not None and not callable(undo):
            raise TypeError(f"undo of '{change}' must be a function of the context (got {undo!r})")
        if self._step is not None:
            self._step.record(change, undo)

    def degrade(self, reason: str) -> None:
        """Report that the current task lacks something, although it may complete.

        It is then degraded, and so are the groups around it. Outside a run this does nothing.

        >>> from phases import run, task
        >>> report = run(task("probes")(lambda ctx: ctx.degrade("no IPv6 address")))
        >>> report.ok, report.degraded, report.reasons
        (True, True, ['no IPv6 address'])
        """
        if self._step is not None:
            self._step.degrade(str(reason))

    def skip(self, reason: str) -> None:
        """Report that the current task has nothing to do here; it then returns.

        Its status is `skipped`, and nothing is degraded. If it has recorded a change, it is `ok`.
        Outside a run this does nothing.

        >>> from phases import run, task
        >>> report = run(task("probes")(lambda ctx: ctx.skip("not configured")))
        >>> report.status, report.ok, report.degraded, report.reasons
        ('skipped', True, False, ['not configured'])
        """
        if self._step is not None:
            self._step.idle(str(reason))

    def progress(self, doing: str, done: float | None = None, total: float | None = None) -> None:
        """Report to the observers of the run what the current task is doing, and how far it is.

        Outside a run this does nothing.

        >>> from phases import run, task
        >>> events = []
        >>> copy = task("copy")(lambda ctx: ctx.progress("copying", 3, 10))
        >>> report = run(copy, observer=events.append)
        >>> events[1].status, str(events[1].progress)
        ('progress', 'copying 3 of 10')
        """
        for name, number in (("done", done), ("total", total)):
            if number is not None and not isinstance(number, int | float):
                raise wrong_argument(name, number, "a number", "3")
        if self._step is not None:
            progress = Progress(str(doing), done, total)
            self._step.notify(self._step.report, status="progress", progress=progress)

    def cancel(self, reason: str) -> None:
        """End this context and its children, and wake every thread that waits on them.

        The first reason stays. Safe in any thread and in a signal handler.
        """
        # str: None in its place would not count as a cancellation.
        self._reasons[0].append(str(reason))
        notify(self)

    @property
    def cancelled(self) -> bool:
        """True if it or a parent was cancelled; a passed deadline does not count."""
        return any(self._reasons)

    @property
    def deadline(self) -> float | None:
        """The end of its time on the clock's `monotonic()`; None if it is unlimited."""
        return None if self._limit == _ENDLESS else self._limit[0]

    def remaining(self) -> float | None:
        """Return the seconds left, at least 0; None if they are unlimited."""
        end, _ = self._limit
        return None if self._limit == _ENDLESS else max(0.0, end - self.clock.monotonic())

    @property
    def over(self) -> bool:
        """True if `check` would raise."""
        return self.cancelled or self.remaining() == 0

    def check(self) -> None:
        """Raise CancelledError or DeadlineExceededError if the context is over.

        It is cheap: call it between steps.
        """
        for reasons in self._reasons:
            if reasons:
                self._raised.add(id(reasons))
                raise CancelledError(reasons[0])
        if self.remaining() == 0:
            self._raised.add(id(self._limit))
            raise DeadlineExceededError(self._limit[1])

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise as `check` does as soon as the context is over."""
        until = self.clock.monotonic() + not_negative(seconds)
        wait(self, lambda: self.cancelled, until=min(until, self._limit[0]))
        self.check()

    def _earlier_limit(self, timeout: float | None) -> tuple[float, float]:
        if timeout is None:
            return self._limit
        end = self.clock.monotonic() + not_negative(timeout, "timeout")
        return min(self._limit, (end, timeout))

    def _derive(self, **changes: object) -> Context:
        # Not by `copy`, which takes ten times as long: each task has contexts of its own.
        derived = object.__new__(type(self))
        vars(derived).update(vars(self), **changes)
        return derived


def wait(ctx: Context, done: Callable[[], bool], *, until: float | None = None) -> bool:
    """Wait until `done()` returns True; return False if `until` comes first.

    Each `notify` and `cancel` calls it again. This does not raise when the context ends: to end
    with it, let `done` test `cancelled` and pass `deadline` as `until`.
    """
    doorbell = Lock()
    doorbell.acquire()
    ctx._doorbells.add(doorbell)
    try:
        while not done():
            if until is not None and ctx.clock.monotonic() >= until:
                return False
            ctx.clock.wait(doorbell, until)
        return True
    finally:
        ctx._doorbells.discard(doorbell)


def notify(ctx: Context) -> None:
    """Wake every thread that waits in this context, its parents or its children."""
    for doorbell in tuple(ctx._doorbells):
        ring(doorbell)


#: The form of `do`, `undo` and an inverse.
Work: TypeAlias = Callable[[Context], object]


def end_of_work(clock: Clock, until: float | None) -> float | None:
    """Return the end of a wait for a thread or a program, see `Clock`."""
    return None if getattr(clock, "auto", False) else until


def ring(doorbell: Lock) -> None:
    """Release a lock that a thread waits for; do nothing if it is released already."""
    with suppress(RuntimeError):
        doorbell.release()


def not_negative(seconds: float, name: str = "seconds") -> float:
    """Return the duration; raise TypeError or ValueError for anything but 0 or more seconds."""
    if not isinstance(seconds, int | float):
        raise wrong_argument(name, seconds, "a number of seconds", "30")
    # Written so that nan is refused too.
    if not seconds >= 0:
        raise ValueError(f"{name} must be at least 0 seconds (got {seconds})")
    return seconds
