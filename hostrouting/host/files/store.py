"""Files of this machine or an offline image, written atomically and only if they differ."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hostrouting.host.files.rooted import (
    Exposure,
    exposure,
    file_errors,
    link_text,
    open_file,
    open_parent,
    require_writable,
    shown_path,
    sync_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: Unfinished files are named `.NAME.hostrouting-RANDOM`. systemd ignores names that begin with a
#: dot, so it never mistakes a leftover for a unit or drop-in.
_UNDER_WAY = ".hostrouting-"
#: The folder is not empty, or is a mount point.
_NOT_TO_BE_REMOVED = frozenset({errno.ENOTEMPTY, errno.EBUSY, errno.EROFS})
#: Flags for reading a file; opening a fifo must not wait for its writer.
_FILE = os.O_RDONLY | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY

_Answer = TypeVar("_Answer")


@attrs.frozen(eq=False, repr=False)
class RootedFiles:
    """The files below `root`: `/` is this machine, any other root an image.

    It implements `FileStore`.
    """

    root: str = "/"

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """See `FileStore.read`."""
        return self._find("read", path, partial(_read, limit=limit), follow=True)

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """See `FileStore.write`."""
        require_writable(content, mode)
        with (
            file_errors("write", self.root, path),
            open_parent(self.root, path, create=True) as (folder, name),
        ):
            _sweep(folder)
            present = _inspect(folder, name, content)
            if present == mode:
                return False
            if present is None:
                _replace(folder, name, content, mode)
                sync_folder(folder)
            else:
                with open_file(folder, name, _FILE) as descriptor:
                    os.fchmod(descriptor, mode)
                    os.fsync(descriptor)
            return True

    def link(self, path: str, target: str) -> bool:
        """See `FileStore.link`."""
        with (
            file_errors("link", self.root, path),
            open_parent(self.root, path, create=True) as (folder, name),
        ):
            _sweep(folder)
            if link_text(folder, name) == target:
                return False
            _replace_by_link(folder, name, target)
            sync_folder(folder)
            return True

    def mode(self, path: str) -> int | None:
        """See `FileStore.mode`."""
        status = self._find("look at", path, _status_of_file, follow=True)
        return status and stat.S_IMODE(status.st_mode)

    def folder_mode(self, path: str) -> int | None:
        """See `FileStore.folder_mode`."""
        status = self._find("look at", path, _status, follow=True)
        return stat.S_IMODE(status.st_mode) if status and stat.S_ISDIR(status.st_mode) else None

    def set_folder_mode(self, path: str, mode: int) -> None:
        """See `FileStore.set_folder_mode`."""
        with (
            file_errors("change the mode of", self.root, path),
            open_parent(self.root, path, follow=True) as place,
            open_file(*place, _FOLDER) as folder,
        ):
            os.fchmod(folder, mode)
            sync_folder(folder)

    def modified(self, path: str) -> float | None:
        """See `FileStore.modified`."""
        status = self._find("look at", path, _status_of_file, follow=True)
        return status and status.st_mtime

    def exposed(self, path: str) -> Exposure | None:
        """See `FileStore.exposed`."""
        passed = []

        def look(folder: int) -> None:
            path = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - pathlib is slow to import
            passed.append((path, os.fstat(folder)))

        target = self._find("look at", path, _status, follow=True, passing=look)
        # A masked unit is a link to /dev/null, which everyone may write to.
        if target is not None and not stat.S_ISCHR(target.st_mode):
            passed.append((shown_path(self.root, path), target))
        # The root folder of an image does not exist on the target machine.
        is_image = self.root != "/"
        owner = os.geteuid() if is_image else 0
        reasons = (
            exposure(name, status.st_uid, status.st_mode, owner=owner)
            for name, status in passed[is_image:]
        )
        return next(filter(None, reasons), None)

    def remove(self, path: str) -> bool:
        """See `FileStore.remove`."""
        return bool(self._find("remove", path, _remove))

    def names(self, path: str) -> list[str]:
        """See `FileStore.names`."""
        return self._find("list", path, _names, follow=True) or []

    def exists(self, path: str) -> bool:
        """See `FileStore.exists`."""
        return self._find("look for", path, _status) is not None

    def read_link(self, path: str) -> str | None:
        """See `FileStore.read_link`."""
        return self._find("read the link", path, link_text)

    def remove_directory_if_empty(self, path: str) -> bool:
        """See `FileStore.remove_directory_if_empty`."""
        return bool(self._find("remove", path, _remove_empty_folder))

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """See `FileStore.refuse_unwritable`."""
        obstacles = []
        with file_errors("write below", self.root, path):
            # Visits all existing folders; the additional name makes `path` itself one of them.
            with (
                suppress(FileNotFoundError),
                open_parent(
                    self.root,
                    f"{path}/.anything",
                    passing=lambda folder: obstacles.append(_obstacle(folder, size)),
                ),
            ):
                pass
            if obstacles[-1] is not None:
                raise OSError(obstacles[-1], os.strerror(obstacles[-1]))

    def sweep(self, path: str) -> None:
        """See `FileStore.sweep`."""
        self._find("clean up", path, _sweep_folder, follow=True)

    def is_locked(self, path: str) -> bool:
        """See `FileStore.is_locked`."""
        status = self._find("look for locks on", path, _status, follow=True)
        if status is None:
            return False
        # From the kernel's list, because trying to lock would hold the lock for a moment.
        wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
            return wanted in file.read().split()

    def _find(
        self, verb: str, path: str, act: Callable[[int, str], _Answer], **options: Any
    ) -> _Answer | None:
        """Call `act` with the folder and name of a path; return None if the path does not exist.

        The options are those of `open_parent`.
        """
        with file_errors(verb, self.root, path):
            try:
                with open_parent(self.root, path, **options) as place:
                    return act(*place)
            except (FileNotFoundError, NotADirectoryError):  # a file in the place of a folder
                return None


def _status(folder: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _status_of_file(folder: int, name: str) -> os.stat_result | None:
    status = _status(folder, name)
    return status if stat.S_ISREG(status.st_mode) else None


def _read(folder: int, name: str, *, limit: int | None = None) -> bytes:
    with (
        open_file(folder, name, _FILE) as descriptor,
        open(descriptor, "rb", closefd=False) as file,
    ):
        return file.read(limit)


def _names(folder: int, name: str) -> list[str]:
    return sorted(entry for entry in _entries(folder, name) if not _is_under_way(entry))


def _remove(folder: int, name: str) -> bool:
    # Raises FileNotFoundError even on a read-only disk, where unlink would report EROFS.
    _status(folder, name)
    _sweep(folder)
    os.unlink(name, dir_fd=folder)
    sync_folder(folder)
    return True


def _remove_empty_folder(folder: int, name: str) -> bool:
    _sweep_folder(folder, name)
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NOT_TO_BE_REMOVED:
            raise
        return False
    sync_folder(folder)
    return True


def _sweep_folder(folder: int, name: str) -> None:
    with open_file(folder, name, _FOLDER) as inside:
        _sweep(inside)


def _inspect(folder: int, name: str, content: bytes) -> int | None:
    """Return the mode of the file if it contains exactly `content`, else None."""
    with suppress(FileNotFoundError):
        status = _status_of_file(folder, name)
        # Comparing sizes first avoids reading a large file of another program.
        if status and status.st_size == len(content) and _read(folder, name) == content:
            return stat.S_IMODE(status.st_mode)
    return None


def _replace(folder: int, name: str, content: bytes, mode: int) -> None:
    while True:
        successor = _successor_name(name)
        # Until it gets its final mode, no other user can open the file and hold the lock.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open_file(folder, successor, flags, 0o600) as descriptor:
            # Locked against the cleanup by another writer, which may already have removed it.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:
                continue
            try:
                # closefd=False, because the lock must last until the rename.
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(content)
                os.fchmod(descriptor, mode)
                # Before the rename, so that the file is not empty after a loss of power.
                os.fsync(descriptor)
                os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(successor, dir_fd=folder)
                raise
        return


def _replace_by_link(folder: int, name: str, target: str) -> None:
    while True:
        successor = _successor_name(name)
        os.symlink(target, successor, dir_fd=folder)
        try:
            os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            # A link cannot be locked, so another writer may have removed it as a leftover.
            continue
        except BaseException:
            with suppress(OSError):
                os.unlink(successor, dir_fd=folder)
            raise
        return


def _sweep(folder: int) -> None:
    """Remove the leftovers of killed writers, whose locks the kernel has released.

    Nothing is synced: a leftover that reappears after a loss of power is removed again.
    """
    for leftover in filter(_is_under_way, _entries(folder, ".")):
        # It may have disappeared, or a live writer holds its lock (BlockingIOError).
        with suppress(FileNotFoundError, BlockingIOError):
            status = _status(folder, leftover)
            if status.st_uid != os.geteuid():
                continue
            if stat.S_ISLNK(status.st_mode):
                os.unlink(leftover, dir_fd=folder)
            elif stat.S_ISREG(status.st_mode):
                with open_file(folder, leftover, _FILE) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(leftover, dir_fd=folder)


def _obstacle(folder: int, size: int) -> int | None:
    """Return the errno with which a write of that size would fail, or None."""
    space = os.fstatvfs(folder)
    if space.f_flag & os.ST_RDONLY:
        return errno.EROFS
    # Some file systems report neither blocks nor files.
    if size and (
        (space.f_blocks and space.f_bfree * space.f_frsize < size)
        or (space.f_files and not space.f_ffree)
    ):
        return errno.ENOSPC
    return None if os.access(".", os.W_OK, dir_fd=folder, effective_ids=True) else errno.EACCES


def _entries(folder: int, name: str) -> list[str]:
    with open_file(folder, name, _FOLDER) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208 - pathlib takes paths only


def _is_under_way(name: str) -> bool:
    # Exactly the form of `_successor_name`; similar names belong to other programs.
    return _UNDER_WAY in name and bool(
        re.fullmatch(rf"\..+{re.escape(_UNDER_WAY)}[0-9a-f]{{16}}", name, re.DOTALL)
    )


def _successor_name(name: str) -> str:
    return f".{name}{_UNDER_WAY}{os.urandom(8).hex()}"
