"""The run lock: one run at a time, by a file lock that the kernel releases however its holder ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import HostFileError, LockHeldError
from hostrouting.host.files.rooted import file_errors, open_parent, shown_path
from phases import DeadlineExceededError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Iterator

    from phases import Context

__all__ = ["LOCK_PATH", "SECONDS_BETWEEN_TRIES", "FileLock", "WaitingLock"]

#: Directly in /run: there is no folder to make, and none stays in an image.
LOCK_PATH: Final = "/run/hostrouting.lock"
#: flock cannot wait for a context. A tenth of a second is short compared with a run.
SECONDS_BETWEEN_TRIES: Final = 0.1
#: The wait of a run without a deadline: its holder may be waiting for this very run, which nothing else would end.
_LONGEST_WAIT: Final = 600.0
_LONGEST_PID: Final = 20

_logger = logging.getLogger(__name__)


class WaitingLock(ABC):
    """The waiting of a run lock, see `RunLock.hold`; a subclass takes the lock."""

    #: Equal for all handles of one lock.
    resource: Hashable
    #: The lock's name in messages.
    shown: str

    @abstractmethod
    def attempt(self) -> Callable[[], None] | None:
        """Take the lock and return the function that releases it; return None if another run has it."""

    @abstractmethod
    def holder_name(self) -> str:
        """Return the holder's name for messages."""

    @contextmanager
    def hold(self, ctx: Context) -> Iterator[Context]:
        """See `RunLock.hold`."""
        ctx.check()
        shared = ctx.held(self.resource)
        release = self._wait(ctx, self.attempt if shared is None else partial(_attempt, shared))
        try:
            yield ctx.holding(self.resource)
        finally:
            release()

    def _wait(self, ctx: Context, attempt: Callable[[], Callable[[], None] | None]) -> Callable[[], None]:
        waiting = ctx.child(timeout=_LONGEST_WAIT) if ctx.deadline is None else ctx
        announced = None
        while (release := attempt()) is None:
            holder = self.holder_name()
            if holder != announced:
                _logger.info("waiting for another run of hostrouting (%s)", holder, extra={"holder": holder})
                announced = holder
            try:
                waiting.sleep(SECONDS_BETWEEN_TRIES)
            except DeadlineExceededError as error:
                raise LockHeldError(
                    f"another run of hostrouting ({holder}) holds {self.shown} and did not end in time; "
                    f"try again when it has, or allow more time"
                ) from error
        return release


def _attempt(shared: threading.Lock) -> Callable[[], None] | None:
    """Take the lock by which the tasks of a run that holds the run lock take turns."""
    return shared.release if shared.acquire(blocking=False) else None


class FileLock(WaitingLock):
    """A locked file, `path` on the machine or image below `root`, which contains the holder's process id."""

    def __init__(self, path: str = LOCK_PATH, *, root: str = "/") -> None:
        self._path = path
        self._root = root
        self.shown: str = shown_path(root, path)
        self.resource: object = (FileLock, os.path.realpath(self.shown))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, root={self._root!r})"

    def attempt(self) -> Callable[[], None] | None:
        """See `WaitingLock`."""
        descriptor = self._try()
        return None if descriptor is None else partial(self._release, descriptor)

    def _release(self, descriptor: int) -> None:
        self._remove(descriptor)
        os.close(descriptor)

    def _remove(self, descriptor: int) -> None:
        """Remove the file while it is locked; a run that has opened it meanwhile sees that it has no name."""
        # If another program removed it, the name is now that of another run's lock. A file that stays is harmless.
        if os.fstat(descriptor).st_nlink:
            with suppress(OSError), open_parent(self._root, self._path) as (folder, name):
                os.unlink(name, dir_fd=folder)

    def _try(self) -> int | None:
        """Return the descriptor that is the lock, or None if another run has it."""
        while True:
            descriptor = self._open(os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Without a name, its holder has ended between our two calls: this lock excludes no other run.
                if os.fstat(descriptor).st_nlink:
                    os.ftruncate(descriptor, 0)
                    # On a full disk the process id is missing, but the lock is held.
                    with suppress(OSError):
                        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def holder_name(self) -> str:
        """See `WaitingLock`."""
        try:
            descriptor = self._open(os.O_RDONLY)
        except HostFileError:
            return "just ended"
        try:
            pid = os.pread(descriptor, _LONGEST_PID, 0).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
        started = ", which started this process and may wait for it" if _started_by(pid) else ""
        return f"process {pid or 'unknown'}{started}"

    def _open(self, flags: int) -> int:
        with (
            file_errors("open the lock", self._root, self._path),
            open_parent(self._root, self._path, create=True) as (folder, name),
        ):
            # 0600, because any user with read access could lock it. O_CLOEXEC, or a child would keep the lock.
            flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EINVAL, "it is no plain file; remove it")
            return descriptor


def _started_by(pid: str) -> bool:
    """Return True if the process started this one, directly or not."""
    ancestor = str(os.getppid())
    while ancestor not in {"0", "1", pid}:
        try:
            with open(f"/proc/{ancestor}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is slow to import
                # The name of the program, in parentheses, may have spaces in it.
                ancestor = file.read().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return False
    return ancestor == pid
