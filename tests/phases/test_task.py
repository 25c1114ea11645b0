import pytest
from support.tasks import RecordingTask

from phases import (
    Change,
    Context,
    Group,
    Parallel,
    Plannable,
    Serial,
    Task,
    Undoable,
    execute,
    task,
)


def test_any_object_with_name_and_do_is_a_task() -> None:
    """Nothing has to be inherited."""

    class Mine:
        name = "mine"

        def do(self, ctx: Context) -> None:
            """Do nothing."""

    assert isinstance(Mine(), Task)
    assert not isinstance(Mine(), Plannable)
    assert not isinstance(Mine(), Undoable)
    assert not isinstance(object(), Task)


def test_change_is_a_value() -> None:
    """Changes are compared by their fields, and are immutable."""
    change = Change("~", "/etc/x", detail="2 lines")
    assert change == Change("~", "/etc/x", "2 lines")
    assert change.to_mapping() == {
        "action": "~",
        "subject": "/etc/x",
        "detail": "2 lines",
        "kind": "",
    }
    with pytest.raises(AttributeError):
        change.subject = "/etc/y"  # type: ignore[misc]  # that is the point


def test_change_refuses_an_unknown_action() -> None:
    """Only + - and ~ are actions."""
    with pytest.raises(
        ValueError, match=r"^the action of a change must be '\+', '-' or '~' \(got 'add'\)$"
    ):
        Change("add", "/etc/x")  # type: ignore[arg-type]  # that is the point


def test_function_becomes_a_task() -> None:
    """@task makes a task of a function; it can plan and undo only if told how."""
    journal: list[str] = []

    @task("plain")
    def plain(ctx: Context) -> None:
        ctx.check()
        journal.append("plain")

    full = task("full", plan=lambda _: [Change("+", "x")], undo=lambda _: None)(lambda _: None)
    execute(plain)
    assert journal == ["plain"]
    assert (plain.name, isinstance(plain, Plannable), isinstance(plain, Undoable)) == (
        "plain",
        False,
        False,
    )
    assert isinstance(full, Plannable)
    assert isinstance(full, Undoable)
    assert repr(full) == "<task full>"


def test_task_decorator_needs_a_name() -> None:
    """`@task` without its parentheses, and one with an empty name, say how to write it."""
    with pytest.raises(
        TypeError, match=r'^a task needs a name, not <function .*>: write @task\("name"\)$'
    ):
        task(lambda _: None)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(
        TypeError, match=r"""^a task needs a name, not '': write @task\("name"\)$"""
    ):
        task("")


def test_groups_are_named_after_their_tasks() -> None:
    """Groups are named as upstream names them, unless they get a name."""
    a, b = RecordingTask("a", []), RecordingTask("b", [])
    assert Serial(a, Parallel(a, b)).name == "serial(a, parallel(a, b))"
    assert Serial(a, b, name="bootstrap").name == "bootstrap"
    assert isinstance(Serial(), Group)
    assert isinstance(Serial(), Plannable)
    assert isinstance(Serial(), Undoable)
