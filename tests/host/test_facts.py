"""A fact is logged once, until it changes, and so is its end."""

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.base.facts import Facts

facts = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 2))


@given(st.lists(facts))
def test_the_log_has_the_facts(histories: list[dict[str, int | None]]) -> None:
    """Each line brings something that the lines before did not, and all lines make the last facts."""
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
    """However often they are found."""
    again = Facts[str, int | None]().after(present).after(dict(present))
    assert again.new == {}
    assert again.over == {}
    assert not again.has_changed


def test_the_order_is_that_of_the_facts() -> None:
    """The log has the first fact first, and ends come in the order of their beginnings."""
    logged = Facts[str, None]().after(dict.fromkeys("cab"))
    assert [*logged.new] == ["c", "a", "b"]
    assert [*logged.after({}).over] == ["c", "a", "b"]
