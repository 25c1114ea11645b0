"""What the runner reads of a context and gives to it. Tasks use the names of `Context` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phases.context import Note

if TYPE_CHECKING:
    from logging import Logger

    from phases.context import Account, Context


def account_of(ctx: Context) -> Account | None:
    """Return the account of the current task; None outside a run."""
    return ctx._account


def logger_of(ctx: Context) -> Logger:
    """Return the logger of the run."""
    return ctx._logger


def within(ctx: Context, account: Account | None, logger: Logger | None = None) -> Context:
    """Return the same context (cancelling either cancels both) for another task."""
    # The outermost task begins a run: another run in this context has values of its own.
    firsts = ctx._firsts if ctx._account else {}
    return ctx._derive(_account=account, _logger=logger or ctx._logger, _firsts=firsts)


def noting(ctx: Context) -> Context:
    """Return the same context, which notes for `has_raised` if its end is raised to the work.

    The end of a narrower context that the work makes does not count.
    """
    note = Note(ctx._limit, *ctx._reasons)
    return ctx._derive(_notes=(*ctx._notes, note))


def has_raised(ctx: Context) -> bool:
    """Return True if the end of a context that notes it was raised, in any thread."""
    return any(note.is_raised for note in ctx._notes[-1:])
