"""A task made of a function."""

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
