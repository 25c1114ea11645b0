"""One run at a time, by a lock that the kernel gives back however its holder ends."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import HostFileError, LockHeldError
from hostrouting.host.files.rooted import file_errors, open_parent, shown_path
from phases import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phases import Context

__all__ = ["LOCK_PATH", "SECONDS_BETWEEN_TRIES", "FileLock", "held_error"]

#: Directly in /run: no folder to make, and none to leave in an image, where a run of ours leaves files and units only.
LOCK_PATH: Final = "/run/hostrouting.lock"
#: flock can wait by itself, but not for a context. A tenth of a second is nothing beside what a run takes.
SECONDS_BETWEEN_TRIES: Final = 0.1
_LONGEST_PID: Final = 20

_logger = logging.getLogger(__name__)


class FileLock:
    """A locked file: `path` on the machine or image below `root`; while somebody holds it, it says who.

    It fulfils `RunLock`, whose description says what `hold` promises.
    """

    def __init__(self, path: str = LOCK_PATH, *, root: str = "/") -> None:
        self._path = path
        self._root = root

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, root={self._root!r})"

    @contextmanager
    def hold(self, ctx: Context) -> Iterator[None]:
        """See `RunLock.hold`."""
        ctx.check()
        descriptor = self._acquire(ctx)
        try:
            yield
        finally:
            self._remove(descriptor)
            os.close(descriptor)

    def _remove(self, descriptor: int) -> None:
        """Take the file away while it is locked: whoever has opened it meanwhile finds it nameless and tries again."""
        # If somebody cleaned up, what bears the name now is another run's. And a file that stays locks nobody out.
        if os.fstat(descriptor).st_nlink:
            with suppress(OSError), open_parent(self._root, self._path) as (folder, name):
                os.unlink(name, dir_fd=folder)

    def _acquire(self, ctx: Context) -> int:
        announced = None
        while (descriptor := self._try()) is None:
            holder = self._holder()
            if holder != announced:
                _logger.info("waiting for another run of hostrouting (%s)", holder, extra={"holder": holder})
                announced = holder
            try:
                ctx.sleep(SECONDS_BETWEEN_TRIES)
            except DeadlineExceededError as error:
                raise held_error(holder, shown_path(self._root, self._path)) from error
        return descriptor

    def _try(self) -> int | None:
        """Return the descriptor that is the lock, or None when somebody else has it."""
        while True:
            descriptor = self._open(os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its holder ended between our two calls and took the name along: this lock excludes nobody.
                if os.fstat(descriptor).st_nlink:
                    os.ftruncate(descriptor, 0)
                    # On a full disk nobody can read who holds it; it is held all the same.
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

    def _holder(self) -> str:
        try:
            descriptor = self._open(os.O_RDONLY)
        except HostFileError:
            return "just ended"
        try:
            pid = os.pread(descriptor, _LONGEST_PID, 0).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
        return f"process {pid or 'unknown'}"

    def _open(self, flags: int) -> int:
        with (
            file_errors("open the lock", self._root, self._path),
            open_parent(self._root, self._path, create=True) as (folder, name),
        ):
            # 0600, for whoever can open a file can lock it. O_CLOEXEC, or a child would go on holding the lock.
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)


def held_error(holder: str, lock: str) -> LockHeldError:
    """The error of one who has waited in vain."""
    return LockHeldError(
        f"another run of hostrouting ({holder}) holds {lock} and did not end in time; "
        f"try again when it has, or allow more time"
    )
