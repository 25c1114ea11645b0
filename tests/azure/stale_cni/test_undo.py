"""CleanStaleCNI on a fake machine: undo, from the records of earlier runs."""

import logging

import pytest
from support.memory_links import add_neighbour, remove_device
from support.printed import TAKEN
from support.stale_cni_sweeps import (
    DEAD,
    DEAD_MAC,
    FOLDER,
    LINES,
    RECORD,
    STALE,
    done_by,
    made_host,
    refused,
    sweep,
    sweep_now,
    undo_now,
)
from support.stale_cni_worlds import NODE_RULES, config_of, context, dnat, whole_state

from hostrouting import HostRoutingConfig
from hostrouting.azure.stale_cni.azure_vnet import STATE_PATH
from phases import Change, Context, Serial, run, task

#: The stale objects in the order in which undo restores them.
RESTORED = [*STALE[6:], *STALE[4:6], *STALE[:4]]


def test_undo_restores_everything_in_place_and_order() -> None:
    """Undo restores rules, neighbours, routes and files as before the sweep, with any config, even
    if azure-vnet's state cannot be parsed: undo does not look for live pods.
    """
    host = made_host()
    before = whole_state(host)
    sweep_now(host)
    assert [change.subject for change in sweep(host).plan_undo(context())] == STALE
    host.files.tree.write(STATE_PATH, b"{", mode=0o600)
    undo_now(host, HostRoutingConfig())
    host.files.tree.remove(STATE_PATH)
    assert whole_state(host) == before
    assert sweep(host).plan_undo(context()) == []
    undo_now(host)
    assert whole_state(host) == before


def test_undo_of_several_sweeps_restores_all_of_them() -> None:
    """Undo restores the objects of all sweeps, the newest first, so that each finds its chain as it
    left it.
    """
    host = made_host()
    before = whole_state(host)
    sweep_now(host, config_of(pod_cidrs=("10.240.0.0/16",)))
    between = whole_state(host)
    sweep_now(host)
    assert len(host.files.tree.names(FOLDER)) == 2
    assert whole_state(host) != between
    undo_now(host)
    assert whole_state(host) == before


def test_an_object_in_two_records_is_restored_once() -> None:
    """An object that came back between two sweeps, and so is in both records, is restored once."""
    host = made_host()
    sweep_now(host)
    host.ebtables.add(dnat(DEAD, DEAD_MAC))
    sweep_now(host)
    planned = [change.subject for change in sweep(host).plan_undo(context())]
    assert sorted(planned) == sorted(STALE)
    undo_now(host)
    assert host.ebtables.lines().count(dnat(DEAD, DEAD_MAC)) == 1


def test_undo_leaves_places_that_were_taken() -> None:
    """Undo leaves the neighbour of a pod that has the address now, and does not restore routes of a
    device that is gone; the error names the objects that are not restored and the next step.
    """
    host = made_host()
    sweep_now(host)
    add_neighbour(host.link_layer, DEAD, "azure0", "02:00:00:00:00:01")
    remove_device(host.link_layer, "azv1")
    assert refused(lambda: undo_now(host)) == (
        "not all that was swept is restored:\n"
        f"  {DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT is not restored: {TAKEN}'{DEAD} dev azure0 lladdr 02:00:00:00:00:01 PERMANENT'\n"
        "  10.240.0.11 dev azv1 scope link is not restored: the device azv1 is gone\n"
        "  fd00:10:240::11 dev azv1 metric 1024 is not restored: the device azv1 is gone\n"
        f"  the record {RECORD} stays, since 3 of its objects cannot be restored; "
        "'hostrouting reset' tries again, or delete it: a restart needs none of them"
    )
    assert sorted(host.ebtables.lines()) == sorted([*NODE_RULES, *LINES])
    assert host.files.tree.exists(RECORD)


def test_the_inverse_of_a_sweep_leaves_places_that_were_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run that is undone logs each swept object that cannot be restored, and keeps the swept ones
    in its report.
    """
    host = made_host()

    @task("fail")
    def fail(_: Context) -> None:
        remove_device(host.link_layer, "azv1")
        raise OSError("a later task")

    report = run(Serial(sweep(host), fail), context(), undo_on_failure=True)
    assert str(report.error) == "fail: a later task"
    assert sorted(change.subject for change in report.changes) == sorted(STALE)
    assert [line for line in caplog.messages if "restored" in line] == [
        "10.240.0.11 dev azv1 scope link is not restored: the device azv1 is gone",
        "fd00:10:240::11 dev azv1 metric 1024 is not restored: the device azv1 is gone",
        (
            f"the record {RECORD} stays, since 2 of its objects cannot be restored; "
            "'hostrouting reset' tries again, or delete it: a restart needs none of them"
        ),
    ]


def test_an_object_that_could_not_be_restored_is_when_its_place_is_free() -> None:
    """A second undo restores the object whose place is free now, leaves the others alone, and
    removes the record.
    """
    host = made_host()
    before = whole_state(host)
    sweep_now(host)
    add_neighbour(host.link_layer, DEAD, "azure0", "02:00:00:00:00:01")
    # A task that fails has its changes in the report, too.
    changes = done_by(sweep(host).undo)
    assert changes == [
        Change("+", text, "restored") for text in RESTORED if not text.startswith(f"{DEAD} ")
    ]
    (usurper,) = [each for each in host.link_layer.neighbours() if each.mac == "02:00:00:00:00:01"]
    host.link_layer.change_neighbours("remove", [usurper])
    assert done_by(sweep(host).undo) == [
        Change("+", f"{DEAD} dev azure0 lladdr {DEAD_MAC} PERMANENT", "restored")
    ]
    assert whole_state(host) == before


def test_a_file_that_is_not_a_record_does_not_stop_undo(caplog: pytest.LogCaptureFixture) -> None:
    """Undo restores all valid records beside a damaged one; the error names the damaged file until
    it is deleted.
    """
    host = made_host()
    before = whole_state(host)
    sweep_now(host)
    bad = f"{FOLDER}/sweep-x-5.json"
    host.files.tree.write(bad, b"{", mode=0o600)
    assert [change.subject for change in sweep(host).plan_undo(context())] == STALE
    assert caplog.messages[-1].startswith(f"{bad} is damaged: ")
    for _ in range(2):
        text = refused(lambda: undo_now(host))
        assert text.startswith(f"not all that was swept is restored:\n  {bad} is damaged: ")
        assert text.endswith("then delete it")
        assert host.files.tree.names(FOLDER) == ["sweep-x-5.json"]
    host.files.tree.remove(bad)
    undo_now(host)
    assert whole_state(host) == before


def test_messages_name_the_command_that_finds_the_record() -> None:
    """The error of an undo with another folder of records advises a reset with this config."""
    host = made_host()
    config = config_of(backup_dir="/srv/records")
    sweep_now(host, config)
    remove_device(host.link_layer, "azv1")
    text = refused(lambda: undo_now(host, config))
    assert "; a reset with this config tries again, or delete it: " in text


def test_objects_swept_before_a_reboot_are_not_restored(caplog: pytest.LogCaptureFixture) -> None:
    """Undo after a reboot, which removed the objects, plans and logs the removal of the record
    only.
    """
    caplog.set_level(logging.INFO)
    host = made_host()
    sweep_now(host)
    host.files.tree.write("/proc/sys/kernel/random/boot_id", b"boot-2\n", mode=0o444)
    after = whole_state(host)
    task = sweep(host)
    expected = Change("-", RECORD, "of 2026-01-01T00:00:01Z, before this machine was restarted")
    assert task.plan_undo(context()) == [expected]
    assert done_by(task.undo) == [expected]
    # All but the files, which had the record.
    assert whole_state(host)[:-1] == after[:-1]
    assert not host.files.tree.exists("/var/lib/hostrouting")
    # The last one is the end of the task.
    assert caplog.messages[-3:-1] == [
        f"no sweep since this machine was started is recorded in {FOLDER}",
        (
            f"{RECORD} is of 2026-01-01T00:00:01Z, before this machine was restarted: nothing in it can be "
            f"restored, so it is removed"
        ),
    ]


def test_undo_without_a_sweep_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Undo on a node that was never swept reads nothing, and the message names the folder of the
    records.
    """
    caplog.set_level(logging.INFO)
    host = made_host()
    undo_now(host)
    assert caplog.messages == [f"no sweep since this machine was started is recorded in {FOLDER}"]
    assert host.ebtables.operations.calls == []
    assert host.link_layer.operations.calls == []
