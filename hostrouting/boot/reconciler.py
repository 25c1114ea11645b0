"""Reconcilers: what the watch runs to keep one part of a node as the config says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hostrouting.base.errors import HostFileError, InvalidConfigError
from hostrouting.base.facts import Facts
from hostrouting.boot.installed_config import read_installed_config
from hostrouting.boot.layout import CONFIG_PATH

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import FileStore, Host
    from phases import Context

#: The value of the field `task` in each log record of a watch. Some records also have an `event`:
#: `keeps`, `repair`, `alarm`, `stale`, or `over` for the end of an alarm or failure.
WATCH_TASK: Final = "watch-routes"
#: The most subjects that are logged individually.
_MOST_LINES = 100


@attrs.define(eq=False)
class Trouble:
    """A failure that may last: logged when it begins, when its reason changes, and when it ends.

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
    """Return the text of an error on one line."""
    first, *more = (line.strip() for line in str(error).splitlines())
    return " ".join(filter(None, [first, "; ".join(more)]))


@attrs.define(eq=False)
class InstalledConfig:
    """The config in force: the installed one, or else the one given to `Watch`.

    It follows the file, which an apply or reset changes under the run lock.
    """

    config: HostRoutingConfig
    _files: FileStore
    _logger: logging.Logger
    #: True if a reset removed it in the meantime: there is nothing left to maintain.
    is_reset: bool = False
    _is_there: bool = attrs.field(init=False)
    _trouble: Trouble = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # A reset may come and go before the first `read` has the lock.
        self._is_there = self._files.exists(CONFIG_PATH)
        failure = "the installed config cannot be read, so the previous one stays in force"
        self._trouble = Trouble(self._logger, failure)

    def read(self) -> HostRoutingConfig:
        """Return the config in force, or the last one if it cannot be read; needs the run lock."""
        try:
            config = read_installed_config(self._files)
        except (HostFileError, InvalidConfigError) as error:
            # The file exists, even if it was damaged from the start, and a reset would remove it.
            self._is_there = True
            self._trouble.log(in_one_line(error))
            return self.config
        self._trouble.end()
        self.is_reset = config is None and self._is_there
        if config is not None:
            self._is_there = True
            self.config = config
        return self.config


@attrs.define(eq=False, repr=False)
class Reconciler(ABC):
    """Keeps one part of the node as the installed config says.

    The watch runs it again after the time that it returned, after events, and after a failure.
    Those of optional features run in the worker, and their failures never end the watch.
    """

    #: The beginning of the message about a failure.
    failure: ClassVar[str]
    is_optional: ClassVar[bool] = True
    #: The time limit of one run.
    seconds: ClassVar[float | None] = 10.0
    _host: Host
    _logger: logging.Logger
    _installed: InstalledConfig

    @property
    def interval(self) -> float:
        """The seconds between two runs without an event."""
        return self._installed.config.watch.interval

    def trouble(self) -> Trouble:
        """Return the logger of its failures."""
        return Trouble(self._logger, self.failure)

    @abstractmethod
    def act(self, ctx: Context) -> float:
        """Compare and repair; return the seconds until the next run without an event."""

    def log(self, level: int, message: str, *values: object, **fields: object) -> None:
        """Write a log line of the watch."""
        extra = {"task": WATCH_TASK, **fields}
        self._logger.log(level, message, *values, extra=extra, stacklevel=2)

    def log_each(self, level: int, lines: Mapping[str, str], **fields: object) -> None:
        """Write a line for each subject up to a limit, and the number of the rest."""
        for subject in islice(lines, _MOST_LINES):
            self.log(level, "%s", lines[subject], subject=subject, **fields)
        if len(lines) > _MOST_LINES:
            self.log(level, "and %d more", len(lines) - _MOST_LINES, **fields)
