"""Rate limits for repeated work: by its cost, or because another program undoes it."""

from __future__ import annotations

from math import inf

import attrs


@attrs.frozen
class Pace:
    """A budget of time, lines or changes that refills over time, like a token bucket.

    Each action costs some of it. Once it is overdrawn, the next action waits until it has refilled.

    >>> pace = Pace(savings=0.3, share=0.1, longest=5.0).after(0.2, now=100.0)
    >>> pace.free
    100.0
    >>> pace.after(0.3, now=100.0).free
    102.0
    """

    #: The size of the budget.
    savings: float
    #: How much of it is refilled each second.
    share: float
    #: The shortest and the longest pause, in seconds.
    least: float = attrs.field(default=0.0, kw_only=True)
    longest: float = attrs.field(default=inf, kw_only=True)
    #: When the last action ended, on the caller's clock.
    now: float = attrs.field(default=-inf, kw_only=True)
    #: What was left of the budget then.
    left: float = attrs.field(kw_only=True)

    @left.default
    def _all(self) -> float:
        return self.savings

    @property
    def pause(self) -> float:
        """The seconds between the last action and the next one."""
        return min(self.longest, max(self.least, -self.left / self.share))

    @property
    def free(self) -> float:
        """When the next action may begin."""
        return self.now + self.pause

    def after(self, cost: float, *, now: float) -> Pace:
        """Return the pace after an action of this cost that ended `now`."""
        left = min(self.savings, self.left + (now - self.now) * self.share) - cost
        # One costly action must not slow down all later ones for hours.
        return attrs.evolve(self, now=now, left=max(left, -self.longest * self.share))


#: This many changes within an hour cause no pause.
MOST_CHANGES = 3
HOUR = 3600.0
LONGEST_PAUSE = 60.0


@attrs.frozen
class Contest:
    """How often another program changed something within an hour, and the pauses that follow.

    The first three changes cause no pause. Each later one doubles it.

    >>> contest = Contest()
    >>> for _ in range(5):
    ...     contest = contest.after(now=max(100.0, contest.free))
    >>> contest.free
    103.0
    """

    #: When it was changed, on the caller's clock.
    times: tuple[float, ...] = ()
    pace: Pace = Pace(savings=0.0, share=1.0, longest=LONGEST_PAUSE)

    @property
    def free(self) -> float:
        """When it may be changed back."""
        return self.pace.free

    @property
    def is_lost(self) -> bool:
        """True if the last change caused a pause."""
        return len(self.times) > MOST_CHANGES

    def count(self, now: float) -> int:
        """Return the number of changes within the hour before `now`."""
        return len(self._within(now))

    def after(self, *, now: float) -> Contest:
        """Return the contest after another change `now`."""
        times = (*self._within(now), now)
        more = len(times) - MOST_CHANGES
        pace = self.pace.after(2.0 ** (more - 1), now=now) if more > 0 else self.pace
        return Contest(times, pace)

    def _within(self, now: float) -> tuple[float, ...]:
        return tuple(time for time in self.times if now - time < HOUR)
