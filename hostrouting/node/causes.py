"""The causes of trouble, outside routing and in it, in the order in which they must go.

Each is a finding with the command against it. `status` offers the first one, and then what routing
needs: an apply in vain is no step.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import attrs

from hostrouting.base.commands import quoted
from hostrouting.base.findings import NodeFinding
from hostrouting.boot.layout import SCRIPT_DIRECTORY, UNIT_DIRECTORY
from hostrouting.exceptions import HostFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostrouting.host import FileStore

_MOUNT: Final = '"$(findmnt -n -o TARGET -T {})"'
_LARGEST: Final = "du -xah {} | sort -h | tail"


#: What an error of a folder means for an apply, by its errno: without the folder.
_OF_A_DISK: Final = {
    errno.EROFS: NodeFinding(
        "read-only",
        "",
        "is read-only, so an apply cannot install anything (dmesg shows an error of the disk)",
        "warning",
        command=f"mount -o remount,rw {_MOUNT}",
    ),
    errno.ENOSPC: NodeFinding(
        "no-room",
        "",
        "is on a full disk, so an apply cannot install anything: make room",
        "warning",
        command=_LARGEST.format(_MOUNT),
    ),
}
#: systemd refuses to read unit files with less (RELOAD_DISK_SPACE_MIN).
_ROOM_IN_RUN: Final = 16 << 20
_OF_RUN: Final = {
    errno.EROFS: NodeFinding(
        "read-only",
        "",
        "is read-only, so systemd cannot run units",
        "warning",
        command="mount -o remount,rw {}",
    ),
    errno.ENOSPC: NodeFinding(
        "no-room",
        "",
        "has less than 16 MB free, so systemd reads no unit files: free 16 MB",
        "warning",
        command=_LARGEST,
    ),
}


def obstacles(files: FileStore) -> Iterator[NodeFinding]:
    """Yield a warning if the disk, and one if /run, is read-only or full where an apply writes."""
    folders = (SCRIPT_DIRECTORY, UNIT_DIRECTORY)
    found = (_obstacle(files, folder, 1 << 16, _OF_A_DISK) for folder in folders)
    yield from [*filter(None, found)][:1]
    if in_run := _obstacle(files, "/run", _ROOM_IN_RUN, _OF_RUN):
        yield in_run


def _obstacle(
    files: FileStore, folder: str, size: int, kinds: Mapping[int, NodeFinding]
) -> NodeFinding | None:
    try:
        files.refuse_unwritable(folder, size=size)
    except HostFileError as error:
        # Of another one the apply has the reason: this may be another user.
        if found := kinds.get(error.errno or 0):
            return attrs.evolve(found, subject=folder, command=found.command.format(folder))
    return None


def unmasking(path: str) -> str:
    """Return the command that removes the mask of a boot file."""
    folder, _, name = path.rpartition("/")
    return quoted("systemctl", "unmask", name) if folder == UNIT_DIRECTORY else quoted("rm", path)
