"""Unit files with their drop-ins, read without a running systemd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hostrouting.host.units import MASK, reach, template_of, words

if TYPE_CHECKING:
    from hostrouting.host.machine_ports import FileStore

__all__ = ["UNIT_FOLDERS", "UnitFiles"]

#: The folders in which systemd looks for units of the system; the first match counts.
UNIT_FOLDERS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
#: For a file; the folder of a unit's drop-ins has two characters more.
_LONGEST_NAME: Final = 253


class UnitFiles:
    """Reads unit files with their drop-ins as systemd does, without specifiers and aliases."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def texts(self, unit: str) -> dict[str, str]:
        """Return the text of the unit file and then of each drop-in, by path; nothing if there is no unit file."""
        path = self.path(unit)
        return {} if path is None else {found: self._text(found) for found in (path, *self._drop_ins(unit))}

    def path(self, unit: str) -> str | None:
        """Return the path of the unit file, for an instance without a file that of its template, or None.

        A name that systemd does not accept, such as a path, has none.
        """
        if not _UNIT_NAME.fullmatch(unit) or len(unit) > _LONGEST_NAME:
            return None
        candidates = (f"{folder}/{name}" for name in _names(unit) for folder in UNIT_FOLDERS)
        return next((path for path in candidates if self._masks(path) or self._files.read(path) is not None), None)

    def is_masked(self, unit: str) -> bool:
        """Return True if the unit file is a link to /dev/null."""
        path = self.path(unit)
        return path is not None and self._masks(path)

    def ordered_before(self, unit: str) -> frozenset[str]:
        """Return the units that this one is `Before=`, followed from unit to unit."""
        return reach(
            unit, lambda ring: {after for name in ring for after in words(self.texts(name).values(), "Before")}
        )

    def _drop_ins(self, unit: str) -> list[str]:
        """Return the drop-ins, one for each file name: the more specific unit's, then the earlier folder's."""
        paths: dict[str, str] = {}
        for name in _names(unit):
            for folder in UNIT_FOLDERS:
                for entry in self._files.names(f"{folder}/{name}.d"):
                    if entry.endswith(".conf"):
                        paths.setdefault(entry, f"{folder}/{name}.d/{entry}")
        return [path for _, path in sorted(paths.items())]

    def _masks(self, path: str) -> bool:
        # By the text of the link: an image has no /dev/null.
        return self._files.read_link(path) == MASK

    def _text(self, path: str) -> str:
        return "" if self._masks(path) else (self._files.read(path) or b"").decode(errors="replace")


def _names(unit: str) -> list[str]:
    return [name for name in (unit, template_of(unit)) if name is not None]
