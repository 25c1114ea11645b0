"""Changes to files that are recorded together with their undo."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostrouting.base.conflicts import ConflictError
from hostrouting.base.errors import HostFileError, UnfinishedUndoError
from hostrouting.boot.layout import GATE_LOCK
from phases import Change, Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hostrouting.host import FileStore, Host

_logger = logging.getLogger(__name__)

#: The state of a path: the target of a link, the content and mode of a file, the mode of a
#: directory, or None if it does not exist. The path of a directory ends with a slash.
FileState: TypeAlias = str | tuple[bytes, int] | int | None


def state_of(files: FileStore, path: str) -> FileState:
    """Return the state of a path."""
    if path.endswith("/"):
        return files.folder_mode(path)
    target = files.read_link(path)
    if target is not None:
        return target
    # The content of a lock does not matter, and only root could read it.
    is_lock = path == GATE_LOCK and files.exists(path)
    content = b"" if is_lock else files.read(path)
    mode = None if content is None else files.mode(path)
    return None if content is None or mode is None else (content, mode)


def dated(content: bytes, seconds: float) -> bytes:
    r"""Return the content with a last line for the time, which is given in seconds since 1970.

    >>> dated(b"10.96.0.0/16 leaves through eth0\n", 1785542400)
    b'10.96.0.0/16 leaves through eth0\nproven 2026-08-01T00:00:00Z\n'
    """
    return content + time.strftime("proven %Y-%m-%dT%H:%M:%SZ\n", time.gmtime(seconds)).encode()


def undated(state: FileState) -> FileState:
    r"""Return the state of a file without the line that `dated` adds; other states unchanged.

    >>> undated((b"fine\nproven 2026-08-01T00:00:00Z\n", 0o644))
    (b'fine\n', 420)
    """
    if not isinstance(state, tuple):
        return state
    content, mode = state
    text, line_break, last = content.removesuffix(b"\n").rpartition(b"\n")
    has_date = last.startswith(b"proven ") and last.endswith(b"Z")
    return (text + line_break if has_date else content), mode


def change_of(path: str, before: FileState, after: FileState) -> Change:
    """Return the change of a path from one state to another."""
    return Change("-" if after is None else "+" if before is None else "~", path)


class DiskStep(NamedTuple):
    """New states of paths, and the changes to report for them."""

    changes: tuple[Change, ...]
    after: Mapping[str, FileState]
    #: A directory to remove afterwards if it is empty.
    folder: str | None = None
    #: The states that the plan was based on; None to take the step whatever they are.
    before: Mapping[str, FileState] | None = None


def with_states(files: FileStore, steps: Iterable[DiskStep]) -> list[DiskStep]:
    """Return steps that are taken only if the disk is still as it is now."""
    now: dict[str, FileState] = {}
    planned = []
    for step in steps:
        before = {path: now[path] if path in now else state_of(files, path) for path in step.after}
        now.update(step.after)
        planned.append(step._replace(before=before))
    return planned


def _refuse_changed(now: Mapping[str, FileState], planned: Mapping[str, FileState] | None) -> None:
    if planned is not None and (changed := [path for path in now if now[path] != planned[path]]):
        raise ConflictError(f"changed since this was planned: {', '.join(changed)}")


class RecordedFiles:
    """Changes files and records the changes in `ctx`, with one undo for all of them.

    The undo takes the run lock and restores the files inside the context `restoring`. It changes
    nothing if another run or program has altered one of the files since, because they belong
    together. If only the date differs (see `dated`), the file is written, but that does not count
    as a change.
    """

    def __init__(
        self,
        ctx: Context,
        host: Host,
        *,
        restoring: Callable[[Context], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        self._ctx = ctx
        self._files = host.files
        self._lock = host.lock
        self._restoring = restoring
        self._is_recorded = False
        #: The states of each path before and after, ordered by the time of the last change.
        self._states: dict[str, tuple[FileState, FileState]] = {}

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Write a file and record it; return False if nothing had to be done."""
        return self._change(path, (content, mode))

    def write_dated(self, path: str, content: bytes, *, mode: int) -> bool:
        """Write a file whose last line is the time; if only that differs, nothing is recorded."""
        return self.write(path, dated(content, self._ctx.clock.time()), mode=mode)

    def remove(self, path: str) -> bool:
        """Remove a file and record it; return False if there was none."""
        return self._change(path, None)

    def _change(self, path: str, state: FileState) -> bool:
        return self.put({path: state}, [change_of(path, state_of(self._files, path), state)])

    def put(
        self,
        after: Mapping[str, FileState],
        changes: Iterable[Change],
        planned: Mapping[str, FileState] | None = None,
    ) -> bool:
        """Put the paths into these states and record `changes`; return False if nothing differed.

        Raises `ConflictError` if the present states are neither these nor the `planned` ones.
        """
        try:
            before = {path: state_of(self._files, path) for path in after}
            if before == after:
                return False
            _refuse_changed(before, planned)
            if all(undated(before[path]) == undated(state) for path, state in after.items()):
                for path, state in after.items():
                    self._put(path, state)
                return False
            for path, state in after.items():
                first, _ = self._states.pop(path, (before[path], state))
                self._states[path] = first, state
                self._put(path, state)
        except BaseException:
            self.record_rest()
            raise
        self._record(changes)
        return True

    def record_rest(self) -> None:
        """Record the files that differ from before, if no change is recorded yet, so undo works."""
        if not self._is_recorded:
            for path in self._left():
                self._record([change_of(path, *self._states[path])])

    def _left(self) -> list[str]:
        """Return the paths that differ from before or cannot be read."""

        def is_left(path: str) -> bool:
            before, _ = self._states[path]
            try:
                return undated(state_of(self._files, path)) != undated(before)
            except HostFileError:
                return True

        return [*filter(is_left, self._states)]

    def _record(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._ctx.record(change, undo=self.undo)
            self._is_recorded = True

    def undo(self, ctx: Context) -> bool:
        """Restore all files, latest change first; return False if they are left as they are."""
        with self._lock.hold(ctx) as locked:
            try:
                return self._restore(locked)
            except HostFileError as error:
                left = ", ".join(self._left())
                state = f"these stay as the run left them: {left}" if left else "the files are back"
                raise UnfinishedUndoError(f"{state}; {error}") from error

    def _restore(self, ctx: Context) -> bool:
        now = {path: undated(state_of(self._files, path)) for path in self._states}
        altered = [
            path for path, states in self._states.items() if now[path] not in map(undated, states)
        ]
        if altered:
            _logger.warning(
                "%s changed since this run, so the files of this run are left as they are",
                ", ".join(altered),
            )
            return False
        changed = [
            path for path, (before, _) in self._states.items() if now[path] != undated(before)
        ]
        with self._restoring(ctx) if changed else nullcontext():
            for path in reversed(changed):
                before, _ = self._states[path]
                self._put(path, before)
                if before is None:
                    self._files.remove_directory_if_empty(path.rpartition("/")[0])
        return True

    def _put(self, path: str, state: FileState) -> None:
        if state is None:
            self._files.remove(path)
        elif isinstance(state, str):
            self._files.link(path, state)
        elif isinstance(state, int):
            self._files.set_folder_mode(path, state)
        else:
            content, mode = state
            self._files.write(path, content, mode=mode)
