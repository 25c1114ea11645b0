"""The files of hostrouting, and of its predecessor, on the disk of a machine or image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.generation import generation_folders
from hostrouting.boot.layout import (
    NETWORKD_FOLDER,
    READY_LINKS,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    drop_in_of,
    links_of,
)
from hostrouting.boot.recorded import state_of
from hostrouting.config import OWN_UNITS
from hostrouting.host.units import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import FileStore

__all__ = ["Survey"]


class Survey:
    """Reads a `FileStore`, changes nothing, and needs no root: every user may read scripts and units."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def has(self, path: str) -> bool:
        """Return True if the path exists; a mask of an administrator does not count, and is never removed."""
        return self._files.exists(path) and self._files.read_link(path) != MASK

    def differs(self, file: BootFile) -> bool:
        """Return True if writing the file would change anything: a script without its run bit would hold every gate."""
        return state_of(self._files, file.path) != file.state

    def missing_links(self, unit: BootUnit) -> list[str]:
        """Return the links of its [Install] section that are missing."""
        # systemd reads only the name of a link's target; images and releases write the rest in different ways.
        return [link for link in links_of(unit) if (self._files.read_link(link) or "").rpartition("/")[2] != unit.name]

    def required_units(self) -> list[str]:
        """Return the units that hostrouting-ready.service requires by links."""
        return self._files.names(READY_LINKS)

    def links_to(self, name: str) -> list[str]:
        """Return every link that starts a unit with another one."""
        return [link for link in self._links() if link.endswith(f"/{name}")]

    def foreign_links(self, *units: BootUnit) -> list[str]:
        """Return upstream's links to our units: all links to `units`, and of the others those that bind a machine.

        If a machine *requires* one of these units, a stop of that unit stops the machine; so does a stop of any unit
        that it requires in turn. So these links are removed before any unit is stopped.
        """
        names = {unit.name for unit in units}
        wanted = {link for unit in units for link in links_of(unit)}
        foreign = []
        for link in self._links():
            folder, _, name = link.rpartition("/")
            binds = name in OWN_UNITS and folder.endswith(".requires") and folder != READY_LINKS
            if link not in wanted and (binds or name in names):
                foreign.append(link)
        return foreign

    def gates(self) -> list[str]:
        """Return the units that have a drop-in of hostrouting."""
        gates = (folder.removeprefix(f"{UNIT_DIRECTORY}/").removesuffix(".d") for folder in self._folders(".d"))
        return [gate for gate in gates if self.has(drop_in_of(gate))]

    def folders(self) -> list[str]:
        """Return every folder that a run may have written to."""
        return [
            UNIT_DIRECTORY,
            NETWORKD_FOLDER,
            *self._folders(".d", ".requires", ".wants"),
            SCRIPT_DIRECTORY,
            *generation_folders(self._files),
        ]

    def _links(self) -> list[str]:
        folders = list(self._folders(".requires", ".wants"))
        return [f"{folder}/{name}" for folder in folders for name in self._files.names(folder)]

    def _folders(self, *endings: str) -> Iterator[str]:
        for name in self._files.names(UNIT_DIRECTORY):
            if name.endswith(endings):
                yield f"{UNIT_DIRECTORY}/{name}"
