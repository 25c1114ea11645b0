"""Context: how long a task may take, whether it should stop, and where it records each Change.

Nothing here holds a lock while it tests a condition or wakes threads, so any thread and any signal
handler may call `cancel`. A waiting thread registers a doorbell, tests its condition, then sleeps,
so it never misses a ring. Children refer to their parents, never parents to children, so a
long-lived context does not grow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from copy import copy
from math import inf
from threading import TIMEOUT_MAX, Lock, current_thread, main_thread
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from phases.exceptions import CancelledError, DeadlineExceededError
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

#: The form of `do`, `undo` and an inverse.
Work: TypeAlias = Callable[["Context"], object]
_ENDLESS = (inf, inf)
_T = TypeVar("_T")


_Action = Literal["+", "-", "~"]


class _Change(NamedTuple):
    action: _Action
    subject: str
    detail: str | None
    kind: str


class Change(_Change):
    """One line of a plan or a report: `+` is added, `-` is removed, `~` is changed.

    The detail is for people. A program reads the kind: a word of the task, such as "refused", or
    "".

    >>> print(Change("~", "/etc/hosts", "2 lines"))
    ~ /etc/hosts (2 lines)
    >>> Change("*", "/etc/hosts")
    Traceback (most recent call last):
    ValueError: the action of a change must be '+', '-' or '~' (got '*')
    """

    __slots__ = ()

    def __new__(
        cls, action: _Action, subject: str, detail: str | None = None, kind: str = ""
    ) -> Change:
        """Refuse an unknown action."""
        if action not in ("+", "-", "~"):
            raise ValueError(f"the action of a change must be '+', '-' or '~' (got {action!r})")
        if not isinstance(subject, str):
            raise wrong_argument("subject", subject, "a text", "'...'")
        return tuple.__new__(cls, (action, subject, detail, kind))

    def __str__(self) -> str:
        return f"{self.action} {self.subject}" + (f" ({self.detail})" if self.detail else "")

    def to_mapping(self) -> dict[str, str | None]:
        """Return the change for JSON.

        >>> Change("+", "/etc/hosts").to_mapping()
        {'action': '+', 'subject': '/etc/hosts', 'detail': None, 'kind': ''}
        """
        return self._asdict()


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


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name in logs, errors, reports and `skip`."""


class Account(Protocol):
    """The part of a run's account that a task reaches through its context."""

    def skips(self, name: str) -> bool:
        """Return True if the run leaves out tasks of this name."""

    def record(self, change: Change, undo: Work | None) -> None:
        """Add a change, with its inverse."""

    def result(self, value: object) -> None:
        """Keep the task's value."""

    def degrade(self, reason: str) -> None:
        """Keep what the task lacks."""

    def wait(self, wait: Wait) -> None:
        """Report what the task waits for."""


class Note:
    """Notes if one of these ends, a limit or a list of reasons, was raised."""

    def __init__(self, *ends: object) -> None:
        self._ends = ends
        self.is_raised = False

    def take(self, end: object) -> None:
        """Note an end that is raised; that of a narrower context is not among these."""
        # By identity: a context shares the limit and the lists of its parents.
        if any(end is own for own in self._ends):
            self.is_raised = True


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
        if clock is not None and (isinstance(clock, type) or not hasattr(clock, "monotonic")):
            raise wrong_argument("clock", clock, "a Clock", "ManualClock()")
        #: The clock that measures all waiting.
        self.clock: Clock = clock or SystemClock()
        #: See `phases.run_context`.
        self._account: Account | None = None
        self._logger: logging.Logger = logging.getLogger("phases")
        # A list for this context and for each parent; cancelling puts the reason into the first
        # one.
        self._reasons: tuple[list[str], ...] = ([],)
        self._doorbells: set[Lock] = set()
        self._held: Mapping[Hashable, Lock] = {}
        self._firsts: dict[Hashable, object] = {}
        #: The context of each `interruptible` block that the main thread is in; parents and
        #: children share the list.
        self._interruptible: list[Context] = []
        #: Of the contexts of the current task, see `run_context.noting`; the last is that of this
        #: one.
        self._notes: tuple[Note, ...] = ()
        #: The deadline, with its timeout for the message.
        self._limit = _ENDLESS
        self._limit = self._earlier_limit(timeout)

    def __repr__(self) -> str:
        left = self.remaining()
        end = "without an end" if left is None else f"{left:g} s left"
        return f"<Context: {'cancelled' if self.cancelled else end}>"

    def child(self, timeout: float | None = None) -> Context:
        """Return a context that ends with this one or earlier; its cancellation ends it alone."""
        return self._derive(_reasons=([], *self._reasons), _limit=self._earlier_limit(timeout))

    def unrecorded(self) -> Context:
        """Return the same context outside of the run, whose report is not changed by this work."""
        return self._derive(_account=None)

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
        return self._derive(_notes=())

    def holding(self, resource: Hashable) -> Context:
        """Return the same context, for code that runs while a resource (a file) is locked."""
        return self._derive(_held={**self._held, resource: Lock()})

    def held(self, resource: Hashable) -> Lock | None:
        """Return the lock that users of a locked resource share; None if it is not locked."""
        return self._held.get(resource)

    def first(self, key: Hashable, value: _T) -> _T:
        """Return the value that the outermost run was given first for the key, whatever came later.

        It is for a state that tasks change and their comparison needs as it was: an attempt of
        `with_retry`, and each task of a group, gets that of before the run.

        >>> ctx = Context()
        >>> ctx.first("version", 1), ctx.first("version", 2)
        (1, 1)
        """
        return cast("_T", self._firsts.setdefault(key, value))

    def record(self, change: Change, *, undo: Work | None = None) -> None:
        """Record a change of the current task; call this after the change is in effect.

        Reports show recorded changes, and `run(undo_on_failure=True)` reverses them, newest first.
        Outside a run this does nothing.

        Args:
            change: The change, as reports show it.
            undo: The inverse. It must be safe to call twice, and must change nothing, but log a
                warning, if something else has altered the place since. One inverse given for
                consecutive changes reverses them all and is called once.

        >>> from phases import Change, run, task
        >>> hosts = task("hosts")(lambda ctx: ctx.record(Change("+", "/etc/hosts")))
        >>> run(hosts).changes
        (Change(action='+', subject='/etc/hosts', detail=None, kind=''),)
        """
        if not isinstance(change, Change):
            raise TypeError(f"{change!r} is not a Change: write ctx.record(Change('+', subject))")
        if undo is not None and not callable(undo):
            raise TypeError(f"undo of '{change}' must be a function of the context (got {undo!r})")
        if self._account is not None:
            self._account.record(change, undo)

    def result(self, value: object) -> None:
        """Leave a value of the current task in its report, whether it then fails or not.

        Outside a run this does nothing.

        >>> from phases import run, task
        >>> run(task("answer")(lambda ctx: ctx.result(42))).result
        42
        """
        if self._account is not None:
            self._account.result(value)

    def degrade(self, reason: str) -> None:
        """Report that the current task lacks something, although it may complete.

        It is then degraded, and so are the groups around it. Outside a run this does nothing.

        >>> from phases import run, task
        >>> report = run(task("probes")(lambda ctx: ctx.degrade("no IPv6 address")))
        >>> report.ok, report.degraded, report.reasons
        (True, True, ['no IPv6 address'])
        """
        if not isinstance(reason, str):
            raise TypeError(f"degrade takes the reason, a text (got {reason!r})")
        if self._account is not None:
            self._account.degrade(reason)

    def report_wait(self, reason: str, *, seconds: float | None) -> None:
        """Report to the observers of the run that the task waits from now on.

        Call it once for a wait, before it. Outside a run this does nothing.

        Args:
            reason: What it waits for, or why.
            seconds: The longest time that it waits; None if that of the context.

        >>> from phases import run, task
        >>> lease = task("lease")(lambda ctx: ctx.report_wait("a DHCP lease", seconds=30))
        >>> events = []
        >>> report = run(lease, observer=events.append)
        >>> events[1].status, events[1].wait
        ('waiting', Wait(reason='a DHCP lease', seconds=30))
        """
        left = self.remaining()
        if seconds is None or (left is not None and left < seconds):
            seconds = left
        if self._account is not None:
            self._account.wait(Wait(reason, seconds))

    def cancel(self, reason: str) -> None:
        """End this context and its children, and wake every thread that waits on them.

        The first reason stays. Safe in any thread and in a signal handler.
        """
        # str: None in its place would not count as a cancellation.
        self._reasons[0].append(str(reason))
        self.notify()

    @property
    def reason(self) -> str | None:
        """The reason for its cancellation; None if it was not cancelled."""
        return next((reasons[0] for reasons in self._reasons if reasons), None)

    @property
    def cancelled(self) -> bool:
        """True if it or a parent was cancelled; a passed deadline does not count."""
        return self.reason is not None

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
                self._note(reasons)
                raise CancelledError(reasons[0])
        if self.remaining() == 0:
            self._note(self._limit)
            raise DeadlineExceededError(self._limit[1])

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end the block at once.

        It is for a long computation that changes nothing and cannot call `check`. If a handled
        signal (see `cancel_on_signals`) cancels the context while the main thread is in the block,
        CancelledError is raised there in the middle of the work, as KeyboardInterrupt would be. So
        nothing that the block leaves half done may be used afterwards. In any other thread the
        block ends as it would without this.

        >>> with Context().interruptible():
        ...     numbers = sorted(range(1000))
        """
        blocks = self._interruptible if current_thread() is main_thread() else []
        blocks.append(self)
        try:
            # Within the block: a signal after this ends it, too.
            self.check()
            yield
        finally:
            blocks.pop()

    def cancel_by_signal(self, reason: str) -> None:
        """Cancel from a signal handler, and end the main thread's `interruptible` block.

        A block of a parent goes on, because that is not cancelled.
        """
        self.cancel(reason)
        for context in self._interruptible:
            context.check()

    def skips(self, task: Named) -> bool:
        """Return True if `run(skip=...)` leaves the task out; False outside a run.

        A group calls this when it prepares something for its subtasks.

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
        return self._account is not None and self._account.skips(task.name)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise as `check` does as soon as the context is over."""
        until = self.clock.monotonic() + not_negative(seconds)
        self.wait(lambda: self.cancelled, until=min(until, self._limit[0]))
        self.check()

    def wait(self, done: Callable[[], bool], *, until: float | None = None) -> bool:
        """Wait until `done()` returns True; return False if `until` comes first.

        Each `notify` and `cancel` calls it again. This does not raise when the context ends: to end
        with it, let `done` test `cancelled` and pass `deadline` as `until`.
        """
        doorbell = Lock()
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
        """Wake every thread that waits in this context, its parents or its children."""
        for doorbell in tuple(self._doorbells):
            ring(doorbell)

    def _note(self, end: object) -> None:
        for note in self._notes:
            note.take(end)

    def _earlier_limit(self, timeout: float | None) -> tuple[float, float]:
        if timeout is None:
            return self._limit
        return min(
            self._limit, (self.clock.monotonic() + not_negative(timeout, "timeout"), timeout)
        )

    def _derive(self, **changes: object) -> Context:
        derived = copy(self)
        vars(derived).update(changes)
        return derived


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
