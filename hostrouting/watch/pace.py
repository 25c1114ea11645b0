"""How often `Watch` repairs: at once, and under load only as often as a small share of a core allows."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["Pace"]

#: Events that come together are repaired together: a flush deletes a thousand routes within this time.
_SHORTEST: Final = 0.003
#: The share of a core that repairs may take for long.
_SHARE: Final = 0.03
#: Seconds of repairs that may be made at once, before the share counts.
_SAVINGS: Final = 1.0
#: The longest pause: one repair of a node with a million routes takes seconds.
_LONGEST: Final = 5.0


@attrs.frozen
class Pace:
    """The seconds that repairs have left: they are spent by each repair, and come back with time.

    >>> pace = Pace(now=100.0)
    >>> pace.pause
    0.003
    >>> pace.after(1.5, now=100.0).pause
    5.0
    >>> pace.after(1.5, now=100.0).after(0.0, now=200.0).pause
    0.003
    """

    #: The time of the last repair, on the monotonic clock.
    now: float
    left: float = _SAVINGS

    @property
    def pause(self) -> float:
        """Return how long to collect events before the next repair."""
        return min(_LONGEST, max(_SHORTEST, -self.left / _SHARE))

    @property
    def is_slowed(self) -> bool:
        """Return True if repairs wait because there were too many of them."""
        return self.pause > _SHORTEST

    def after(self, seconds: float, *, now: float) -> Pace:
        """Return the pace after a repair that took `seconds` and ended `now`."""
        left = min(_SAVINGS, self.left + (now - self.now) * _SHARE) - seconds
        # A repair that waited ten minutes in vain for the run lock would slow all others for hours.
        return Pace(now, max(left, -_LONGEST * _SHARE))
