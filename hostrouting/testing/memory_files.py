"""Files in memory: a `FileStore` to inspect and to break."""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from hostrouting.base.errors import HostFileError
from hostrouting.base.refused_files import why_refused
from hostrouting.host.files.rooted import (
    MOST_LINKS,
    Exposure,
    exposure,
    path_parts,
    require_writable,
)
from hostrouting.host.ports import FileStore
from hostrouting.testing.faults import Faulty

if TYPE_CHECKING:
    from collections.abc import Iterable


class MemoryFile(NamedTuple):
    """A file, a symbolic link, or a folder."""

    #: The content of a file, the target of a link, and None for a folder.
    content: bytes | str | None = None
    mode: int = 0o755
    #: Stands for the mtime: a number that grows with every change of any content.
    generation: int = 0
    owner: int = 0
    #: Seconds since the epoch; a file in memory begins at 0.
    modified: float = 0.0


_ABSENT = MemoryFile()


class MemoryTree:
    """A tree of files that implements `FileStore`, with more methods to arrange and inspect it."""

    def __init__(self) -> None:
        self._entries: dict[str, MemoryFile] = {"/": MemoryFile()}
        self._generations = count(1)
        #: Paths of files on which another process holds a lock.
        self.locked: set[str] = set()
        #: Folders on a file system that is mounted read-only, and on one that is full.
        self.read_only: set[str] = set()
        self.full: set[str] = set()
        #: Paths of executable programs, in addition to the files.
        self.programs: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.snapshot())} files and links>"

    def make_directory(self, path: str) -> None:
        """Put a folder at `path`, as `mkdir -p` does."""
        self._make_parents("make", f"{self._place('make', path, follow=True)}/anything")

    def change(self, path: str, **fields: Any) -> None:
        """Give an existing path, or a link itself, another `mode`, `owner` or time (`modified`)."""
        place = self._place("change", path)
        self._entries[place] = self._entries[place]._replace(**fields)

    def file(self, path: str) -> MemoryFile | None:
        """Return the file at `path`; None if it is absent."""
        entry = self._entries.get(self._place("look at", path, follow=True))
        return entry if entry and isinstance(entry.content, bytes) else None

    def snapshot(self) -> dict[str, str]:
        """Return the text of each file and `-> target` of each link, by path, without folders."""
        return {
            path: f"-> {content}" if isinstance(content, str) else _text(content)
            for path, (content, *_) in sorted(self._entries.items())
            if content is not None
        }

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """See `FileStore.read`."""
        content = self._no_folder("read", path, self._place("read", path, follow=True)).content
        return content[:limit] if isinstance(content, bytes) else None

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """See `FileStore.write`."""
        require_writable(content, mode)
        place = self._place("write", path)
        before = self._no_folder("write", path, place)
        if (before.content, before.mode) == (content, mode):
            return False
        self._make_parents("write", path)
        if before.content == content:
            self._entries[place] = before._replace(mode=mode)
            return True
        self._entries[place] = MemoryFile(content, mode, next(self._generations))
        return True

    def link(self, path: str, target: str) -> bool:
        """See `FileStore.link`."""
        place = self._make_parents("link", path)
        if self._no_folder("link", path, place).content == target:
            return False
        self._entries[place] = MemoryFile(target)
        return True

    def mode(self, path: str) -> int | None:
        """See `FileStore.mode`."""
        return getattr(self.file(path), "mode", 0o755 if path in self.programs else None)

    def folder_mode(self, path: str) -> int | None:
        """See `FileStore.folder_mode`."""
        entry = self._entries.get(self._place("look at", path, follow=True))
        return entry.mode if entry and entry.content is None else None

    def set_folder_mode(self, path: str, mode: int) -> None:
        """See `FileStore.set_folder_mode`."""
        verb = "change the mode of"
        place = self._place(verb, path, follow=True)
        self._refuse_read_only(verb, place)
        entry = self._entries.get(place)
        if entry is None or entry.content is not None:
            raise self._error(verb, path, errno.ENOENT if entry is None else errno.ENOTDIR)
        self._entries[place] = entry._replace(mode=mode)

    def modified(self, path: str) -> float | None:
        """See `FileStore.modified`."""
        return getattr(self.file(path), "modified", None)

    def exposed(self, path: str) -> Exposure | None:
        """See `FileStore.exposed`."""
        passed = ["/"]
        passed.append(self._place("look at", path, follow=True, passed=passed))
        for place in passed:
            entry = self._entries.get(place)
            if entry and (reason := exposure(place, entry.owner, entry.mode)):
                return reason
        return None

    def remove(self, path: str) -> bool:
        """See `FileStore.remove`."""
        place = self._place("remove", path)
        self._no_folder("remove", path, place)
        if place not in self._entries:
            return False
        self._refuse_read_only("remove", place)
        del self._entries[place]
        return True

    def names(self, path: str) -> list[str]:
        """See `FileStore.names`."""
        place = self._place("list", path, follow=True)
        if not self._is_folder(place):
            return []
        start = f"{place.rstrip('/')}/"
        below = [entry[len(start) :] for entry in self._entries if entry.startswith(start)]
        return sorted(name for name in below if name and "/" not in name)

    def exists(self, path: str) -> bool:
        """See `FileStore.exists`."""
        return self._place("look for", path) in self._entries

    def read_link(self, path: str) -> str | None:
        """See `FileStore.read_link`."""
        content = self._entries.get(self._place("read the link", path), _ABSENT).content
        return content if isinstance(content, str) else None

    def remove_directory_if_empty(self, path: str) -> bool:
        """See `FileStore.remove_directory_if_empty`."""
        place = self._place("remove", path)
        entry = self._entries.get(place)
        if entry is None or entry.content is not None or self.names(place):
            return False
        if _is_below(place, self.read_only):
            return False
        del self._entries[place]
        return True

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """See `FileStore.refuse_unwritable`."""
        place = self._place("write below", path, follow=True)
        self._refuse_read_only("write below", place)
        if size and _is_below(place, self.full):
            raise self._error("write below", place, errno.ENOSPC)

    def _no_folder(self, verb: str, path: str, place: str) -> MemoryFile:
        """Return the file or link at a path, or one without content; refuse a folder."""
        entry = self._entries.get(place)
        if entry is not None and entry.content is None:
            raise self._error(verb, path, errno.EISDIR)
        return entry or _ABSENT

    def _refuse_read_only(self, verb: str, place: str) -> None:
        if _is_below(place, self.read_only):
            raise self._error(verb, place, errno.EROFS)

    def sweep(self, path: str) -> None:
        """See `FileStore.sweep`; a write to memory leaves nothing."""
        self._place("clean up", path, follow=True)

    def is_locked(self, path: str) -> bool:
        """See `FileStore.is_locked`."""
        place = self._place("look for locks on", path, follow=True)
        return place in self._entries and place in {
            self._place("lock", locked, follow=True) for locked in self.locked
        }

    def _place(
        self, verb: str, path: str, *, follow: bool = False, passed: list[str] | None = None
    ) -> str:
        """Return the path that `path` leads to; with `follow`, also a link at its end.

        The folders on the way are added to `passed`.
        """
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        folder, _, name = path.rpartition("/")
        if passed is None and self._is_folder(folder) and name not in {"", ".", ".."}:
            # Entries have the places that paths lead to, so no link is on the way to a folder.
            content = self._entries.get(path, _ABSENT).content
            if not (follow and isinstance(content, str)):
                return path
        place = ""
        ahead = path_parts(path)
        links = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                place = place.rpartition("/")[0]
                continue
            step = f"{place}/{part}"
            entry = self._entries.get(step)
            target = entry.content if entry else None
            if isinstance(target, str) and (ahead or follow):
                links += 1
                if links > MOST_LINKS:
                    raise self._error(verb, path, errno.ELOOP)
                if target.startswith("/"):
                    place = ""
                ahead += path_parts(target)
            else:
                place = step
                if passed is not None:
                    passed.append(place)
        return place or "/"

    def _error(self, verb: str, path: str, number: int) -> HostFileError:
        why = why_refused(number, path, is_folder=self._is_folder)
        return HostFileError(f"cannot {verb} {path}: {why}", errno=number)

    def _is_folder(self, path: str) -> bool:
        entry = self._entries.get(path)
        return entry is not None and entry.content is None

    def _make_parents(self, verb: str, path: str) -> str:
        place = self._place(verb, path)
        self._refuse_read_only(verb, place)
        names = place.split("/")
        for depth in range(1, len(names)):
            parent = "/".join(names[:depth]) or "/"
            if self._entries.setdefault(parent, MemoryFile()).content is not None:
                raise self._error(verb, path, errno.ENOTDIR)
        return place


class MemoryFiles(Faulty, MemoryTree, ports=[FileStore]):
    """The files of a fake machine: `operations` records the calls and injects faults.

    By default, `fail_at` reports that the disk is full.

    Calls of `tree`, which has the same files, are not recorded: they arrange and inspect.
    """

    def __init__(self) -> None:
        super().__init__(HostFileError(f"cannot use the disk: {os.strerror(errno.ENOSPC)}"))
        self.tree: MemoryTree = MemoryTree()
        # Both share the entries.
        vars(self).update(vars(self.tree))


@lru_cache(maxsize=64)
def _text(content: bytes) -> str:
    """Return a content as text. That of the program of a boot takes 10 ms."""
    return content.decode(errors="replace")


def _is_below(place: str, folders: Iterable[str]) -> bool:
    return any(place == folder or place.startswith(f"{folder}/") for folder in folders)
