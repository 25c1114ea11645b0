"""A wait is logged once, and reported to the observers of the run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phases.hosting import report_wait

if TYPE_CHECKING:
    from phases import Context


def begin_wait(
    ctx: Context,
    logger: logging.Logger,
    reason: str,
    *,
    seconds: float,
    level: int = logging.INFO,
    **fields: object,
) -> None:
    """Log and report that a task waits from now on, why, and for how long at most."""
    # A brief command logs lines that have `waits` at once.
    extra = {"waits": True, **fields}
    logger.log(level, "waiting up to %g s: %s", round(seconds, 1), reason, extra=extra)
    report_wait(ctx, reason, seconds=seconds)
