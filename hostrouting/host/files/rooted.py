"""Paths below a root folder that no symbolic link can leave.

An image is a foreign tree: `/etc/systemd/system` in it may lead over absolute links, or over links
that climb with `..`. Followed by the kernel, they would end on the machine that prepares the image.
So this module walks one component at a time from the descriptor of the root folder, and reads links
as the target machine will: an absolute one starts again at the root, and `..` ends at it. Because
it uses descriptors and no computed path, no other process can swap a folder for a link in between.
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

#: The kernel gives up with ELOOP there, too.
MOST_LINKS: Final = 40
_FOLDER_MODE = 0o755
#: O_PATH needs only the right to pass through. A symbolic link is refused with ENOTDIR.
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

    With `follow`, the last name is resolved, too: it is not a symbolic link, unless another process
    makes it one right now. With `create`, missing folders are made. `passing` is called with the
    descriptor of every folder on the way. Raise OSError if the folder does not exist.
    """
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
    # The caller may reach the root over links; only below it none is followed by the kernel.
    opened = [os.open(f"{root}/.", _PASS)]
    try:
        folders = opened[:]
        passing(folders[0])
        ahead = path_parts(path)
        links = 0
        while True:
            # The root itself is nameless; `.` in it means the same and suits every *at() call.
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
        # In one call: an exception of a signal handler between two would leave the rest open.
        any(map(os.close, opened))


def _enter(folder: int, name: str, *, create: bool) -> int | str:
    """Return the descriptor of a folder, or the text of a link in its place."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder)
            # A strict umask must not make a folder that other daemons cannot look into.
            os.chmod(name, _FOLDER_MODE, dir_fd=folder)
            sync_folder(folder)
    try:
        return os.open(name, _PASS, dir_fd=folder)
    except NotADirectoryError:
        # A file in the place of a folder is not a link either.
        if (target := link_text(folder, name)) is None:
            raise
        return target


@contextmanager
def open_file(folder: int | None, name: str, flags: int, mode: int = 0) -> Iterator[int]:
    """Yield the descriptor of a file or folder, for this process alone; refuse a symbolic link."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def file_errors(verb: str, root: str, path: str) -> Iterator[None]:
    """Translate an error into HostFileError with the action, the path and the reason."""
    try:
        yield
    except OSError as error:
        shown = shown_path(root, path)
        why = error.strerror
        if error.errno is not None and why == os.strerror(error.errno):
            why = why_refused(error.errno, shown)
        raise HostFileError(f"cannot {verb} {shown}: {why}", errno=error.errno) from error


def shown_path(root: str, path: str) -> str:
    """Return the path as written on this machine.

    >>> shown_path("/srv/image", "/etc/hosts"), shown_path("/", "/etc/hosts")
    ('/srv/image/etc/hosts', '/etc/hosts')
    """
    return root.rstrip("/") + path


class Exposure(NamedTuple):
    """Why users other than root could change a path, and the remedy: a command, or else a step."""

    reason: str
    step: str = ""
    command: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.step or f'run: {self.command}'}"


def exposure(path: str, user: int, mode: int, *, owner: int = 0) -> Exposure | None:
    """Return why any user but root and the owner could change a path, and the remedy; or None.

    >>> print(exposure("/x", 0, 0o40777))
    users other than root may change /x (owner 0, mode 0777); run: chown 0 /x && chmod go-w /x
    """
    if user in {0, owner} and not mode & 0o022:
        return None
    shown = f"owner {user}, mode {stat.S_IMODE(mode):04o}"
    reason = f"users other than root may change {path} ({shown})"
    if mode & stat.S_ISVTX:
        # A sticky folder, such as /tmp, is for everybody.
        return Exposure(reason, step="use another place")
    command = f"chown {owner} {quoted(path)} && chmod go-w {quoted(path)}"
    return Exposure(reason, command=command)


def path_parts(path: str) -> list[str]:
    """Return the components of a path, the first one last, so that pop() takes them in order."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def link_text(folder: int, name: str) -> str | None:
    """Return the text of a symbolic link; None for anything else and for an absent name."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EINVAL}:  # EINVAL: anything but a link
            raise
        return None


def sync_folder(folder: int) -> None:
    """Sync the names of a folder to the disk, since a file's own fsync does not cover its name."""
    # The walk's descriptors are O_PATH, which the kernel does not sync.
    with open_file(folder, ".", os.O_RDONLY | os.O_DIRECTORY) as readable:
        os.fsync(readable)
