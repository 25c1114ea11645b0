"""Why the system refuses a file, with the next step."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from hostrouting.base.commands import quoted

if TYPE_CHECKING:
    from collections.abc import Callable


def why_refused(
    number: int | None, path: str, *, is_folder: Callable[[str], bool] = os.path.isdir
) -> str:
    """Return why the system refuses a file, and the next step, with the folder that exists.

    >>> why_refused(errno.EROFS, "/absent/a/b")
    'Read-only file system; mount it writable, see: findmnt -T /'
    >>> why_refused(errno.ENOSPC, "/absent/a"), why_refused(errno.EIO, "/absent/a")
    ('No space left on device; make room, see: df -h / && df -i /', 'Input/output error')
    """
    number = number or 0
    folder = path
    while folder and not is_folder(folder):
        folder = folder.rpartition("/")[0]
    shown = quoted(folder or ("/" if path.startswith("/") else "."))
    is_root = os.geteuid() == 0
    rights = f"see: ls -ld {shown} && lsattr -d {shown}" if is_root else "run this as root"
    steps = {
        errno.EROFS: f"mount it writable, see: findmnt -T {shown}",
        errno.ENOSPC: f"make room, see: df -h {shown} && df -i {shown}",
        errno.EACCES: rights,
        errno.EPERM: rights,
        errno.EISDIR: "move this folder away",
        errno.ELOOP: "remove this link",
    }
    reason = os.strerror(number)
    return f"{reason}; {steps[number]}" if number in steps else reason
