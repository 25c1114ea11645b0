"""The changes of one repair or sweep, for the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phases import Change

__all__ = ["Account"]


class Account:
    """The changes of one repair. The account of the run would grow as long as the run goes on."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def skips(self, _name: str) -> bool:
        """See `phases.context.Account`."""
        return False

    def record(self, change: Change, _undo: object) -> None:
        """See `phases.context.Account`."""
        self.changes.append(change)
