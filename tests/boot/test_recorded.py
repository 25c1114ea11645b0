"""Files that a run has changed, and their undo."""

import pytest

from hostrouting import HostFileError
from hostrouting.boot.recorded import RecordedFiles
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
    with pytest.raises(HostFileError, match="Read-only file system"):
        recorded.undo(ctx)
    left = host.files.tree.snapshot()
    assert (SCRIPT in left, UNIT in left) == (True, False)
