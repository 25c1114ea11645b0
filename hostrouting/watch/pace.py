"""How soon a keeper acts: at once, and under load only as often as a small share of a core allows."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["Pace"]

#: The share of a core that a keeper may take for long.
_SHARE: Final = 0.03
#: Seconds that may be spent at once, before the share counts.
_SAVINGS: Final = 0.3
#: The longest pause: one repair of a node with a million routes takes seconds.
_LONGEST: Final = 5.0


@attrs.frozen
class Pace:
    """The seconds on the processor that a keeper has left: each look spends them, and they come back with time.

    >>> pace = Pace(now=100.0)
    >>> pace.pause
    0.0
    >>> pace.after(1.5, now=100.0).pause
    5.0
    >>> pace.after(1.5, now=100.0).after(0.0, now=200.0).pause
    0.0
    """

    #: The end of the last look, on the monotonic clock.
    now: float
    left: float = _SAVINGS

    @property
    def pause(self) -> float:
        """Return how long to wait after an event."""
        return min(_LONGEST, max(0.0, -self.left / _SHARE))

    def after(self, seconds: float, *, now: float) -> Pace:
        """Return the pace after a look that took `seconds` of the processor and ended `now`."""
        left = min(_SAVINGS, self.left + (now - self.now) * _SHARE) - seconds
        # One long look does not slow all later ones for hours.
        return Pace(now, max(left, -_LONGEST * _SHARE))
