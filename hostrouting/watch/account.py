"""The account of one act of a keeper: that of the run would grow as long as the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phases import Change

__all__ = ["Account"]


class Account:
    """The changes of one act; see `phases.context.Account`."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def skips(self, _name: str) -> bool:
        """Return False: no part of an act is left out."""
        return False

    def record(self, change: Change, _undo: object) -> None:
        """Store a change; an act is not undone."""
        self.changes.append(change)
