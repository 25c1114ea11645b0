"""File changes of a task, recorded with the inverse that restores the files as they were."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple

from phases import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from hostrouting.host import Host
    from phases import Context

__all__ = ["FileState", "RecordedFiles"]

_logger = logging.getLogger(__name__)


class FileState(NamedTuple):
    """A path at one moment: a link, a file, or nothing."""

    target: str | None = None
    content: bytes | None = None
    mode: int | None = None


class RecordedFiles:
    """Changes files and records it in `ctx`; one inverse restores all of them, under the run lock.

    The inverse changes nothing if another run or program has altered one of the files since: they belong together.
    It restores files inside of `restoring`.
    """

    def __init__(
        self,
        ctx: Context,
        host: Host,
        *,
        restoring: Callable[[Context], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> None:
        self._ctx = ctx
        self._host = host
        self._restoring = restoring
        self._is_recorded = False
        #: The states of each path, before and after; the path that changed last is the last one.
        self._states: dict[str, tuple[FileState, FileState]] = {}

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """Write a file and record it; return False if it was right already."""
        sign: Literal["+", "~"] = "~" if self._host.files.exists(path) else "+"
        after = FileState(content=content, mode=mode)
        return self.act(lambda: self._host.files.write(path, content, mode=mode), {path: after}, [Change(sign, path)])

    def remove(self, path: str) -> bool:
        """Remove a file and record it; return False if there was none."""
        return self.act(lambda: self._host.files.remove(path), {path: FileState()}, [Change("-", path)])

    def act(self, act: Callable[[], object], after: Mapping[str, FileState], changes: Iterable[Change]) -> bool:
        """Call `act`, which gives paths these states, and record `changes`; return False if it changes nothing."""
        try:
            before = {path: self._state(path) for path in after}
            if after and before == after:
                return False
            for path, state in after.items():
                first, _ = self._states.pop(path, (before[path], state))
                self._states[path] = first, state
            act()
        except BaseException:
            self.record_rest()
            raise
        self._record(changes)
        return True

    def record_rest(self) -> None:
        """Record the files that differ from before, if no change is recorded: an undo must restore those, too."""
        if not self._is_recorded:
            now = [(path, before, self._state(path)) for path, (before, _) in self._states.items()]
            self._record([_change(*each) for each in now if each[1] != each[2]])

    def _record(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._ctx.record(change, undo=self.undo)
            self._is_recorded = True

    def undo(self, ctx: Context) -> None:
        """Restore all files, those that changed last first."""
        with self._host.lock.hold(ctx) as held:
            now = {path: self._state(path) for path in self._states}
            altered = [path for path, states in self._states.items() if now[path] not in states]
            if altered:
                _logger.warning("%s changed since this run; the files of this run stay", ", ".join(altered))
                return
            back = [path for path, (before, _) in self._states.items() if now[path] != before]
            if not back:
                return
            with self._restoring(held):
                for path in reversed(back):
                    self._put(path, self._states[path][0])

    def _state(self, path: str) -> FileState:
        target = self._host.files.read_link(path)
        if target is not None:
            return FileState(target)
        content = self._host.files.read(path)
        return FileState() if content is None else FileState(None, content, self._host.files.mode(path))

    def _put(self, path: str, state: FileState) -> None:
        files = self._host.files
        if state.target is not None:
            files.link(path, state.target)
        elif state.content is not None and state.mode is not None:
            files.write(path, state.content, mode=state.mode)
        else:
            files.remove(path)
            files.remove_directory_if_empty(path.rpartition("/")[0])


def _change(path: str, before: FileState, now: FileState) -> Change:
    nothing = FileState()
    return Change("+" if before == nothing else "-" if now == nothing else "~", path)
