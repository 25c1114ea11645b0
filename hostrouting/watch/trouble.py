"""A failure that lasts: the log tells its beginning and its end, and not each attempt in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import logging

__all__ = ["Trouble"]


@attrs.define(eq=False)
class Trouble:
    """The failure that was told last."""

    _logger: logging.Logger
    #: Empty if there is none.
    text: str = ""

    def tell(self, text: str) -> None:
        """Log a failure, unless it is the one that was told last."""
        if self.text != text:
            self._logger.error("%s", text)
        self.text = text

    def end(self) -> None:
        """Log the end of the failure, if there was one."""
        if self.text:
            self._logger.info("no longer so: %s", self.text)
        self.text = ""
