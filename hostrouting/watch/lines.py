"""The lines of a log about changes that another program may make without end."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from hostrouting.watch.trouble import TASK

if TYPE_CHECKING:
    import logging

__all__ = ["Lines"]

#: A program that changes a route without end fills no log: ten repairs a second are made for it, for ever.
_MOST_LINES_A_MINUTE: Final = 60


class Lines:
    """The lines of a log, of which a minute has only so many of one message; the number of the others follows.

    Each message is counted by itself: repairs without end do not keep an error from the log.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._since = -inf
        self._asked: Counter[str] = Counter()

    def at(self, now: float) -> None:
        """Begin another minute if the last one is over."""
        if now - self._since < 60:
            return
        left_out = sum(max(0, count - _MOST_LINES_A_MINUTE) for count in self._asked.values())
        if left_out:
            message = "%d lines were left out: another program changes routes of the config all the time"
            self._logger.warning(message, left_out, extra={"task": TASK})
        self._since, self._asked = now, Counter()

    def write(self, level: int, message: str, *values: object, **extra: object) -> None:
        """Write a line if the minute has one left for this message."""
        self._asked[message] += 1
        if self._asked[message] <= _MOST_LINES_A_MINUTE:
            self._logger.log(level, message, *values, extra={"task": TASK, **extra})
