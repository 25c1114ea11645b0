"""Troubles, lines and changes of a watch, as its log and the status of its service have them."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import WATCH_TASK

if TYPE_CHECKING:
    import logging


@attrs.define(eq=False)
class Trouble:
    """A failure that may last: it is logged when it begins or its reason changes, and at its end.

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
    #: Empty if there is no trouble.
    _reason: str = ""

    def __str__(self) -> str:
        return f"{self._failure}: {self._reason}" if self._reason else ""

    def log(self, reason: str) -> None:
        """Log the failure, unless it was logged with this reason already."""
        if reason != self._reason:
            self._logger.error(
                "%s: %s",
                self._failure,
                reason,
                extra={"task": WATCH_TASK, "subject": self._failure},
            )
        self._reason = reason

    def end(self) -> None:
        """Log the end of the failure, if there was one."""
        if self._reason:
            fields = {"task": WATCH_TASK, "event": "over", "subject": self._failure}
            self._logger.info("this is over: %s", self._failure, extra=fields)
        self._reason = ""


#: A program that changes a route without end must not fill the log: it causes ten repairs a second.
_MOST_LINES_A_MINUTE = 60


class Lines:
    """A log with a limit of lines in a minute for each message; it logs the number of the rest.

    Messages are counted separately: repairs without end do not keep an error from the log.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since = -inf
        self._counts: Counter[str] = Counter()

    def at(self, now: float) -> None:
        """Begin another minute if the last one is over."""
        if now - self._since < 60:
            return
        left_out = sum(max(0, count - _MOST_LINES_A_MINUTE) for count in self._counts.values())
        if left_out:
            self._logger.warning(
                "%d lines were left out: another program changes routes of the config all the time",
                left_out,
                extra={"task": WATCH_TASK},
            )
        self._since = now
        self._counts = Counter()

    def write(self, level: int, message: str, *values: object, **extra: object) -> None:
        """Write a line if the minute has one left for this message."""
        self._counts[message] += 1
        if self._counts[message] <= _MOST_LINES_A_MINUTE:
            self._logger.log(level, message, *values, extra={"task": WATCH_TASK, **extra})
