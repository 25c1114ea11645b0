"""Explain why the system refused to read or write a file, and what to do about it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

#: The commands that help with a read-only or full disk, by errno.
_DISK_COMMANDS: Final = {
    errno.EROFS: "mount -o remount,rw {}",
    errno.ENOSPC: "du -xah {} | sort -h | tail",
}


def disk_command(number: int, folder: str) -> str:
    """Return the command that helps with a read-only or full disk that contains this quoted folder.

    >>> disk_command(errno.ENOSPC, "/etc")
    'du -xah "$(findmnt -n -o TARGET -T /etc)" | sort -h | tail'
    """
    return _DISK_COMMANDS[number].format(f'"$(findmnt -n -o TARGET -T {folder})"')


def why_refused(
    number: int | None, path: str, *, is_folder: Callable[[str], bool] = os.path.isdir
) -> str:
    """Return why the system refused a file, and the next step for its nearest existing folder.

    >>> why_refused(errno.EROFS, "/absent/a/b")
    'Read-only file system; run: mount -o remount,rw "$(findmnt -n -o TARGET -T /)"'
    >>> why_refused(errno.EIO, "/absent/a")
    'Input/output error'
    """
    number = number or 0
    folder = path
    while folder and not is_folder(folder):
        folder = folder.rpartition("/")[0]
    shown = quoted(folder or ("/" if path.startswith("/") else "."))
    is_root = os.geteuid() == 0
    rights = f"see: ls -ld {shown} && lsattr -d {shown}" if is_root else "run this as root"
    steps = {
        **{number: f"run: {disk_command(number, shown)}" for number in _DISK_COMMANDS},
        errno.EACCES: rights,
        errno.EPERM: rights,
        errno.EISDIR: "move this folder away",
        errno.ELOOP: "remove this link",
    }
    reason = os.strerror(number)
    return f"{reason}; {steps[number]}" if number in steps else reason
