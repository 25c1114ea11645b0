"""Files of this machine or of an offline image: written whole or not at all, and only if they differ."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hostrouting.host.rooted import file_errors, open_parent, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["RootedFiles"]

#: Between a file's name and a random end, behind a dot, this makes the name of its successor under way. systemd passes
#: over names that begin with a dot, so that a leftover is never taken for a unit or a drop-in.
_UNDER_WAY: Final = ".hostrouting-"
#: The kernel's words where there is nothing of that name: nothing at all, or a file where a folder would have to be.
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)


class RootedFiles:
    """The files below `root`, which no symbolic link can lead out of: `/` is this machine, all else an image.

    It fulfils `FileStore`, whose description says what the methods promise.
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
            _sweep(folder, name)
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
            _sweep(folder, name)
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

    def remove(self, path: str) -> bool:
        """See `FileStore.remove`."""
        with self._errors("remove", path), suppress(*_ABSENT), open_parent(self._root, path) as (folder, name):
            _sweep(folder, name)
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
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
            sync_folder(folder)
            return True
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
    """Open for reading whatever has that name, but no link; O_NONBLOCK, or a fifo would wait for its writer."""
    return _descriptor(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _inspect(folder: int, name: str, content: bytes) -> int | None:
    """Return the mode of the file if it holds exactly `content`; None if it is another one, or no file at all."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        # The size spares us to read, say, a log that somebody put there.
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
            # Before the rename, or after a loss of power the name may lead to an empty file.
            os.fsync(descriptor)
            os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(successor, dir_fd=folder)
            raise


def _link_text(folder: int, name: str) -> str | None:
    """Return the text of a symbolic link; None for anything else, and for nothing."""
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
        successor = f".{name}{_UNDER_WAY}{os.urandom(8).hex()}"
        os.symlink(target, successor, dir_fd=folder)
        try:
            os.rename(successor, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            # A link cannot be locked, so the sweep of another writer may have taken it for a leftover.
            continue
        except BaseException:
            with suppress(OSError):
                os.unlink(successor, dir_fd=folder)
            raise
        return


@contextmanager
def _successor(folder: int, name: str) -> Iterator[tuple[int, str]]:
    """Make the new file under a name of its own, locked, so that no other writer's sweep takes it for a leftover."""
    while True:
        successor = f".{name}{_UNDER_WAY}{os.urandom(8).hex()}"
        # Nobody else can open it, and so nobody can hold the lock against us, until it gets its final mode.
        with _descriptor(successor, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder, 0o600) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # A sweep may have come between the two steps; then this file has no name any more.
            if os.fstat(descriptor).st_nlink:
                yield descriptor, successor
                return


def _sweep(folder: int, name: str) -> None:
    """Take away what killed writers of `name` left: the kernel dropped their locks when they died."""
    for leftover in [entry for entry in _entries(".", folder) if entry.startswith(f".{name}{_UNDER_WAY}")]:
        if _link_text(folder, leftover) is not None:
            with suppress(FileNotFoundError):
                os.unlink(leftover, dir_fd=folder)
            continue
        # Gone meanwhile, or locked by a writer who lives (BlockingIOError): either way not ours to take.
        with suppress(FileNotFoundError, BlockingIOError), _open_quietly(leftover, folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(leftover, dir_fd=folder)


def _has_lock(device: int, inode: int) -> bool:
    # The kernel's own list: to try the lock would be to hold it for a moment.
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    return wanted in Path("/proc/locks").read_text(encoding="utf-8").split()


def _entries(name: str, folder: int) -> list[str]:
    with _descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208 - pathlib knows no descriptors


def _is_under_way(name: str) -> bool:
    return name.startswith(".") and _UNDER_WAY in name
