"""A trouble of a watch: the log has its beginning and its end, and the status of the service has it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    import logging

__all__ = ["TASK", "Trouble"]

#: The name of the task, which each log record of a watch has in its field `task`.
TASK: Final = "watch-routes"


@attrs.define(eq=False)
class Trouble:
    """A failure that may last: a line when it begins, one when its reason changes, and one when it is over.

    >>> import logging
    >>> trouble = Trouble(logging.getLogger("doctest"), "the routes cannot be repaired now")
    >>> trouble.tell("the disk is full")
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

    def tell(self, reason: str) -> None:
        """Log the failure, unless it was logged with this reason already."""
        if reason != self._reason:
            self._logger.error("%s: %s", self._failure, reason, extra={"task": TASK})
        self._reason = reason

    def end(self) -> None:
        """Log the end of the failure, if there was one."""
        if self._reason:
            self._logger.info("this is over: %s", self._failure, extra={"task": TASK})
        self._reason = ""
