"""Transaction: changes are kept until a commit, and a rollback reverses those that were not
committed.
"""

import pytest
from support.patience import at_once
from support.tasks import FailingTask, RecordingTask

from phases import Change, Context, DeadlineExceededError, Serial, Transaction, execute, run, task

FIRST, SECOND, THIRD = (Change("+", f"/etc/{name}") for name in ("first", "second", "third"))


@pytest.mark.parametrize("commits", [True, False])
def test_a_run_undoes_what_was_committed(*, commits: bool) -> None:
    """A failed run undoes the committed changes of a transaction, each once and the last first;
    uncommitted ones stay.
    """
    undone: list[str] = []

    @task("both", records=True)
    def both(ctx: Context) -> None:
        transaction = Transaction(ctx)
        for change in FIRST, SECOND:
            transaction.ctx.record(change, undo=RecordingTask(change.subject, undone).undo)
            if commits:
                transaction.commit()

    later = FailingTask("later", OSError("a later task"))
    report = run(Serial(both, later, name="all"), undo_on_failure=True)
    assert undone == (["undo /etc/second", "undo /etc/first"] if commits else [])
    assert report.changes == (() if commits else (FIRST, SECOND))


def test_a_rollback_reverses_what_was_not_committed() -> None:
    """A rollback reverses the uncommitted changes, the newest first; committed changes stay, also
    in the report.
    """
    undone: list[str] = []

    @task("all")
    def all_three(ctx: Context) -> None:
        transaction = Transaction(ctx)

        def change(made: Change) -> None:
            transaction.ctx.record(made, undo=lambda _: undone.append(made.subject))

        change(FIRST)
        transaction.commit()
        change(SECOND)
        execute(task("inside", records=True)(lambda _: change(THIRD)), transaction.ctx)
        assert transaction.changes == (SECOND, THIRD)
        assert [record.changes for record, _ in transaction.rollback(timeout=15)] == [
            [THIRD],
            [SECOND],
        ]
        assert not transaction.changes

    assert run(all_three).changes == (FIRST,)
    assert undone == ["/etc/third", "/etc/second"]


def test_what_a_rollback_does_not_reverse() -> None:
    """A rollback yields the error of a failed inverse, and False for a change without one; both
    changes stay in the report.
    """
    error = OSError("busy")

    @task("three")
    def three(ctx: Context) -> None:
        transaction = Transaction(ctx)
        transaction.ctx.record(FIRST, undo=lambda _: None)
        transaction.ctx.record(SECOND)
        transaction.ctx.record(THIRD, undo=FailingTask("third", error).do)
        assert [result for _, result in transaction.rollback(timeout=15)] == [error, False, None]

    assert run(three).changes == (SECOND, THIRD)


def test_an_inverse_that_hangs_leaves_time_for_the_others() -> None:
    """A rollback has a time of its own, of which each inverse gets half of the rest, even if the
    context of the work is over.
    """
    ctx = at_once(0)
    transaction = Transaction(ctx)
    left: list[float | None] = []
    transaction.ctx.record(FIRST, undo=lambda own: left.append(own.remaining()))
    transaction.ctx.record(SECOND, undo=lambda own: own.sleep(60))
    results = [str(result) for _, result in transaction.rollback(timeout=16)]
    assert results == [str(DeadlineExceededError(8)), "None"]
    assert left == [4]


def test_an_inverse_records_nothing() -> None:
    """A change that an inverse records during a rollback is in no report, and is not rolled
    back.
    """

    @task("one")
    def one(ctx: Context) -> None:
        transaction = Transaction(ctx)
        transaction.ctx.record(FIRST, undo=lambda own: own.record(SECOND))
        assert len(list(transaction.rollback(timeout=15))) == 1

    assert run(one).changes == ()
