"""The config that `Watch` keeps in force: the installed one, and until there is one that of its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import INTENT_PATH, read_intent
from hostrouting.config import WatchMode
from hostrouting.exceptions import HostFileError, InvalidConfigError
from hostrouting.watch.trouble import TASK, Trouble
from hostrouting.watch.unit import keeps_something

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import FileStore

__all__ = ["InstalledConfig"]


@attrs.define(eq=False)
class InstalledConfig:
    """Follows the intent, which an apply or reset changes under the run lock."""

    config: HostRoutingConfig
    _files: FileStore
    _logger: logging.Logger
    #: A reset removed it while this ran: there is nothing to keep any more.
    is_reset: bool = False
    _is_there: bool = attrs.field(init=False)
    _trouble: Trouble = attrs.field(init=False)
    #: The config about which the log says that there is nothing to keep.
    _idle: HostRoutingConfig | None = None

    @_is_there.default
    def _look(self) -> bool:
        # Before the first `read` has the lock, a reset may have come and gone.
        return self._files.exists(INTENT_PATH)

    @_trouble.default
    def _no_trouble(self) -> Trouble:
        return Trouble(self._logger, "the installed config cannot be read, and the one before it stays in force")

    def read(self) -> HostRoutingConfig:
        """Return the config in force, under the run lock; the one before it if the file is damaged or unreadable."""
        self._read()
        self._tell_idle()
        return self.config

    def _read(self) -> None:
        try:
            intent = read_intent(self._files)
        except (HostFileError, InvalidConfigError) as error:
            # A file is there: it may have been damaged before this began, and a reset removes it.
            self._is_there = True
            # hostrouting owns the file: an apply writes it again.
            self._trouble.tell(f"{error}; run: hostrouting apply CONFIG, which writes {INTENT_PATH} again")
            return
        self._trouble.end()
        self.is_reset = intent is None and self._is_there
        if intent is not None:
            self._is_there = True
            self.config = intent

    def _tell_idle(self) -> None:
        """Log once that a config has nothing to keep."""
        is_idle = not self.is_reset and not keeps_something(self.config, WatchMode.SERVICE)
        if is_idle and self._idle is not self.config:
            message = (
                "there is nothing to keep: the config has no static routes, no expected CIDRs, no probeSnat and no "
                "staleCni; add one of them, and run: hostrouting apply CONFIG"
            )
            self._logger.info(message, extra={"task": TASK})
        self._idle = self.config if is_idle else None

    def replace(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Keep the config that `read` returns, unless there is an installed one; if it fails, the one before it."""
        try:
            self.config = read()
        except (HostFileError, InvalidConfigError) as error:
            message = "the config cannot be read, and the one before it stays in force: %s"
            self._logger.error(message, error, extra={"task": TASK})  # noqa: TRY400 - a message for the operator
