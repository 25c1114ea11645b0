"""Unit files with their drop-ins, read where no systemd runs that could be asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hostrouting.host.systemd.units import reach, template_of, words

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore

__all__ = ["UNIT_FOLDERS", "UnitFiles"]

#: Where systemd looks for units of the system, first come first served.
UNIT_FOLDERS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
#: Of a file; the folder of a unit's drop-ins ends in two characters more.
_LONGEST_NAME: Final = 253


class UnitFiles:
    """Reads unit files with their drop-ins as systemd would, as far as we need: no specifiers, no aliases."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def texts(self, unit: str) -> dict[str, str]:
        """The unit file and then each drop-in, text by path; nothing where there is no unit file."""
        path = self.path(unit)
        return {} if path is None else {found: self._text(found) for found in (path, *self._drop_ins(unit))}

    def path(self, unit: str) -> str | None:
        """Where the unit file is, the template's for an instance that has none of its own; None if nowhere.

        A name that systemd takes for none, as of a path, leads nowhere.
        """
        if not _UNIT_NAME.fullmatch(unit) or len(unit) > _LONGEST_NAME:
            return None
        candidates = (f"{folder}/{name}" for name in _names(unit) for folder in UNIT_FOLDERS)
        return next((path for path in candidates if self._masks(path) or self._files.read(path) is not None), None)

    def words(self, unit: str, section: str, key: str) -> list[str]:
        """The words of one setting, see `words`."""
        return words(self.texts(unit).values(), section, key)

    def is_masked(self, unit: str) -> bool:
        """Whether the unit file is a link to /dev/null."""
        path = self.path(unit)
        return path is not None and self._masks(path)

    def ordered_before(self, unit: str) -> frozenset[str]:
        """What the files say by `Before=`, followed from unit to unit."""
        return reach(unit, lambda ring: {after for name in ring for after in self.words(name, "Unit", "Before")})

    def _drop_ins(self, unit: str) -> list[str]:
        """The drop-ins, by file name: of two with one name the more specific unit's and the earlier folder's counts."""
        paths: dict[str, str] = {}
        for name in _names(unit):
            for folder in UNIT_FOLDERS:
                for entry in self._files.names(f"{folder}/{name}.d"):
                    if entry.endswith(".conf"):
                        paths.setdefault(entry, f"{folder}/{name}.d/{entry}")
        return [path for _, path in sorted(paths.items())]

    def _masks(self, path: str) -> bool:
        # By the link itself: in an image there is no /dev/null to be met.
        return self._files.read_link(path) == "/dev/null"

    def _text(self, path: str) -> str:
        return "" if self._masks(path) else (self._files.read(path) or b"").decode(errors="replace")


def _names(unit: str) -> list[str]:
    return [name for name in (unit, template_of(unit)) if name is not None]
