import pytest

from phases import Change, Context, Plannable, Undoable, execute, task


def test_function_becomes_a_task() -> None:
    """@task makes a task of a function; it can plan and undo only with functions for these."""
    journal: list[str] = []

    @task("plain")
    def plain(ctx: Context) -> None:
        ctx.check()
        journal.append("plain")

    full = task("full", plan=lambda _: [Change("+", "x")], undo=lambda _: None)(lambda _: None)
    execute(plain)
    assert journal == ["plain"]
    assert plain.name == "plain"
    assert not isinstance(plain, Plannable)
    assert not isinstance(plain, Undoable)
    assert isinstance(full, Plannable)
    assert isinstance(full, Undoable)
    assert repr(full) == "<task full>"


def test_task_decorator_needs_a_name() -> None:
    """`@task` without its parentheses, and one with an empty name, fail with the right form."""
    with pytest.raises(TypeError, match=r'^@task needs a name: write @task\("<lambda>"\)$'):
        task(lambda _: None)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match=r"^a task cannot be named '': give a text$"):
        task("")
