"""Files that a run has changed are recorded, for their undo."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.printed import LEFT_BY_THE_RUN

from hostrouting.boot.recorded import RecordedFiles, dated, undated
from hostrouting.exceptions import HostFileError, UnfinishedUndoError
from hostrouting.testing import FakeHost
from phases import Context, Transaction
from phases.testing import ManualClock

UNIT = "/etc/systemd/system/static-routes.service"
SCRIPT = "/etc/aks-flex-node/static-routes.sh"


def test_the_undo_begins_with_the_newest_change(host: FakeHost, ctx: Context) -> None:
    """An undo that a read-only disk stops midway has removed the unit before the script that the
    unit runs.
    """
    recorded = RecordedFiles(Transaction(ctx).ctx, host)
    recorded.write(SCRIPT, b"#!/bin/bash\n", mode=0o755)
    recorded.write(UNIT, b"[Unit]\n", mode=0o644)

    host.files.tree.read_only.add("/etc/aks-flex-node")
    with pytest.raises(UnfinishedUndoError) as caught:
        recorded.undo(ctx)
    assert str(caught.value) == (
        f"{LEFT_BY_THE_RUN}{SCRIPT}; cannot remove {SCRIPT}: "
        'Read-only file system; run: mount -o remount,rw "$(findmnt -n -o TARGET -T /etc/aks-flex-node)"'
    )
    left = host.files.tree.snapshot()
    assert SCRIPT in left
    assert UNIT not in left


def test_a_change_that_cannot_be_read_back_is_undone(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo removes a file that the disk took, and then could neither sync nor read."""
    transaction = Transaction(ctx)
    write = host.files.write

    def fail_to_sync(path: str, content: bytes, *, mode: int) -> bool:
        write(path, content, mode=mode)
        host.files.fail_at(1, HostFileError(f"cannot read {path}: Input/output error"))
        raise HostFileError(f"cannot write {path}: Input/output error")

    monkeypatch.setattr(host.files, "write", fail_to_sync)
    with pytest.raises(HostFileError, match=f"cannot write {SCRIPT}: Input/output error"):
        RecordedFiles(transaction.ctx, host).write(SCRIPT, b"#!/bin/bash\n", mode=0o755)
    assert SCRIPT in host.files.tree.snapshot()
    [(record, result)] = transaction.rollback(timeout=15)
    assert [*map(str, record.changes)] == [f"+ {SCRIPT}"]
    assert result is True
    assert SCRIPT not in host.files.tree.snapshot()


def test_an_undo_that_fails_after_the_last_file_reports_that_they_are_back(
    host: FakeHost, ctx: Context
) -> None:
    """An undo that fails only at an empty folder reports that the files are back."""
    recorded = RecordedFiles(Transaction(ctx).ctx, host)
    recorded.write(SCRIPT, b"#!/bin/bash\n", mode=0o755)
    host.files.operations.calls.clear()
    host.files.fail_at(5, HostFileError("cannot remove /etc/aks-flex-node: Input/output error"))
    with pytest.raises(UnfinishedUndoError) as caught:
        recorded.undo(ctx)
    assert host.files.operations.calls[4] == ("remove_directory_if_empty", "/etc/aks-flex-node")
    assert str(caught.value) == (
        "the files are back; cannot remove /etc/aks-flex-node: Input/output error"
    )


MARKER = "/run/aks-flex-node/route-overlap.ok"


def test_a_new_time_alone_is_written_and_not_recorded(host: FakeHost) -> None:
    """A dated file whose time alone changes is written with the new time, and the change is not
    recorded.
    """
    transaction = Transaction(Context(clock=(clock := ManualClock())))
    ctx = transaction.ctx
    RecordedFiles(ctx, host).write_dated(MARKER, b"fine\n", mode=0o644)
    assert host.files.read(MARKER) == b"fine\nproven 2026-01-01T00:00:00Z\n"
    clock.advance(90)
    assert RecordedFiles(ctx, host).write_dated(MARKER, b"fine\n", mode=0o644) is False
    assert host.files.read(MARKER) == b"fine\nproven 2026-01-01T00:01:30Z\n"
    assert [*map(str, transaction.changes)] == [f"+ {MARKER}"]
    RecordedFiles(ctx, host).write_dated(MARKER, b"better\n", mode=0o644)
    assert [*map(str, transaction.changes)] == [f"+ {MARKER}", f"~ {MARKER}"]


def test_a_marker_of_an_earlier_release_gets_a_time(host: FakeHost) -> None:
    """A marker without a time, as an earlier release wrote it, receives one, and the change is not
    recorded.
    """
    host.files.write(MARKER, b"fine\n", mode=0o644)
    transaction = Transaction(Context(clock=ManualClock()))
    RecordedFiles(transaction.ctx, host).write_dated(MARKER, b"fine\n", mode=0o644)
    assert host.files.read(MARKER) == b"fine\nproven 2026-01-01T00:00:00Z\n"
    assert transaction.changes == ()


def test_an_undo_restores_the_newest_change_first(host: FakeHost, ctx: Context) -> None:
    """An undo restores files in the order of their last changes, the newest first."""
    recorded = RecordedFiles(ctx, host)
    for path, content in (SCRIPT, b"1\n"), (MARKER, b"2\n"), (SCRIPT, b"3\n"):
        recorded.write(path, content, mode=0o644)
    host.files.operations.calls.clear()
    assert recorded.undo(ctx)
    calls = host.files.operations.calls
    assert [path for verb, path, *_ in calls if verb == "remove"] == [SCRIPT, MARKER]


@pytest.mark.parametrize("before", [None, b"worse\nproven 2025-12-31T00:00:00Z\n"])
def test_a_new_time_does_not_keep_an_undo_from_the_files(
    host: FakeHost, before: bytes | None
) -> None:
    """An undo restores a marker that a watch has dated again meanwhile, and leaves one with another
    verdict.
    """
    if before is not None:
        host.files.write(MARKER, before, mode=0o644)
    ctx = Context(clock=ManualClock())
    recorded = RecordedFiles(ctx, host)
    recorded.write_dated(MARKER, b"fine\n", mode=0o644)
    host.files.write(MARKER, b"fine\nproven 2026-01-01T00:05:00Z\n", mode=0o644)
    assert recorded.undo(ctx) is True
    assert host.files.read(MARKER) == before
    recorded.write_dated(MARKER, b"fine\n", mode=0o644)
    host.files.write(MARKER, b"other\nproven 2026-01-01T00:05:00Z\n", mode=0o644)
    assert recorded.undo(ctx) is False
    assert host.files.read(MARKER) == b"other\nproven 2026-01-01T00:05:00Z\n"


@given(st.binary(), st.integers(0, 2**33))
def test_a_date_is_taken_out_as_it_was_put_in(content: bytes, seconds: int) -> None:
    """A date is taken out of a text as it was put in; a text without a date stays as it is."""
    text = content + b"\n"
    assert undated((dated(text, seconds), 0o644)) == (text, 0o644)
    assert undated("/dev/null") == "/dev/null"
    assert undated(None) is None
