"""Random trees of groups and failing tasks: what is done, reported, planned and undone."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from support.tasks import FailingTask, RecordingTask

from phases import Group, Parallel, Report, Serial, Task, TaskFailedError, execute, plan, run, undo

#: A tree before it has names and a journal: None works, an exception's text fails, a tuple is a
#: group.
Shape = bool | tuple[bool, list["Shape"]]

shapes: st.SearchStrategy[Shape] = st.recursive(
    # Mostly tasks that work, or no tree would get far.
    st.sampled_from([True, True, True, False]),
    lambda inner: st.tuples(st.booleans(), st.lists(inner, max_size=4)),
    max_leaves=12,
)


def _build(shape: Shape, journal: list[str], numbers: Iterator[int]) -> Task:
    if isinstance(shape, bool):
        number = next(numbers)
        return (
            RecordingTask(f"t{number}", journal)
            if shape
            else FailingTask(f"t{number}", OSError(f"e{number}"))
        )
    parallel, inside = shape
    children = [_build(each, journal, numbers) for each in inside]
    return Parallel(*children) if parallel else Serial(*children)


def _tree(shape: Shape) -> tuple[Task, list[str]]:
    journal: list[str] = []
    return _build(shape, journal, iter(range(1000))), journal


def _names(tree: Task, kind: type[Task]) -> list[str]:
    return [each.name for each in Report(tree).walk() if isinstance(each.task, kind)]


@given(shapes)
def test_a_tree_works_or_names_its_failures(shape: Shape) -> None:
    """A tree without failing tasks does all; any other raises, with only true causes, each once."""
    tree, journal = _tree(shape)
    failure = _failure_of(tree)
    assert len(journal) == len(set(journal))
    if failure is None:
        assert _names(tree, FailingTask) == []
        assert sorted(journal) == sorted(f"do {name}" for name in _names(tree, RecordingTask))
        return
    causes = [str(cause) for cause in failure.failures]
    assert len(causes) == len(set(causes))
    assert {f"t{cause[1:]}" for cause in causes} <= set(_names(tree, FailingTask))
    assert failure.failures[0] is failure.__cause__
    # Every group is anonymous: the path is the task that failed.
    assert failure.path == f"t{causes[0][1:]}"


def _failure_of(tree: Task) -> TaskFailedError | None:
    try:
        execute(tree)
    except TaskFailedError as error:
        return error
    return None


@given(shapes)
def test_report_agrees_with_the_run(shape: Shape) -> None:
    """A task that is ok did its work, a failed one raised, and any other did nothing; groups agree
    with their tasks.
    """
    tree, journal = _tree(shape)
    report = run(tree)
    assert report.ok == (report.error is None)
    for each in report.walk():
        if isinstance(each.task, RecordingTask):
            assert (each.status == "ok") == (f"do {each.name}" in journal)
            assert each.status in {"ok", "cancelled", "not-reached"}
        elif isinstance(each.task, FailingTask):
            assert each.status in {"failed", "cancelled", "not-reached"}
        else:
            _check_group(each)


def _check_group(report: Report) -> None:
    inside = [child.status for child in report.children]
    if report.status == "ok":
        assert set(inside) <= {"ok"}
    if report.status == "failed":
        assert "failed" in inside
    if report.status == "not-reached":
        assert set(inside) <= {"not-reached"}
    if isinstance(report.task, Serial):
        # Some that went well, then perhaps one that did not, then those never reached.
        reached = [status for status in inside if status != "not-reached"]
        assert inside == reached + ["not-reached"] * (len(inside) - len(reached))
        assert set(reached[:-1]) <= {"ok"}


@given(shapes)
def test_undo_on_failure_undoes_all_completed_tasks(shape: Shape) -> None:
    """A failed run undoes exactly the completed tasks, in reverse order; a successful one undoes
    nothing.
    """
    tree, journal = _tree(shape)
    report = run(tree, undo_on_failure=True)
    done = [entry.removeprefix("do ") for entry in journal if entry.startswith("do ")]
    undone = [entry.removeprefix("undo ") for entry in journal if entry.startswith("undo ")]
    assert sorted(undone) == ([] if report.ok else sorted(done))
    assert {
        each.name
        for each in report.walk()
        if each.status == "undone" and not isinstance(each.task, Group)
    } == set(undone)
    if isinstance(tree, Serial) and not any(
        isinstance(each.task, Parallel) for each in report.walk()
    ):
        assert undone == ([] if report.ok else done[::-1])


@given(shapes)
def test_plan_and_undo_see_the_same_tasks(shape: Shape) -> None:
    """The plan names every task once, in order; undo takes the opposite order."""
    tree, journal = _tree(shape)
    planned = plan(tree)
    able = _names(tree, RecordingTask)
    assert [change.subject for change in planned.changes] == able
    assert list(planned.unplannable) == _names(tree, FailingTask)
    assert str(planned).count(" has no plan") == len(planned.unplannable)
    journal.clear()
    undo(tree)
    assert journal == [f"undo {name}" for name in reversed(able)]
