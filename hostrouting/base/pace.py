"""How soon something is done again: a pace, and what another program keeps changing."""

from __future__ import annotations

from math import inf

import attrs


@attrs.frozen
class Pace:
    """Savings of time, lines or changes that grow with time; a pause follows their end.

    What is done costs some of them. Once they are spent, the next act waits until its cost has
    grown again.

    >>> pace = Pace(savings=0.3, share=0.1, longest=5.0).after(0.2, now=100.0)
    >>> pace.free
    100.0
    >>> pace.after(0.3, now=100.0).free
    102.0
    """

    #: What may be spent at once.
    savings: float
    #: What the savings grow by in a second.
    share: float
    #: The shortest and the longest pause, in seconds.
    least: float = attrs.field(default=0.0, kw_only=True)
    longest: float = attrs.field(default=inf, kw_only=True)
    #: The end of the last act, on the clock of the caller.
    now: float = attrs.field(default=-inf, kw_only=True)
    #: The savings then.
    left: float = attrs.field(kw_only=True)

    @left.default
    def _all(self) -> float:
        return self.savings

    @property
    def pause(self) -> float:
        """The seconds between the last act and the next one."""
        return min(self.longest, max(self.least, -self.left / self.share))

    @property
    def free(self) -> float:
        """Return when the next act may begin."""
        return self.now + self.pause

    def after(self, cost: float, *, now: float) -> Pace:
        """Return the pace after an act of this cost that ended `now`."""
        left = min(self.savings, self.left + (now - self.now) * self.share) - cost
        # One costly act does not slow all later ones for hours.
        return attrs.evolve(self, now=now, left=max(left, -self.longest * self.share))


#: So many changes within an hour cost no pause.
MOST_CHANGES = 3
HOUR = 3600.0
LONGEST_PAUSE = 60.0


@attrs.frozen
class Contest:
    """The changes of one thing by another program within an hour, and the pace that they cause.

    The first three cost no pause. Each later one costs twice the pause of the one before.

    >>> contest = Contest()
    >>> for _ in range(5):
    ...     contest = contest.after(now=max(100.0, contest.free))
    >>> contest.free
    103.0
    """

    #: When it was changed, on the clock of the caller.
    times: tuple[float, ...] = ()
    pace: Pace = Pace(savings=0.0, share=1.0, longest=LONGEST_PAUSE)

    @property
    def free(self) -> float:
        """Return when the thing may be changed back."""
        return self.pace.free

    @property
    def is_lost(self) -> bool:
        """True if the last change costs a pause."""
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
