"""Files in memory: a `FileStore` to inspect and to break."""

from __future__ import annotations

import errno
import os
from itertools import count
from typing import NamedTuple

from hostrouting.exceptions import HostFileError
from hostrouting.host.files.rooted import MOST_LINKS, path_parts
from hostrouting.testing.faults import Faulty

__all__ = ["MemoryFiles", "MemoryTree"]


class MemoryFile(NamedTuple):
    """A file; `generation` is a number that grows with every change of any content."""

    content: bytes
    mode: int
    generation: int
    #: Seconds since the epoch; a file in memory begins at 0.
    modified: float = 0.0


class MemoryTree:
    """A tree of files that implements `FileStore`, with further methods to arrange and inspect it."""

    def __init__(self) -> None:
        # By path: a file, the target of a symbolic link, or None for a folder.
        self._entries: dict[str, MemoryFile | str | None] = {"/": None}
        self._generations = count(1)
        #: Paths of files on which another process holds a lock.
        self.locked: set[str] = set()
        #: User ids by path; all other paths belong to root.
        self.owners: dict[str, int] = {}
        #: Permission bits of folders by path; all other folders have 0755.
        self.folder_modes: dict[str, int] = {}
        #: Folders on a file system that is mounted read-only.
        self.read_only: set[str] = set()

    def make_directory(self, path: str) -> None:
        """Put a folder at `path`, as `mkdir -p` does."""
        self._make_parents("make", f"{self._place('make', path, follow=True)}/anything")

    def file(self, path: str) -> MemoryFile | None:
        """Return the file at `path`, with mode and generation; None if there is none."""
        entry = self._entries.get(self._place("look at", path, follow=True))
        return entry if isinstance(entry, MemoryFile) else None

    def set_modified(self, path: str, seconds: float) -> None:
        """Set the time of a file's last change, as `touch -d` does."""
        place = self._place("touch", path, follow=True)
        entry = self._entries[place]
        assert isinstance(entry, MemoryFile), f"{path} is no file"
        self._entries[place] = entry._replace(modified=seconds)

    def _begin(self, *call: str) -> None:
        """Begin an operation; `MemoryFiles` records it."""

    def snapshot(self) -> dict[str, str]:
        """Return the text of each file and `-> target` of each link, by path, without folders."""
        return {
            path: f"-> {entry}" if isinstance(entry, str) else entry.content.decode(errors="replace")
            for path, entry in sorted(self._entries.items())
            if entry is not None
        }

    def read(self, path: str, *, limit: int | None = None) -> bytes | None:
        """See `FileStore.read`."""
        self._begin("read", path)
        entry = self._no_folder("read", path, self._place("read", path, follow=True))
        return entry.content[:limit] if isinstance(entry, MemoryFile) else None

    def write(self, path: str, content: bytes, *, mode: int) -> bool:
        """See `FileStore.write`."""
        self._begin("write", path)
        place = self._make_parents("write", path)
        before = self._no_folder("write", path, place)
        if isinstance(before, MemoryFile) and before.content == content:
            self._entries[place] = before._replace(mode=mode)
            return before.mode != mode
        self._entries[place] = MemoryFile(content, mode, next(self._generations))
        self.owners.pop(place, None)
        return True

    def link(self, path: str, target: str) -> bool:
        """See `FileStore.link`."""
        self._begin("link", path)
        place = self._make_parents("link", path)
        if self._no_folder("link", path, place) == target:
            return False
        self._entries[place] = target
        self.owners.pop(place, None)
        return True

    def mode(self, path: str) -> int | None:
        """See `FileStore.mode`."""
        self._begin("mode", path)
        file = self.file(path)
        return None if file is None else file.mode

    def modified(self, path: str) -> float | None:
        """See `FileStore.modified`."""
        self._begin("modified", path)
        file = self.file(path)
        return None if file is None else file.modified

    def owner(self, path: str) -> int | None:
        """See `FileStore.owner`."""
        self._begin("owner", path)
        place = self._place("look at", path)
        return self.owners.get(place, 0) if place in self._entries else None

    def exposed(self, path: str) -> str | None:
        """See `FileStore.exposed`."""
        self._begin("exposed", path)
        passed = ["/"]
        passed.append(self._place("look at", path, follow=True, passed=passed))
        for place in filter(self._entries.__contains__, passed):
            entry = self._entries[place]
            mode = entry.mode if isinstance(entry, MemoryFile) else self.folder_modes.get(place, 0o755)
            if self.owners.get(place, 0) != 0:
                return f"{place} belongs to the user {self.owners[place]}"
            if mode & 0o022 and not isinstance(entry, str):
                return f"others may write to {place} (mode {mode:04o})"
        return None

    def rename(self, path: str, name: str) -> bool:
        """See `FileStore.rename`."""
        self._begin("rename", path, name)
        place = self._place(f"give the name {name!r} to", path)
        if place not in self._entries:
            return False
        new = f"{place.rpartition('/')[0]}/{name}"
        if new in self._entries:
            raise _error(f"give the name {name!r} to", path, errno.EEXIST)
        for old in [entry for entry in self._entries if entry == place or entry.startswith(f"{place}/")]:
            moved = new + old.removeprefix(place)
            self._entries[moved] = self._entries.pop(old)
            if old in self.owners:
                self.owners[moved] = self.owners.pop(old)
        return True

    def remove(self, path: str) -> bool:
        """See `FileStore.remove`."""
        self._begin("remove", path)
        place = self._place("remove", path)
        if self._no_folder("remove", path, place) is None:
            return False
        del self._entries[place]
        self.owners.pop(place, None)
        return True

    def names(self, path: str) -> list[str]:
        """See `FileStore.names`."""
        self._begin("names", path)
        place = self._place("list", path, follow=True)
        below = place if place == "/" else f"{place}/"
        return sorted(
            entry.removeprefix(below)
            for entry in self._entries
            if entry.startswith(below) and entry != "/" and "/" not in entry.removeprefix(below)
        )

    def exists(self, path: str) -> bool:
        """See `FileStore.exists`."""
        self._begin("exists", path)
        return self._place("look for", path) in self._entries

    def read_link(self, path: str) -> str | None:
        """See `FileStore.read_link`."""
        self._begin("read_link", path)
        entry = self._entries.get(self._place("read the link", path))
        return entry if isinstance(entry, str) else None

    def remove_directory_if_empty(self, path: str) -> bool:
        """See `FileStore.remove_directory_if_empty`."""
        self._begin("remove_directory_if_empty", path)
        place = self._place("remove", path)
        if place not in self._entries or self._entries[place] is not None or self.names(place):
            return False
        del self._entries[place]
        self.owners.pop(place, None)
        return True

    def refuse_unwritable(self, path: str, *, size: int) -> None:
        """See `FileStore.refuse_unwritable`."""
        self._begin("refuse_unwritable", path)
        self._refuse_read_only("write below", self._place("write below", path, follow=True))

    def _no_folder(self, verb: str, path: str, place: str) -> MemoryFile | str | None:
        """Return the file or the link at the place of a path, or None; refuse a folder."""
        entry = self._entries.get(place)
        if entry is None and place in self._entries:
            raise _error(verb, path, errno.EISDIR)
        return entry

    def _refuse_read_only(self, verb: str, place: str) -> None:
        if any(place == folder or place.startswith(f"{folder}/") for folder in self.read_only):
            raise _error(verb, place, errno.EROFS)

    def sweep(self, path: str) -> bool:
        """See `FileStore.sweep`; a write to memory leaves nothing."""
        self._begin("sweep", path)
        self._place("clean up", path, follow=True)
        return False

    def is_locked(self, path: str) -> bool:
        """See `FileStore.is_locked`."""
        self._begin("is_locked", path)
        place = self._place("look for locks on", path, follow=True)
        return place in self._entries and place in {self._place("lock", locked, follow=True) for locked in self.locked}

    def _place(self, verb: str, path: str, *, follow: bool = False, passed: list[str] | None = None) -> str:
        """Return the path that `path` leads to; a link at its end is followed only if `follow` says so.

        The folders on the way are added to `passed`.
        """
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        done: list[str] = []
        ahead = path_parts(path)
        links = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                done = done[:-1]
                continue
            target = self._entries.get("/" + "/".join([*done, part]))
            if isinstance(target, str) and (ahead or follow):
                links += 1
                if links > MOST_LINKS:
                    raise _error(verb, path, errno.ELOOP)
                if target.startswith("/"):
                    done = []
                ahead += path_parts(target)
            else:
                done.append(part)
                if passed is not None:
                    passed.append("/" + "/".join(done))
        return "/" + "/".join(done)

    def _make_parents(self, verb: str, path: str) -> str:
        place = self._place(verb, path)
        self._refuse_read_only(verb, place)
        names = place.split("/")
        for depth in range(1, len(names)):
            parent = "/".join(names[:depth]) or "/"
            if self._entries.setdefault(parent, None) is not None:
                raise _error(verb, path, errno.ENOTDIR)
        return place


class MemoryFiles(Faulty, MemoryTree):
    """The files of a fake machine: `operations` records the calls and injects faults.

    By default, `fail_at` says that the disk is full.

    Calls of `tree`, which holds the same files, are no operations: they arrange and inspect.
    """

    def __init__(self, tree: MemoryTree | None = None) -> None:
        super().__init__(HostFileError(f"cannot go on: {os.strerror(errno.ENOSPC)}"))
        self.tree: MemoryTree = tree or MemoryTree()
        # Both have the same entries, and not copies of them.
        vars(self).update(vars(self.tree))

    def _begin(self, *call: str) -> None:
        self.operations.record(*call)


def _error(verb: str, path: str, number: int) -> HostFileError:
    return HostFileError(f"cannot {verb} {path}: {os.strerror(number)}")
