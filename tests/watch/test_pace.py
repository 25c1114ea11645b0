"""The pace of what a watch does, and of what a watch does again because of another program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.base.pace import Contest, Pace
from hostrouting.watch.duty import PACE, REPAIR_PACE

#: A repair of a node with a hundred thousand routes takes less.
costs = st.floats(0, 0.14)


@given(st.lists(costs, max_size=400))
def test_for_long_repairs_take_three_percent(spent: list[float]) -> None:
    """Repairs that follow each other without end take 0.3 seconds, 3 % of the time, and one repair
    more at most.
    """
    now = 50.0
    pace = PACE
    for seconds in spent:
        now = max(now, pace.free) + seconds
        pace = pace.after(seconds, now=now)
    assert sum(spent) <= 0.3 + 0.03 * (now - 50.0) + 0.14


@given(st.lists(st.tuples(costs, st.floats(10, 100)), max_size=50))
def test_a_rare_repair_is_made_at_once(repairs: list[tuple[float, float]]) -> None:
    """A repair of a tenth of a second now and then never slows the next one."""
    now = 0.0
    pace = PACE
    for seconds, quiet in repairs:
        now += quiet
        assert pace.free <= now
        pace = pace.after(seconds, now=now)


@pytest.mark.parametrize(("pace", "longest"), [(REPAIR_PACE, 2.0), (PACE, 5.0)])
@given(st.floats(1.5, 1000))
def test_one_long_run_slows_only_the_next_one(pace: Pace, longest: float, seconds: float) -> None:
    """A repair of any length is followed by one pause of 2 s, and a check by one of 5 s, which
    begins with its end.
    """
    pace = pace.after(seconds, now=seconds)
    assert pace.free == seconds + longest
    later = seconds + longest + 0.001
    assert pace.after(0.0, now=later).free == later


@given(st.lists(st.floats(0, 1), min_size=1))
def test_the_shortest_pause(spent: list[float]) -> None:
    """An optional capability leaves the run lock to others for a second or more after each look."""
    now = 50.0
    pace = Pace(savings=0.3, share=0.03, least=1.0, longest=5.0)
    for seconds in spent:
        now += seconds
        pace = pace.after(seconds, now=now)
        assert pace.free >= now + 1


@given(
    savings=st.integers(0, 100),
    share=st.sampled_from([0.25, 1.0, 4.0]),
    acts=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 64)), max_size=60),
)
def test_what_is_done_when_it_may_be(
    savings: int, share: float, acts: list[tuple[int, int]]
) -> None:
    """Acts that each wait for their time cost at most the savings, what has grown in the period,
    and the last act.
    """
    now = 0.0
    pace = Pace(savings=savings, share=share)
    done: list[tuple[float, int]] = []
    for cost, quiet in acts:
        now = max(now + quiet, pace.free)
        pace = pace.after(cost, now=now)
        done.append((now, cost))
    for first, (since, _) in enumerate(done):
        assert sum(cost for _, cost in done[first:-1]) <= savings + share * (now - since)


# --- contests


@given(st.lists(st.floats(0, 7200), max_size=60))
def test_a_pause_begins_with_the_fourth_change_within_an_hour(waits: list[float]) -> None:
    """The fourth change within an hour, and each further one, costs a pause of 1 s to 60 s; any
    other change costs none.
    """
    now = 1e6
    contest = Contest()
    changes: list[float] = []
    for wait in waits:
        now = max(now + wait, contest.free)
        changes.append(now)
        contest = contest.after(now=now)
        count = sum(now - change < 3600 for change in changes)
        assert contest.count(now) == count
        assert contest.is_lost == (count >= 4)
        pause = contest.free - now
        assert 1 <= pause <= 60 if count >= 4 else pause <= 0
        # None counts for ever, nor for longer than an hour, up to the rounding of a float.
        assert contest.count(now + 86400) == 0
        assert contest.count(now + 3600.001) == 0


def test_each_pause_is_twice_the_one_before() -> None:
    """The pause after a change that comes back at once is twice the one before, up to 60 s."""
    contest = Contest()
    pauses = []
    for _ in range(14):
        now = max(100.0, contest.free)
        contest = contest.after(now=now)
        pauses.append(max(0.0, contest.free - now))
    assert pauses == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
