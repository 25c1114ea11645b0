"""Log a wait once, and report it to the observers of the run."""

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
    """Log and report that a task begins to wait, why, and for how long at most."""
    # Commands that log little show lines with `waits` at once.
    extra = {"waits": True, **fields}
    logger.log(level, "waiting up to %g s: %s", round(seconds, 1), reason, extra=extra)
    report_wait(ctx, reason, seconds=seconds)
