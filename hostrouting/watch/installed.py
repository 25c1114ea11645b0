"""The config that `Watch` keeps in force: the installed one, and until there is one that of its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import INTENT_PATH, read_intent
from hostrouting.exceptions import HostFileError, InvalidConfigError
from hostrouting.watch.trouble import Trouble

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
    _trouble: Trouble = attrs.field(
        init=False, default=attrs.Factory(lambda self: Trouble(self._logger), takes_self=True)
    )

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
            # hostrouting owns the file: an apply writes it again.
            self._trouble.tell(
                "the installed config cannot be read, and the one before it stays in force; run: hostrouting apply "
                f"CONFIG, which writes {INTENT_PATH} again; the reason: {error}"
            )
            return self.config
        self._trouble.end()
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
