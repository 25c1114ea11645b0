"""The config that `Watch` keeps in force: the installed one, and until there is one that of its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import INTENT_PATH, read_intent
from hostrouting.exceptions import HostFileError, InvalidConfigError

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
    #: The trouble that was logged last.
    _trouble: str = ""

    @_is_there.default
    def _look(self) -> bool:
        # Before the first `read` has the lock, a reset may have come and gone.
        return self._files.exists(INTENT_PATH)

    def read(self) -> HostRoutingConfig:
        """Return the config in force, under the run lock; the one before it if the file is damaged or unreadable."""
        try:
            intent = read_intent(self._files)
        except (HostFileError, InvalidConfigError) as error:
            # A file is there: it may have been damaged before this began, and a reset removes it.
            self._is_there = True
            self._tell_once(error)
            return self.config
        self._trouble = ""
        self.is_reset = intent is None and self._is_there
        if intent is not None:
            self._is_there = True
            self.config = intent
        return self.config

    def replace(self, read: Callable[[], HostRoutingConfig]) -> None:
        """Keep the config that `read` returns, unless there is an installed one; if it fails, the one before it."""
        try:
            self.config = read()
        except (HostFileError, InvalidConfigError) as error:
            self._logger.error("the config cannot be read, and the one before it stays in force: %s", error)  # noqa: TRY400 - a message for the operator

    def _tell_once(self, error: Exception) -> None:
        if self._trouble != str(error):
            # hostrouting owns the file: an apply writes it again.
            message = (
                "the installed config cannot be read, and the one before it stays in force; run: hostrouting apply "
                "CONFIG, which writes %s again; the reason: %s"
            )
            self._logger.error(message, INTENT_PATH, error)
        self._trouble = str(error)
