"""Repairs are made at once, and for long they take no more than a small share of a core."""

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.watch.duty import Pace

#: A repair of a node with a hundred thousand routes takes less.
costs = st.floats(0, 0.14)


@given(st.lists(costs, max_size=400))
def test_for_long_repairs_take_three_percent(spent: list[float]) -> None:
    """Repairs that follow each other without end take 0.3 seconds, 3 % of the time, and one repair
    more at most.
    """
    now, pace = 50.0, Pace()
    for seconds in spent:
        now = max(now, pace.free) + seconds
        pace = pace.after(seconds, now=now)
    assert sum(spent) <= 0.3 + 0.03 * (now - 50.0) + 0.14


@given(st.lists(st.tuples(costs, st.floats(10, 100)), max_size=50))
def test_a_rare_repair_is_made_at_once(repairs: list[tuple[float, float]]) -> None:
    """A repair of a tenth of a second now and then never slows the next one."""
    now, pace = 0.0, Pace()
    for seconds, quiet in repairs:
        now += quiet
        assert pace.free <= now
        pace = pace.after(seconds, now=now)


@given(st.floats(1.5, 1000))
def test_one_long_repair_slows_only_the_next_one(seconds: float) -> None:
    """After a repair of any length one pause of 5 s is enough, which begins with its end."""
    pace = Pace().after(seconds, now=seconds)
    assert pace.free == seconds + 5.0
    assert pace.after(0.0, now=seconds + 5.001).free == seconds + 5.001


@given(st.lists(st.floats(0, 1), min_size=1))
def test_the_shortest_pause(spent: list[float]) -> None:
    """The siblings, whose looks run programs, leave the run lock to others for a second after each."""
    now, pace = 50.0, Pace(least=1.0)
    for seconds in spent:
        now += seconds
        pace = pace.after(seconds, now=now)
        assert pace.free >= now + 1
