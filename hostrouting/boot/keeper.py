"""What a capability gives to a watch: a keeper of its part of the node."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.base.errors import (
    HostFileError,
    HostRoutingError,
    InvalidConfigError,
    PermissionDeniedError,
)
from hostrouting.base.facts import Facts
from hostrouting.base.pace import Pace
from hostrouting.boot.intent import read_intent
from hostrouting.boot.layout import INTENT_PATH
from phases.exceptions import CONTEXT_OVER

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import FileStore, Host, NetworkEvent
    from phases import Context

#: The name of the task, which each log record of a watch has in its field `task`. Some have an
#: `event`, too: `keeps`, `repair`, `alarm`, `stale`, or `over` for the end of an alarm or a
#: trouble.
WATCH_TASK: Final = "watch-routes"
#: The seconds of the processor that a keeper may take: 0.3 at once, and for long a share of a core.
#: The longest pause is short, because one repair of a node with a million routes takes seconds.
PACE: Final = Pace(savings=0.3, share=0.03, longest=5.0)
_SECONDS_AFTER_A_FAILURE = 5.0
#: The most subjects that are logged one by one.
_MOST_LINES = 100


@attrs.define(eq=False)
class Trouble:
    """A failure that may last: the log has it when it begins or its reason changes, and its end.

    >>> import logging
    >>> trouble = Trouble(logging.getLogger("doctest"), "the routes cannot be repaired now")
    >>> trouble.log("the disk is full")
    >>> str(trouble)
    'the routes cannot be repaired now: the disk is full'
    >>> trouble.end()
    >>> str(trouble)
    ''
    """

    _logger: logging.Logger
    #: The failure, without its reason.
    _failure: str
    #: The reason, by the failure.
    _facts: Facts[str, str] = attrs.field(factory=Facts)

    def __str__(self) -> str:
        return "".join(f"{failure}: {reason}" for failure, reason in self._facts.known.items())

    def log(self, reason: str) -> None:
        """Log the failure, unless it was logged with this reason already."""
        self._facts = self._facts.after({self._failure: reason})
        for failure, why in self._facts.new.items():
            fields = {"task": WATCH_TASK, "subject": failure}
            self._logger.error("%s: %s", failure, why, extra=fields)

    def end(self) -> None:
        """Log the end of the failure, if there was one."""
        self._facts = self._facts.after({})
        for failure in self._facts.over:
            fields = {"task": WATCH_TASK, "event": "over", "subject": failure}
            self._logger.info("this is over: %s", failure, extra=fields)


def in_one_line(error: Exception) -> str:
    """Return the text of an error in one line."""
    first, *more = (line.strip() for line in str(error).splitlines())
    return " ".join(filter(None, [first, "; ".join(more)]))


@attrs.define(eq=False)
class InstalledConfig:
    """The config in force: the installed one, or else that of the caller of `Watch`.

    It follows the intent, which an apply or reset changes under the run lock.
    """

    config: HostRoutingConfig
    _files: FileStore
    _logger: logging.Logger
    #: A reset removed it while this ran: there is nothing to keep any more.
    is_reset: bool = False
    _is_there: bool = attrs.field(init=False)
    _trouble: Trouble = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # Before the first `read` has the lock, a reset may have come and gone.
        self._is_there = self._files.exists(INTENT_PATH)
        failure = "the installed config cannot be read, and the one before it stays in force"
        self._trouble = Trouble(self._logger, failure)

    def read(self) -> HostRoutingConfig:
        """Return the config in force, under the run lock; if it cannot be read, the last one."""
        try:
            intent = read_intent(self._files)
        except (HostFileError, InvalidConfigError) as error:
            # A file is there: it may have been damaged before this began, and a reset removes it.
            self._is_there = True
            self._trouble.log(in_one_line(error))
            return self.config
        self._trouble.end()
        self.is_reset = intent is None and self._is_there
        if intent is not None:
            self._is_there = True
            self.config = intent
        return self.config


@attrs.define(eq=False, repr=False)
class Keeper(ABC):
    """Keeps one part of the node right; one thread runs it, in the order of the events.

    It acts after events, after the time that its last act named, and after a failure, at its pace.
    """

    #: The beginning of the message about a failed `act`.
    failure: ClassVar[str]
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig
    #: When it is to act next, on the monotonic clock of the context.
    due: float = attrs.field(default=-inf, init=False)
    #: The failure of the last `act`.
    trouble: Trouble = attrs.field(init=False)
    _pace: Pace = attrs.field(default=PACE, init=False)

    @trouble.default
    def _no_trouble(self) -> Trouble:
        return Trouble(self._logger, self.failure)

    # --- what a keeper does

    def receive(self, events: Sequence[NetworkEvent]) -> float:  # noqa: ARG002
        """Return the seconds until the events require an `act`: 0 for at once, `inf` for never."""
        return inf

    def lose(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget all events, since some were lost; `act` follows at once, and reads everything."""

    @abstractmethod
    def act(self, ctx: Context) -> float:
        """Look, and repair; return the seconds until the next `act` without an event."""

    def log(self, level: int, message: str, *values: object, **fields: object) -> None:
        """Write a line of the watch."""
        extra = {"task": WATCH_TASK, **fields}
        self._logger.log(level, message, *values, extra=extra, stacklevel=2)

    def log_each(self, level: int, lines: Mapping[str, str], **fields: object) -> None:
        """Write a line for each subject, for so many at most, and the number of the others."""
        for subject in islice(lines, _MOST_LINES):
            self.log(level, "%s", lines[subject], subject=subject, **fields)
        if len(lines) > _MOST_LINES:
            self.log(level, "and %d more", len(lines) - _MOST_LINES, **fields)

    # --- when it does so

    def deliver(self, events: Sequence[NetworkEvent], *, now: float) -> None:
        """Receive events, and be due when they require it."""
        seconds = self.receive(events)
        soonest = max(now + seconds, self._pace.free)
        # In a storm the pause after one more look is as long as the one before it, and must not
        # delay the look that the keeper has named: the second reading of an alarm.
        if max(soonest, self._pace.free + self._pace.pause) <= self.due:
            self.due = soonest

    def read_soon(self, *, now: float) -> None:
        """Read everything anew, since events were lost, or may have been."""
        self.lose()
        self.due = min(self.due, max(now, self._pace.free))

    def run(self, ctx: Context) -> None:
        """Act, and be due again after the seconds that `act` returns."""
        # Time on the processor: waiting for the run lock slows nothing down.
        started = time.thread_time()
        # Another thread may set an earlier time meanwhile.
        self.due = inf
        try:
            seconds = self.act(ctx)
            if seconds:
                # A keeper that goes on at once may fail next: each failure would be logged again.
                self.trouble.end()
        except Exception as error:  # noqa: BLE001 - raised again, but for those of the keeper
            seconds = self._after(error, ctx)
        now = ctx.clock.monotonic()
        self._pace = self._pace.after(time.thread_time() - started, now=now)
        self.due = max(min(self.due, now + seconds), self._pace.free)

    def _after(self, error: Exception, ctx: Context) -> float:
        """Log a failure, or raise it; return the seconds before the next try."""
        if isinstance(error, HostRoutingError):
            # The process lacks a privilege; root may be refused a file for a while.
            lacks_root = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
            if lacks_root or isinstance(error, PermissionDeniedError):
                raise error
            self.trouble.log(str(error))
        elif not (ctx.over and isinstance(error, CONTEXT_OVER)):
            raise error
        return _SECONDS_AFTER_A_FAILURE


#: Between two looks of a sibling, also those that must agree before it reports: what goes may leave
#: its objects to another program for a moment. A look may hold the run lock for seconds, and
#: another run, which tries it every tenth of a second, gets it in between.
SECONDS_BETWEEN_LOOKS = 1.0


@attrs.define(eq=False, repr=False)
class SiblingKeeper(Keeper):
    """The keeper of an optional capability: all of its failures are logged; the routes go on."""

    #: The longest time of one `act`.
    seconds: ClassVar[float] = 10.0
    _pace: Pace = attrs.field(init=False)

    @_pace.default
    def _with_pauses(self) -> Pace:
        return attrs.evolve(PACE, least=SECONDS_BETWEEN_LOOKS)

    def run(self, ctx: Context) -> None:
        """See `Keeper`."""
        super().run(ctx.child(timeout=self.seconds))

    def _after(self, error: Exception, ctx: Context) -> float:
        if not ctx.cancelled:
            self.trouble.log(str(error) or repr(error))
        return self._installed.config.watch.interval
