"""Facts in the log: each has one line until it changes, and one at its end."""

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.base.facts import Facts

facts = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 2))


@given(st.lists(facts))
def test_the_log_has_the_facts(histories: list[dict[str, int | None]]) -> None:
    """The logged changes of facts add up to the last facts, and each is new to the log."""
    read: dict[str, int | None] = {}
    logged: Facts[str, int | None] = Facts()
    for present in histories:
        logged = logged.after(present)
        for subject in logged.over:
            del read[subject]
        for subject, value in logged.new.items():
            assert subject not in read or read[subject] != value
            read[subject] = value
        assert read == present == logged.known
        assert logged.has_changed == bool(logged.new or logged.over)


@given(facts)
def test_the_same_facts_bring_no_line(present: dict[str, int | None]) -> None:
    """Facts that are found again unchanged add no line to the log."""
    again = Facts[str, int | None]().after(present).after(dict(present))
    assert again.new == {}
    assert again.over == {}
    assert not again.has_changed


def test_the_order_is_that_of_the_facts() -> None:
    """New facts are logged in their order, and ended facts in the order in which they began."""
    logged = Facts[str, None]().after(dict.fromkeys("cab"))
    assert [*logged.new] == ["c", "a", "b"]
    assert [*logged.after({}).over] == ["c", "a", "b"]
