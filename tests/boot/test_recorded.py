"""Files that a run has changed, and their undo."""

import pytest

from hostrouting import HostFileError
from hostrouting.boot.recorded import RecordedFiles, UnfinishedUndoError
from hostrouting.testing import FakeHost
from phases import Context, Transaction

UNIT, SCRIPT = "/etc/systemd/system/static-routes.service", "/etc/aks-flex-node/static-routes.sh"


def test_the_undo_begins_with_the_newest_change(host: FakeHost, ctx: Context) -> None:
    """If the disk becomes read-only midway, the node has a state that the run had, too: the unit
    never runs a script that is not there.
    """
    recorded = RecordedFiles(Transaction(ctx).ctx, host)
    recorded.write(SCRIPT, b"#!/bin/bash\n", mode=0o755)
    recorded.write(UNIT, b"[Unit]\n", mode=0o644)

    host.files.tree.read_only.add("/etc/aks-flex-node")
    with pytest.raises(UnfinishedUndoError) as caught:
        recorded.undo(ctx)
    assert str(caught.value) == (
        f"these stay as the run left them: {SCRIPT}; cannot remove {SCRIPT}: "
        "Read-only file system; mount it writable, see: findmnt -T /etc/aks-flex-node"
    )
    left = host.files.tree.snapshot()
    assert (SCRIPT in left, UNIT in left) == (True, False)


def test_a_change_that_cannot_be_read_back_is_undone(
    host: FakeHost, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes a file, fails to sync it, and then fails to read it: the undo removes it."""
    transaction, write = Transaction(ctx), host.files.write

    def fail_to_sync(path: str, content: bytes, *, mode: int) -> bool:
        write(path, content, mode=mode)
        host.files.fail_at(1, HostFileError(f"cannot read {path}: Input/output error"))
        raise HostFileError(f"cannot write {path}: Input/output error")

    monkeypatch.setattr(host.files, "write", fail_to_sync)
    with pytest.raises(HostFileError, match=f"cannot write {SCRIPT}: Input/output error"):
        RecordedFiles(transaction.ctx, host).write(SCRIPT, b"#!/bin/bash\n", mode=0o755)
    assert SCRIPT in host.files.tree.snapshot()
    [(record, result)] = transaction.rollback(timeout=15)
    assert ([*map(str, record.changes)], result) == ([f"+ {SCRIPT}"], True)
    assert SCRIPT not in host.files.tree.snapshot()


def test_an_undo_that_fails_after_the_last_file_says_that_they_are_back(
    host: FakeHost, ctx: Context
) -> None:
    """The folder cannot be looked at, while nothing is left in it."""
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
