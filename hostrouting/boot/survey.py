"""What of ours, and of our predecessor's, is on the disk of a machine or image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.generation import generation_folders
from hostrouting.boot.layout import (
    READY_LINKS,
    SCRIPT_DIRECTORY,
    UNIT_DIRECTORY,
    BootFile,
    BootUnit,
    drop_in_of,
    links_of,
)
from hostrouting.config import OWN_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.host import FileStore

__all__ = ["Survey"]


class Survey:
    """Reads a `FileStore`, changes nothing, and needs no root: scripts and units are there for all to read."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def differs(self, file: BootFile) -> bool:
        """Whether writing it would change anything: a script without its run bit would hold every gate."""
        return (
            self._files.read_link(file.path) is not None
            or self._files.read(file.path) != file.content
            or self._files.mode(file.path) != file.mode
        )

    def missing_links(self, unit: BootUnit) -> list[str]:
        """The links of its [Install] section that are not there."""
        # Of a link's target systemd heeds only the name, and images and releases differ in how they write the rest.
        return [link for link in links_of(unit) if (self._files.read_link(link) or "").rpartition("/")[2] != unit.name]

    def required_units(self) -> list[str]:
        """The units that hostrouting-ready.service requires by links."""
        return self._files.names(READY_LINKS)

    def links_to(self, name: str) -> list[str]:
        """Every link that pulls in a unit, whoever asked for it."""
        return [link for link in self._links() if link.endswith(f"/{name}")]

    def foreign_links(self, *units: BootUnit) -> list[str]:
        """The links that upstream made of our units' names: all of `units`', of the others those that bind a machine.

        Where a machine *requires* one of these units, stopping that one stops the machine, and so does stopping
        another one of ours that it requires in turn. So they go before anything is stopped.
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
        """The units that have a drop-in of ours."""
        gates = (folder.removeprefix(f"{UNIT_DIRECTORY}/").removesuffix(".d") for folder in self._folders(".d"))
        return [gate for gate in gates if self._files.exists(drop_in_of(gate))]

    def folders(self) -> list[str]:
        """Every folder in which a run of ours may have been writing."""
        return [
            UNIT_DIRECTORY,
            *self._folders(".d", ".requires", ".wants"),
            SCRIPT_DIRECTORY,
            *generation_folders(self._files),
        ]

    def existing(self, paths: Iterable[str]) -> list[str]:
        """Those that are there, each once."""
        return [path for path in dict.fromkeys(paths) if self._files.exists(path)]

    def _links(self) -> list[str]:
        folders = list(self._folders(".requires", ".wants"))
        return [f"{folder}/{name}" for folder in folders for name in self._files.names(folder)]

    def _folders(self, *endings: str) -> Iterator[str]:
        for name in self._files.names(UNIT_DIRECTORY):
            if name.endswith(endings):
                yield f"{UNIT_DIRECTORY}/{name}"
