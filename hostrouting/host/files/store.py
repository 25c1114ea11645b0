"""Files of this machine or of an offline image: written as a whole or not at all, and only if they differ."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hostrouting.host.files.rooted import file_errors, open_parent, shown_path, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["RootedFiles"]

#: Stands between a dot with the file's name and a random end, and so makes the name of a file under way. systemd
#: ignores names that begin with a dot, so it never takes a leftover for a unit or a drop-in.
_UNDER_WAY: Final = ".hostrouting-"
#: The folder is not empty, or a file system is mounted on it.
_NOT_TO_BE_REMOVED: Final = frozenset({errno.ENOTEMPTY, errno.EBUSY})
_HEX: Final = frozenset("0123456789abcdef")
#: The kernel's errors for an absent name: nothing is there, or a file is in the place of a folder.
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)


class RootedFiles:
    """The files below `root`, from which no symbolic link leads out: `/` is this machine, any other root an image.

    It implements `FileStore`.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"{type(self).__name__}(root={self._root!r})"

    def read(self, path: str) -> bytes | None:
        """See `FileStore.read`."""
        with (
            self._errors("read", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True) as (folder, name),
            _open_quietly(name, folder) as descriptor,
        ):
            return _read_all(descriptor)
        return None

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """See `FileStore.write`."""
        with self._errors("write", path), open_parent(self._root, path, create=True) as (folder, name):
            _sweep(folder)
            present = _inspect(folder, name, content)
            if present == mode:
                return False
            if present is None:
                _replace(folder, name, content, mode)
                sync_folder(folder)
            else:
                with _open_quietly(name, folder) as descriptor:
                    os.fchmod(descriptor, mode)
                    os.fsync(descriptor)
            return True

    def link(self, path: str, target: str) -> bool:
        """See `FileStore.link`."""
        with self._errors("link", path), open_parent(self._root, path, create=True) as (folder, name):
            _sweep(folder)
            if _link_text(folder, name) == target:
                return False
            _replace_by_link(folder, name, target)
            sync_folder(folder)
            return True

    def mode(self, path: str) -> int | None:
        """See `FileStore.mode`."""
        with (
            self._errors("look at", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True) as (folder, name),
        ):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None
        return None

    def owner(self, path: str) -> int | None:
        """See `FileStore.owner`."""
        with self._errors("look at", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
        return None

    def exposed(self, path: str) -> str | None:
        """See `FileStore.exposed`."""
        reasons: list[str] = []

        def look(folder: int) -> None:
            path = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - pathlib is slow to import
            reasons.extend(_exposure(path, os.fstat(folder)))

        with (
            self._errors("look at", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True, passing=look) as (folder, name),
        ):
            reasons += _exposure(shown_path(self._root, path), os.stat(name, dir_fd=folder, follow_symlinks=False))
        return reasons[0] if reasons else None

    def rename(self, path: str, name: str) -> bool:
        """See `FileStore.rename`."""
        with (
            self._errors(f"give the name {name!r} to", path),
            suppress(*_ABSENT),
            open_parent(self._root, path) as (folder, old),
        ):
            os.stat(old, dir_fd=folder, follow_symlinks=False)
            with suppress(FileNotFoundError):
                os.stat(name, dir_fd=folder, follow_symlinks=False)
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)
            sync_folder(folder)
            return True
        return False

    def remove(self, path: str) -> bool:
        """See `FileStore.remove`."""
        with self._errors("remove", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            _sweep(folder)
            os.unlink(name, dir_fd=folder)
            sync_folder(folder)
            return True
        return False

    def names(self, path: str) -> list[str]:
        """See `FileStore.names`."""
        with (
            self._errors("list", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True) as (folder, name),
        ):
            return sorted(entry for entry in _entries(name, folder) if not _is_under_way(entry))
        return []

    def exists(self, path: str) -> bool:
        """See `FileStore.exists`."""
        with self._errors("look for", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return True
        return False

    def read_link(self, path: str) -> str | None:
        """See `FileStore.read_link`."""
        with self._errors("read the link", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            return _link_text(folder, name)
        return None

    def remove_directory_if_empty(self, path: str) -> bool:
        """See `FileStore.remove_directory_if_empty`."""
        with self._errors("remove", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            with _descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as inside:
                _sweep(inside)
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in _NOT_TO_BE_REMOVED:
                    raise
                return False
            sync_folder(folder)
            return True
        return False

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """See `FileStore.refuse_unwritable`."""
        obstacles: list[int | None] = []

        def look(folder: int) -> None:
            obstacles.append(_obstacle(folder, size))

        with self._errors("write below", path):
            # The walk ends at the last folder that exists; with a name after it, `path` itself is part of the walk.
            with suppress(FileNotFoundError), open_parent(self._root, f"{path}/.anything", passing=look):
                pass
            if obstacles[-1] is not None:
                raise OSError(obstacles[-1], os.strerror(obstacles[-1]))

    def sweep(self, path: str) -> bool:
        """See `FileStore.sweep`."""
        with (
            self._errors("clean up", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True) as (folder, name),
            _descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as inside,
        ):
            swept = _sweep(inside)
            if swept:
                os.fsync(inside)
            return swept
        return False

    def is_locked(self, path: str) -> bool:
        """See `FileStore.is_locked`."""
        with (
            self._errors("look for locks on", path),
            suppress(*_ABSENT),
            open_parent(self._root, path, follow=True) as (folder, name),
        ):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return _has_lock(status.st_dev, status.st_ino)
        return False

    def _errors(self, verb: str, path: str) -> AbstractContextManager[None]:
        return file_errors(verb, self._root, path)


@contextmanager
def _descriptor(name: str, flags: int, folder: int, mode: int = 0) -> Iterator[int]:
    descriptor = os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_quietly(name: str, folder: int) -> AbstractContextManager[int]:
    """Open a name for reading, but no link; O_NONBLOCK because a fifo would wait for its writer."""
    return _descriptor(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _inspect(folder: int, name: str, content: bytes) -> int | None:
    """Return the mode of the file if it holds exactly `content`; None for another file or none at all."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        # The size avoids reading a large file of another program.
        if not stat.S_ISREG(status.st_mode) or status.st_size != len(content):
            return None
        with _open_quietly(name, folder) as descriptor:
            return stat.S_IMODE(status.st_mode) if _read_all(descriptor) == content else None
    except FileNotFoundError:
        return None


def _replace(folder: int, name: str, content: bytes, mode: int) -> None:
    with _successor(folder, name) as (descriptor, successor):
        try:
            # closefd: only the rename may end the lock.
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fchmod(descriptor, mode)
            # Before the rename: after a loss of power the name may otherwise lead to an empty file.
            os.fsync(descriptor)
            os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(successor, dir_fd=folder)
            raise


def _link_text(folder: int, name: str) -> str | None:
    """Return the text of a symbolic link; None for anything else and for an absent name."""
    try:
        return os.readlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel's answer for anything that is no link
            raise
        return None


def _replace_by_link(folder: int, name: str, target: str) -> None:
    while True:
        successor = _successor_name(name)
        os.symlink(target, successor, dir_fd=folder)
        try:
            os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            # A link cannot be locked, so another writer's sweep may have taken it for a leftover.
            continue
        except BaseException:
            with suppress(OSError):
                os.unlink(successor, dir_fd=folder)
            raise
        return


@contextmanager
def _successor(folder: int, name: str) -> Iterator[tuple[int, str]]:
    """Create the new file under a temporary name, locked, so that no other writer's sweep takes it for a leftover."""
    while True:
        successor = _successor_name(name)
        # Until the file gets its final mode no other user can open it, so none can hold the lock.
        with _descriptor(successor, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder, 0o600) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A sweep may have come between the two steps; then this file has no name any more.
            if os.fstat(descriptor).st_nlink:
                yield descriptor, successor
                return


def _sweep(folder: int) -> bool:
    """Remove the leftovers of killed writers, whose locks the kernel has dropped; return True if there were any."""
    swept = False
    for leftover in filter(_is_under_way, _entries(".", folder)):
        # It is gone meanwhile, or a live writer holds its lock (BlockingIOError): leave it.
        with suppress(FileNotFoundError, BlockingIOError):
            status = os.stat(leftover, dir_fd=folder, follow_symlinks=False)
            if status.st_uid != os.geteuid():
                continue
            if stat.S_ISLNK(status.st_mode):
                os.unlink(leftover, dir_fd=folder)
                swept = True
            elif stat.S_ISREG(status.st_mode):
                with _open_quietly(leftover, folder) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(leftover, dir_fd=folder)
                    swept = True
    return swept


def _has_lock(device: int, inode: int) -> bool:
    # From the kernel's own list: trying the lock would hold it for a moment.
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with open("/proc/locks", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        return wanted in file.read().split()


def _obstacle(folder: int, size: int) -> int | None:
    """Return the errno for which nothing of that size can be written into the folder; None if it can."""
    room = os.fstatvfs(folder)
    if room.f_flag & os.ST_RDONLY:
        return errno.EROFS
    # Some file systems count neither.
    if (room.f_blocks and room.f_bfree * room.f_frsize < size) or (room.f_files and not room.f_ffree):
        return errno.ENOSPC
    return None if os.access(".", os.W_OK, dir_fd=folder, effective_ids=True) else errno.EACCES


def _exposure(path: str, status: os.stat_result) -> list[str]:
    """Return the reasons why users other than root and ours could change the file; empty if they cannot."""
    if status.st_uid not in {0, os.geteuid()}:
        return [f"{path} belongs to the user {status.st_uid}"]
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return [f"others may write to {path} (mode {stat.S_IMODE(status.st_mode):04o})"]
    return []


def _entries(name: str, folder: int) -> list[str]:
    with _descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208 - pathlib knows no descriptors


def _is_under_way(name: str) -> bool:
    # Exactly the form of `_successor_name`: a name that only resembles it is another program's.
    before, mark, end = name.rpartition(_UNDER_WAY)
    return bool(mark) and len(before) > 1 and before[0] == "." and len(end) == 16 and not set(end) - _HEX


def _successor_name(name: str) -> str:
    return f".{name}{_UNDER_WAY}{os.urandom(8).hex()}"
