"""Paths below a root folder, which symbolic links cannot escape.

In an image, `/etc/systemd/system` may contain absolute links or links with `..`. If the kernel
followed them, they would lead to the machine that prepares the image. So this module resolves one
component at a time from a descriptor of the root folder, as the target machine would: an absolute
link starts again at the root, and `..` stops there. Because it uses descriptors, no other process
can replace a folder with a link in between.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.commands import quoted
from hostrouting.base.errors import HostFileError
from hostrouting.base.refused_files import why_refused
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The same limit as in the kernel.
MOST_LINKS: Final = 40
_FOLDER_MODE = 0o755
#: O_PATH needs only search permission. A symbolic link is refused with ENOTDIR.
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def require_writable(content: object, mode: object) -> None:
    """Raise TypeError for anything but bytes, and for a mode that is not a number."""
    if not isinstance(content, bytes):
        raise wrong_argument("content", content, "bytes", "b'...'")
    if not isinstance(mode, int):
        raise wrong_argument("mode", mode, "a whole number", "0o644")


@contextmanager
def open_parent(
    root: str,
    path: str,
    *,
    follow: bool = False,
    create: bool = False,
    passing: Callable[[int], object] = lambda _: None,
) -> Iterator[tuple[int, str]]:
    """Yield the descriptor of the folder of `path` below `root`, and the last name of `path`.

    With `follow`, the last name is resolved as well, so it is not a symbolic link, unless another
    process replaces it right now. With `create`, missing folders are created. `passing` is called
    with the descriptor of every folder on the way. Raises OSError if the folder does not exist.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
    # The path of the root itself may contain links; only below it, the kernel follows none.
    opened = [os.open(f"{root}/.", _PASS)]
    try:
        folders = opened[:]
        passing(folders[0])
        ahead = path_parts(path)
        links = 0
        while True:
            # The root itself has no name; `.` means the same in all *at() calls.
            part = ahead.pop() if ahead else "."
            if part == "..":
                # As in the kernel, the root is its own parent.
                folders = folders[:-1] or folders
                if ahead:
                    continue
                part = "."
            below: int | str | None
            if ahead:
                below = _enter(folders[-1], part, create=create)
            else:
                below = link_text(folders[-1], part) if follow else None
            if below is None:
                yield folders[-1], part
                return
            if isinstance(below, int):
                opened.append(below)
                folders.append(below)
                passing(below)
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            folders = folders[:1] if below.startswith("/") else folders
            ahead += path_parts(below)
    finally:
        # In a single call, so that an exception in a signal handler cannot leave some open.
        any(map(os.close, opened))


def _enter(folder: int, name: str, *, create: bool) -> int | str:
    """Return the descriptor of a folder, or the target of a link."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
            # Not subject to the umask, because other daemons must be able to enter it.
            os.chmod(name, _FOLDER_MODE, dir_fd=folder)
            sync_folder(folder)
    try:
        return os.open(name, _PASS, dir_fd=folder)
    except NotADirectoryError:
        # It may be a file instead of a folder.
        if (target := link_text(folder, name)) is None:
            raise
        return target


@contextmanager
def open_file(folder: int | None, name: str, flags: int, mode: int = 0) -> Iterator[int]:
    """Yield a close-on-exec descriptor of a file or folder; refuse a symbolic link."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def file_errors(verb: str, root: str, path: str) -> Iterator[None]:
    """Translate an OSError into HostFileError with the action, the path and the reason."""
    try:
        yield
    except OSError as error:
        shown = shown_path(root, path)
        why = error.strerror
        if error.errno is not None and why == os.strerror(error.errno):
            why = why_refused(error.errno, shown)
        raise HostFileError(f"cannot {verb} {shown}: {why}", errno=error.errno) from error


def shown_path(root: str, path: str) -> str:
    """Return the path on this machine.

    >>> shown_path("/srv/image", "/etc/hosts"), shown_path("/", "/etc/hosts")
    ('/srv/image/etc/hosts', '/etc/hosts')
    """
    return root.rstrip("/") + path


class Exposure(NamedTuple):
    """Why users other than root could change a path, and how to fix it: a command or a step."""

    reason: str
    step: str = ""
    command: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.step or f'run: {self.command}'}"


def exposure(path: str, user: int, mode: int, *, owner: int = 0) -> Exposure | None:
    """Return why users other than root and the owner could change a path, or None.

    >>> print(exposure("/x", 0, 0o40777))
    users other than root may change /x (owner 0, mode 0777); run: chown 0 /x && chmod go-w /x
    """
    if user in {0, owner} and not mode & 0o022:
        return None
    shown = f"owner {user}, mode {stat.S_IMODE(mode):04o}"
    reason = f"users other than root may change {path} ({shown})"
    if mode & stat.S_ISVTX:
        # A sticky folder, such as /tmp, is meant for everyone.
        return Exposure(reason, step="use another folder")
    command = f"chown {owner} {quoted(path)} && chmod go-w {quoted(path)}"
    return Exposure(reason, command=command)


def path_parts(path: str) -> list[str]:
    """Return the components of a path in reverse order, for pop()."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def link_text(folder: int, name: str) -> str | None:
    """Return the target of a symbolic link; None if it is not a link or does not exist."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EINVAL}:  # EINVAL: not a link
            raise
        return None


def sync_folder(folder: int) -> None:
    """Sync a folder to the disk, because fsync of a file does not cover its name."""
    # Other descriptors of folders are O_PATH, which cannot be synced.
    with open_file(folder, ".", os.O_RDONLY | os.O_DIRECTORY) as readable:
        os.fsync(readable)
