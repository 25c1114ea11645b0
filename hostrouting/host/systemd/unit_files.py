"""Unit files with their drop-ins, read without a running systemd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.host.units import MASK, UNIT_FOLDERS, reach, settings, template_of

if TYPE_CHECKING:
    from hostrouting.host.ports import FileStore

#: The unit that a boot starts, a link.
_DEFAULT = "default.target"
#: The settings that start other units.
_STARTS = ("Wants", "Requires", "BindsTo", "Upholds")
#: Every service waits for these, unless it has DefaultDependencies=no.
_EARLIEST = frozenset({"sysinit.target", "basic.target"})
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
#: For a file; the folder of a unit's drop-ins has two characters more.
_LONGEST_NAME = 253


class _Order(NamedTuple):
    """The order of a unit in a boot, from its files and links."""

    before: frozenset[str]
    after: frozenset[str]
    #: The units that it starts.
    starts: frozenset[str]
    is_default: bool


class UnitFiles:
    """Reads unit files with their drop-ins as systemd does, without specifiers and aliases."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def texts(self, unit: str) -> dict[str, str]:
        """Return the texts of the unit file and its drop-ins, by path; none without a unit file."""
        path = self.path(unit)
        return (
            {}
            if path is None
            else {file: self._text(file) for file in (path, *self._drop_ins(unit))}
        )

    def path(self, unit: str) -> str | None:
        """Return the path of the unit's file, or of the file of its template, or None.

        A name that systemd does not accept, such as a path, has none.
        """
        if not _UNIT_NAME.fullmatch(unit) or len(unit) > _LONGEST_NAME:
            return None
        for path in (f"{folder}/{name}" for name in _names(unit) for folder in UNIT_FOLDERS):
            if self._masks(path) or self._files.read(path) is not None:
                return path
        return None

    def is_masked(self, unit: str) -> bool:
        """Return True if the unit file is a link to /dev/null."""
        path = self.path(unit)
        return path is not None and self._masks(path)

    def is_enabled(self, unit: str) -> bool:
        """Return True if a link in /etc or /run starts the unit with another one."""
        if self.is_masked(unit):
            return False
        return any(
            unit in self._files.names(f"{folder}/{name}")
            for folder in UNIT_FOLDERS[:2]
            for name in self._files.names(folder)
            if name.endswith((".wants", ".requires"))
        )

    def requires(self, unit: str) -> frozenset[str]:
        """Return the units that starting this one starts and requires, by its files and links."""
        names = settings(self.texts(unit).values(), "Requires")["Requires"].split()
        for name in _names(unit):
            for folder in UNIT_FOLDERS:
                names += self._files.names(f"{folder}/{name}.requires")
        return frozenset(names)

    def ordered_before(self, unit: str) -> frozenset[str]:
        """Return the units that wait for this one at a boot, directly or through others.

        As systemd does, follow the orders in all unit files of a boot, and that of a target after
        the units that it starts.
        """
        loaded = self._loaded(unit)
        # The units that wait for each of those that a boot loads, and this one.
        waiting: dict[str, set[str]] = {name: set() for name in loaded}
        for name, order in loaded.items():
            waiting[name] |= order.before
            for earlier in order.after:
                waiting[earlier].add(name)
            # By default a target waits for the units that it starts, if they do not wait for it.
            if name.endswith(".target") and name not in _EARLIEST and order.is_default:
                for started in order.starts - order.before:
                    if loaded[started].is_default and name not in loaded[started].after:
                        waiting[started].add(name)
        return reach(unit, lambda ring: {after for name in ring for after in waiting.get(name, ())})

    def _loaded(self, unit: str) -> dict[str, _Order]:
        """Return the order of this unit, and of all units that it or another unit requires."""
        targets = (self._files.read_link(f"{folder}/{_DEFAULT}") for folder in UNIT_FOLDERS)
        default = next(filter(None, targets), _DEFAULT).rpartition("/")[2]
        loaded: dict[str, _Order] = {}
        ring = {unit, default}
        while ring:
            orders = {name: self._order(name) for name in ring}
            loaded |= orders
            ring = {
                name
                for order in orders.values()
                for name in order.before | order.after | order.starts
            }
            ring -= loaded.keys()
        return loaded

    def _order(self, unit: str) -> _Order:
        values = settings(
            self.texts(unit).values(), "Before", "After", "DefaultDependencies", *_STARTS
        )
        starts: set[str] = set()
        for setting in _STARTS:
            starts.update(values[setting].split())
        for name in _names(unit):
            for folder in UNIT_FOLDERS:
                starts.update(self._files.names(f"{folder}/{name}.wants"))
                starts.update(self._files.names(f"{folder}/{name}.requires"))
        return _Order(
            before=frozenset(values["Before"].split()),
            after=frozenset(values["After"].split()),
            starts=frozenset(starts),
            is_default=values["DefaultDependencies"] not in {"no", "false", "0", "off"},
        )

    def _drop_ins(self, unit: str) -> list[str]:
        """Return the drop-ins by file name: the more specific unit's, then the earlier folder's."""
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
