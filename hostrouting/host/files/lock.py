"""File locks, which allow one run at a time; the kernel releases them when the holder exits."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from hostrouting.base.errors import LockHeldError
from hostrouting.host.files.rooted import file_errors, open_file, open_parent, shown_path
from hostrouting.host.files.store import RootedFiles
from phases import Context, DeadlineExceededError
from phases.hosting import held, holding, report_wait

if TYPE_CHECKING:
    import threading


#: Directly in /run, so that nothing is left in an image.
LOCK: Final = "/run/hostrouting.lock"
#: flock cannot wait with a context, so it is polled.
_SECONDS_BETWEEN_TRIES = 0.1
#: How long a run without a deadline waits. The holder may be waiting for this run, so without a
#: limit it could be forever.
_LONGEST_WAIT = 600.0
#: Other programs hold their lock only briefly.
_LONGEST_WAIT_FOR_PROGRAMS = 15.0
_LONGEST_PID = 20

_logger = logging.getLogger(__name__)


class WaitingLock(ABC):
    """Waits for a lock, see `RunLock.hold`; a subclass takes the lock."""

    #: Equal for all handles of the same lock.
    resource: Hashable
    #: The lock's name in messages.
    shown: str
    #: Who else may hold it; `%s` is the name of the holder.
    other: str = "another run of hostrouting (%s)"
    next_step: str = "try again when it has, or allow more time"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WaitingLock) and self.resource == other.resource

    def __hash__(self) -> int:
        return hash(self.resource)

    @abstractmethod
    def attempt(self) -> AbstractContextManager[bool]:
        """Take the lock for a `with` block; yield False if another run holds it.

        An interrupt at any time releases the lock.
        """

    @abstractmethod
    def holder_name(self) -> str:
        """Return the holder's name for messages."""

    @contextmanager
    def hold(self, ctx: Context) -> Iterator[Context]:
        """See `RunLock.hold`."""
        ctx.check()
        shared = held(ctx, self.resource)
        waiting = ctx.child(timeout=_LONGEST_WAIT) if ctx.deadline is None else ctx
        announced = None
        while True:
            with self.attempt() if shared is None else take_at_once(shared) as taken:
                if taken:
                    yield holding(ctx, self.resource)
                    return
            holder = self.holder_name()
            if holder != announced:
                extra = {"holder": holder, "waits": True}
                text = f"waiting for {self.other}"
                _logger.info(text, holder, extra=extra)
                report_wait(waiting, self.other % holder, seconds=None)
                announced = holder
            try:
                waiting.sleep(_SECONDS_BETWEEN_TRIES)
            except DeadlineExceededError as error:
                raise LockHeldError(
                    f"{self.other % holder} holds {self.shown} and did not end in time; "
                    f"{self.next_step}"
                ) from error


@contextmanager
def take_at_once(lock: threading.Lock) -> Iterator[bool]:
    """Take a lock of this process for a `with` block; yield False if another thread holds it."""
    taken = lock.acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            lock.release()


class ProgramLock(WaitingLock):
    """A permanent file that other programs lock briefly; `locked` takes the lock."""

    other: str = "another program (%s)"

    def __init__(self, shown: str, locked: Callable[[], AbstractContextManager[bool]]) -> None:
        self.shown: str = shown
        self.resource: Hashable = (ProgramLock, os.path.realpath(shown))
        self.next_step: str = f"see: lslocks | grep {shown.rpartition('/')[2]}"
        self._locked = locked

    @contextmanager
    def hold(self, ctx: Context) -> Iterator[Context]:
        """See `RunLock.hold_file`."""
        with super().hold(ctx.child(timeout=_LONGEST_WAIT_FOR_PROGRAMS)):
            yield ctx

    def attempt(self) -> AbstractContextManager[bool]:
        """See `WaitingLock`."""
        return self._locked()

    def holder_name(self) -> str:
        """See `WaitingLock`."""
        return "such as the gate of a unit"


class FileLock(WaitingLock):
    """A locked file on the machine or image at `root`; it contains the holder's process id."""

    def __init__(self, *, root: str = "/") -> None:
        self._root = root
        self.shown: str = shown_path(root, LOCK)
        self.resource: object = (FileLock, os.path.realpath(self.shown))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(root={self._root!r})"

    @contextmanager
    def attempt(self) -> Iterator[bool]:
        """See `WaitingLock`."""
        with _locked(self._root, LOCK, os.O_RDWR | os.O_CREAT) as descriptor:
            try:
                if descriptor is not None:
                    os.ftruncate(descriptor, 0)
                    # On a full disk the process id is missing, but the lock is still held.
                    with suppress(OSError):
                        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
                yield descriptor is not None
            finally:
                if descriptor is not None:
                    self._remove(descriptor)

    def hold_file(self, ctx: Context, path: str) -> AbstractContextManager[object]:
        """See `RunLock.hold_file`."""
        shown = shown_path(self._root, path)
        return ProgramLock(shown, partial(self._locked_for_programs, path)).hold(ctx)

    @contextmanager
    def _locked_for_programs(self, path: str) -> Iterator[bool]:
        # A run that changes no files may have a read-only disk.
        with _locked(self._root, path, os.O_RDONLY) as descriptor:
            if descriptor is not None:
                # Fails on a read-only disk.
                with suppress(OSError):
                    os.utime(descriptor)
            yield descriptor is not None

    def _remove(self, descriptor: int) -> None:
        """Remove the file while it is locked; a run that has it open notices that it is gone."""
        # If another program removed it, the name may now be the lock of another run. A leftover
        # file is harmless.
        if os.fstat(descriptor).st_nlink:
            with suppress(OSError), open_parent(self._root, LOCK) as (folder, name):
                os.unlink(name, dir_fd=folder)

    def holder_name(self) -> str:
        """See `WaitingLock`."""
        content = RootedFiles(self._root).read(LOCK)
        if content is None:
            return "just ended"
        pid = content[:_LONGEST_PID].decode(errors="replace").strip()
        return f"process {pid or 'unknown'}"


@contextmanager
def _locked(root: str, path: str, flags: int) -> Iterator[int | None]:
    """Open a file and lock it; yield its descriptor, or None if another program holds the lock.

    In any case the file is closed afterwards, which releases the lock.
    """
    while True:
        with ExitStack() as opened:
            with file_errors("open the lock", root, path):
                is_made = bool(flags & os.O_CREAT)
                folder, name = opened.enter_context(open_parent(root, path, create=is_made))
                # 0600, because any user with read access could lock it.
                file = open_file(folder, name, flags | os.O_NONBLOCK, 0o600)
                descriptor = opened.enter_context(file)
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is not a plain file; remove it")
            taken = False
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken = True
            # If the file has no name, its holder removed it between the two calls: try again.
            if taken and not os.fstat(descriptor).st_nlink:
                continue
            yield descriptor if taken else None
            return
