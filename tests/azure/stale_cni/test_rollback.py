"""CleanStaleCNI on a fake machine: the record, failures midway, and the changes that a run records."""

import json

import pytest
from support.memory_links import remove_device
from support.stale_cni_sweeps import (
    DEAD,
    DEAD_MAC,
    RECORD,
    STALE,
    done_by,
    made_host,
    planned,
    refusal,
    sweep,
    sweep_now,
    there,
    undo_now,
)
from support.stale_cni_worlds import context, dnat, whole_state

from hostrouting.exceptions import RouteRejectedError, StaleCNIError
from hostrouting.testing import FakeHost
from phases import CancelledError, Change, Context, DeadlineExceededError, Serial, run, task

# --- the record


def test_everything_is_written_down_before_it_goes() -> None:
    """The record has all objects of the sweep and the text of ebtables, and exists before the first
    deletion.
    """
    host = made_host()
    on_disk: list[bool] = []
    texts = dict(host.ebtables.read(context()).texts)
    host.ebtables.operations.plan(3, lambda: on_disk.append(host.files.tree.exists(RECORD)))
    sweep_now(host)
    record = json.loads(host.files.tree.read(RECORD) or b"")
    assert [next(iter(entry.values())) for entry in record["objects"]] == STALE
    assert record["boot_id"] == "boot-1"
    assert record["ebtables-save"] == texts
    assert on_disk == [True]


# --- failures midway


def failing_routes(host: FakeHost) -> None:
    host.routes.refuse_at(1)


def test_a_failure_has_the_error_of_the_kernel() -> None:
    """A sweep that the kernel stops raises an error with the kernel's message and cause."""
    host = made_host()
    failing_routes(host)
    with pytest.raises(StaleCNIError) as caught:
        sweep_now(host)
    assert isinstance(caught.value.__cause__, RouteRejectedError)
    assert "- 10.240.0.11 dev azv1 scope link: injected fault" in str(caught.value)


def test_an_object_that_cannot_be_restored_is_named_and_the_record_stays() -> None:
    """A rollback that fails names each object that is missing and the record, from which `undo`
    restores them.
    """
    host = made_host()
    before = whole_state(host)
    failing_routes(host)
    # Readings, then the deletion, then the reading and the insertion of the rollback.
    host.ebtables.fail_at(5)
    text = refusal(host)
    head, _, tail = text.partition("\nTHE ROLLBACK IS INCOMPLETE, this is not as before:\n")
    assert "injected fault" in head
    assert tail == (
        "  cannot run ebtables: Cannot allocate memory\n"
        + "".join(f"  {line}\n" for line in STALE[:4])
        + f"all of it is recorded in {RECORD}; 'hostrouting reset' restores it"
    )
    undo_now(host)
    assert whole_state(host) == before


def test_a_rollback_that_cannot_be_read_back_is_reported() -> None:
    """A rollback that cannot read the node is reported as unknown, and the record stays."""
    host = made_host()
    failing_routes(host)
    host.ebtables.fail_at(4)
    text = refusal(host)
    assert "\n  the present state cannot be read: cannot run ebtables" in text
    assert host.files.tree.exists(RECORD)


@pytest.mark.parametrize("error", [CancelledError("SIGTERM"), DeadlineExceededError(1.0)])
def test_a_run_cancelled_midway_restores_everything(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep that is cancelled midway restores all objects, and logs that they are back."""
    host = made_host()
    before = whole_state(host)
    calls = len(host.link_layer.operations.calls)
    planned(host)
    # A plan looks for the bridge once more.
    reading = len(host.link_layer.operations.calls) - calls
    host.link_layer.fail_at(2 * reading + 1, error)
    task = sweep(host)
    with pytest.raises(type(error)):
        task.do(context())
    assert whole_state(host) == before
    assert (
        caplog.messages[-1]
        == f"the sweep was stopped ({error}); all the objects that it had removed are back"
    )


class Killed(BaseException):
    """An end as by `kill -9`, which none of our handlers catches."""


def test_a_run_that_is_killed_midway_can_be_undone() -> None:
    """A sweep that is killed midway is undone from its record."""
    host = made_host()
    before = whole_state(host)
    host.link_layer.steps.fail(1, Killed())
    with pytest.raises(Killed):
        sweep_now(host)
    assert len(there(host)) == 4
    undo_now(host)
    assert whole_state(host) == before


# --- recorded changes


def test_a_sweep_records_its_changes() -> None:
    """A sweep reports each removed object with its reason, and none of an earlier sweep; undo
    reports its own changes.
    """
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    assert done_by(task.do) == planned
    assert done_by(task.do) == []
    restored = done_by(task.undo)
    assert sorted(restored) == sorted(Change("+", subject, "restored") for subject in STALE)
    assert done_by(task.undo) == []


def test_a_sweep_that_fails_after_the_removal_has_changed_the_node() -> None:
    """A sweep that fails after its removal, as another program adds a rule again, reports all that
    it removed.
    """
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    host.ebtables.operations.plan(4, lambda: host.ebtables.add(dnat(DEAD, DEAD_MAC)))
    # A task that fails has its changes in the report, too.
    assert done_by(task.do) == planned


def test_of_a_rollback_only_the_remaining_changes_are_recorded() -> None:
    """A sweep with a complete rollback reports no change; one whose rollback restores no rules
    reports their removal.
    """
    host = made_host()
    task = sweep(host)
    planned = task.plan(context())
    failing_routes(host)
    assert done_by(task.do) == []
    failing_routes(host)
    host.ebtables.fail_at(5)
    assert done_by(task.do) == planned[:4]


def test_an_undo_that_fails_records_the_objects_that_it_restored() -> None:
    """An undo that is refused at one object reports those that it restored."""
    host = made_host()
    sweep_now(host)
    host.link_layer.refuse_at(1)
    assert done_by(sweep(host).undo) == [
        Change("+", text, "restored") for text in (*STALE[6:], STALE[5])
    ]


def failing(_: Context) -> None:
    raise OSError("a later task")


def test_a_failed_run_restores_its_own_sweep_and_no_earlier_one() -> None:
    """A failed run restores the objects of its own sweep, and none of an earlier one."""
    host = made_host()
    before = whole_state(host)
    pipeline = Serial(sweep(host), task("later")(failing), name="all")
    assert run(pipeline, context(), undo_on_failure=True).changes == ()
    assert whole_state(host) == before
    sweep_now(host)
    after = whole_state(host)
    run(pipeline, context(), undo_on_failure=True)
    assert whole_state(host) == after


def test_a_sweep_that_another_run_has_restored_is_not_restored_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An undo of a sweep whose record another run has used leaves the node as it is, and logs
    that.
    """
    host = made_host()
    states: list[tuple[object, ...]] = []

    def another_run(ctx: Context) -> None:
        sweep(host).undo(ctx)
        remove_device(host.link_layer, "azv1")
        states.append(whole_state(host))
        raise OSError("a later task")

    run(
        Serial(sweep(host), task("later")(another_run), name="all"), context(), undo_on_failure=True
    )
    assert whole_state(host) == states[0]
    assert f"another run has restored the objects of {RECORD}" in caplog.messages


@pytest.mark.parametrize("already", [False, True])
def test_an_interrupt_while_rules_go(*, already: bool) -> None:
    """An undone run has every object back, whether Ctrl-C came before or after ebtables had
    deleted.
    """
    host = made_host()
    before = whole_state(host)
    delete = host.ebtables.delete

    def interrupted(ctx: Context, rules: object, **options: object) -> None:
        if already:
            delete(ctx, rules, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    host.ebtables.delete = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(sweep(host), context(), undo_on_failure=True)
    # All but the files, which have the record.
    assert whole_state(host)[:-1] == before[:-1]
    undo_now(host)
    assert whole_state(host) == before
